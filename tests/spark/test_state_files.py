"""How large the state is, from the names and sizes of its files."""

import io
import json
import logging
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.protocol.errors import TransientError, WalCorruptError
from airflow_ft.protocol.model import StateSizes
from airflow_ft.spark.driver import state_reports
from airflow_ft.spark.state.files import drop_unnamed, sizes
from airflow_ft.spark.task.launcher import STATE
from tests.raising import raises


def _write(state: Path, name: str, size: int) -> None:
    file = state / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * size)


def _snapshot(state: Path, name: str, *shared: int) -> int:
    """As RocksDB's provider writes one that names files of these sizes; its own size."""
    metadata = {"sstFiles": [{"dfsSstFileName": f"{n}.sst", "sizeBytes": n} for n in shared], "numKeys": 1}
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("MANIFEST-000005", "m")
            archive.writestr("metadata", f"v1\n{json.dumps(metadata)}")
        data = buffer.getvalue()
    (state / name).parent.mkdir(parents=True, exist_ok=True)
    (state / name).write_bytes(data)
    return len(data)


def test_each_store_counts_its_changes_and_its_newest_snapshot(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for version in range(1, 8):
        _write(state, f"0/0/{version}.changelog", 10 * version)
        _write(state, f"0/0/.{version}.changelog.crc", 1000)
        _write(state, f"0/1/left-keys/{version}_0a-1b.changelog", version)
        _write(state, f"1/0/{version}.delta", 100)
    for name in ("0/_metadata/metadata", "0/0/_metadata/schema", "0/0/SSTs/3.sst", "0/1/left-keys/SSTs/4.sst"):
        _write(state, name, 5000)
    _snapshot(state, "0/0/2.zip", 3000)
    whole = _snapshot(state, "0/0/4.zip", 300, 30)
    whole += _snapshot(state, "0/1/left-keys/5_0a-1b.zip")
    _write(state, "1/0/3.snapshot", 700)

    # Version 6: changes of 60, 6 and 100 bytes; snapshots of the versions 4, 5 and 3.
    assert sizes(tmp_path.as_uri(), 5) == StateSizes(166, whole + 330 + 700, 3)
    assert sizes(tmp_path.as_uri(), 0) == StateSizes(111, 0, 1), "no snapshot is as old as that"
    assert sizes(tmp_path.as_uri(), 7) is None, "there is no such version, or none any more"
    assert sizes((tmp_path / "state").as_uri(), 5) is None, "no state"


def test_without_changelog_each_version_is_a_snapshot(tmp_path: Path) -> None:
    whole = _snapshot(tmp_path / "state", "0/0/1.zip", 50)
    assert sizes(tmp_path.as_uri(), 0) == StateSizes(0, whole + 50, 0)


def test_what_is_removed_meanwhile_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path / "state", "0/0/1.changelog", 10)
    (tmp_path / "state" / "0" / "0" / "1.zip").symlink_to(tmp_path / "nowhere")
    assert sizes(tmp_path.as_uri(), 0) is None


@pytest.mark.parametrize("data", [b"", b"PK", b"cut", b"flipped", b"moved", b"encrypted", b"no metadata", b"[]", b"{}"])
def test_a_damaged_snapshot_is_named(tmp_path: Path, data: bytes) -> None:
    _write(tmp_path / "state", "0/0/1.changelog", 10)
    _snapshot(tmp_path / "state", "0/0/1.zip", 50)
    file = tmp_path / "state/0/0/1.zip"
    whole = file.read_bytes()
    if data == b"cut":
        data = whole[:20]
    elif data == b"flipped":
        data = whole.replace(b"sstFiles", b"sstfiles")
    elif data == b"moved":
        data = whole[:-6] + b"\xff\xff\xff\x7f" + whole[-2:]
    elif data == b"encrypted":
        data = whole.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")
    elif data != b"PK" and data:
        with zipfile.ZipFile(file, "w") as archive:
            name = "another" if data == b"no metadata" else "metadata"
            archive.writestr(name, b"v1\n" + data.replace(b"{}", b'{"sstFiles": [{"sizeBytes": 7}]}'))
        data = file.read_bytes()
    assert data != whole
    file.write_bytes(data)
    for read in (lambda: sizes(tmp_path.as_uri(), 0), lambda: drop_unnamed(tmp_path.as_uri())):
        with raises(WalCorruptError, "state_damaged", path=file.as_uri()):
            read()


def test_the_line_of_the_driver_is_read_by_its_task() -> None:
    match = STATE.match(f"state after batch 41: {StateSizes(1, 2_000_000, 3)}")
    assert match is not None and [int(each) for each in match.groups()] == [1, 2_000_000, 3]


@pytest.mark.parametrize("error", [PermissionError("not yours"), TransientError("no name node.", remedy="wait.")])
def test_state_that_cannot_be_measured_ends_nothing(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(state_reports, "sizes", fail)
    location: Any = SimpleNamespace(uri=tmp_path.as_uri())
    unused: Any = None
    with caplog.at_level(logging.WARNING, "airflow_ft.spark"):
        state_reports.StateReports(unused, unused, location).report(7, 8)
    assert f"the size of the state after batch 7 is unknown: {error}" in caplog.messages
