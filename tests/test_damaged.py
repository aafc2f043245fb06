"""Bytes that have changed where they lie, in a row or in a file, are told by an error that names the place."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_ft import state
from airflow_ft.protocol.errors import AirflowFtError, StoreBehindSinkError
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.spark.savepoints.metadata import read_metadata, verify
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.admin.conftest import ft, parser, world
from tests.admin.scene import prepared
from tests.protocol.world import PIPELINE, World
from tests.spark.test_savepoints import saved_scene
from tests.state.scene import pipeline

__all__ = ["ft", "parser", "world"]  # fixtures

pytestmark = pytest.mark.airflow

bounded = settings(
    max_examples=150, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
KEPT = {"schema_version", "sqlite_sequence"}


@st.composite
def damaged(draw: Callable[..., Any], data: bytes) -> bytes:
    """Cut off, with other bytes in the middle, without some, with zeros as a disk leaves them, or swapped for JSON."""
    at = draw(st.integers(0, max(0, len(data) - 1)))
    length = draw(st.integers(1, 8))
    kind = draw(st.sampled_from(["cut", "change", "remove", "zeros", "other", "digit"]))
    if kind == "cut":
        return data[:at]
    if kind == "other":
        return draw(st.sampled_from([b"", b"{}", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"\0" * 20]))
    if kind == "remove":
        return data[:at] + data[at + length :]
    put = {"change": draw(st.binary(min_size=length, max_size=length)), "zeros": b"\0" * length, "digit": b"9"}[kind]
    return data[:at] + put + data[at + len(put) :]


@contextmanager
def other_bytes(file: Path, data: bytes) -> Iterator[None]:
    whole = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(whole)


def cells(database: Path) -> list[tuple[str, str, int, bytes]]:
    """Every text that is stored: table, column, row, what it is."""
    found = []
    with closing(sqlite3.connect(database)) as db:
        for (table,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if table not in KEPT]
            for column in columns:
                rows = db.execute(f"SELECT rowid, CAST({column} AS BLOB) FROM {table} WHERE typeof({column}) = 'text'")
                found += [(table, column, row, text) for row, text in rows]
    return found


@contextmanager
def other_text(database: Path, table: str, column: str, row: int, text: bytes, whole: bytes) -> Iterator[None]:
    def put(data: bytes) -> None:
        with closing(sqlite3.connect(database)) as db:
            db.executescript("PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF")
            db.execute(f"UPDATE OR IGNORE {table} SET {column} = CAST(? AS TEXT) WHERE rowid = ?", (data, row))
            db.commit()

    put(text)
    try:
        yield
    finally:
        put(whole)


def looked_at(ft: Any) -> list[str]:
    """What commands say that fail; they raise what is no error of ours."""
    said = []
    for command in (
        ("pipelines",),
        ("checkpoints", PIPELINE, "-o", "json"),
        ("events", PIPELINE),
        ("show", PIPELINE, "1"),
        ("spec", PIPELINE),
        ("in-doubt", PIPELINE),
        ("verify", PIPELINE, "1"),
    ):
        try:
            ft(*command)
        except SystemExit as error:
            said.append(str(error))
    return said


@pytest.mark.sampled(among="slow checks")
def test_a_text_of_the_decision_log(world: World, ft: Any) -> None:
    prepared(world, 2)
    run = RunKey("dag", "run-2")
    with new_epoch(world.store, PIPELINE, Worker("d/stage"), "a test", lease_seconds=60) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, run, spec={"job": "jobs:Orders"})
        world.store.record_lags(PIPELINE, epoch, 0, [Lag("orders", Unit.RECORDS, 1200)])
        world.store.ask(PIPELINE, RequestKind.STOP, {"drain": True}, "a person")
        database = world.folder / "ft.db"
        every = cells(database)
    assert {"checkpoint", "event", "lease", "pipeline", "request", "run", "source_lag", "spec", "vote"} <= {
        table for table, *_ in every
    }

    said: list[str] = []

    @bounded
    @given(st.data())
    def look(data: st.DataObject) -> None:
        table, column, row, whole = data.draw(st.sampled_from(every))
        with other_text(database, table, column, row, data.draw(damaged(whole)), whole):
            said.extend(looked_at(ft))
            with suppress(AirflowFtError):
                world.store.open_requests(PIPELINE)
            with suppress(AirflowFtError):
                world.store.run(PIPELINE, run)

    look()
    assert any("the decision log is damaged" in text for text in said)


def broken_files(folder: Path, read: Callable[[], object]) -> list[str]:
    """What `read` says when a file in the folder has other bytes; it raises what is no error of ours."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    said = []

    @bounded
    @given(st.data())
    def look(data: st.DataObject) -> None:
        file = data.draw(st.sampled_from(files))
        with other_bytes(file, data.draw(damaged(file.read_bytes()))):
            try:
                read()
            except AirflowFtError as error:
                said.append(str(error))

    look()
    return said


def test_a_file_of_the_write_ahead_log(tmp_path: Path) -> None:
    folder = SegmentFolder(str(tmp_path), "orders", 3, 7, 0)
    table = pa.table({"id": pa.array(range(100)), "note": pa.array(["a text"] * 100)})
    segment = write_segment(folder, 5, {"orders": table}, {"k": {"end": 1}})

    def read() -> None:
        opened = open_wal().open(segment)
        assert [row for file in opened.files("orders") for row in opened.batches("orders", file)]

    said = broken_files(tmp_path, read)
    assert said and all("manifest.json" in text or ".parquet" in text for text in said)


@pytest.mark.slow
def test_a_file_of_operator_state(tmp_path: Path) -> None:
    """Spark's own files carry no checksum of ours."""
    with pipeline(tmp_path) as scene:
        scene.confirmed({"a": 1, "b": 1})
        scene.counts.snapshot(0, {"a": 1, "b": 1})
        scene.confirmed({"a": 2})

        def read() -> None:
            with state.open(PIPELINE, store=scene.store) as found:
                for operator in found.operators():
                    found.get(operator.id, "a")
                    found.count(operator.id)

        said = broken_files(scene.counts.path, read)
    unknown = "`dataframe(spark, operator)`"  # bytes that may be of a later Spark
    assert any(str(tmp_path) in text for text in said)
    assert not [text for text in said if not (PIPELINE in text or str(tmp_path) in text or unknown in text)]


def test_a_savepoint(tmp_path: Path) -> None:
    with saved_scene(tmp_path) as scene:
        uri, _ = take(scene.store, PIPELINE, str(tmp_path / "savepoints"), "a test")
    said = broken_files(tmp_path / "savepoints", lambda: verify(uri, read_metadata(uri)))
    assert said and all(uri in text for text in said)


@pytest.mark.parametrize("column", ["kind", "counts", "detail"])
@bounded
@given(data=st.data())
def test_a_marker_in_the_ledger_of_a_database(column: str, data: st.DataObject) -> None:
    row = ["an installation", "committed", 1, 2, "a digest", '{"orders": 10}', '{"attempts": [1, 2]}']
    place = {"kind": 1, "counts": 5, "detail": 6}[column]
    row[place] = data.draw(damaged(str(row[place]).encode())).decode("latin-1")
    with suppress(StoreBehindSinkError):
        marker = Marker.stored(row, "the ledger")
        assert isinstance(marker.counts, dict) and isinstance(marker.detail, dict)
