"""Spark's jars as one archive on a real HDFS: uploaded once, as a whole, under a name of their contents."""

import io
import json
import os
import uuid
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_parser import get_parser

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.spark.session import yarn_archive
from airflow_ft.spark.session.yarn_archive import ARCHIVE, upload
from airflow_ft.spark.task.doctor import examine_spark
from airflow_ft.wal.hdfs import HdfsFileSystem
from tools.servers import Hdfs

pytestmark = [pytest.mark.sampled(among="HDFS"), pytest.mark.server, pytest.mark.timeout(300)]
FILES = HdfsFileSystem()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark with two jars."""
    (tmp_path / "jars").mkdir()
    for name in ("spark-core_2.13-4.2.0.jar", "other-1.jar"):
        (tmp_path / "jars" / name).write_bytes(os.urandom(3_000_000))
    (tmp_path / "jars" / "notes.txt").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(hdfs: Hdfs) -> str:
    return f"{hdfs.url}/{uuid.uuid4().hex}"


def test_the_same_jars_are_uploaded_once(home: Path, folder: str) -> None:
    made = upload(home, folder)
    assert made.uploaded and (made.jars, made.bytes) == (2, 6_000_000)
    assert not upload(home, folder).uploaded and upload(home, folder).uri == made.uri
    with zipfile.ZipFile(io.BytesIO(FILES.read(made.uri))) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            jar.name: jar.read_bytes() for jar in home.glob("jars/*.jar")
        }
    (home / "jars" / "other-1.jar").write_bytes(b"another release")
    changed = upload(home, folder)
    assert changed.uploaded and changed.uri != made.uri, "applications may still use the first one"


def test_of_many_at_once_one_uploads(home: Path, folder: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda _: upload(home, folder), range(6)))
    assert [each.uploaded for each in made].count(True) == 1 and len({each.uri for each in made}) == 1
    assert len(FILES.names(folder)) == 1, "nothing is left of the others"


def test_an_upload_that_breaks_off_leaves_nothing(home: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(jars: Any, target: Any) -> None:
        target.write(b"PK")
        raise OSError("the disk of the jars is gone")

    monkeypatch.setattr(yarn_archive, "_write", write)
    with pytest.raises(OSError):
        upload(home, folder)
    assert FILES.names(folder) == []


def test_the_doctor_accepts_the_setting_that_the_command_prints(
    home: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = get_parser()
    for uploaded in (True, False):
        args = parser.parse_args(["ft", "yarn-archive", "--to", folder, "-o", "json"])
        args.func(args)
        [found] = json.loads(capsys.readouterr().out)
        assert found["uploaded"] is uploaded

    def verdict(uri: str) -> Verdict:
        return next(each.verdict for each in examine_spark("yarn", [], {ARCHIVE: uri}) if each.name == "spark jars")

    assert verdict(found["archive"]) is Verdict.OK
    assert verdict(f"{folder}/other.zip") is Verdict.PROBLEM
