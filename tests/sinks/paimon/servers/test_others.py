"""Beside other writers of a Paimon table: pypaimon, and Paimon's library for Java. Both read what the sink wrote."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.errors import FencedError, StoreBehindSinkError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Proof
from airflow_ft.sinks.paimon.place import SNAPSHOTS, Place
from airflow_ft.sinks.paimon.verify import verify
from airflow_ft.testing.values import Values, plain, same
from airflow_ft.testing.world import World
from airflow_ft.wal import open_wal
from tests.conformance.test_paimon import Changed
from tests.conformance.values import FINITE, LATE, NESTED, NOT_FINITE
from tests.raising import raises
from tests.waiting import wait_for
from tools.paimon import Paimon, library

COLUMNS = {**FINITE, **NOT_FINITE, **NESTED, "late": LATE}
NAMES = ["a", "", " ", "a=b", "a/b", "100 %", "ü", "\N{PILE OF POO}", "__HIVE_DEFAULT_PARTITION__", "x:y?*#", None]


@pytest.fixture
def world(tmp_path: Path, paimon: Paimon) -> Iterator[World]:
    with closing(World(Changed(tmp_path, paimon), tmp_path)) as made:
        yield made


def table_of(world: World) -> Changed:
    assert isinstance(world.target, Changed)
    return world.target


@contextmanager
def before_the_next(folder: str, act: Callable[[], object]) -> Iterator[None]:
    """Something happens when the next snapshot (or schema) is about to get its name."""
    call, done = Place.create, list[bool]()

    def create(self: Place, into: str, record: Any) -> None:
        if into == folder and not done:
            done.append(True)
            act()
        call(self, into, record)

    with mock.patch.object(Place, "create", create):
        yield
    assert done


def append(world: World, id: int) -> None:
    table = table_of(world)
    table.paimon.append(table.named, pa.table({"id": [id], "text": ["theirs"]}))


def checked(world: World, *delivered: tuple[Plan, Proof]) -> tuple[int, int, int]:
    """Return how many rows are missing, repeated and changed."""
    [planned] = delivered[0][0].participants
    given = [Delivered(plan, proof, None) for plan, proof in delivered]
    reports = list(verify(given, planned, world.target.connection, open_wal()))
    assert not any(report.error for report in reports)
    return tuple(sum(getattr(one, name) or 0 for one in reports) for name in ("missing", "repeated", "other"))  # type: ignore[return-value]


def rows_of_others_stay(world: World) -> None:
    """Others append, and the step is repeated onto their snapshot."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next(SNAPSHOTS, lambda: append(world, -1)):
        world.commit(plan, vote)
    world.shows([-1, *world.ids_of(1, 2)])


def a_raised_fence_refuses_what_is_on_its_way(world: World) -> None:
    """A process sleeps before its snapshot gets a name. Its successor raises the fence, and commits later."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next(SNAPSHOTS, lambda: world.prepare(plan, epoch=2)), raises(FencedError, "fenced"):
        world.commit(plan, vote)
    world.shows(world.ids_of(1))
    head = world.participant(plan).head(world.pipeline)
    assert head is not None and head.epoch == 2
    world.commit(plan, vote, epoch=2)
    world.shows(world.ids_of(1, 2))


@contextmanager
def another_writer_asleep(world: World) -> Iterator[None]:
    """pypaimon has looked whether the next snapshot's name is given, and renames onto it when the block has ended."""
    table = table_of(world)
    asleep, awake = world.folder / "asleep", world.folder / "awake"
    rows = pa.table({"id": [-1], "text": ["theirs"]})
    with ThreadPoolExecutor(1) as pool:
        appended = pool.submit(table.paimon.append_asleep, table.named, rows, asleep, awake)
        try:
            wait_for(lambda: asleep.exists() or appended.done(), 60, "pypaimon reaches the rename")
            yield
        finally:
            awake.touch()
        appended.result()


def a_replaced_snapshot_halts(world: World) -> None:
    """pypaimon renames its snapshot onto ours, which is committed: our rows are gone."""
    first = world.plan()
    proofs = [(first, world.deliver(first))]
    second = world.plan()
    with another_writer_asleep(world):
        proofs.append((second, world.deliver(second)))
    world.shows([-1, *world.ids_of(1)])
    third = world.plan()
    with raises(StoreBehindSinkError, "snapshot_replaced", snapshot=2, path=str(table_of(world).path)) as caught:
        world.prepare(third)
    with raises(StoreBehindSinkError, "snapshot_replaced", snapshot=2):
        world.participant(second).proof(second)
    assert checked(world, *proofs) == (len(world.ids_of(2)), 0, 1), "the other row is theirs"
    [accepted] = re.findall("touch '(.*?)'", caught.value.remedy)
    Path(accepted).touch()
    world.deliver(third)
    world.shows([-1, *world.ids_of(1, 3)])


def others_change_the_same_keys(world: World) -> None:
    """A row of pypaimon replaces one of ours with its key, and one of ours replaces it again."""
    table, ids = table_of(world), list(range(40))
    ours = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"ours {id}" for id in reversed(ids)]})
    world.deliver(world.plan(ours))
    table.paimon.append(table.named, ours.set_column(1, "text", pa.array([f"theirs {id}" for id in ids])))
    assert sorted(table.read()["text"].to_pylist()) == sorted(f"theirs {id}" for id in ids)
    world.deliver(world.plan(ours))
    assert table.read().sort_by("id").to_pylist() == ours.to_pylist()


class Died(BaseException):
    """A process ends here. Nothing catches it."""


def die(*_: object) -> None:
    raise Died


def a_death_before_the_snapshot_delivers_nothing(world: World) -> None:
    """The document is written, and awaits a snapshot that never comes."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next(SNAPSHOTS, die), pytest.raises(Died):
        world.commit(plan, vote)
    world.shows(world.ids_of(1))
    world.commit(plan, vote)
    world.shows(world.ids_of(1, 2))


def a_death_behind_the_snapshot_delivers_once(world: World) -> None:
    """The snapshot is there, and no document says that it is."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with mock.patch.object(Place, "hint", die), pytest.raises(Died):
        world.commit(plan, vote)
    world.shows(world.ids_of(1, 2))
    world.commit(plan, vote)
    world.shows(world.ids_of(1, 2))


def a_sleeper_brings_nothing_back(world: World) -> None:
    """Its successor has committed, and further numbers, and snapshots have expired since, down to the newest."""
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)

    def meanwhile() -> None:
        world.commit(plan, world.prepare(plan, epoch=2), epoch=2)
        for id in (-1, -2):
            append(world, id)
        library(world.folder, table_of(world).named, "expire")

    with before_the_next(SNAPSHOTS, meanwhile), raises(FencedError, "fenced"):
        world.commit(plan, vote)
    world.shows([-2, -1, *world.ids_of(1, 2)])
    world.predecessor = plan.number
    following = world.plan()
    world.commit(following, world.prepare(following, epoch=2), epoch=2)
    world.shows([-2, -1, *world.ids_of(1, 2, following.number)])


def test_rows_of_others_stay(world: World) -> None:
    rows_of_others_stay(world)


def test_a_raised_fence_refuses_what_is_on_its_way(world: World) -> None:
    a_raised_fence_refuses_what_is_on_its_way(world)


def test_a_death_before_the_snapshot_delivers_nothing(world: World) -> None:
    a_death_before_the_snapshot_delivers_nothing(world)


def test_a_death_behind_the_snapshot_delivers_once(world: World) -> None:
    a_death_behind_the_snapshot_delivers_once(world)


def test_others_change_the_same_keys(tmp_path: Path, paimon: Paimon) -> None:
    with closing(World(Changed(tmp_path, paimon, primary_key=("id",), buckets=3), tmp_path)) as world:
        others_change_the_same_keys(world)


def test_a_replaced_snapshot_halts(world: World) -> None:
    a_replaced_snapshot_halts(world)


@pytest.mark.release
def test_a_sleeper_brings_nothing_back(world: World) -> None:
    a_sleeper_brings_nothing_back(world)


def test_two_pipelines_do_not_meet(world: World) -> None:
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    with closing(World(world.target, world.folder)) as other:
        with before_the_next(SNAPSHOTS, lambda: other.deliver(other.plan(other.table(900, 2)))):
            world.commit(plan, vote)
        world.shows([*world.ids_of(1, 2), 900, 901])


def test_an_overwritten_table_is_reported(world: World) -> None:
    first = world.plan()
    proofs = [(first, world.deliver(first))]
    table = table_of(world)
    table.paimon.overwrite(table.named, table.read().slice(3))
    second = world.plan()
    proofs.append((second, world.deliver(second)))
    world.shows([*world.ids_of(1)[3:], *world.ids_of(2)])
    assert checked(world, *proofs) == (3, 0, 0)


def test_a_column_that_others_add_is_null(world: World) -> None:
    first, table = world.plan(), table_of(world)
    proofs = [(first, world.deliver(first))]
    table.paimon.ask("alter", table.named, add={"more": "STRING"}, options={})
    second = world.plan()
    proofs.append((second, world.deliver(second)))
    found = table.read()
    assert found.column_names == ["id", "text", "more"] and found["more"].null_count == found.num_rows
    world.shows(world.ids_of(1, 2))
    assert checked(world, *proofs) == (0, 0, 0)


def test_a_column_that_others_add_during_a_commit_is_null(world: World) -> None:
    world.deliver(world.plan())
    table = table_of(world)
    plan = world.plan()
    vote = world.prepare(plan)
    change = lambda: table.paimon.ask("alter", table.named, add={"more": "STRING"}, options={})  # noqa: E731
    with before_the_next(SNAPSHOTS, change):
        world.commit(plan, vote)
    assert table.read()["more"].null_count == len(world.ids_of(1, 2))
    world.shows(world.ids_of(1, 2))


def test_columns_are_added_beside_others(tmp_path: Path, paimon: Paimon) -> None:
    """Two schemas with one number: the sink's step is repeated."""
    with closing(World(Changed(tmp_path, paimon, schema_evolution=True), tmp_path)) as world:
        world.deliver(world.plan())
        table = table_of(world)
        more = world.table(900, 3).append_column("note", pa.array(["a", None, "c"]))
        plan = world.plan(more)
        change = lambda: table.paimon.ask("alter", table.named, add={"more": "STRING"}, options={})  # noqa: E731
        with before_the_next("schema", change):
            world.deliver(plan)
        rows = {row["id"]: row for row in table.read().to_pylist()}
        assert [rows[id]["note"] for id in (900, 901, 902)] == ["a", None, "c"]
        assert all(row["more"] is None for row in rows.values())


def test_a_rollback_halts(world: World) -> None:
    first, table = world.plan(), table_of(world)
    proofs = [(first, world.deliver(first))]
    there = table.paimon.snapshots(table.named)[-1]["id"]
    second = world.plan()
    proofs.append((second, world.deliver(second)))
    table.paimon.ask("rollback", table.named, to=there)
    third = world.plan()
    with raises(StoreBehindSinkError, "snapshot_replaced", snapshot=there + 1):
        world.prepare(third)
    world.shows(world.ids_of(1))
    assert checked(world, *proofs) == (len(world.ids_of(2)), 0, 0)


def test_a_table_that_was_dropped_halts(world: World) -> None:
    world.deliver(world.plan())
    table = table_of(world)
    table.paimon.ask("drop", table.named)
    plan = world.plan()
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(plan)
    table.paimon.create(table.named, pa.schema([("id", pa.int64()), ("text", pa.string())]))
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(plan)


def test_a_renamed_table_halts_delivery_until_the_name_is_back(world: World) -> None:
    world.deliver(world.plan())
    table = table_of(world)
    table.paimon.ask("rename", table.named, to="shop.moved")
    plan = world.plan()
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(plan)
    table.paimon.ask("rename", "shop.moved", to=table.named)
    world.deliver(plan)
    world.shows(world.ids_of(1, 2))


@pytest.mark.parametrize("partitioned", [False, True])
def test_filters_of_others_find_each_value(tmp_path: Path, paimon: Paimon, partitioned: bool) -> None:
    by = {"partition_by": ("day", "whole")} if partitioned else {}
    with closing(World(Changed(tmp_path, paimon, **by), tmp_path)) as world:
        given = deliver_values(world)
        table = table_of(world)
        for name in ("flag", "tiny", "small", "whole", "big", "double", "text"):
            rows = given.select(["id", name]).to_pylist()
            for value in {row[name] for row in rows if row[name] is not None}:
                wanted = [row["id"] for row in rows if row[name] == value]
                found = table.paimon.rows(table.named, {name: value})
                assert sorted(found["id"].to_pylist()) == wanted, (name, value)


KEYS = {
    "flag": [True, False], "tiny": [*range(-128, 128, 5)], "big": [0, -1, 2**63 - 1, -(2**63), 7, 12_345],
    "text": [f"{'key' * (number % 9)}{number}" for number in range(40)] + ["", " ", "ü", "\N{PILE OF POO}" * 3],
    "day": [*range(-3, 20_000, 977)], "small": [*range(-32_768, 32_767, 1_999)], "whole": [*range(-9, 9)],
}  # fmt: skip
KINDS = {"day": pa.int32()}


@pytest.mark.parametrize("keys", [*((name,) for name in KEYS), ("text", "big", "flag")], ids="-".join)
def test_buckets_are_those_of_others(tmp_path: Path, paimon: Paimon, keys: tuple[str, ...]) -> None:
    """pypaimon puts each row into the same bucket, and looks for a key in that one alone."""
    count = max(len(KEYS[name]) for name in keys)
    columns = {
        name: pa.array([KEYS[name][row % len(KEYS[name])] for row in range(count)], KINDS.get(name)) for name in keys
    }
    columns = {name: values.cast(FINITE[name].type) for name, values in columns.items()}
    rows = pa.table({"id": pa.array(range(count), pa.int64()), **columns})
    with closing(World(Changed(tmp_path, paimon, buckets=5, bucket_key=keys), tmp_path)) as world:
        table = table_of(world)
        world.deliver(world.plan(rows))
        options = {"bucket": "5", "bucket-key": ",".join(keys), "file.format": "parquet"}
        table.paimon.create("shop.theirs", rows.schema, **options)
        table.paimon.append("shop.theirs", rows)
        assert buckets_of(table.path) == buckets_of(table.path.with_name("theirs"))
        assert len(buckets_of(table.path)) > 1
        for row in rows.slice(0, 12).to_pylist():
            where = {name: row[name] for name in keys if name != "day"}
            found = table.paimon.rows(table.named, where)["id"].to_pylist()
            assert row["id"] in found, row


def buckets_of(table: Path) -> dict[str, set[int]]:
    """Return the rows of each bucket's folder."""
    found: dict[str, set[int]] = {}
    for file in table.glob("bucket-*/*.parquet"):
        found.setdefault(file.parent.name, set()).update(pq.read_table(file)["id"].to_pylist())
    return found


def deliver_values(world: World) -> pa.Table:
    """Deliver a row for each value, and return the rows."""
    table = Values(world.target.sink, COLUMNS, list).table()
    given = table.set_column(0, "id", pa.array(range(table.num_rows), pa.int64()))
    world.deliver(world.plan(given))
    return given


# --- Paimon's own library for Java ---------------------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.parametrize("by", [(), ("day", "whole")])
def test_java_reads_each_value(tmp_path: Path, paimon: Paimon, by: tuple[str, ...]) -> None:
    with closing(World(Changed(tmp_path, paimon, partition_by=by), tmp_path)) as world:
        given = deliver_values(world)
        table = table_of(world)
        found = {row["id"]: row for row in library(tmp_path, table.named, "rows")}
        assert found == {row["id"]: as_json(row, given.schema) for row in rows_of(given)}
        assert found[3] in library(tmp_path, table.named, "rows", "id", "3"), "a filter skips no file with the row"
        read = {row["id"]: row for row in plain(table.read())}
        assert all(same(read[row["id"]][name], row[name]) for row in plain(given) for name in given.column_names)


@pytest.mark.release
def test_names_of_partitions_are_those_of_others(tmp_path: Path, paimon: Paimon) -> None:
    """Each value comes back, and others put their rows into the same folders."""
    rows = pa.table({"id": range(len(NAMES)), "text": NAMES})
    with closing(World(Changed(tmp_path, paimon, partition_by=("text",)), tmp_path)) as world:
        table = table_of(world)
        world.deliver(world.plan(rows))
        folders = {path.name for path in table.path.glob("text=*")}
        wanted = dict(zip(range(len(NAMES)), NAMES, strict=True))
        assert {row["id"]: row["text"] for row in table.read().to_pylist()} == wanted
        assert {row["id"]: row["text"] for row in library(tmp_path, table.named, "rows")} == wanted
        table.paimon.append(table.named, rows)
        assert {path.name for path in table.path.glob("text=*")} == folders


@pytest.mark.release
@pytest.mark.parametrize("settings", [{}, {"partition_by": ("text",)}, {"buckets": 2, "bucket_key": ("id",)}])
def test_compaction_expiry_and_cleaning_take_nothing(tmp_path: Path, paimon: Paimon, settings: dict[str, Any]) -> None:
    """Clean after each checkpoint, too: remove every file that no snapshot names, of any age."""
    with closing(World(Changed(tmp_path, paimon, **settings), tmp_path)) as world:
        table, proofs = table_of(world), []
        for round in range(3):
            for _ in range(2):
                plan = world.plan(world.table(100 * (plan_number(proofs) + 1), 8, texts=2))
                proofs.append((plan, world.deliver(plan)))
            for do in ("compact", "expire", "clean"):
                library(tmp_path, table.named, do)
            assert len(table.paimon.snapshots(table.named)) == 1, round
        assert table.read().num_rows == 6 * 8
        assert checked(world, *proofs) == (0, 0, 0)


def plan_number(proofs: list[tuple[Plan, Proof]]) -> int:
    return proofs[-1][0].number if proofs else 0


@pytest.mark.release
@pytest.mark.parametrize(
    "settings",
    [
        {"primary_key": ("id",)},
        {"primary_key": ("text", "id", "flag"), "buckets": 3, "bucket_key": ("id",)},
        {"primary_key": ("day", "text", "id"), "partition_by": ("day",), "buckets": 2},
    ],
    ids=["one bucket", "three columns", "partitions"],
)
def test_java_reads_and_compacts_keys(tmp_path: Path, paimon: Paimon, settings: dict[str, Any]) -> None:
    """Between deliveries, and again: each key has the row that changed it last, for both libraries."""
    key = settings["primary_key"]
    with closing(World(Changed(tmp_path, paimon, change_column="op", **settings), tmp_path)) as world:
        table, proofs = table_of(world), []
        wanted: dict[Any, dict[str, Any]] = {}
        for round in range(2):
            for _ in range(2):
                changes = changes_of_keys(plan_number(proofs))
                plan = world.plan(changes)
                proofs.append((plan, world.deliver(plan)))
                for row in rows_of(changes):
                    kind = row.pop("op")
                    wanted.pop(tuple(row[name] for name in key), None)
                    if kind != "delete":
                        wanted[tuple(row[name] for name in key)] = row
            for work in ((), ("compact",), ("expire", "clean")):
                for do in work:
                    library(tmp_path, table.named, do)
                found = library(tmp_path, table.named, "rows")
                assert {tuple(row[name] for name in key): row for row in found} == wanted, (round, work)
                assert len(found) == len(wanted)
            read = rows_of(table.read())
            assert {tuple(row[name] for name in key): row for row in read} == wanted and len(read) == len(wanted)
            assert checked(world, *proofs) == (0, 0, 0)


def changes_of_keys(number: int) -> pa.Table:
    """Return 120 changes of 40 keys, of which some have changed before."""
    rows = [(7 * number + row) % 60 for row in range(0, 240, 2)]
    texts = ["", "a", "ü", "key" * 9, "\N{PILE OF POO}", "B", "a\0b"]
    return pa.table(
        {
            "op": ["delete" if (row + at) % 5 == 0 else "update" for at, row in enumerate(rows)],
            "id": pa.array([row - 30 for row in rows], pa.int64()),
            "text": [texts[row % len(texts)] for row in rows],
            "flag": [row % 2 == 0 for row in rows],
            "day": pa.array([row % 3 - 1 for row in rows], pa.int32()).cast(pa.date32()),
            "value": [f"{number} {at}" for at in range(len(rows))],
        }
    )


@pytest.mark.release
@pytest.mark.parametrize("do", ["compact", "expire"])
def test_others_work_on_the_table_during_a_commit(world: World, do: str) -> None:
    table, proofs = table_of(world), []
    for _ in range(2):
        plan = world.plan()
        proofs.append((plan, world.deliver(plan)))
    plan = world.plan()
    vote = world.prepare(plan)
    with before_the_next(SNAPSHOTS, lambda: library(world.folder, table.named, do)):
        proofs.append((plan, world.commit(plan, vote)))
    world.shows(world.ids_of(1, 2, 3))
    assert checked(world, *proofs) == (0, 0, 0)


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows, with dates and times as whole numbers: some are beyond what Python has."""
    columns = []
    for column, field in zip(table.columns, table.schema, strict=True):
        if pa.types.is_date32(field.type):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(field.type):
            column = column.cast(pa.int64())
        columns.append(column)
    return list(pa.table(columns, table.column_names).to_pylist())


def as_json(row: Any, schema: pa.Schema) -> dict[str, Any]:
    """A row as `library` prints it."""
    return {field.name: _as_json(row[field.name], field.type) for field in schema}


def _as_json(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_float32(kind):
        return _bits("<f", "<i", value)
    if pa.types.is_float64(kind):
        return _bits("<d", "<q", value)
    if pa.types.is_decimal(kind):
        return f"{value:f}"
    if pa.types.is_binary(kind):
        return value.hex()
    if pa.types.is_map(kind):
        return [[_as_json(key, kind.key_type), _as_json(each, kind.item_type)] for key, each in value]
    if pa.types.is_list(kind):
        return [_as_json(each, kind.value_type) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: _as_json(value[field.name], field.type) for field in kind}
    assert isinstance(value, bool | int | str) and not isinstance(value, datetime), value
    return value


def _bits(real: str, whole: str, value: float) -> int:
    if value != value:
        return 0x7FC00000 if real == "<f" else 0x7FF8000000000000
    return int(struct.unpack(whole, struct.pack(real, value))[0])
