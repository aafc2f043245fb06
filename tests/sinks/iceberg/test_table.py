"""Beside other writers of the table, over its life: commits in between, expiry, evolution, partitions."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.io.pyarrow import PyArrowFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import snapshots
from pyiceberg.table.update import AddSchemaUpdate, RemoveSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from airflow_ft import IcebergSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    DeclinedError,
    FencedError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks.iceberg import columns
from airflow_ft.sinks.iceberg.catalog import Connected
from airflow_ft.sinks.iceberg.columns import partition
from airflow_ft.sinks.iceberg.connection import properties, secrets
from airflow_ft.sinks.iceberg.lineage import dataset, place
from airflow_ft.sinks.iceberg.requirements import required, schema_problems
from airflow_ft.sinks.iceberg.table import Version
from airflow_ft.sinks.iceberg.verify import verify
from airflow_ft.testing.values import Values, plain, same
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal, writer
from tests.conformance.values import CLOCK, FINITE, NESTED, NOT_FINITE, without
from tests.raising import raises
from tests.sinks.iceberg.world import Table, in_file

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(world_of(tmp_path)) as made:
        yield made


def world_of(folder: Path, **settings: Any) -> World:
    folder.mkdir(exist_ok=True)
    return World(Table(in_file(folder), **settings), folder)


def table_of(world: World) -> Table:
    assert isinstance(world.target, Table)
    return world.target


@contextmanager
def opened(world: World) -> Iterator[IcebergTable]:
    with table_of(world).opened() as table:
        assert table is not None
        yield table


@contextmanager
def before_the_next_commit(act: Callable[[], object]) -> Iterator[None]:
    """Something happens when the next commit is on its way to the catalog."""
    call, done = SqlCatalog.commit_table, list[bool]()

    def commit_table(*of: Any) -> Any:
        if not done:
            done.append(True)
            act()
        return call(*of)

    with mock.patch.object(SqlCatalog, "commit_table", commit_table):
        yield
    assert done


def a_raised_fence_refuses_what_is_on_its_way(world: World) -> None:
    """The successor has raised the fence, and not moved main, when the commit of the rows arrives."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next_commit(lambda: world.prepare(plan, epoch=2)), raises(FencedError, "fenced"):
        world.commit(plan, vote)
    world.shows(world.ids_of(1))
    head = world.participant(plan).head(world.pipeline)
    assert head is not None and head.epoch == 2
    world.commit(plan, vote, epoch=2)
    world.shows(world.ids_of(1, 2))


def rows_of_others_stay(world: World) -> None:
    """Others append, and the step is repeated with the files that it has written."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next_commit(lambda: append(world, -1)):
        world.commit(plan, vote)
    world.shows([-1, *world.ids_of(1, 2)])


def others_beside(world: World) -> None:
    """Another pipeline changes its memory, and so neither main nor our branch."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    other = World(world.target, world.folder)
    with before_the_next_commit(lambda: other.prepare(other.plan())):
        world.commit(plan, vote)
    world.predecessor = plan.number
    with before_the_next_commit(lambda: world.prepare(world.plan())):
        other.deliver(other.plan(other.table(900, 2)))
    world.shows([*world.ids_of(1, 2), 900, 901])
    other.close()


def append(world: World, id: int) -> None:
    with opened(world) as table:
        table.append(pa.table({"id": [id], "text": ["theirs"]}))


def test_a_raised_fence_refuses_what_is_on_its_way(world: World) -> None:
    a_raised_fence_refuses_what_is_on_its_way(world)


def test_rows_of_others_stay(world: World) -> None:
    rows_of_others_stay(world)


def test_two_pipelines_do_not_meet(world: World) -> None:
    others_beside(world)


def test_files_are_written_once_however_often_a_step_is_repeated(tmp_path: Path) -> None:
    with closing(world_of(tmp_path, partition_by=["bucket(2, id)"])) as world:
        world.deliver(world.plan())
        plan = world.plan()
        vote = world.prepare(plan)
        written: list[str] = []
        create = PyArrowFile.create

        def counted(self: PyArrowFile, *of: Any, **more: Any) -> Any:
            written.append(self.location)
            return create(self, *of, **more)

        with before_the_next_commit(lambda: append(world, -1)), mock.patch.object(PyArrowFile, "create", counted):
            world.commit(plan, vote)
        data = [each for each in written if each.endswith(".parquet") and "theirs" not in each]
        assert len(data) == 2 + 1, "two of ours, one of theirs"
        world.shows([-1, *world.ids_of(1, 2)])


def test_there_is_one_memory_and_expiry_keeps_it(world: World) -> None:
    for _ in range(3):
        world.deliver(world.plan())
    with opened(world) as table:
        main = {each.snapshot_id for each in table.history()}
        assert len(table.snapshots()) == len(main) + 1 and len(table.refs()) == 2
        kept = {ref.snapshot_id for ref in table.refs().values()}
        old = [each.snapshot_id for each in table.snapshots() if each.snapshot_id not in kept]
        table.maintenance.expire_snapshots().by_ids(old).commit()
    world.deliver(world.plan())
    world.shows(world.ids_of(1, 2, 3, 4))


def test_a_lost_memory_halts(world: World) -> None:
    world.deliver(world.plan())
    with opened(world) as table:
        [ours] = [name for name in table.refs() if name != "main"]
        table.catalog.commit_table(table, (), (RemoveSnapshotRefUpdate.model_validate({"ref-name": ours}),))
    plan = world.plan()
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(plan)
    world.shows(world.ids_of(1))


def test_a_table_that_others_have_renamed_is_not_made_again(world: World) -> None:
    world.deliver(world.plan())
    moved = (table_of(world).space, "moved")
    with closing(table_of(world).catalog()) as catalog:
        catalog.rename_table(table_of(world).sink.identifier, moved)
        plan = world.plan()
        with raises(StoreBehindSinkError, "ledger_lost"):
            world.prepare(plan)
        catalog.rename_table(moved, table_of(world).sink.identifier)  # no other one has the name
    world.commit(plan, world.prepare(plan))
    world.shows(world.ids_of(1, 2))


def test_a_restored_catalog_is_pointed_at_the_newest_metadata(world: World) -> None:
    def point_at(location: str) -> str:
        uri = properties(table_of(world).connection)["uri"]
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///").partition("?")[0])) as db, db:
            [(found,)] = db.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
            if location:
                db.execute("UPDATE iceberg_tables SET metadata_location = ?", (location,))
        return str(found)

    world.deliver(world.plan())
    backup = point_at("")
    world.deliver(world.plan())
    Path(backup.removeprefix("file://")).unlink()
    newest = point_at(backup)
    plan = world.plan()
    with raises(SinkAccessError, "metadata_missing"):
        world.prepare(plan)
    point_at(newest)
    world.commit(plan, world.prepare(plan))
    world.shows(world.ids_of(1, 2, 3))


def test_a_sink_that_creates_no_table_creates_none(tmp_path: Path) -> None:
    with closing(world_of(tmp_path, create=False)) as world:
        plan = world.plan()
        participant, fence = world.participant(plan), world.fence(1, world.attempt())
        for step in (
            participant.prepare,
            lambda *of: participant.abort(*of, {}),
            lambda *_: participant.adopt(fence, 0),
        ):
            with raises(UnfitTargetError, "table_missing", sink=SINK, participant="orders"):
                step(plan, fence)
        with table_of(world).opened() as table:
            assert table is None


def test_a_compacted_table_is_verified(world: World) -> None:
    plan = world.plan()
    proof = world.deliver(plan)
    with opened(world) as table:
        table.overwrite(table.scan().to_arrow())
    [planned] = plan.participants
    [report] = verify([Delivered(plan, proof, None)], planned, world.target.connection, open_wal())
    assert (report.missing, report.repeated, report.other, report.error) == (0, 0, 0, "")


def test_files_of_the_log_become_the_tables_with_their_bounds(world: World) -> None:
    columns = {**FINITE, **NOT_FINITE, **CLOCK, **NESTED}
    given = Values(table_of(world).sink, columns, list).table().drop_columns(["id"])
    given = given.add_column(0, "id", pa.array(range(given.num_rows), pa.int64()))
    world.deliver(world.plan(given))
    with opened(world) as table:
        [file] = [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]
        assert file.stat().st_nlink == 2, "it is the log's"
        found = {row["id"]: row for row in plain(table.scan().to_arrow())}
        for row in plain(given):
            assert all(same(found[row["id"]][name], row[name]) for name in columns), row["id"]
        for name in without(columns, *NOT_FINITE, *NESTED, "raw", "flag"):
            for value in {each for each in given[name].to_pylist() if each is not None}:
                wanted = [row["id"] for row in given.to_pylist() if row[name] == value]
                seen = table.scan(EqualTo(term=Reference(name), value=_literal(value))).to_arrow()["id"].to_pylist()
                assert seen == wanted, (name, value)


@pytest.mark.parametrize("rewritten", [False, True])
def test_row_groups_without_bounds_leave_the_column_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewritten: bool
) -> None:
    """PyArrow writes no bounds of a text above 4 KB. Readers would skip its row group, and a DELETE remove it."""
    monkeypatch.setattr(writer, "rows_a_group", lambda _: 2)
    given = pa.table({"id": [1, 2, 3, 4], "text": ["a", "b", "m", "z" * 5_000], "ratio": [1.0, 2.0, 3.0, math.nan]})
    with closing(world_of(tmp_path)) as world:
        world.deliver(world.plan(given.slice(0, 0)))
        if rewritten:
            with opened(world) as table, table.transaction() as transaction:
                transaction.remove_properties("schema.name-mapping.default")
                transaction.set_properties({"write.parquet.row-group-limit": "2"})
        world.deliver(world.plan(given))
        with opened(world) as table:
            for id, text in enumerate(given["text"].to_pylist(), 1):
                assert table.scan(EqualTo(term=Reference("text"), value=text)).to_arrow()["id"].to_pylist() == [id]
            [file] = [task.file for task in table.scan().plan_files()]
            assert (set(file.lower_bounds), set(file.upper_bounds)) == ({1}, {1}), "those of id"
            table.delete("text < 'c'")
        world.shows([3, 4])


def _literal(value: Any) -> Any:
    """As pyiceberg takes it in a filter."""
    return value.isoformat() if isinstance(value, date | time) else value


def test_columns_are_added_on_request(tmp_path: Path) -> None:
    with closing(world_of(tmp_path, schema_evolution=True)) as world:
        world.deliver(world.plan())
        more = world.table(900, 3).append_column("note", pa.array(["a", None, "c"]))
        world.deliver(world.plan(more))
        rows = {row["id"]: row["note"] for row in table_of(world).read().to_pylist()}
        assert (rows[900], rows[901], rows[902], rows[world.ids_of(1)[0]]) == ("a", None, "c", None)


def test_times_in_a_sql_catalog_never_go_back(tmp_path: Path) -> None:
    """Iceberg's Java readers refuse a table whose times go back by more than a minute."""
    with closing(world_of(tmp_path, schema_evolution=True)) as world:
        ahead = SimpleNamespace(time=lambda: NOON.timestamp() + 100 * 365 * 86_400)
        with mock.patch.object(snapshots, "time", ahead):
            world.deliver(world.plan())
        world.deliver(world.plan())
        world.prepare(world.plan(world.table(900, 1).append_column("note", pa.array(["a"]))))
        with opened(world) as table:
            found = table.metadata
        assert found.snapshot_log == sorted(found.snapshot_log, key=lambda each: each.timestamp_ms)
        times = [*(each.timestamp_ms for each in found.metadata_log), found.last_updated_ms]
        assert times == sorted(times)


@pytest.mark.parametrize("rewritten", [False, True])
def test_required_parts_of_rows_may_be_null_in_the_table(tmp_path: Path, rewritten: bool) -> None:
    """Of a table that is made, and of a column that is added."""
    by = ["bucket(2, id)"] if rewritten else []
    with closing(world_of(tmp_path, schema_evolution=True, partition_by=by)) as world:
        first, second = required_parts([1], "parts"), required_parts([2], "parts", "more")
        for rows in (first, second):
            world.deliver(world.plan(rows))
        found = sorted(table_of(world).read().to_pylist(), key=lambda row: row["id"])
        assert found == [{**first.to_pylist()[0], "more": None}, *second.to_pylist()]


def required_parts(ids: list[int], *columns: str) -> pa.Table:
    """Rows whose nested columns have no part that may be NULL, as Spark makes them of literals."""
    number = pa.field("n", pa.int64(), nullable=False)
    within = pa.map_(pa.string(), pa.field("value", pa.struct([number]), nullable=False))
    kind = pa.list_(pa.field("element", within, nullable=False))
    values = pa.array([[[("a", {"n": each})]] for each in ids], kind)
    return pa.table({"id": pa.array(ids, pa.int64()), **dict.fromkeys(columns, values)})


def test_a_raised_fence_refuses_columns_on_their_way(tmp_path: Path) -> None:
    with closing(world_of(tmp_path, schema_evolution=True)) as world:
        world.deliver(world.plan(world.table(1, 1)))
        older = world.plan(world.table(900, 1).append_column("note", pa.array(["a"])))
        number = world.number
        newer = world.plan_of(number, world.segment(number, world.table(900, 1)))
        real = Version._commit

        def commit(self: Version, demands: Any, updates: Any) -> Any:
            if any(isinstance(each, AddSchemaUpdate) for each in updates):
                with mock.patch.object(Version, "_commit", real):
                    world.prepare(newer, epoch=2)
            return real(self, demands, updates)

        with mock.patch.object(Version, "_commit", commit), raises(FencedError, "fenced"):
            world.prepare(older)
        assert table_of(world).read().column_names == ["id", "text"]


def test_rows_of_a_renamed_column_stay(tmp_path: Path) -> None:
    """The log's files in the table have the former name alone."""
    with closing(world_of(tmp_path, schema_evolution=True)) as world:
        world.deliver(world.plan(world.table(1, 1)))
        with opened(world) as table, table.update_schema() as update:
            update.rename_column("text", "label")
        for id in (900, 901):
            world.deliver(world.plan(pa.table({"id": [id], "label": ["new"], "note": ["n"]})))
        rows = {row["id"]: (row["label"], row["note"]) for row in table_of(world).read().to_pylist()}
        assert rows == {1: ("row 1", None), 900: ("new", "n"), 901: ("new", "n")}


def test_the_new_name_of_a_renamed_column_is_said(world: World) -> None:
    world.deliver(world.plan())
    with opened(world) as table, table.update_schema() as update:
        update.rename_column("text", "label")
    plan = world.plan(pa.table({"id": [900], "text": ["a"], "other": ["b"]}))
    found = {each.column: each for each in problems(world, plan)}
    assert found["text"].fields["renamed"] == "label" and "label" in found["text"].remedy
    assert {each.code for each in found.values()} == {"column_missing"} and "renamed" not in found["other"].fields
    both = world.plan(pa.table({"id": [900], "text": ["a"], "label": ["b"]}))
    assert not any("renamed" in each.fields for each in problems(world, both)), "the name is another column's"
    with opened(world) as table, table.update_schema() as update:
        update.delete_column("label")
    assert not any("renamed" in each.fields for each in problems(world, plan))


@pytest.mark.parametrize("decides", [True, False])
def test_a_required_column_of_a_mapped_table_takes_rows(world: World, decides: bool) -> None:
    """Spark's `migrate` and `add_files` give such tables a name mapping."""
    schema = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "text", StringType()))
    mapping = {"schema.name-mapping.default": schema.name_mapping.model_dump_json()}
    target = table_of(world)
    with closing(target.catalog()) as catalog:
        catalog.create_namespace(target.space)
        catalog.create_table(target.sink.identifier, schema=schema, properties=mapping)
    world.commit_point = decides
    world.deliver(world.plan(pa.table({"id": [1, 2], "text": ["a", None]})))
    world.shows([1, 2])
    world.commit_point = False
    empty = world.plan(pa.table({"id": pa.array([None], pa.int64()), "text": ["c"]}))
    with raises(DeclinedError, "null_refused"):
        world.prepare(empty)


def test_a_name_mapping_that_others_change_is_no_longer_used(world: World) -> None:
    world.deliver(world.plan())
    name = "schema.name-mapping.default"
    with opened(world) as table:
        mapping = table.properties[name]

    def drop() -> None:
        with opened(world) as table, table.transaction() as transaction:
            transaction.remove_properties(name)

    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next_commit(drop), raises(UnfitTargetError, "table_setting_unsafe", setting=name):
        world.commit(plan, vote)
    with opened(world) as table, table.transaction() as transaction:
        transaction.set_properties({name: mapping})
    world.commit(plan, vote)  # it finds the marker
    world.predecessor = plan.number

    def drop_and_append() -> None:
        drop()
        append(world, -1)

    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next_commit(drop_and_append):  # the files of the second try have field ids
        world.commit(plan, vote)
    with opened(world) as table:
        newest = table.snapshot_by_name("main")
        assert newest is not None
        [ours] = [each for each in newest.manifests(table.io) if each.added_snapshot_id == newest.snapshot_id]
        [entry] = ours.fetch_manifest_entry(table.io)
        assert Path(entry.data_file.file_path.removeprefix("file://")).stat().st_nlink == 1, "it is not the log's"


@pytest.mark.parametrize("change", ["rename", "drop"])
def test_a_former_name_is_refused(tmp_path: Path, change: str) -> None:
    """The log's files in the table would give their values to the new column."""
    with closing(world_of(tmp_path, schema_evolution=True)) as world:
        world.deliver(world.plan(world.table(1, 1)))
        with opened(world) as table, table.update_schema() as update:
            if change == "rename":
                update.rename_column("text", "label")
            else:
                update.delete_column("text")
        before = table_of(world).read().to_pylist()
        with raises(UnfitTargetError, "column_missing", column="text", sink=SINK) as caught:
            world.prepare(world.plan(world.table(900, 1)))
        assert caught.error is not None and ("to label" in caught.error.remedy) == (change == "rename")
        assert table_of(world).read().to_pylist() == before


@pytest.mark.parametrize("first", ["rows", "nothing"])
def test_partitions_are_made(tmp_path: Path, first: str) -> None:
    """Also of a table that had to be made before any columns were known."""
    by = ["day(at)", "bucket(4, id)", "truncate(2, text)", "country"]
    with closing(world_of(tmp_path, partition_by=by)) as world:
        if first == "nothing":
            world.deliver(world.plan_of(1, world.nothing(1)))
            world.number = 1
        ids = [1, 2, 3]
        at = pa.array([NOON, None, NOON.replace(year=1969)], pa.timestamp("us", "UTC"))
        columns = {"id": ids, "at": at, "text": ["abc", "", None], "country": ["DE", None, "\N{SNOWMAN}/="]}
        given = pa.table(columns)
        world.deliver(world.plan(given))
        assert sorted(table_of(world).read().to_pylist(), key=lambda row: row["id"]) == given.to_pylist()
        with opened(world) as table:
            assert [field.name for field in table.spec().fields] == ["at_day", "id_bucket", "text_truncate", "country"]
            assert len(list(table.scan().plan_files())) == 3


@pytest.mark.parametrize(
    ("by", "column", "code"),
    [
        ("ratio", pa.array([0.5]), "partition_unfit"),
        ("day(ratio)", pa.array(["a"]), "partition_unfit"),
        ("other", pa.array([1]), "job_column_missing"),
    ],
)
def test_partitions_that_cannot_be_are_refused(tmp_path: Path, by: str, column: pa.Array, code: str) -> None:
    with closing(world_of(tmp_path, partition_by=[by])) as world:
        plan = world.plan(pa.table({"id": [1], "ratio": column}))
        with raises(DeclinedError, code, sink=SINK):
            world.prepare(plan)
        assert [each.code for each in problems(world, plan)] == [code]


@pytest.mark.parametrize(
    ("by", "column"),
    [
        (["bucket(4, id)", "bucket(8, id)"], "id"),
        (["bucket(4, id)", "truncate(2, ID)"], "id"),
        (["id", "bucket(4, id)"], "id"),
        (["day(at)", "at"], "at"),
        (["year(at)", "month(at)"], "at"),
        (["day(at)"], "at_day"),
    ],
)
def test_lists_that_pyiceberg_cannot_write_are_refused(tmp_path: Path, by: list[str], column: str) -> None:
    """Else a table is made that takes no rows, or each try of the step fails."""
    given = pa.table({"id": [1], "at": [NOON]})
    if column == "at_day":
        given = given.append_column(column, pa.array(["x"]))
    with closing(world_of(tmp_path, partition_by=by)) as world:
        plan = world.plan(given)
        assert [(each.code, each.column) for each in problems(world, plan)] == [("partition_unfit", column)]
        with raises(DeclinedError, "partition_unfit", sink=SINK, column=column):
            world.prepare(plan)


def test_a_table_with_two_partitions_of_a_column_is_refused(world: World) -> None:
    with closing(table_of(world).catalog()) as catalog:
        catalog.create_namespace(table_of(world).space)
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
        spec = partition(schema, ["id", "bucket(4, id)"])
        catalog.create_table(table_of(world).sink.identifier, schema, partition_spec=spec)
    with raises(UnfitTargetError, "partition_unfit", sink=SINK):
        world.prepare(world.plan())


def test_partitions_by_columns_that_differ_in_case_are_two() -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "ID", LongType()))
    spec = PartitionSpec(*(PartitionField(n, 999 + n, IdentityTransform(), name) for n, name in ((1, "id"), (2, "ID"))))
    sink = IcebergSink(table="lake.shop.orders")
    found = columns.schema_problems(sink, pa.schema([("id", pa.int64())]), schema, spec, SINK)
    assert not [each for each in found if each.code == "partition_unfit"]


@pytest.mark.parametrize("former", [False, True])
def test_no_added_column_has_the_name_of_a_partition(tmp_path: Path, former: bool) -> None:
    given = pa.table({"id": [1], "at": [NOON]})
    with closing(world_of(tmp_path, partition_by=["day(at)"], schema_evolution=True)) as world:
        world.deliver(world.plan(given))
        if former:
            table_of(world).sink = replace(table_of(world).sink, partition_by=())
            with opened(world) as table, table.update_spec() as spec:
                spec.remove_field("at_day")
        with raises(DeclinedError, "partition_unfit", sink=SINK, column="at_day"):
            world.prepare(world.plan(given.append_column("at_day", pa.array(["x"]))))


def test_columns_that_differ_only_in_case(world: World) -> None:
    """The exact name counts, and another one is refused."""
    fields = NestedField(1, "id", LongType()), NestedField(2, "ID", LongType()), NestedField(3, "text", StringType())
    with closing(table_of(world).catalog()) as catalog:
        catalog.create_namespace(table_of(world).space)
        catalog.create_table(table_of(world).sink.identifier, Schema(*fields))
    plan = world.plan(world.table(1, 1))
    proof = world.deliver(plan)
    assert table_of(world).read().to_pylist() == [{"id": 1, "ID": None, "text": "row 1"}]
    [planned] = plan.participants
    [report] = verify([Delivered(plan, proof, None)], planned, world.target.connection, open_wal())
    assert (report.missing, report.repeated, report.other, report.error) == (0, 0, 0, "")
    with raises(UnfitTargetError, "column_ambiguous", column="Id", sink=SINK):
        world.prepare(world.plan(world.table(2, 1).rename_columns(["Id", "text"])))


@pytest.mark.parametrize(
    ("by", "values"),
    [
        (["what"], pa.array(["a", "x" * 260])),
        (["what"], pa.array(["a", "\N{SNOWMAN}" * 30])),
        (["truncate(10, what)"], pa.array([Decimal("9999.99"), Decimal("-9999.99")], pa.decimal128(6, 2))),
        (["truncate(10, what)"], pa.array([2**31 - 1, -(2**31)], pa.int32())),
        (["bucket(2, id)"], pa.array(["a", "a" * 15 + "\ud7ff!"])),
        ([], pa.array(["a", "a" * 15 + "\ud7ff!"])),
    ],
)
def test_rows_that_pyiceberg_cannot_write_are_refused(tmp_path: Path, by: list[str], values: pa.Array) -> None:
    """Else no try of the step could deliver the others."""
    given = pa.table({"id": [1, 2], "what": values})
    with closing(world_of(tmp_path, partition_by=by)) as world:
        world.commit_point = False
        with raises(DeclinedError, "row_refused", sink=SINK):
            world.prepare(world.plan(given))
        plan = world.plan(given)
        proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
        assert proof.counts[SINK] == 1 and world.target.ids() == [1]


def test_a_table_with_other_partitions_or_files_is_refused(world: World) -> None:
    world.deliver(world.plan())
    sink = table_of(world).sink
    table_of(world).sink = replace(sink, partition_by=["id"])
    with raises(UnfitTargetError, "partition_unfit", sink=SINK):
        world.prepare(world.plan())
    table_of(world).sink = sink
    with opened(world) as table, table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})
    with raises(UnfitTargetError, "table_unsupported", setting="write.format.default"):
        world.prepare(world.plan())
    with opened(world) as table, table.transaction() as transaction:
        transaction.remove_properties("write.format.default")
    world.deliver(world.plan())


def test_a_check_creates_no_catalog(world: World) -> None:
    plan = world.plan()
    [planned] = plan.participants
    file = world.folder / "catalog.db"
    for _ in range(2):
        [asked] = required(world.pipeline, planned, world.target.connection)
        assert not asked.look().problems and problems(world, plan) == []
        assert not file.exists() or not file.stat().st_size
        file.touch()
    world.deliver(plan)
    [asked] = required(world.pipeline, planned, world.target.connection)
    assert not asked.look().problems
    world.shows(world.ids_of(1))


def test_an_error_shows_no_secret(world: World) -> None:
    secret = "planted-Secret-7"
    extra = {"uri": f"postgresql+psycopg2://user:{secret}@127.0.0.1:1/db", "s3.secret-access-key": secret}
    table_of(world).connection = replace(world.target.connection, extra={"type": "sql", **extra})
    with pytest.raises((SinkUnavailableError, SinkAccessError)) as told:
        world.prepare(world.plan())
    assert secret not in f"{told.value} {vars(told.value)}"
    named = dataset(table_of(world).sink.settings(), world.target.connection)
    assert named.uri == "iceberg://127.0.0.1:1/db/lake/shop/orders"


@pytest.mark.parametrize("password", ["se/cret", "se#cret", "se?cret", "sec:ret", "secret"])
@pytest.mark.parametrize("user", ["me", "me@work"])
def test_lineage_shows_no_password(user: str, password: str) -> None:
    """SQLAlchemy takes these as they are."""
    extra = {"uri": f"postgresql+psycopg2://{user}:{password}@db:5432/lake"}
    named = dataset(IcebergSink(table="lake.shop.orders").settings(), ConnectionInfo("lake", "iceberg", extra=extra))
    assert named.uri == "iceberg://db:5432/lake/lake/shop/orders"


def test_secrets_in_dicts_are_known_and_passed_on() -> None:
    auth = {"type": "oauth2", "oauth2": {"client_id": "me", "client_secret": "S-1", "token_url": "https://a"}}
    extra = {"auth": auth, "header.Authorization": "S-2", "oauth2-server-uri": "https://b", "s3": {"secret": "S-3"}}
    given = ConnectionInfo("lake", "iceberg", host="https://c", extra={**extra, "warehouse": "w"})
    assert properties(given)["auth"] == auth
    hidden = set(secrets(given))
    assert {"S-1", "S-2", "S-3"} <= hidden and not hidden & {"oauth2", "me", "https://a", "https://b", "w"}
    sql = ConnectionInfo("lake", "iceberg", extra={"uri": "postgresql://me:S%2F4@db/x?password=S-5"})
    assert {"S%2F4", "S/4", "S-5"} <= set(secrets(sql))


def test_one_table_has_one_place() -> None:
    sink = IcebergSink(table="lake.shop.orders").settings()
    rest = ConnectionInfo("lake", "iceberg", host="https://c", port=8181, extra={"warehouse": "a"})
    assert place(sink, replace(rest, conn_id="other")) == place(sink, rest)
    assert place(sink, replace(rest, extra={"warehouse": "b"})) != place(sink, rest)
    sql = ConnectionInfo("lake", "iceberg", extra={"uri": "sqlite:////data/catalog.db"})
    assert place(sink, replace(sql, conn_id="other")) != place(sink, sql)
    assert dataset(sink, sql).uri == "iceberg:////data/catalog.db/lake/shop/orders"


def test_a_secret_is_not_sent_without_tls_unasked() -> None:
    """A connection as a URI (`iceberg://id:secret@host:443`) has no place for a scheme."""
    named = ConnectionInfo("lake", "iceberg", host="catalog.example.com", port=443, login="id", password="secret")
    assert properties(named)["uri"] == "https://catalog.example.com:443"
    assert properties(replace(named, host="http://localhost"))["uri"] == "http://localhost:443"


@pytest.mark.parametrize("extra", [{"type": "hive", "uri": "thrift://a"}, {"type": "sql"}, {"warehouse": "file:///a"}])
def test_a_connection_that_names_no_catalog_is_refused(world: World, extra: dict[str, str]) -> None:
    with raises(SinkAccessError, "connection_invalid"):
        properties(replace(world.target.connection, extra=extra))


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ({"warehouse": None}, "connection_invalid"),
        ({"warehouse": "nothing://x"}, "connection_invalid"),
        ({"uri": "no uri"}, "connection_invalid"),
        ({"uri": "firebird://h/d"}, "connection_invalid"),
        ({"uri": "sqlite:////no/such/folder/catalog.db"}, "folder_unusable"),
        ({"uri": "oracle+oracledb://h/d"}, "package_missing"),
    ],
    ids=str,
)
def test_a_catalog_that_cannot_be_used_is_told(world: World, extra: dict[str, Any], code: str) -> None:
    there = world.target.connection
    world.target.connection = replace(there, extra={**there.extra, **extra})
    with raises(SinkAccessError, code):
        world.prepare(world.plan())


def test_a_locked_database_is_no_server(world: World) -> None:
    world.deliver(world.plan())
    extra = dict(world.target.connection.extra)
    extra["uri"] = extra["uri"].replace("timeout=60", "timeout=0")
    world.target.connection = replace(world.target.connection, extra=extra)
    with closing(sqlite3.connect(world.folder / "catalog.db")) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with raises(SinkUnavailableError, "lock_timeout"):
            world.prepare(world.plan())


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied", "a"), OSError("AWS Error ACCESS_DENIED")])
def test_files_that_may_not_be_written_are_told(world: World, error: OSError) -> None:
    place = Connected(world.target.connection, ("shop", "orders"))
    with raises(SinkAccessError, "privilege_missing"), place.translated_errors():
        raise error


class WebPages(BaseHTTPRequestHandler):
    """Has none."""

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *of: Any) -> None:
        """Say nothing."""


def test_a_web_server_is_no_catalog(world: World) -> None:
    with HTTPServer(("127.0.0.1", 0), WebPages) as server:
        Thread(target=server.handle_request, daemon=True).start()
        world.target.connection = ConnectionInfo("lake", "iceberg", host="http://127.0.0.1", port=server.server_port)
        with raises(SinkAccessError, "connection_invalid", fields=["host", "extra"]):
            world.prepare(world.plan())


def problems(world: World, plan: Plan) -> list[Any]:
    [planned] = plan.participants
    schema = open_wal().open(plan.segments[0]).schema(SINK)
    return list(schema_problems(planned, world.target.connection, {SINK: schema}))


def test_a_sink_that_cannot_work_is_refused_at_once() -> None:
    for argument, value in (
        ("strategy", "upsert"),
        ("table", "shop.orders"),
        ("table", "lake.shop.or ders"),
        ("partition_by", ["bucket(id)"]),
    ):
        with pytest.raises(Exception) as told:
            IcebergSink(**{"table": "lake.shop.orders", argument: value})  # type: ignore[arg-type]
        assert getattr(told.value, "code", "") == "argument_invalid", argument
    sink = IcebergSink(table="lake.a.b.orders", partition_by=["day(at)"], shared=True)
    assert (sink.catalog, sink.identifier, sink.participant) == (
        "lake",
        ("a", "b", "orders"),
        "iceberg-lake-a-b-orders",
    )
    assert replace(IcebergSink.from_settings("", sink.settings()), name="") == sink
