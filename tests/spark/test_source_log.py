"""Spark's log of the files that it has read."""

import json
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.spark.state import source_log
from airflow_ft.wal.filesystem import filesystem
from tests.raising import raises


def _write(folder: Path, name: str, *ids: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"path": f"s3a://b/in/f%20{n}.json", "timestamp": 1000 + n, "batchId": n}) for n in ids]
    (folder / name).write_text("\n".join(["v1", *lines]))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "sources" / "0"
    _write(folder, "9.compact", *range(10))
    for n in (8, 10, 11):
        _write(folder, str(n), n)
    return tmp_path


def _place(n: int) -> str:
    return f"s3a://b/in/f {n}.json"


def test_the_entries_of_a_batch_are_those_of_its_ids(log: Path) -> None:
    files = filesystem(str(log))
    assert source_log.entries(files, str(log), "0", 8, 10) == {_place(9): 1009, _place(10): 1010}
    assert source_log.entries(files, str(log), "0", 11, 11) == {}
    with raises(WalCorruptError, "state_files_missing", number=12):
        source_log.entries(files, str(log), "0", 10, 12)


def test_all_that_was_read_is_known_to_a_log_that_begins_anew(log: Path) -> None:
    files = filesystem(str(log))
    read = source_log.all_entries(files, str(log), "0", 10)
    assert [entry["batchId"] for entry in read] == list(range(11))
    assert [source_log.count(files, str(log), "0", last) for last in (10, -1)] == [11, 0]
    (log / "sources/1").mkdir()
    (log / "sources/1/0").write_bytes(source_log.as_read_before(read))
    assert source_log.entries(files, str(log), "1", source_log.NOTHING_READ, 0) == {}
    assert len(source_log.all_entries(files, str(log), "1", 0)) == 11


@pytest.mark.parametrize(
    ("logged", "listed"),
    [
        ("file:///in/a%20b%23.json", "file:/in/a b#.json"),
        ("hdfs://name:8020/in/a.json", "hdfs://name:8020/in/a.json"),
        ("/in/a.json", "file:/in/a.json"),
    ],
)
def test_a_place_has_one_spelling(logged: str, listed: str) -> None:
    assert source_log.place(logged, encoded=True) == source_log.place(listed)
