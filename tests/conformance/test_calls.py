"""The calls that the kit sees: changes of files and statements of SQLite, before which a process is killed or waits."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from airflow_ft.testing.calls import listening


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
