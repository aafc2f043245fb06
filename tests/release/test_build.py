"""What is built of a commit is the same, whoever builds it, and holds what was committed alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.release.build import ROOT, build, unexpected

pytestmark = pytest.mark.slow


@pytest.mark.sampled(among="slow checks")
def test_two_clones_build_the_same_bytes_of_what_belongs_there(tmp_path: Path) -> None:
    """Elsewhere, with other modes, in another time zone, and beside files that nobody has committed."""
    other = tmp_path / "an other place"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(other)], check=True, umask=0o077)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=other, check=True, capture_output=True, text=True
    ).stdout.strip()
    (other / "airflow_ft" / "left_over.py").write_text("")
    for file in other.rglob("*.py"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    command = [sys.executable, "-m", "tools.release.build", str(tmp_path / "second")]
    environment = {**os.environ, "TZ": "Asia/Tokyo", "LANG": "C", "PYTHONHASHSEED": "7"}
    with subprocess.Popen(command, cwd=other, env=environment, umask=0o007) as beside:
        first = build(tmp_path / "first", commit=commit)
    assert beside.returncode == 0
    assert [file.suffix for file in first] == [".whl", ".gz"]
    for file in first:
        assert file.read_bytes() == (tmp_path / "second" / file.name).read_bytes(), file.name
    assert unexpected(first, commit=commit) == []


@pytest.mark.sampled(among="slow checks")
def test_times_and_owners_are_nobodys(tmp_path: Path) -> None:
    """Of the machine on which it was built nothing is told; two builds a day apart would else differ."""
    wheel, archive = build(tmp_path)
    with tarfile.open(archive) as tar:
        (time,) = {int(member.mtime) for member in tar}
        assert {(member.uid, member.gid, member.uname, member.gname) for member in tar} == {(0, 0, "", "")}
        assert [member.name for member in tar] == sorted(tar.getnames())
    with zipfile.ZipFile(wheel) as packed:
        assert "airflow_ft/docs/reference/sinks.md" in packed.namelist(), "`airflow ft docs` has it"
        assert len({entry.date_time for entry in packed.infolist()}) == 1
    assert int.from_bytes(archive.read_bytes()[4:8], "little") == time, "gzip's own"
