"""`airflow_ft.deliver`: rows of this process into SQLite, once for each position."""

from __future__ import annotations

import errno
import json
import logging
import re
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import airflow_ft
from airflow_ft.pipeline.actions.verifying import verify_participant
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.given_rows import GivenRows
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    DeclinedError,
    ExternalRowsError,
    SinkUnavailableError,
    StageError,
    StorageUnavailableError,
)
from airflow_ft.protocol.lease import Worker, take_epoch
from airflow_ft.protocol.model import ParticipantPlan, RunKey, SparkPosition
from airflow_ft.protocol.position import SOURCE
from airflow_ft.protocol.verify import Delivered, SinkReport, verify
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.store import open_store
from airflow_ft.wal import incoming
from airflow_ft.wal.local import LocalFileSystem
from tests.raising import raises

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "what": ["a", "b"]})


class Shop:
    """A SQLite file, and a pipeline into it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, f"sqlite:///{folder}/ft.db"

    def deliver(self, rows: object, position: object, *sinks: str, wal: str = "wal", **more: Any) -> dict[str, Any]:
        return airflow_ft.deliver(
            rows,
            pipeline="orders",
            position=position,
            sinks={name: airflow_ft.SqliteSink(table=name, conn_id="shop") for name in sinks or ("orders",)},
            store=self.store,
            wal_root=str(self.folder / wal),
            restart=airflow_ft.NoRestart(),
            **more,
        )

    def rows(self, table: str = "orders") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
            return shop.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()

    def states(self) -> list[str]:
        with closing(open_store(self.store)) as store:
            return [str(checkpoint.state) for checkpoint in reversed(store.checkpoints("orders"))]


@contextmanager
def logged() -> Iterator[list[str]]:
    """Collect lines of this package's log. Airflow replaces the root's handlers meanwhile, also that of `caplog`."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler, logger = Lines(), logging.getLogger("airflow_ft")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}))
    return Shop(tmp_path)


def folder(at: Path, *tables: pa.Table, name: str = "part-{:05}.parquet") -> Path:
    at.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, at / name.format(number))
    return at


def test_a_position_is_delivered_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_CONF", '{"spark.driver.memory": "1g"}')  # concerns other pipelines
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__KEEP_SESSION", "60")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_JARS", "/jars")
    first = shop.deliver(ROWS, "2026-11-24")
    assert (first["numbers"], first["rows"], first["checkpoint"], first["repeated"]) == ([1], 2, 1, False)
    again = shop.deliver(ROWS, "2026-11-24")
    assert (again["numbers"], again["rows"], again["checkpoint"], again["repeated"]) == ([], 0, 1, True)
    assert shop.deliver(ROWS.slice(0, 0), "2026-11-23")["checkpoint"] == 2, "of text only equality counts"
    assert shop.rows() == [(1, "a"), (2, "b")]


def test_the_script_of_the_docs_delivers_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", shop.store)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__WAL_ROOT", str(shop.folder / "wal"))
    page = (Path(airflow_ft.__file__).parents[1] / "docs/sinks.md").read_text()
    [code] = re.findall(r"```python\n# try_sink.py\n(.*?)```", page, re.DOTALL)
    for repeated in (False, True):
        exec(compile(code, "try_sink.py", "exec"), {"__name__": "__main__"})
        assert f"'repeated': {repeated}" in capsys.readouterr().out
    assert shop.rows() == [(1, "ann"), (2, "bob")]


def test_everything_that_has_rows_is_taken(shop: Shop, tmp_path: Path) -> None:
    read_once = pa.RecordBatchReader.from_batches(ROWS.schema, ROWS.to_batches())
    given = [
        ROWS,
        ROWS.to_pandas(),
        read_once,
        ROWS.to_batches()[0],
        folder(tmp_path / "in", ROWS.slice(0, 1), ROWS.slice(1)),
        str(folder(tmp_path / "file", ROWS, name="one.parquet") / "one.parquet"),
    ]
    for number, rows in enumerate(given):
        assert shop.deliver(rows, number)["rows"] == 2
    assert shop.rows() == [(1, "a")] * len(given) + [(2, "b")] * len(given)


def test_an_index_of_pandas_is_columns_or_refused(shop: Shop) -> None:
    frame = ROWS.to_pandas()
    text = frame.columns[1]
    shop.deliver(frame.set_index(text)[["id"]], 1)
    assert shop.rows() == [(1, "a"), (2, "b")]
    assert shop.deliver(frame[frame["id"] > 1], 2)["rows"] == 1, "what a filter leaves of positions is no value"
    for unfit in (frame.set_index([text, "id"]).rename_axis([None, None]), frame.set_index(pd.Index(["x", "y"]))):
        with raises(ExternalRowsError, "rows_unreadable"):
            shop.deliver(unfit, 3)
    with raises(ConfigurationError, "argument_invalid"):
        shop.deliver(frame["id"], 3)


@pytest.mark.parametrize(
    ("rows", "error", "code"),
    [([1], ConfigurationError, "argument_invalid"), (ROWS.slice(0, 1), DeclinedError, "row_refused")],
)
def test_a_script_ends_with_the_message(shop: Shop, rows: Any, error: type[AirflowFtError], code: str) -> None:
    with closing(sqlite3.connect(shop.folder / "shop.db")) as db:
        db.execute("CREATE TABLE orders (id INTEGER CHECK (id > 1), what TEXT)")
    with raises(error, code, **({} if code == "row_refused" else {"argument": "rows", "value": "a list"})) as caught:
        shop.deliver(rows, 1)
    assert caught.value is not None
    shown = [each for each in traceback.extract_tb(caught.value.__traceback__) if "/airflow_ft/" in each.filename]
    assert len(shown) == 1 and (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_an_error_keeps_an_exception_of_the_caller(shop: Shop) -> None:
    first = KeyError("of the caller")
    for function, given in (
        (airflow_ft.run, {}),
        (airflow_ft.dry_run, {}),
        (airflow_ft.deliver, {"rows": [1], "position": 1}),
    ):
        with raises(ConfigurationError, "argument_unknown") as caught:
            try:
                raise first
            except KeyError:
                function(**given, no_such_argument=1)
        error = caught.value
        assert (error.__cause__, error.__context__, error.__suppress_context__) == (None, first, False)
        shown = [each for each in traceback.extract_tb(error.__traceback__) if "/airflow_ft/" in each.filename]
        assert len(shown) == 1


def test_the_plan_is_logged_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"conn_type": "sqlite", "host": str(shop.folder / "other.db")}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(other))
    sinks = {name: airflow_ft.SqliteSink(table=name, conn_id=name) for name in ("shop", "other")}
    with logged() as lines:
        airflow_ft.deliver(
            dict.fromkeys(sinks, ROWS),
            pipeline="orders",
            position=1,
            sinks=sinks,
            store=shop.store,
            wal_root=str(shop.folder / "wal"),
        )
    plans = [line for line in lines if line.startswith("plan: ")]
    assert plans and len(plans) == len(set(plans))


def test_the_plan_is_logged_although_the_first_sink_is_away(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise ConfigurationError("not this time.", code="option_invalid", remedy="Wait.")

    monkeypatch.setattr("airflow_ft.pipeline.steps.prepare", away)
    with logged() as lines, raises(ConfigurationError, "option_invalid"):
        shop.deliver(ROWS, 1)
    assert any(line.startswith("plan: ") for line in lines)


@pytest.mark.parametrize("as_folder", [True, False])
def test_several_sinks_are_one_checkpoint(shop: Shop, tmp_path: Path, as_folder: bool) -> None:
    rows: dict[str, Any] = {"orders": ROWS, "large": ROWS.slice(1)}
    if as_folder:
        for name, table in rows.items():
            folder(tmp_path / "in" / name, table)
    found = shop.deliver(tmp_path / "in" if as_folder else rows, 1, "orders", "large")
    assert (found["numbers"], found["rows"]) == ([1], 3)
    assert (shop.rows(), shop.rows("large")) == ([(1, "a"), (2, "b")], [(2, "b")])


def test_the_error_of_the_last_retry_says_how_to_continue(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise SinkUnavailableError("the server is down.", code="server_unreachable", remedy="Start it.")

    for step, has_published in (("recover", False), ("prepare", True)):
        with monkeypatch.context() as patch, pytest.raises(SinkUnavailableError) as refused:
            patch.setattr(f"airflow_ft.pipeline.steps.{step}", away)
            shop.deliver(ROWS, 1)
        assert ("same position" in refused.value.remedy) is has_published
    assert shop.deliver(ROWS, 1)["rows"] == 2
    assert shop.rows() == [(1, "a"), (2, "b")]


def test_rows_that_another_sink_declined_are_not_called_kept(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter(
        [
            SinkUnavailableError("the server is down.", code="server_unreachable", remedy="Start it."),
            DeclinedError("no.", remedy="Correct it."),
        ]
    )

    def failing(*_: Any, **__: Any) -> None:
        raise next(errors)

    for step in ("prepare", "commit"):
        monkeypatch.setattr(f"airflow_ft.pipeline.steps.{step}", failing)
    monkeypatch.setattr("airflow_ft.pipeline.run.wait_after", lambda *_: None)
    with pytest.raises(SinkUnavailableError) as refused:
        shop.deliver(ROWS, 1)
    assert "kept" not in refused.value.remedy


@pytest.mark.parametrize(
    ("last", "position", "code"),
    [
        (2, 1, "position_older"),
        ({"start": 0, "end": 10}, {"start": 9, "end": 20}, "position_older"),
        ({"start": "2026-11-24", "end": "2026-11-25"}, "2026-11-25", "position_kind_changed"),
        ({"start": "2026-11-24", "end": "2026-11-25"}, {"start": 1, "end": 2}, "position_kind_changed"),
    ],
)
def test_what_cannot_follow_the_last_position_is_refused(shop: Shop, last: object, position: object, code: str) -> None:
    shop.deliver(ROWS, last)
    with raises(ConfigurationError, code, pipeline="orders", position=position):
        shop.deliver(ROWS, position)
    assert shop.rows() == [(1, "a"), (2, "b")]
    assert shop.states() == ["COMPLETED"], "no number was drawn"


def test_an_interval_says_as_of_when_everything_is_there(shop: Shop) -> None:
    end = datetime(2026, 11, 25, tzinfo=UTC)
    shop.deliver(ROWS, {"start": "2026-11-24T00:00:00Z", "end": "2026-11-25T00:00:00+00:00"})
    again = shop.deliver(ROWS, {"start": datetime(2026, 11, 24, tzinfo=UTC), "end": end})
    assert again["repeated"]
    with closing(open_store(shop.store)) as store:
        assert store.read_as_of("orders", 1) == end


def test_what_a_sink_refuses_is_given_again_before_the_next(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.deliver(ROWS, 1)

    def refuse(*_: Any) -> None:
        raise DeclinedError("no.", code="value_unfit")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteParticipant, "prepare", refuse)
        with raises(DeclinedError, "value_unfit"):
            shop.deliver(ROWS, 2)
    with raises(ConfigurationError, "position_skipped", skipped=2, position=3):
        shop.deliver(ROWS, 3)
    assert not shop.deliver(ROWS.slice(1), 2)["repeated"]
    shop.deliver(ROWS, 3)
    assert [id for id, _ in shop.rows()] == [1, 1, 2, 2, 2]


def interval(start: int, end: int) -> dict[str, int]:
    return {"start": start, "end": end}


@pytest.mark.parametrize(
    "unfit", [ROWS.rename_columns(["id", "strange"]), pd.DataFrame({"id": [1, "x"]})], ids=["unfit", "unreadable"]
)
@pytest.mark.parametrize(
    ("refused", "skips", "others"),
    [
        (2, 3, ()),
        (20, 21, (2, 3)),
        (interval(1, 2), interval(2, 3), ()),
        (interval(2, 3), interval(3, 4), (interval(1, 2),)),
        ("b", None, ("c",)),
        (2, None, (2,)),
        (interval(1, 2), None, (interval(1, 3), interval(3, 4))),
    ],
)
def test_unpublished_rows_are_given_again_before_later_ones(
    shop: Shop, refused: Any, skips: Any, others: Sequence[Any], unfit: Any
) -> None:
    """Otherwise their position would be too old for ever."""
    shop.deliver(ROWS.slice(0, 0), {int: 1, str: "a"}.get(type(refused), interval(0, 1)))
    with pytest.raises(AirflowFtError):
        shop.deliver(unfit, refused)
    if skips is not None:
        with raises(ConfigurationError, "position_skipped", skipped=refused, position=skips):
            shop.deliver(ROWS, skips)
    for position in others:
        assert not shop.deliver(ROWS.slice(0, 0), position)["repeated"]
    if skips is not None:
        shop.deliver(ROWS, refused)
        shop.deliver(ROWS.slice(0, 0), skips)
        assert shop.rows() == [(1, "a"), (2, "b")]


def refuse_rows(shop: Shop, *positions: object) -> None:
    for position in positions:
        with pytest.raises(AirflowFtError):
            shop.deliver(ROWS.rename_columns(["id", "strange"]), position)


def test_unpublished_rows_are_known_beside_newer_ones(shop: Shop) -> None:
    shop.deliver(ROWS, interval(0, 1))
    refuse_rows(shop, interval(5, 6), interval(2, 3))
    shop.deliver(ROWS, interval(2, 4))  # too late for 2 to 3
    with raises(ConfigurationError, "position_skipped", skipped=interval(5, 6)):
        shop.deliver(ROWS, interval(7, 8))


def test_the_fix_for_a_skipped_interval_lets_this_one_follow(shop: Shop) -> None:
    """Without rows, the whole refused interval would make this one too old for ever."""
    shop.deliver(ROWS, interval(22, 23))
    refuse_rows(shop, interval(23, 30))
    with raises(ConfigurationError, "position_skipped", skipped=interval(23, 30), empty=interval(23, 29)):
        shop.deliver(ROWS, interval(29, 30))
    shop.deliver(ROWS.slice(0, 0), interval(23, 29))
    shop.deliver(ROWS, interval(29, 30))


def test_a_failed_try_keeps_no_position_of_text(shop: Shop) -> None:
    """It has no order, so nothing would read it."""
    shop.deliver(ROWS, "a")
    refuse_rows(shop, ["b", "c"])
    with closing(open_store(shop.store)) as store:
        assert [set(each.positions) for each in store.checkpoints("orders")] == [set(), {SOURCE}]


def test_rows_outlive_a_move_of_their_root(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise SinkUnavailableError("it is away.", participant="shop", remedy="Wait.")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteParticipant, "prepare", away)
        with raises(SinkUnavailableError, "sink_unavailable"):
            shop.deliver(ROWS.slice(0, 1), 1)
        (tmp_path / "wal").rename(tmp_path / "moved")
        with raises(SinkUnavailableError, "sink_unavailable"):
            shop.deliver(ROWS.slice(1), 2, wal="moved")
    with closing(open_store(shop.store)) as store:
        assert store.root((tmp_path / "wal").as_uri()) == store.root((tmp_path / "moved").as_uri()) is not None
    with raises(StorageUnavailableError, "wrong_disk"):
        shop.deliver(ROWS.slice(1), 2, wal="moved")
    (tmp_path / "wal").symlink_to(tmp_path / "moved")
    shop.deliver(ROWS.slice(1), 2, wal="moved")
    assert shop.rows() == [(1, "a"), (2, "b")]


def test_a_pipeline_of_a_job_takes_no_rows_of_others(shop: Shop) -> None:
    run = RunKey("orders", "monday")
    with closing(open_store(shop.store)) as store:
        store.register("orders")
        epoch = take_epoch(store, "orders", Worker().lease(), "a test", lease_seconds=0.0)
        store.begin_stage("orders", epoch, run)
        store.end_stage("orders", epoch, run, SparkPosition("file:///wal/orders/spark/1-1", 3))
        store.leave_turn("orders", run)
        for lease in store.leases("orders"):
            store.release_lease("orders", lease.holder)
    with raises(ConfigurationError, "pipeline_of_a_job", pipeline="orders"):
        shop.deliver(ROWS, "a")


def strange(at: Path) -> Path:
    at.mkdir()
    return at


def linked(at: Path, name: str, *tables: pa.Table) -> Path:
    """A link to a folder elsewhere that has the tables; without tables the link leads nowhere."""
    elsewhere = at.with_name("elsewhere")
    if tables:
        folder(elsewhere, *tables)
    (at / name).symlink_to(elsewhere)
    return at


def databricks(at: Path, *jobs: int, **changes: object) -> Path:
    """A folder with a file of each job. `changes`: by the text `of_<job>`, what is in its `_committed_` file."""
    at.mkdir(parents=True, exist_ok=True)
    for job in jobs:
        pq.write_table(ROWS, at / f"part-00000-tid-{job}-5d1c8c2e-0000-4000-8000-00000000000{job}-7-1-c000.parquet")
        (at / f"_started_{job}").touch()
    for name, change in changes.items():
        text = change if isinstance(change, str) else json.dumps(change)
        (at / f"_committed_{name.removeprefix('of_')}").write_text(text)
    return at


def renamed(at: Path) -> Path:
    """The folder after one of the files has got another name."""
    next(at.glob("part-*")).rename(at / "orders.parquet")
    return at


def change(*added: int, removed: Sequence[int] = ()) -> dict[str, list[str]]:
    """What Databricks writes into a `_committed_` file."""
    name = "part-00000-tid-{0}-5d1c8c2e-0000-4000-8000-00000000000{0}-7-1-c000.parquet"
    return {"added": [name.format(job) for job in added], "removed": [name.format(job) for job in removed]}


def table_of(at: Path, marker: str) -> Path:
    (at / marker).parent.mkdir()
    (at / marker).touch()
    return at


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (lambda at: at, "files_none"),
        (strange, "files_none"),
        (lambda at: folder(at, ROWS, name="_hidden.parquet"), "files_none"),
        (lambda at: folder(at / "country=de", ROWS).parent, "files_nested"),
        (lambda at: folder(at / "_temporary" / "0", ROWS).parent.parent, "writer_unfinished"),
        (lambda at: linked(folder(at, ROWS), "sub", ROWS), "files_nested"),
        (lambda at: linked(folder(at, ROWS), "c.parquet"), "parquet_unreadable"),
        (lambda at: table_of(folder(at, ROWS), "_delta_log/00000000000000000000.json"), "files_of_a_table"),
        (lambda at: table_of(folder(at, ROWS), ".hoodie/hoodie.properties"), "files_of_a_table"),
        (lambda at: table_of(folder(at, ROWS), "_spark_metadata/0"), "files_of_a_table"),
        (lambda at: table_of(folder(at / "data", ROWS).parent, "metadata/v1.metadata.json"), "files_of_a_table"),
        (lambda at: table_of(folder(at / "bucket-0", ROWS).parent, "snapshot/snapshot-1"), "files_of_a_table"),
        (lambda at: databricks(at, 1, 2, of_2=change(2)), "files_uncommitted"),  # job 1 has failed
        (lambda at: databricks(at, 1, 2, of_1=change(2), of_2=change(2)), "files_uncommitted"),  # as a task of job 1
        (lambda at: databricks(at, 1, 2, of_1=change(1), of_2=change(2, removed=[1])), "files_uncommitted"),
        (lambda at: databricks(at, 1, of_1=""), "files_uncommitted"),
        (lambda at: databricks(at, 1, of_1='{"added": ["part'), "files_uncommitted"),
        (lambda at: databricks(at, 1, of_1=["added"]), "files_uncommitted"),
        (lambda at: databricks(at, 1, of_1={"added": [[]], "removed": []}), "files_uncommitted"),
        (lambda at: databricks(at, 1, of_1=change(1), of_vacuum5='{"added"'), "files_uncommitted"),
        (lambda at: databricks(at, 1, of_1="[" * 100_000), "files_uncommitted"),
        (lambda at: next(databricks(at, 1).glob("part-*")), "files_uncommitted"),
        (lambda at: databricks(at, 1, of_1=change(1), of_2=change(2)), "part_missing"),
        (lambda at: renamed(databricks(at, 1, of_1=change(1), of_2=change(2))), "part_missing"),
        (lambda at: folder(at, ROWS, ROWS.drop_columns("what")), "files_differ"),
        (lambda at: folder(at, ROWS, ROWS.set_column(0, "id", pa.array([1, 2], pa.int32()))), "files_differ"),
        (lambda at: (folder(at, ROWS) / "b.csv").write_text("id\n1\n") and at, "parquet_unreadable"),
        (lambda at: (folder(at, ROWS) / "b.parquet").write_bytes(b"PAR1 torn") and at, "parquet_unreadable"),
    ],
)
def test_an_invalid_folder_is_refused_before_it_is_published(
    shop: Shop, tmp_path: Path, write: Callable[[Path], Path], code: str
) -> None:
    with raises(ExternalRowsError, code, sink="orders"):
        shop.deliver(write(tmp_path / "in"), "a")
    assert shop.states() == ["ABORTED"]
    folder(tmp_path / "other", ROWS)
    assert shop.deliver(tmp_path / "other", "a")["rows"] == 2, "the position is still free"


def test_what_databricks_has_committed_is_delivered(shop: Shop, tmp_path: Path) -> None:
    vacuum = {"added": [], "removed": ["_committed_8", "_committed_vacuum5"]}
    at = databricks(tmp_path / "in", 1, 2, of_1=change(1, removed=[9]), of_2=change(2), of_3="", of_vacuum5=vacuum)
    assert shop.deliver(at, "a")["rows"] == 4


def test_a_file_of_databricks_may_be_renamed(shop: Shop, tmp_path: Path) -> None:
    assert shop.deliver(renamed(databricks(tmp_path / "in", 1, of_1=change(1))), "a")["rows"] == 2


def test_a_job_of_databricks_that_runs_is_to_be_waited_for(shop: Shop, tmp_path: Path) -> None:
    for name, more, runs in (("a", {}, True), ("b", {"of_1": ""}, False)):
        with raises(ExternalRowsError, "files_uncommitted") as caught:
            shop.deliver(databricks(tmp_path / name, 1, **more), "a")
        assert ("Wait until the job has ended" in caught.error.remedy) is runs


def test_a_list_of_databricks_that_vanishes_is_a_change(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, look = databricks(tmp_path / "in", 1, of_1=change(1)), incoming.look

    def looked(*given: Any) -> Any:
        found = look(*given)
        (at / "_committed_1").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(incoming, "look", looked)
    with raises(StageError, "file_changed", path=at.as_uri()):
        shop.deliver(at, "a")


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("s3a://AKIA:pl/anted@lake/in", "s3a://...@lake/in"),
        ("abfss://c@lake/in?sig=pl/anted", "abfss://...@lake/in"),
    ],
)
def test_keys_in_a_uri_reach_neither_error_nor_decision_log(shop: Shop, where: str, shown: str) -> None:
    with raises(ConfigurationError, "path_invalid", path=shown) as caught:
        shop.deliver(where, 1)
    with closing(open_store(shop.store)) as store:
        [checkpoint] = store.checkpoints("orders")
    assert "anted" not in f"{caught.error} {checkpoint.message}"


def test_a_result_of_duckdb_arrives(shop: Shop) -> None:
    query = "SELECT range::BIGINT id, ['even', 'odd'][range % 2 + 1]::ENUM('even', 'odd') what FROM range(3)"
    assert shop.deliver(duckdb.sql(query), "a")["rows"] == 3
    assert shop.deliver(duckdb.sql(query), "a")["repeated"]
    assert shop.rows() == [(0, "even"), (1, "odd"), (2, "even")]


def test_a_frame_of_polars_arrives(shop: Shop) -> None:
    frame = pl.DataFrame({"id": [1, 2], "what": pl.Series(["a", None], dtype=pl.Categorical)})
    with raises(ConfigurationError, "argument_invalid"):
        shop.deliver(frame.lazy(), "a")
    assert shop.deliver(frame, "a")["rows"] == 2
    assert shop.rows() == [(1, "a"), (2, None)]


OFFSETS = pa.py_buffer((0).to_bytes(4, "little") + (1).to_bytes(4, "little"))
DIGITS = pa.py_buffer((2**127 - 1).to_bytes(16, "little"))
"""39 of them, as DuckDB gives HUGEINT."""
NANOSECOND = pd.Timestamp(1, unit="ns")
LOCAL, INSTANT = datetime(2020, 1, 1, 10), datetime(2020, 1, 1, 10, tzinfo=ZoneInfo("Europe/Berlin"))
DAYS_AND_TIMES = pd.Index([date(2020, 1, 1), datetime(2020, 1, 1, 5)], name="day", dtype=object)


class FrameOfPolars(pl.DataFrame):
    """As a library derives its own."""


class FrameOfPandas(pd.DataFrame):
    """As a library derives its own: GeoDataFrame."""


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (pa.table({"id": pa.nulls(1)}), "type_unsupported"),
        (pa.table({"t": pa.array([1], pa.time64("us"))}), "type_unsupported"),
        (pa.table({"t": pa.array([1], pa.timestamp("ns"))}), "value_not_exact"),
        (
            pa.table({"t": pa.Array.from_buffers(pa.string(), 1, [None, OFFSETS, pa.py_buffer(b"\xff")])}),
            "value_not_exact",
        ),
        (pa.table({"n": pa.Array.from_buffers(pa.decimal128(38), 1, [None, DIGITS])}), "value_not_exact"),
        (pa.table([[1], [2]], names=["id", "id"]), "column_repeated"),
        (pd.DataFrame({"id": [1, "x"]}), "rows_unreadable"),
        (pd.DataFrame({"m": [{}]}), "type_unsupported"),
        (pd.DataFrame({"m": [[{}]]}), "type_unsupported"),
        (pl.DataFrame({"id": pl.Series([1], dtype=pl.Int128)}), "rows_unreadable"),
        (pl.DataFrame({"id": [UUID(int=1)]}), "rows_unreadable"),
        (FrameOfPolars({"id": [UUID(int=1)]}), "rows_unreadable"),
        (FrameOfPandas({"id": [1]}, index=["x"]), "rows_unreadable"),
        (pd.DataFrame({"day": [date(2020, 1, 1), datetime(2020, 1, 1, 5)]}), "rows_unreadable"),
        (pd.DataFrame({"days": [[date(2020, 1, 1), datetime(2020, 1, 1, 5)]]}), "rows_unreadable"),
        (pd.DataFrame({"id": [1, 2]}, index=DAYS_AND_TIMES), "rows_unreadable"),
        (pd.DataFrame({"day": [date(2020, 1, 1), np.datetime64(1, "ns")]}), "rows_unreadable"),
        (pd.DataFrame({"at": pd.Series([NANOSECOND, pd.NaT], dtype=object)}), "value_not_exact"),
        (pd.DataFrame({"at": [[NANOSECOND]]}), "value_not_exact"),
        (pd.DataFrame({"at": [{"at": NANOSECOND}]}), "value_not_exact"),
        (pd.DataFrame({"at": pd.Series([LOCAL, INSTANT], dtype=object)}), "rows_unreadable"),
        (pd.DataFrame({"at": pd.Series([INSTANT, LOCAL], dtype=object)}), "rows_unreadable"),
        (pd.DataFrame({"at": [[INSTANT], [LOCAL]]}), "rows_unreadable"),
        (pd.DataFrame({"id": [1, 2]}, index=pd.Index([LOCAL, INSTANT], name="at", dtype=object)), "rows_unreadable"),
        (pd.DataFrame({"t": ["a", b"b"]}), "rows_unreadable"),
        (pd.DataFrame({"t": [{"t": b"a"}, {"t": "b"}]}), "rows_unreadable"),
        (pd.DataFrame({"t": [bytearray(b"a"), "b"]}), "rows_unreadable"),
    ],
)
def test_a_table_that_no_sink_can_store_is_refused(shop: Shop, rows: Any, code: str) -> None:
    with raises(ExternalRowsError, code):
        shop.deliver(rows, "a")


def test_objects_of_pandas_that_keep_their_values_arrive(shop: Shop) -> None:
    """Two places of a dictionary may have two types, and NaT is no datetime."""
    each = {"day": date(2020, 1, 1), "local": LOCAL, "instant": INSTANT, "text": "a", "bytes": b"b"}
    rows = pd.DataFrame(
        {
            "id": [1, 2],
            "each": [each, {**each, "instant": INSTANT.astimezone(UTC), "day": pd.NaT}],
            "day": pd.Series([date(2020, 1, 1), pd.NaT], dtype=object),
        }
    )
    table = GivenRows(rows, ["orders"]).columns()["orders"]
    assert [str(field.type) for field in table.field("each").type] == [
        "date32[day]",
        "timestamp[us]",
        "timestamp[us, tz=Europe/Berlin]",
        "string",
        "binary",
    ]


def test_rows_with_wrong_columns_are_refused_before_publishing(shop: Shop) -> None:
    shop.deliver(ROWS, 1)
    with pytest.raises(AirflowFtError) as caught:
        shop.deliver(ROWS.rename_columns(["id", "strange"]), 2)
    assert caught.value.sink == "orders"
    assert shop.states() == ["COMPLETED", "ABORTED"]


def test_the_next_position_names_an_error_of_another_package(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("password=planted")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(incoming, "write_rows", fail)
        shop.deliver(ROWS, 1)
    with raises(ConfigurationError, "position_skipped", skipped=1):
        shop.deliver(ROWS, 2)
    with closing(open_store(shop.store)) as store:
        [checkpoint] = store.checkpoints("orders")
    assert RuntimeError.__name__ in checkpoint.message and "planted" not in checkpoint.message
    assert shop.deliver(ROWS, 1)["rows"] == 2


def test_files_beside_the_rows_that_stay_do_not_fail_the_call(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = LocalFileSystem.remove_tree

    def refuse(files: LocalFileSystem, uri: str) -> None:
        if uri.endswith(".given"):
            raise PermissionError(errno.EACCES, "not yours")
        remove(files, uri)

    monkeypatch.setattr(LocalFileSystem, "remove_tree", refuse)
    with logged() as lines:
        assert shop.deliver(ROWS, 1)["rows"] == 2
    assert any("1-1/.given" in line for line in lines)


def test_files_that_change_while_they_are_read_are_not_published(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = folder(tmp_path / "in", ROWS)
    write = incoming._write

    def changed(*given: Any) -> None:
        write(*given)
        folder(at, ROWS.slice(1))

    monkeypatch.setattr(incoming, "_write", changed)
    with raises(StageError, "file_changed"):
        shop.deliver(at, "a")
    assert shop.states() == ["ABORTED"]


def test_a_writer_that_goes_on_changes_nothing_that_is_delivered(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = folder(tmp_path / "in", ROWS)
    commit = SqliteParticipant.commit

    def after_zombie(*given: Any, **named: Any) -> Any:
        with (at / "part-00000.parquet").open("r+b") as file:  # into the very file that was read
            file.write(b"zombie")
        folder(at, ROWS, ROWS, ROWS)
        return commit(*given, **named)

    monkeypatch.setattr(SqliteParticipant, "commit", after_zombie)
    assert shop.deliver(at, "a")["rows"] == 2
    assert shop.rows() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize(
    ("rows", "sinks", "code"),
    [
        (5, ("orders",), "argument_invalid"),
        (ROWS, ("orders", "large"), "rows_missing"),
        ({"orders": ROWS}, ("orders", "large"), "rows_missing"),
        ({"orders": ROWS, "other": ROWS}, ("orders",), "rows_of_no_sink"),
        ("gs://bucket/in", ("orders",), "path_invalid"),
    ],
)
def test_what_are_no_rows_of_the_sinks_is_refused(shop: Shop, rows: object, sinks: tuple[str, ...], code: str) -> None:
    with raises(ConfigurationError, code):
        shop.deliver(rows, "a", *sinks)


@pytest.mark.parametrize(
    ("argument", "given"),
    [("job", "jobs.orders"), ("streaming", True), ("overlap", True), ("spark_conf", {"a": "b"})],
)
def test_with_a_position_there_is_no_job(shop: Shop, argument: str, given: object) -> None:
    with raises(ConfigurationError, "arguments_conflict", arguments=["position", argument]):
        shop.deliver(ROWS, "a", **{argument: given})


def test_rows_need_a_position_and_a_position_rows(shop: Shop) -> None:
    with raises(ConfigurationError, "argument_missing", argument="position"):
        shop.deliver(ROWS, None)
    declared = {"pipeline": "orders", "position": "a", "sinks": {"o": airflow_ft.SqliteSink(table="o", conn_id="shop")}}
    with raises(ConfigurationError, "rows_missing"):
        airflow_ft.run(**declared)
    with raises(ConfigurationError, "rows_missing"):
        airflow_ft.dry_run(**declared)
    with raises(ConfigurationError, "template_not_rendered", argument="position"):
        airflow_ft.deliver(ROWS, **{**declared, "position": {"start": "{{ ds }}", "end": "{{ ds }}"}})


def test_verify_leaves_out_what_a_run_prunes_meanwhile(shop: Shop) -> None:
    for position in (1, 2, 3):
        shop.deliver(ROWS, position)
    still_to_come = [4]

    def beside_a_run(delivered: Sequence[Delivered], plan: ParticipantPlan) -> Sequence[SinkReport]:
        while still_to_come:
            shop.deliver(ROWS, still_to_come.pop())
        return verify_participant(delivered, plan, connections=server_connections)

    with closing(open_store(shop.store)) as store:
        [report] = verify(store, "orders", beside_a_run)
        assert (report.error, report.numbers) == ("", (2, 3))
        still_to_come += [7, 6, 5]
        [report] = verify(store, "orders", beside_a_run)
        assert report.error_code == "checkpoint_pruned"
