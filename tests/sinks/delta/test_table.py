"""A table beside other writers, other tables, and mistakes: what comes, and what is told."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Transaction, write_deltalake

from airflow_ft import DeltaSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    DeclinedError,
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks.delta import verify
from airflow_ft.sinks.delta.columns import type_of
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.delta.requirements import schema_problems
from airflow_ft.sinks.delta.rows import Rows
from airflow_ft.sinks.delta.table import Snapshot, translated_delta_errors
from airflow_ft.testing.world import SINK, THEIRS, World
from airflow_ft.wal import open_wal
from airflow_ft.wal.local import LocalFileSystem
from tests.disks import synced
from tests.raising import raises
from tests.sinks.delta.world import participant_of, table_of, world_of

NOTHING = ConnectionInfo("", "")


def log_of(world: World) -> list[dict[str, Any]]:
    commits = sorted((table_of(world).path / "_delta_log").glob("*.json"))
    return [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]


def refused(world: World, rows: pa.Table, kind: type[AirflowFtError], code: str, **fields: Any) -> AirflowFtError:
    plan = world.plan(rows)
    before = world.target.ids()
    with raises(kind, code, sink=SINK, **fields) as caught:
        world.commit(plan, world.prepare(plan))
    assert caught.error is not None and caught.error.remedy and world.target.ids() == before
    aborted = participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {})
    assert aborted.outcome is Outcome.ABORTED
    return caught.error


def test_an_unparseable_day_is_refused_before_the_decision(tmp_path: Path) -> None:
    """In the log it would make the whole table unreadable, for whoever would mend it as well."""
    rows = pa.table({"id": [1, 2], "day": pa.array([0, 14_600_000], pa.date32())})
    world = world_of(tmp_path, partition_by=["day"])
    for decides in (True, False):
        world.commit_point = decides
        plan = world.plan(rows)
        with raises(DeclinedError, "row_refused", sink=SINK) as caught:
            vote = world.prepare(plan)
            assert decides, "nobody could refuse it later"
            world.commit(plan, vote)
        assert caught.error is not None and all(each in caught.error.headline for each in ("row 2", "'day'"))
    proof = world.commit(plan := world.plan(rows), world.vote_without_prepare(plan), set_aside=True)
    assert proof.counts[SINK] == 1 and world.target.ids() == [1]


def test_one_commit_holds_the_marker_and_the_logs_own_file(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    adds = [each["add"] for each in log_of(world) if "add" in each]
    assert [each["path"].split("/")[0][:21] for each in adds] == ["checkpoint-0000000001"]
    file = table_of(world).path / adds[0]["path"]
    assert file.stat().st_nlink == 2, "a second name"
    stats = json.loads(adds[0]["stats"])
    assert stats == {
        "numRecords": 40,
        "minValues": {"id": 40, "text": "row 40"},
        "maxValues": {"id": 79, "text": "row 79"},
        "nullCount": {"id": 0, "text": 0},
    }
    last = sorted((table_of(world).path / "_delta_log").glob("*.json"))[-1].read_text()
    kinds = [next(iter(json.loads(line))) for line in last.splitlines()]
    assert sorted(kinds) == ["add", "commitInfo", "txn"]
    assert json.loads(last.splitlines()[0])["commitInfo"]["airflow_ft"]["checkpoint"] == 1


def test_new_folders_above_a_new_table_are_synced(tmp_path: Path) -> None:
    """The next process finds the table, and does not sync them."""
    path = tmp_path / "lake" / "shop" / "orders"
    with synced(before=path / "_delta_log") as seen:
        Snapshot.made(Place.of(DeltaSink(table=str(path)), NOTHING), pa.schema({"id": pa.int64()}), ())
    assert {each.stat().st_ino for each in (path.parent, path.parent.parent, tmp_path)} <= seen
    assert (path / "_delta_log" / f"{0:020}.json").exists()


@pytest.mark.parametrize("inner", [[100, None], ["x", None]], ids=["numbers", "texts"])
def test_a_column_has_no_bounds_of_a_part_of_another(tmp_path: Path, inner: list[Any]) -> None:
    """In Parquet, column `a.b` and part `b` of column `a` have one path."""
    world = world_of(tmp_path)
    world.deliver(world.plan(pa.table({"id": [1, 2], "a.b": [1, 2], "a": [{"b": each} for each in inner]})))
    [stats] = [json.loads(each["add"]["stats"]) for each in log_of(world) if "add" in each]
    assert (stats["minValues"], stats["maxValues"]) == ({"id": 1, "a.b": 1}, {"id": 2, "a.b": 2})
    assert stats["nullCount"] == {"id": 0, "a.b": 0}


def test_bounds_to_the_ends_of_time_are_right_or_left_out(tmp_path: Path) -> None:
    """A bound is rounded away from the values, and there is none behind the last moment of Python's last year."""
    last, first = datetime(9999, 12, 31, 23, 59, 59, 999_999), datetime(1, 1, 1)
    late = pa.array([0, 2_932_897], pa.int32()).cast(pa.date32())
    world = world_of(tmp_path)
    world.deliver(world.plan(pa.table({"id": [1, 2], "first": [first, first], "at": [first, last], "late": late})))
    [stats] = [json.loads(each["add"]["stats"]) for each in log_of(world) if "add" in each]
    assert stats["minValues"] == {"id": 1, "first": "0001-01-01T00:00:00.000"}
    assert stats["maxValues"] == {"id": 2, "first": "0001-01-01T00:00:00.000"}
    assert stats["nullCount"] == {"id": 0, "first": 0, "at": 0, "late": 0}
    assert table_of(world).open().to_pyarrow_table()["at"].to_pylist() == [first, last]


def test_a_file_that_waited_long_in_the_log_is_not_an_orphan(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    plan = world.plan()
    vote = world.prepare(plan)
    for file in (tmp_path / "wal").rglob("*.parquet"):
        os.utime(file, (0, 0))
    world.commit(plan, vote)
    DeltaTable(str(table_of(world).path)).vacuum(retention_hours=200, dry_run=False)
    assert world.target.ids() == world.ids_of(1)


def test_others_append_and_vacuum_between_and_beside(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    path = str(table_of(world).path)
    for number in range(1, 5):
        plan = world.plan()
        vote = world.prepare(plan)
        write_deltalake(path, world.table(number, 1), mode="append")
        world.commit(plan, vote)
        world.predecessor = number
    table = DeltaTable(path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    world.deliver(world.plan())
    assert world.target.ids() == [1, 2, 3, 4, *world.ids_of(1, 2, 3, 4, 5)]


@pytest.mark.parametrize(("columns", "wanted"), [((), 1), (("note",), 2)])
def test_files_are_written_once_for_the_same_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...], wanted: int
) -> None:
    """However often others append: they would be faster than a large checkpoint each time."""
    world = world_of(tmp_path, partition_by=["text"])
    world.deliver(world.plan(world.table(100, 4, texts=2)))
    plan = world.plan(world.table(200, 4, texts=2))
    vote = world.prepare(plan)
    commit, write, written, theirs = Snapshot.commit, Rows._write, list[bool](), list[int]()

    def overtaken(self: Snapshot, *of: Any) -> Any:
        if len(theirs) < 3:
            theirs.append(len(theirs))
            row = pa.table({"id": theirs[-1:], "text": ["0"], **{name: [1] for name in columns}})
            write_deltalake(table_of(world).path, row, mode="append", schema_mode="merge")
        return commit(self, *of)

    def counted(self: Rows, *of: Any) -> int:
        written.append(True)
        return write(self, *of)

    monkeypatch.setattr(Snapshot, "commit", overtaken)
    monkeypatch.setattr(Rows, "_write", counted)
    world.commit(plan, vote)
    assert (len(theirs), len(written)) == (3, wanted)
    assert len(list(table_of(world).path.glob("checkpoint-0000000002*"))) == 1, "others are removed"
    assert world.target.ids() == [0, 1, 2, *range(100, 104), *range(200, 204)]


def test_two_pipelines_deliver_into_one_table(tmp_path: Path) -> None:
    one, two = world_of(tmp_path), world_of(tmp_path)
    for _ in range(2):
        one.deliver(one.plan())
        two.deliver(two.plan(two.table(1000 * two.number + 5000, 2)))
    assert one.target.ids() == sorted([*one.ids_of(1, 2), 5000, 5001, 6000, 6001])


def test_columns_are_added_where_that_was_asked_for(tmp_path: Path) -> None:
    more = pa.table({"id": [1], "text": ["a"], "at": pa.array([7], pa.timestamp("us")), "x": [[1]]})
    strict = world_of(tmp_path / "strict")
    strict.deliver(strict.plan())
    lacking = refused(strict, more, UnfitTargetError, "column_missing")
    assert lacking.fields["codes"] == ["column_missing"] * 2 and "schema_evolution=True" in lacking.headline
    world = world_of(tmp_path / "evolving", schema_evolution=True)
    world.deliver(world.plan())
    world.deliver(world.plan(more))
    world.deliver(world.plan())
    found = world.target.read().sort_by("id").to_pylist()  # type: ignore[attr-defined]
    assert found[0]["at"].microsecond == 7 and found[0]["x"] == [1] and found[1]["x"] is None and len(found) == 81


def test_a_dry_run_judges_no_columns_that_are_to_be_added(tmp_path: Path) -> None:
    evolving, began = world_of(tmp_path / "evolving", schema_evolution=True), world_of(tmp_path / "began")
    evolving.deliver(evolving.plan())
    began.deliver(began.plan(pa.table({})))
    more = pa.table({"id": [1], "text": ["a"], "at": pa.array([7], pa.timestamp("us"))})
    for world, plan in (evolving, evolving.plan(more)), (began, began.plan()):
        participant_of(world, plan).judge(world.pipeline, [open_wal().open(each) for each in plan.segments])
        world.deliver(plan)


def test_required_parts_of_rows_may_be_null_in_the_table(tmp_path: Path) -> None:
    world = world_of(tmp_path, schema_evolution=True)
    within = pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))
    kind = pa.list_(pa.field("element", within, nullable=False))
    parts = pa.array([[[("a", 7)]]], kind)
    world.deliver(world.plan(pa.table({"id": [1], "parts": parts})))
    world.deliver(world.plan(pa.table({"id": [2], "parts": parts, "more": parts})))
    found = sorted(table_of(world).read().to_pylist(), key=lambda row: row["id"])
    assert [(row["parts"], row["more"]) for row in found] == [([[("a", 7)]], None), ([[("a", 7)]], [[("a", 7)]])]


@pytest.mark.parametrize("decides", [True, False])
def test_rows_without_the_partition_column_get_null_there(tmp_path: Path, decides: bool) -> None:
    world = world_of(tmp_path)
    world.commit_point = decides
    write_deltalake(table_of(world).uri, pa.table({"id": [0], "day": ["a"]}), partition_by=["day"])
    world.deliver(world.plan(pa.table({"id": [1]})))
    assert sorted(table_of(world).read().to_pylist(), key=str) == [{"id": 0, "day": "a"}, {"id": 1, "day": None}]


def test_a_pipeline_may_begin_without_columns(tmp_path: Path) -> None:
    world = world_of(tmp_path, partition_by=("text",))
    world.deliver(world.plan(pa.table({})))
    assert table_of(world).read().column_names == ["_airflow_ft"]
    world.deliver(world.plan())
    table = DeltaTable(str(table_of(world).path))
    assert table.metadata().partition_columns == ["text"] and world.target.ids() == world.ids_of(2)


def test_what_is_aborted_before_there_is_a_table_never_comes(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    strange = pa.table({"id": pa.array([1], pa.uint64())})
    assert "uint64" in refused(world, strange, DeclinedError, "type_unsupported", column="id").headline
    world.deliver(world.plan())
    assert world.target.read().column_names == ["id", "text"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rows", "code", "column"),
    [
        ({"id": [1], "text": [1]}, "column_unfit", "text"),
        ({"id": [1], "text": ["a"], "TEXT": ["b"]}, "column_ambiguous", "TEXT"),
        ({"id": [1], "a b": ["a"]}, "name_invalid", "a b"),
        ({"id": [1], "parts": [{"a b": 1}]}, "name_invalid", "parts"),
        ({"id": [1], "text": pa.array([1], pa.time64("us"))}, "type_unsupported", "text"),
        ({"id": [1], "text": pa.array([1], pa.timestamp("ns"))}, "type_unsupported", "text"),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path: Path, rows: dict[str, Any], code: str, column: str) -> None:
    world = world_of(tmp_path, schema_evolution=True)
    world.deliver(world.plan())
    table = pa.table(rows)
    [planned] = world.plan().participants
    found = schema_problems(planned, NOTHING, {SINK: table.schema})
    assert [(each.code, each.column, each.sink) for each in found] == [(code, column, SINK)]


def test_wider_columns_take_narrower_rows(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    schema = pa.schema([("id", pa.int64()), ("Price", pa.decimal128(20, 4)), ("ratio", pa.float64())])
    DeltaTable.create(str(table_of(world).path), schema)
    rows = pa.table({"ratio": pa.array([0.5], pa.float32()), "id": pa.array([1], pa.int8()), "price": [1]})
    rows = rows.set_column(2, "price", rows["price"].cast(pa.decimal128(19, 0)).cast(pa.decimal128(20, 1)))
    refused(world, rows, UnfitTargetError, "column_unfit", declared="decimal(20,4)", type="decimal(20,1)")
    rows = rows.set_column(2, "price", rows["price"].cast(pa.decimal128(10, 2)))
    world.deliver(world.plan(rows))
    [row] = world.target.read().to_pylist()  # type: ignore[attr-defined]
    assert (row["id"], row["ratio"], str(row["Price"])) == (1, 0.5, "1.0000")


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"delta.setTransactionRetentionDuration": "interval 1 days"}, "table_setting_unsafe"),
        ({"delta.constraints.positive": "id > 0"}, "table_unsupported"),
        ({"delta.columnMapping.mode": "name"}, "table_unsupported"),
    ],
)
def test_tables_that_only_spark_can_write_are_refused(tmp_path: Path, properties: dict[str, str], code: str) -> None:
    world = world_of(tmp_path)
    table_of(world).path.mkdir()
    write_deltalake(table_of(world).path, world.table(1, 1))
    first = table_of(world).path / "_delta_log" / f"{0:020}.json"
    first.write_text(first.read_text().replace('"configuration":{}', f'"configuration":{json.dumps(properties)}'))
    plan = world.plan()
    with raises(UnfitTargetError, code, sink=SINK, setting=next(iter(properties))):
        world.prepare(plan)


def test_a_table_that_was_changed_since_the_vote_takes_nothing(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    plan = world.plan()
    vote = world.prepare(plan)
    schema = pa.schema([("id", pa.float64()), ("text", pa.string())])
    write_deltalake(table_of(world).path, schema.empty_table(), mode="overwrite", schema_mode="overwrite")
    with raises(UnfitTargetError, "column_unfit", column="id", type="bigint", declared="double"):
        world.commit(plan, vote)
    assert world.target.ids() == []


def test_a_column_that_is_dropped_before_the_commit_is_named(tmp_path: Path) -> None:
    """Also where the sink adds columns, as it does in `prepare` alone."""
    world = world_of(tmp_path, schema_evolution=True)
    plan = world.plan()
    vote = world.prepare(plan)
    write_deltalake(table_of(world).path, pa.table({"id": [-1]}), mode="overwrite", schema_mode="overwrite")
    with raises(UnfitTargetError, "column_missing", column="text", sink=SINK):
        world.commit(plan, vote)
    world.commit(plan, world.prepare(plan))
    assert world.target.ids() == [-1, *world.ids_of(1)]


@pytest.mark.parametrize("after", [pa.float64(), pa.string()])
def test_verify_reports_columns_altered_after_the_delivery(tmp_path: Path, after: pa.DataType) -> None:
    world = world_of(tmp_path)
    plan = world.plan(pa.table({"id": [2**53 + 1]}))
    delivered = [Delivered(plan, world.deliver(plan), None)]
    table = table_of(world)

    def compared() -> SinkReport:
        [found] = verify.verify(delivered, world.participant_plan(), table.connection, open_wal())
        return found

    assert compared().is_exact
    changed = pa.table({"id": table.read()["id"].cast(after, safe=False)})
    write_deltalake(table.uri, changed, mode="overwrite", schema_mode="overwrite")
    assert not compared().is_exact and "does not hold int64" in compared().error


def test_verify_compares_dates_that_python_lacks(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    days = pa.array([2_932_897, -800_000], pa.int32()).view(pa.date32())
    plan = world.plan(pa.table({"id": [1, 2], "day": days}))
    delivered = [Delivered(plan, world.deliver(plan), None)]
    [found] = verify.verify(delivered, world.participant_plan(), table_of(world).connection, open_wal())
    assert found.is_exact and found.expected == 2


def test_what_the_table_has_forgotten_halts(tmp_path: Path) -> None:
    for loss in ("the table", "the ledger", "a byte of it", "all"):
        world = world_of(tmp_path / loss)
        world.deliver(world.plan())
        path = table_of(world).path
        if loss == "the ledger":
            shutil.rmtree(path / "_airflow_ft")
        elif loss == "a byte of it":
            newest = max((path / "_airflow_ft").rglob("*.json"))
            newest.write_bytes(newest.read_bytes().replace(b'"floor":0', b'"floor":9'))
        else:
            shutil.rmtree(path)
            if loss == "the table":
                write_deltalake(path, world.table(1, 1))
        plan = world.plan()
        with raises(StoreBehindSinkError, "ledger_damaged" if loss == "a byte of it" else "ledger_lost") as caught:
            world.prepare(plan)
        assert caught.error is not None and caught.error.remedy
        assert path.exists() == (loss != "all"), "no table is made in the place of a lost one"


def test_a_table_recreated_during_a_delivery_halts_the_pipeline(tmp_path: Path) -> None:
    """It has as many versions as the one that was read before."""
    world = world_of(tmp_path)
    plan = world.plan()
    participant = participant_of(world, plan)
    vote = participant.prepare(plan, world.fence(1, 1))
    path = table_of(world).path
    version = DeltaTable(str(path)).version()
    shutil.rmtree(path)
    for _ in range(version + 1):
        write_deltalake(path, world.table(1, 1), mode="append")
    with raises(StoreBehindSinkError, "ledger_lost"):
        participant.commit(plan, world.fence(1, 2), Vote("", 0, 0, None, dict(vote)))
    assert DeltaTable(str(path)).version() == version


def test_a_damaged_log_is_told(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    newest = max((table_of(world).path / "_delta_log").glob("*.json"))
    newest.write_text("{")
    with raises(SinkAccessError, "log_unreadable", path=str(table_of(world).path)) as caught:
        world.prepare(world.plan())
    assert caught.error is not None and "_delta_log" in caught.error.remedy


@pytest.mark.parametrize(
    ("number", "kind"),
    [(28, SinkUnavailableError), (13, SinkAccessError)],
)
def test_errors_of_the_disk_are_told(number: int, kind: type[AirflowFtError]) -> None:
    place = Place.of(DeltaSink(table="/data/orders"), NOTHING)
    with pytest.raises(kind) as error, translated_delta_errors(place, participant="delta-data"):
        raise Exception(f"Generic LocalFileSystem error: ... (os error {number})")
    assert type(error.value) is kind and error.value.remedy and error.value.participant == "delta-data"


def test_the_app_transaction_alone_does_not_let_a_stranger_in(tmp_path: Path) -> None:
    """Somebody else's commit under our app id names no ledger of ours."""
    world = world_of(tmp_path)
    plan = world.plan()
    world.deliver(plan)
    app = f"airflow_ft/{world.pipeline}/{table_of(world).sink.participant}"
    from deltalake import CommitProperties

    properties = CommitProperties(app_transactions=[Transaction(app, 1 << 40, 0)])
    write_deltalake(table_of(world).path, world.table(1, 1), mode="append", commit_properties=properties)
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(world.plan())


def test_another_decision_log_takes_over_behind_a_tombstone(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    participant = participant_of(world, plan)
    participant.abort(plan, world.fence(1, 1 << 20), {"message": "a test"})
    [orphan] = participant.orphans(world.pipeline, THEIRS)
    assert orphan.number == 2
    participant.end_orphans(world.fence(5, 1, THEIRS), None)
    participant.adopt(world.fence(5, 2, THEIRS), 2)
    with raises(FencedError, "fenced", head_epoch=5):  # another adoption has gone further
        participant.end_orphans(world.fence(4, 9, THEIRS), None, make_way=True)
    participant.end_orphans(world.fence(5, 3, THEIRS), None, make_way=True)
    assert participant.orphans(world.pipeline, THEIRS) == []
    world.predecessor = 2
    theirs = replace(world.plan(), installation=THEIRS)
    assert world.commit(theirs, world.prepare(theirs, epoch=6), epoch=6).outcome is Outcome.COMMITTED


def test_a_place_with_odd_characters(tmp_path: Path) -> None:
    world = world_of(tmp_path / "ü % #x")
    world.deliver(world.plan())
    world.deliver(world.plan())
    assert world.target.ids() == world.ids_of(1, 2)


@pytest.mark.parametrize("table", ["gs://bucket/orders", "hdfs://namenode:8020/orders", "orders", "/", "/a%20b"])
def test_an_unusable_folder_is_refused_when_the_dag_is_parsed(table: str) -> None:
    with raises(ConfigurationError, "path_invalid", argument="table", value=table) as caught:
        DeltaSink(table=table)
    assert caught.error is not None and caught.error.remedy


@pytest.mark.parametrize(
    ("settings", "code", "argument"),
    [
        ({"table": "s3://bucket"}, "path_invalid", None),
        ({"table": "s3://bucket/a%20b"}, "path_invalid", None),
        ({"table": "/x", "partition_by": ["a", "a"]}, "argument_invalid", "partition_by"),
        ({"table": "/x", "name": "a b"}, "name_invalid", "name"),
        ({"table": "/x", "file_bytes": 0}, "argument_invalid", "file_bytes"),
        ({"table": "/x/{{ params.t }}"}, "argument_missing", "name"),
    ],
)
def test_what_cannot_work_is_told_when_the_dag_is_parsed(
    settings: dict[str, Any], code: str, argument: str | None
) -> None:
    with raises(ConfigurationError, code, argument=argument) as caught:
        DeltaSink(**settings)
    assert caught.error is not None and caught.error.remedy


def test_settings_come_back() -> None:
    sink = DeltaSink(table="file:///data/a%20b", partition_by=["c"], schema_evolution=True)
    assert DeltaSink.from_settings(sink.name, sink.settings()) == sink and str(sink.path) == "/data/a b"
    assert sink.participant == "delta-data-a-20b" and sink.at_least_once() is sink.promise


def test_types_are_called_as_spark_calls_them() -> None:
    kind = pa.struct([("a", pa.list_(pa.map_(pa.string(), pa.decimal128(5, 2)))), ("b", pa.timestamp("ms", "UTC"))])
    assert type_of(kind) == "struct<a:array<map<string,decimal(5,2)>>,b:timestamp>"


@pytest.mark.parametrize("when", ["nothing was there", "its log was there", "its first entry was there"])
def test_a_table_that_appears_between_two_looks_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Another pipeline, or attempt, makes it, and has written its head, after this one has found no table."""
    world = world_of(tmp_path)
    table = table_of(world)
    log = table.path / "_delta_log"
    if when != "nothing was there":
        log.mkdir(parents=True)

    def make() -> None:
        monkeypatch.undo()
        other = World(table, tmp_path)
        other.deliver(other.plan())

    exists, names, opened = LocalFileSystem.exists, LocalFileSystem.names, Place.open

    def looked(self: LocalFileSystem, uri: str) -> bool:
        found = exists(self, uri)
        if uri == log.as_uri() and when == "nothing was there":
            make()
        return found

    def listed(self: LocalFileSystem, uri: str) -> list[str]:
        found = names(self, uri)
        if uri == log.as_uri() and when == "its log was there":
            make()
        return found

    def read(self: Place) -> DeltaTable:
        try:
            return opened(self)
        finally:
            if when == "its first entry was there":
                make()

    monkeypatch.setattr(LocalFileSystem, "exists", looked)
    monkeypatch.setattr(LocalFileSystem, "names", listed)
    monkeypatch.setattr(Place, "open", read)
    world.deliver(world.plan(world.table(1_000, 2)))
    assert len(table.ids()) == 42


def test_overlong_partition_values_get_another_folder(tmp_path: Path) -> None:
    """Readers go by the log, so the folder's name says nothing."""
    columns = [f"c{number}" for number in range(20)]
    world = world_of(tmp_path, partition_by=columns)
    world.deliver(world.plan(pa.table({"id": [1, 2], **{name: ["short", 250 * "x"] for name in columns}})))
    found = {row["id"]: {row[name] for name in columns} for row in world.target.read().to_pylist()}  # type: ignore[attr-defined]
    assert found == {1: {"short"}, 2: {250 * "x"}}
