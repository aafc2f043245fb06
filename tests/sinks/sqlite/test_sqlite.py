"""SQLite: which values go in as they are, which tables are taken, and what is said of those that are not."""

from __future__ import annotations

import datetime as dt
import errno
import sqlite3
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft import SqliteSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import (
    ConfigurationError,
    DeclinedError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import Former, Promise, Segment
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.sqlite import requirements, verify
from airflow_ft.sinks.sqlite.file import SqliteFile, is_of_a_row
from airflow_ft.sinks.sqlite.participant import _Load
from airflow_ft.sinks.sqlite.requirements import conflict_clauses
from airflow_ft.testing.world import ROWS, SINK, Target, World
from airflow_ft.wal import open_wal
from airflow_ft.wal.reader import ParquetSegment, ParquetWal
from tests.raising import raises

NOON = dt.datetime(2024, 5, 31, 12, 0, 0, 250, tzinfo=dt.UTC)


class File(Target):
    """A file that is not there yet."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "shop.db"
        self.sink = SqliteSink(table="orders", conn_id="shop", **settings)
        self.connection = ConnectionInfo("shop", "sqlite", host=str(self.path))

    def sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as db:
            found = db.execute(statement).fetchall()
            db.commit()
            return found

    def ids(self) -> list[int]:
        return [row[0] for row in self.sql("SELECT id FROM orders ORDER BY id")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(File(tmp_path), tmp_path)


def file_of(world: World) -> File:
    assert isinstance(world.target, File)
    return world.target


def test_a_table_is_enough() -> None:
    sink: SinkSpec = SqliteSink(table="orders")
    assert (sink.kind, sink.conn_id, sink.strategy, sink.promise) == (
        "sqlite", "sqlite_default", "local", Promise.ATOMIC
    )  # fmt: skip
    assert sink.settings() == {"table": "orders", "create": True} and sink.at_least_once() is Promise.ATOMIC


@pytest.mark.parametrize(
    ("settings", "code", "argument"),
    [
        ({"table": ""}, "argument_invalid", "table"),
        ({"table": "sqlite_orders"}, "name_invalid", "table"),
        ({"table": "AIRFLOW_FT_head"}, "name_invalid", "table"),
        ({"table": "orders", "conn_id": " "}, "argument_invalid", "conn_id"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(settings: Any, code: str, argument: str) -> None:
    with raises(ConfigurationError, code, argument=argument, value=settings[argument]):
        SqliteSink(**settings)


@pytest.mark.parametrize("settings", [{"table": 7}, {"table": "orders", "create": "yes"}])
def test_an_argument_of_another_type_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        SqliteSink(**settings)
    assert list(settings)[-1] in caught.value.headline


def test_a_plan_of_a_newer_release_is_refused_by_name() -> None:
    sink = SqliteSink(table="orders", conn_id="shop", create=False)
    assert SqliteSink.from_settings("shop", "local", sink.settings()) == sink
    with raises(ConfigurationError, "newer_release", settings=["upsert"]):
        SqliteSink.from_settings("shop", "local", {**sink.settings(), "upsert": True})


def test_jinja_is_rendered_before_the_plan() -> None:
    sink = SqliteSink(table="orders_{{ ds }}")
    with raises(ConfigurationError, "template_not_rendered"):
        sink.settings()


@pytest.mark.parametrize("host", ["", "shop.db", "./shop.db"])
def test_a_file_has_an_absolute_path(host: str) -> None:
    with raises(ConfigurationError, "path_invalid", path=str(Path(host))):
        SqliteFile.of(ConnectionInfo("shop", "sqlite", host=host))
    assert SqliteFile.of(ConnectionInfo("shop", "sqlite", schema="/data/shop.db")).path == Path("/data/shop.db")


def test_every_value_arrives_as_it_is_in_a_table_that_is_made(world: World) -> None:
    rows = pa.table(
        {
            "id": pa.array([1, -(2**63), None], pa.int64()),
            "small": pa.array([1, 255, None], pa.uint8()),
            "large": pa.array([0, 2**63 - 1, None], pa.uint64()),
            "yes": pa.array([True, False, None]),
            "ratio": pa.array([0.1, float("inf"), None]),
            "single": pa.array([0.5, -0.0, None], pa.float32()),
            "amount": pa.array([Decimal("1.10"), Decimal("0.00"), None], pa.decimal128(38, 2)),
            "tiny": pa.array(
                [Decimal("0.0000000001"), Decimal("12345678901234567890123456.0"), None], pa.decimal128(38, 10)
            ),
            "text": ["007", "it's\0 \N{SNOWMAN}", None],
            "data": [b"\0\xff", b"", None],
            "day": pa.array([dt.date(2024, 5, 31), dt.date(1, 1, 1), None]),
            "at": pa.array([NOON, NOON.replace(year=1900), None], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([NOON.replace(tzinfo=None), None, None], pa.timestamp("us")),
            'odd "name"': ["a", "b", None],
        }
    )
    proof = world.deliver(world.plan(rows))
    assert dict(proof.counts) == {SINK: 3}
    found = file_of(world).sql("SELECT * FROM orders")
    assert found[0] == (
        1, 1, 0, 1, 0.1, 0.5, "1.10", "0.0000000001", "007", b"\0\xff", "2024-05-31", "2024-05-31 12:00:00.000250",
        "2024-05-31 12:00:00.000250", "a",
    )  # fmt: skip
    assert found[1] == (
        -(2**63), 255, 2**63 - 1, 0, float("inf"), -0.0, "0.00", "12345678901234567890123456.0000000000",
        "it's\0 \N{SNOWMAN}", b"", "0001-01-01", "1900-05-31 12:00:00.000250", None, "b",
    )  # fmt: skip
    assert found[2] == (None,) * 14
    kinds = dict(file_of(world).sql("SELECT name, type FROM pragma_table_info('orders')"))
    assert (
        kinds["id"] == "INTEGER" and kinds["amount"] == "TEXT" and kinds["ratio"] == "REAL" and kinds["data"] == "BLOB"
    )


@pytest.mark.parametrize(
    ("declared", "type", "fits"),
    [
        ("INT", pa.int32(), True),
        ("BOOLEAN", pa.bool_(), True),
        ("TEXT", pa.int32(), False),
        ("DOUBLE", pa.int32(), False),
        ("", pa.int32(), True),
        ("DOUBLE PRECISION", pa.float64(), True),
        ("NUMERIC", pa.float64(), False),
        ("VARCHAR(20)", pa.string(), True),
        ("NUMERIC", pa.string(), False),
        ("INT", pa.string(), False),
        ("DECIMAL(10, 2)", pa.decimal128(10, 2), False),
        ("TEXT", pa.decimal128(10, 2), True),
        ("DATE", pa.date32(), True),
        ("DATETIME", pa.timestamp("us", "UTC"), True),
        ("INTEGER PRIMARY KEY", pa.date32(), False),
        ("INTEGER PRIMARY KEY", pa.int64(), True),
        ("NUMERIC", pa.binary(), True),
        ("TEXT", pa.list_(pa.int32()), False),
    ],
)
def test_a_column_that_would_change_values_is_refused_beforehand(
    world: World, declared: str, type: pa.DataType, fits: bool
) -> None:
    file = file_of(world)
    file.sql(f"CREATE TABLE orders (c {declared})")
    plan = world.plan(pa.table({"c": pa.array([], type)}))
    asked = requirements.schema_problems(plan.participants[0], file.connection, {SINK: pa.schema([("c", type)])})
    assert bool(asked) is not fits
    if fits:
        world.deliver(plan)
        return
    assert all(isinstance(each, UnfitTargetError) and each.column == "c" and each.remedy for each in asked)
    code = "type_unsupported" if pa.types.is_nested(type) else "column_unfit"
    with raises(UnfitTargetError, code, sink=SINK, column="c"):
        world.prepare(plan)


@pytest.mark.parametrize(
    ("declared", "type", "fits"),
    [
        ("TEXT", pa.date32(), True),
        ("INT", pa.date32(), False),
        ("ANY", pa.string(), True),
        ("BLOB", pa.string(), False),
    ],
)
def test_a_strict_table_takes_its_own_kinds(world: World, declared: str, type: pa.DataType, fits: bool) -> None:
    file_of(world).sql(f"CREATE TABLE orders (c {declared}) STRICT")
    plan = world.plan(pa.table({"c": pa.array([], type)}))
    if fits:
        world.deliver(plan)
    else:
        with raises(UnfitTargetError, "column_unfit", column="c", declared=declared):
            world.prepare(plan)


@pytest.mark.parametrize(
    ("table", "code", "column", "name"),
    [
        ("CREATE TABLE orders (id INTEGER)", "column_missing", "text", "text"),
        ("CREATE TABLE orders (id INTEGER, text TEXT AS ('a'))", "column_generated", "text", "text"),
        ("CREATE TABLE orders (id INTEGER, text TEXT, must INT NOT NULL)", "column_required", "must", "must"),
        (
            "CREATE TABLE orders (id INTEGER UNIQUE ON CONFLICT REPLACE, text TEXT)",
            "table_unsupported",
            "",
            "ON CONFLICT REPLACE",
        ),
        ("CREATE VIEW orders AS SELECT 1 AS id, '' AS text", "table_unsupported", "", "view"),
    ],
)
def test_a_table_that_does_not_fit_is_told_with_what_helps(
    world: World, table: str, code: str, column: str, name: str
) -> None:
    file_of(world).sql(table)
    with raises(UnfitTargetError, code, sink=SINK, table="orders", column=column) as caught:
        world.prepare(world.plan())
    assert caught.error is not None and caught.error.remedy and name in caught.error.headline


def test_the_table_fills_its_own_keys_and_defaults(world: World) -> None:
    file_of(world).sql(
        "CREATE TABLE orders (key INTEGER PRIMARY KEY, ID INTEGER, text TEXT, by TEXT NOT NULL DEFAULT 'me')"
    )
    world.deliver(world.plan(world.table(5, 2)))
    assert file_of(world).sql("SELECT * FROM orders") == [(1, 5, "row 5", "me"), (2, 6, "row 6", "me")]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ({"id": pa.array([1, None], pa.int64()), "text": ["a", "b"]}, ("row 2", "INTEGER PRIMARY KEY")),
        ({"id": pa.array([1, 2**63], pa.uint64()), "text": ["a", "b"]}, ("row 2", str(2**63 - 1))),
        ({"id": [1, 2], "text": ["a", "b"], "ratio": [0.5, float("nan")]}, ("row 2", "NaN")),
        (
            {"id": [1, 2], "text": ["a", "b"], "day": pa.array([0, 14_600_000], pa.date32())},
            ("row 2", "day: ", "9999"),
        ),
        (
            {"id": [1, 2], "text": ["a", "b"], "at": pa.array([0, -(2**62)], pa.timestamp("us", "UTC"))},
            ("row 2", "at: ", "9999"),
        ),
        ({"id": [1, 1], "text": ["a", "b"]}, ("UNIQUE constraint failed: orders.id",)),
        ({"id": [1, 2], "text": ["a", None]}, ("NOT NULL constraint failed: orders.text",)),
    ],
)
@pytest.mark.parametrize("decides", [True, False])
def test_rows_that_sqlite_would_change_or_refuse_are_declined(
    world: World, rows: dict[str, Any], names: tuple[str, ...], decides: bool
) -> None:
    file_of(world).sql(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT NOT NULL, ratio REAL, day TEXT, at TEXT)"
    )
    world.commit_point = decides
    plan = world.plan(pa.table(rows))
    given = pa.table(rows)
    code = "null_refused" if any(column.null_count for column in given.columns) else "row_refused"
    with raises(DeclinedError, code, sink=SINK, table="orders") as caught:
        vote = world.prepare(plan)
        assert decides, "nobody could refuse them later"
        world.commit(plan, vote)
    assert caught.error is not None and [name for name in names if name not in caught.error.headline] == []
    assert world.target.ids() == []
    vote = world.vote_without_prepare(plan)
    world.participant(plan).abort(plan, world.fence(1, world.attempt()), {})
    other = world.plan(pa.table(rows))
    proof = world.commit(other, vote, set_aside=True)
    assert proof.counts[SINK] == 1 and world.target.ids() == [1]


def test_a_trigger_that_leaves_rows_out_is_no_silent_loss(world: World) -> None:
    file_of(world).sql("CREATE TABLE orders (id INTEGER, text TEXT)")
    file_of(world).sql("CREATE TRIGGER t BEFORE INSERT ON orders WHEN new.id = 45 BEGIN SELECT RAISE(IGNORE); END")
    plan = world.plan()
    vote = world.prepare(plan)
    with raises(DeclinedError, "row_refused", sink=SINK) as caught:
        world.commit(plan, vote)
    assert caught.error is not None and "trigger" in caught.error.headline and world.target.ids() == []


def test_a_trigger_that_rolls_back_takes_nothing_apart(world: World) -> None:
    file_of(world).sql("CREATE TABLE orders (id INTEGER, text TEXT)")
    world.deliver(world.plan())
    file_of(world).sql(
        "CREATE TRIGGER t BEFORE INSERT ON orders WHEN new.id = 85 BEGIN SELECT RAISE(ROLLBACK, 'not this'); END"
    )
    plan = world.plan()
    vote = world.prepare(plan)
    for set_aside in (False, True):
        with raises(DeclinedError, "row_refused", sink=SINK) as caught:
            world.commit(plan, vote, set_aside=set_aside)
        assert (
            caught.error is not None and "not this" in caught.error.headline and world.target.ids() == world.ids_of(1)
        )


def test_a_table_that_goes_is_not_made_again(world: World) -> None:
    world.deliver(world.plan())
    file_of(world).sql("DROP TABLE orders")
    with raises(UnfitTargetError, "table_missing", table="orders", path=str(file_of(world).path)) as caught:
        world.prepare(world.plan())
    assert caught.error is not None and "create=False" not in caught.error.headline
    file_of(world).sql("CREATE TABLE orders (id INTEGER)")
    with raises(UnfitTargetError, "column_missing", column="text"):
        world.prepare(world.plan())


def test_a_table_is_created_when_a_sink_gets_its_first_rows(world: World) -> None:
    """An optional one may get its first rows with a later checkpoint."""
    for number in (1, 2):
        world.deliver(world.plan_of(number, world.nothing(number)))
    world.deliver(world.plan_of(3, world.segment(3, world.table(3 * ROWS))))
    assert world.target.ids() == world.ids_of(3)
    file_of(world).sql("DROP TABLE orders")
    with raises(UnfitTargetError, "table_missing", table="orders") as caught:
        world.prepare(world.plan_of(4, world.segment(4, world.table(4 * ROWS))))
    assert caught.error is not None and 'CREATE TABLE "orders" (' in caught.error.remedy


def test_a_lost_table_is_not_created_again_after_pruning(world: World) -> None:
    world.deliver(world.plan())
    world.deliver(world.plan_of(2, world.nothing(2)))
    for _ in range(2):
        world.participant(world.plan()).forget(world.fence(1, world.attempt()), 2)
    file_of(world).sql("DROP TABLE orders")
    new = World(world.target, world.folder, pipeline="new", number=9)
    first = new.plan_of(10, new.nothing(10))
    former = Former(world.pipeline, 2, 10)
    new.deliver(replace(first, participants=(replace(first.participants[0], former=former),)))
    for later in (world.plan_of(4, world.segment(4, world.table(0))), new.plan_of(11, new.segment(11, new.table(0)))):
        with raises(UnfitTargetError, "table_missing", table="orders"):
            (world if later.number == 4 else new).prepare(later)


def test_rows_of_another_pipeline_prevent_no_new_table(world: World) -> None:
    """Also if its sink has the same name."""
    world.deliver(world.plan())
    other = World(File(world.folder), world.folder, pipeline="other")
    other.target.sink = SqliteSink(table="more", conn_id="shop")
    other.deliver(other.plan_of(1, other.nothing(1)))
    other.deliver(other.plan_of(2, other.segment(2, other.table(0))))
    assert file_of(world).sql("SELECT count(*) FROM more") == [(ROWS,)]


def test_a_commit_is_synced_with_its_folder(world: World) -> None:
    """Else the journal that it removes may be back after a power failure, and undo it."""
    world.deliver(world.plan())
    with SqliteFile(file_of(world).path).opened() as db:
        assert db is not None and db.execute("PRAGMA synchronous").fetchone() == (3,)


def test_a_table_is_not_made_where_that_is_not_wanted(tmp_path: Path) -> None:
    world = World(File(tmp_path, create=False), tmp_path)
    with raises(UnfitTargetError, "table_missing", sink=SINK, table="orders") as caught:
        world.prepare(world.plan())
    assert caught.error is not None and "create=False" in caught.error.headline
    plan, connection = world.participant_plan(), world.target.connection
    [problem] = requirements.schema_problems(plan, connection, {SINK: world.table(0).schema})
    assert problem.code == "table_missing"


def test_a_file_that_is_held_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    file_of(world).sql("CREATE TABLE orders (id INTEGER, text TEXT)")
    plan = world.plan()
    vote = world.prepare(plan)
    monkeypatch.setattr(SqliteFile, "of", lambda connection: SqliteFile(Path(connection.host), 0.2))
    with closing(sqlite3.connect(file_of(world).path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with raises(SinkUnavailableError, "lock_timeout", path=str(file_of(world).path), participant="shop"):
            world.commit(plan, vote)
    world.commit(plan, vote)
    assert world.target.ids() == world.ids_of(1)


def test_what_is_no_database_is_told(world: World) -> None:
    file_of(world).path.write_text("not a database, " * 100)
    with raises(SinkAccessError, "file_damaged", path=str(file_of(world).path)):
        world.prepare(world.plan())


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    target = File(tmp_path / "nowhere")
    world = World(target, tmp_path)
    with raises(SinkAccessError, "folder_unusable", path=str(target.path.parent)):
        world.prepare(world.plan())
    [check] = doctor.examine("orders", world.participant_plan(), target.connection, [])
    assert check.verdict is Verdict.PROBLEM and str(tmp_path / "nowhere") in check.text


@pytest.mark.parametrize("place", ["closed/shop.db", f"{'long' * 100}.db"])
def test_a_file_that_cannot_be_reached_is_told(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def exists(path: Path, **_: Any) -> bool:
        raise PermissionError(13, "Permission denied") if "closed" in path.parts else OSError(36, "File name too long")

    file = SqliteFile(tmp_path / place)
    monkeypatch.setattr(Path, "exists", exists)  # root may go everywhere
    with raises(SinkAccessError, "file_unusable", path=str(file.path)):
        file.describe()
    with raises(SinkAccessError, "file_unusable", path=str(file.path)), file.opened():
        raise AssertionError


def test_an_error_of_the_log_does_not_blame_the_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.plan()
    vote = world.prepare(plan)

    def batches(*_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", "/wal/part-0.parquet")

    monkeypatch.setattr(ParquetSegment, "batches", batches)
    with pytest.raises(PermissionError) as failed:
        world.commit(plan, vote)
    assert failed.value.filename == "/wal/part-0.parquet"


def test_a_file_on_a_network_file_system_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_ft.sinks.sqlite.file.network_file_system", lambda folder: "nfs4")
    path = file_of(world).path
    with raises(SinkAccessError, "path_invalid", path=str(path), file_system="nfs4", participant="shop"):
        world.prepare(world.plan())
    [check] = doctor.examine("orders", world.participant_plan(), file_of(world).connection, [])
    assert check.verdict is Verdict.PROBLEM and "network file system (nfs4)" in check.text
    assert not path.exists()


def test_a_file_that_is_lost_halts(world: World) -> None:
    world.deliver(world.plan())
    file_of(world).path.unlink()
    plan = world.plan()
    assert world.participant(plan).proof(plan) is None and world.participant(plan).head(plan.pipeline) is None
    with raises(SinkAccessError, "file_missing", path=str(file_of(world).path)):
        world.commit(plan, world.vote_without_prepare(plan))
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(plan)


@pytest.mark.parametrize("counts", ["{", "[]", "7"])
def test_a_damaged_old_marker_is_named(world: World, counts: str) -> None:
    world.deliver(world.plan())
    with closing(sqlite3.connect(file_of(world).path)) as db, db:
        db.execute("UPDATE airflow_ft_ledger SET counts = ?", (counts,))
    with raises(StoreBehindSinkError, "ledger_damaged"):
        world.prepare(world.plan())


def test_rows_written_to_a_replaced_file_are_not_delivered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.deliver(world.plan())
    plan, file = world.plan(), file_of(world)
    vote = world.prepare(plan)
    copied, insert = file.path.with_name("copied.db"), _Load.insert
    copied.write_bytes(file.path.read_bytes())

    def replaced(load: _Load, rows: pa.RecordBatch) -> str:
        monkeypatch.undo()
        copied.replace(file.path)
        return insert(load, rows)

    monkeypatch.setattr(_Load, "insert", replaced)
    with raises(SinkUnavailableError, "file_replaced", path=str(file.path)):
        world.commit(plan, vote)
    world.commit(plan, vote)
    assert world.target.ids() == [*world.ids_of(1), *world.ids_of(2)]


def test_the_doctor_looks_at_file_and_columns(world: World) -> None:
    file = file_of(world)
    planned = world.participant_plan()
    [check] = doctor.examine("orders", planned, file.connection, [])
    assert (check.verdict, "will be created" in check.text) == (Verdict.OK, True) and not file.path.exists()
    plan = world.plan()
    world.deliver(plan)
    rows = [open_wal().open(segment) for segment in plan.segments]
    [check] = doctor.examine("orders", planned, file.connection, rows)
    assert check.verdict is Verdict.OK and "bytes" in check.text
    file.sql("ALTER TABLE orders DROP COLUMN text")
    assert [each.verdict for each in doctor.examine("orders", planned, file.connection, rows)] == [
        Verdict.OK, Verdict.PROBLEM
    ]  # fmt: skip
    file.sql("DROP TABLE orders")
    file.sql("CREATE TABLE orders (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, text TEXT)")
    [_, check] = doctor.examine("orders", planned, file.connection, [])
    assert check.verdict is Verdict.PROBLEM and "ON CONFLICT REPLACE" in check.text


def test_verify_finds_a_loss_a_double_and_a_change(world: World) -> None:
    plan = world.plan()
    delivered = [Delivered(plan, world.deliver(plan), None)]
    file = file_of(world)

    def report() -> SinkReport:
        [found] = verify.verify(delivered, world.participant_plan(), file.connection, open_wal())
        return found

    assert report().is_exact and (report().expected, report().other, report().target) == (40, 0, "orders")
    file.sql("INSERT INTO orders VALUES (900, 'of somebody else')")
    assert report().is_exact and report().other == 1
    file.sql("INSERT INTO orders SELECT * FROM orders WHERE id = 44")
    assert (report().is_complete, report().is_exact, report().repeated) == (True, False, 1)
    file.sql("DELETE FROM orders WHERE id = 50")
    file.sql("UPDATE orders SET text = 'changed' WHERE id = 51")
    found = report()
    assert (found.missing, found.other) == (2, 2)
    [difference] = found.differences
    assert (difference.number, difference.rows, difference.samples) == (1, 2, ("50, row 50", "51, row 51"))
    file.sql("ALTER TABLE orders DROP COLUMN text")
    assert "no column 'text'" in report().error
    file.sql("DROP TABLE orders")
    assert "no such table" in report().error and not report().is_complete


LAID_OUT = "CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT)"
CHANGED = {
    "affinity": "CREATE TABLE orders (id INTEGER PRIMARY KEY, text INTEGER)",
    "letters of no type": 'CREATE TABLE orders (id INTEGER PRIMARY KEY, text "\N{LATIN SMALL LETTER DOTLESS I}NT")',
    "replace": "CREATE TABLE orders (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, text TEXT)",
    "ignore": "CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT, UNIQUE (text) ON CONFLICT IGNORE)",
    "not null": "CREATE TABLE orders (id INTEGER, text TEXT NOT NULL ON CONFLICT REPLACE DEFAULT 'none')",
    "generated": "CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT AS ('all the same'))",
    "lacking": "CREATE TABLE orders (id INTEGER PRIMARY KEY)",
    "more": "CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT, must INT NOT NULL)",
    "strict": "CREATE TABLE orders (id INTEGER PRIMARY KEY, text INTEGER) STRICT",
    "view": "CREATE VIEW orders AS SELECT 1 AS id, '' AS text",
    "view with a trigger": (
        "CREATE VIEW orders AS SELECT 1 AS id, '' AS text;"
        "CREATE TRIGGER t INSTEAD OF INSERT ON orders BEGIN SELECT 1; END"
    ),
    "virtual": "CREATE VIRTUAL TABLE orders USING fts5(id, text)",
    "gone": "",
    "trigger that cannot run": (
        f"{LAID_OUT}; CREATE TRIGGER t AFTER INSERT ON orders BEGIN INSERT INTO nowhere VALUES (new.id); END"
    ),
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)
@pytest.mark.parametrize("decides", [True, False])
def test_the_delivering_transaction_checks_the_table_again(world: World, changed: str, decides: bool) -> None:
    world.commit_point = decides
    file = file_of(world)
    file.sql(LAID_OUT)
    plan = world.plan()
    vote = world.prepare(plan)
    file.sql("DROP TABLE orders")
    with closing(sqlite3.connect(file.path)) as db:
        db.executescript(changed)
    with pytest.raises(UnfitTargetError) as raised:
        world.commit(plan, vote)
    assert raised.value.sink == SINK and raised.value.remedy
    assert world.participant(plan).proof(plan) is None
    with closing(sqlite3.connect(file.path)) as db:
        db.executescript(f"DROP {'VIEW' if 'VIEW' in changed else 'TABLE'} IF EXISTS orders; {LAID_OUT}")
    world.commit(plan, vote)
    assert file.ids() == world.ids_of(1)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        ("id INTEGER PRIMARY KEY ON CONFLICT REPLACE", ["replace"]),
        ("id INTEGER UNIQUE on\n/* -- */ Conflict --x\n\tIgnore", ["ignore"]),
        ("id INTEGER NOT NULL ON CONFLICT ABORT UNIQUE ON CONFLICT FAIL", ["abort", "fail"]),
        ("id INTEGER /* UNIQUE ON CONFLICT REPLACE */ -- ON CONFLICT REPLACE\n", []),
        ("id TEXT DEFAULT 'ON CONFLICT REPLACE' CHECK (id <> 'it''s ON CONFLICT REPLACE')", []),
        ('"ON CONFLICT REPLACE" INTEGER', []),
        ("`on conflict replace` INTEGER, [on conflict ignore] INTEGER", []),
        ('"x"" ON CONFLICT REPLACE" INTEGER', []),
        ("conflict INTEGER, replace TEXT", []),
        ("id INTEGER REFERENCES other ON DELETE CASCADE", []),
        ("station\N{LATIN SMALL LETTER E WITH ACUTE}on INTEGER", []),
        ('id INTEGER CONSTRAINT "it\'s" UNIQUE ON CONFLICT ROLLBACK', ["rollback"]),
    ],
)
def test_conflict_clauses_are_read_token_by_token(column: str, found: list[str]) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"CREATE TABLE t ({column})")
        [(sql,)] = db.execute("SELECT sql FROM sqlite_schema WHERE name = 't'").fetchall()
    assert conflict_clauses(sql) == found


def test_letters_outside_ascii_have_no_second_form(world: World) -> None:
    """To SQLite `\N{LATIN CAPITAL LETTER E WITH ACUTE}` and its small letter are two names, `ID` and `id` are one."""
    file = file_of(world)
    file.sink = SqliteSink(table="\N{LATIN CAPITAL LETTER E WITH ACUTE}T", conn_id="shop")
    upper, lower = "\N{LATIN CAPITAL LETTER E WITH ACUTE}", "\N{LATIN SMALL LETTER E WITH ACUTE}"
    file.sql(f'CREATE TABLE "{lower}t" (other INTEGER)')
    file.sql(f'CREATE TABLE "{upper}t" (ID INTEGER, "{upper}" TEXT, "{lower}" TEXT)')
    plan = world.plan(pa.table({"id": [1], upper: ["large"], lower: ["small"]}))
    delivered = [Delivered(plan, world.deliver(plan), None)]
    assert file.sql(f'SELECT * FROM "{upper}t"') == [(1, "large", "small")]
    [report] = verify.verify(delivered, world.participant_plan(), file.connection, open_wal())
    assert (report.is_exact, report.expected, report.target) == (True, 1, f"{upper}t")


@pytest.mark.parametrize("made", [True, False])
def test_two_names_that_differ_outside_ascii_are_two_columns(world: World, made: bool) -> None:
    upper, lower = "\N{LATIN CAPITAL LETTER E WITH ACUTE}", "\N{LATIN SMALL LETTER E WITH ACUTE}"
    if not made:
        file_of(world).sql(f'CREATE TABLE orders ("{lower}" TEXT)')
        with pytest.raises(UnfitTargetError) as raised:
            world.prepare(world.plan(pa.table({upper: ["large"]})))
        assert raised.value.column == upper
        return
    world.deliver(world.plan(pa.table({upper: ["large"], lower: ["small"]})))
    assert file_of(world).sql("SELECT * FROM orders") == [("large", "small")]


def test_a_declared_type_is_read_as_sqlite_reads_it(world: World) -> None:
    """A ligature is no F and no L to SQLite: the column would make whole numbers of 5.0."""
    file_of(world).sql('CREATE TABLE orders (c "\N{LATIN SMALL LIGATURE FL}oat")')
    with pytest.raises(UnfitTargetError) as raised:
        world.prepare(world.plan(pa.table({"c": [5.0]})))
    assert raised.value.column == "c"


@pytest.mark.parametrize("key", ["id INTEGER PRIMARY KEY DESC", "id INTEGER PRIMARY KEY"])
def test_only_a_rowid_makes_numbers_up(world: World, key: str) -> None:
    without = "" if "DESC" in key else " WITHOUT ROWID"
    file_of(world).sql(f"CREATE TABLE orders ({key}, text TEXT){without}")
    plan = world.plan(pa.table({"id": pa.array([1, None], pa.int64()), "text": ["a", "b"]}))
    vote = world.prepare(plan)
    if without:
        with raises(DeclinedError, "null_refused", sink=SINK) as caught:
            world.commit(plan, vote)
        assert caught.error is not None and "NOT NULL constraint failed" in caught.error.headline
        return
    world.commit(plan, vote)
    assert file_of(world).sql("SELECT id FROM orders ORDER BY text") == [(1,), (None,)]


@pytest.mark.parametrize("type", [pa.int8(), pa.uint64()])
def test_no_number_is_made_up_for_null(world: World, type: pa.DataType) -> None:
    file_of(world).sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, text TEXT)")
    plan = world.plan(pa.table({"id": pa.array([1, None], type), "text": ["a", "b"]}))
    with raises(DeclinedError, "null_refused", sink=SINK) as caught:
        world.commit(plan, world.prepare(plan))
    assert caught.error is not None and Path(str(caught.error.fields["path"])).is_file()
    assert (
        caught.error is not None and "row 2" in caught.error.headline and "INTEGER PRIMARY KEY" in caught.error.headline
    )


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE orders (id INTEGER, text TEXT CHECK (json_extract(text, '$.a') > 0))",
        "CREATE TABLE orders (id INTEGER, text TEXT, sum INTEGER AS (abs(id + (-9223372036854775807 - 1))) STORED)",
    ],
)
def test_an_error_that_a_row_causes_belongs_to_the_row(world: World, table: str) -> None:
    file_of(world).sql(table)
    rows = pa.table({"id": pa.array([0], pa.int64()), "text": ["{not json"]})
    plan = world.plan(rows)
    vote = world.prepare(plan)
    with raises(DeclinedError, "row_refused", sink=SINK) as caught:
        world.commit(plan, vote)
    text = str(caught.error)
    assert "malformed JSON" in text or "integer overflow" in text
    world.participant(plan).abort(plan, world.fence(1, world.attempt()), {})
    proof = world.commit(world.plan(rows), vote, set_aside=True)
    assert proof.counts[SINK] == 0


def test_what_a_table_lacks_is_told_before_anything_runs(world: World) -> None:
    file = file_of(world)
    planned = world.participant_plan()
    schema = {SINK: world.table(0, 1).schema}
    for table in ("CREATE TABLE orders (id INTEGER UNIQUE ON CONFLICT REPLACE, text TEXT)", CHANGED["view"]):
        file.sql(table)
        [lacking] = lacks(requirements.required("orders", planned, file.connection))
        [schema_problem] = requirements.schema_problems(planned, file.connection, schema)
        assert isinstance(lacking, UnfitTargetError) and isinstance(schema_problem, UnfitTargetError)
        file.sql(f"DROP {table.split()[1]} orders")
    assert not lacks(requirements.required("orders", planned, file.connection))


def test_too_many_columns_are_told(world: World) -> None:
    with raises(UnfitTargetError, "table_uncreatable", table="orders"):
        world.prepare(world.plan(pa.table({f"c{n}": [n] for n in range(2001)})))


def test_settings_that_exactness_rests_on_are_set(world: World) -> None:
    world.deliver(world.plan())
    with SqliteFile(file_of(world).path).opened() as db:
        assert db is not None
        found = {name: db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("foreign_keys", "recursive_triggers")}
    assert found == {"foreign_keys": 0, "recursive_triggers": 0}


@pytest.mark.parametrize(
    ("code", "of_a_row"),
    [
        (None, False),
        (sqlite3.SQLITE_ERROR, True),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, True),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, False),
    ],
)
def test_an_error_without_a_code_says_nothing_of_a_row(code: int | None, of_a_row: bool) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    if code is not None:
        error.sqlite_errorcode = code
    assert is_of_a_row(error) is of_a_row


def test_the_file_is_free_while_segments_are_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, looked = ParquetWal.open, []

    def free(wal: ParquetWal, segment: Segment) -> ParquetSegment:
        with closing(sqlite3.connect(file_of(world).path, timeout=0)) as other:
            looked.append(other.execute("BEGIN IMMEDIATE"))
        return opening(wal, segment)

    monkeypatch.setattr(ParquetWal, "open", free)
    world.deliver(world.plan())
    assert len(looked) == 2  # at the vote and at the delivery


def test_the_proof_of_a_settled_number_needs_no_segments(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are pruned before the marker."""
    plan = world.plan()
    world.deliver(plan)
    [segment] = plan.segments
    monkeypatch.setattr(ParquetWal, "open", lambda *_: (_ for _ in ()).throw(FileNotFoundError(segment.location)))
    participant, vote = world.participant(plan), world.vote_without_prepare(plan)
    assert participant.commit(plan, world.fence(1, vote.attempt), vote) == participant.proof(plan)
