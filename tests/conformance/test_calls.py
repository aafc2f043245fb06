"""The calls that the kit sees: changes of files and statements of SQLite, before which a process is killed or waits."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.testing.calls import listening
from airflow_ft.testing.kills import calls_at
from airflow_ft.testing.processes import _StoppingWal
from airflow_ft.wal.writer import SegmentFolder, write_segment


def test_what_a_listener_reads_itself_is_not_reported(tmp_path: Path) -> None:
    """Else a listener that reads the watched target would call itself, down to the limit of recursion."""
    seen: list[str] = []

    def read() -> None:
        with closing(sqlite3.connect(tmp_path / "of-the-listener.db")) as db:
            db.execute("SELECT 1")
        seen.append("call")

    with listening(read, str(tmp_path)):
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute("SELECT 1")
            db.execute("SELECT 2")
        (tmp_path / "file").touch()
    assert seen == ["call"] * 3


@pytest.mark.parametrize("first", range(3))
def test_a_sample_of_calls_has_requests_and_replies(first: int) -> None:
    assert {at % 2 for at in calls_at((first, 24), lambda at: at < 120)} == {0, 1}


def test_late_calls_of_a_long_step_are_tried() -> None:
    tried = [*calls_at((0, 1), lambda at: at < 10_000, 64)]
    assert tried[:65] == [*range(65)] and tried[-1] > 8_000 and len(tried) < 100


@pytest.mark.parametrize("readers", ["one", "several"])
def test_a_row_is_reached_in_a_later_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readers: str) -> None:
    """A sink may open its log once for all passes, or once for each."""
    stopped: list[int] = []
    monkeypatch.setattr("airflow_ft.testing.processes.os.kill", lambda *_: stopped.append(wal.seen))
    segment = write_segment(SegmentFolder(str(tmp_path), "orders", 1, 1, 1), 1, {"rows": pa.table({"id": [1, 2, 3]})})
    wal = _StoppingWal(signal.SIGKILL, 4, 1)
    reader = wal.open(segment)
    for _ in range(3):
        each = wal.open(segment) if readers == "several" else reader
        for file in each.files("rows"):
            list(each.batches("rows", file))
    assert stopped == [4]
