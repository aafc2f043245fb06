"""A table beside other writers, after snapshots have expired, and with sleepers that wake too late."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import FencedError, SinkAccessError, StoreBehindSinkError, UnfitTargetError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks.paimon import verify
from airflow_ft.sinks.paimon.memory import OURS, Chain, Document
from airflow_ft.sinks.paimon.reading import path_of
from airflow_ft.sinks.paimon.requirements import CHECKS, required, schema_problems
from airflow_ft.sinks.paimon.table import Version
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal
from airflow_ft.wal.local import LocalFileSystem
from tests.disks import synced
from tests.raising import raises
from tests.sinks.paimon.world import participant_of, table_of, world_of

NOTHING = ConnectionInfo("", "")


def before_the_snapshot(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """The next process that creates a snapshot sleeps before it, while `then` happens."""
    create = Version._create

    def late(self: Version, snapshot: Any) -> None:
        monkeypatch.setattr(Version, "_create", create)
        then()
        create(self, snapshot)

    monkeypatch.setattr(Version, "_create", late)


def others(world: World, commits: int, first: int = 0) -> list[int]:
    """Another writer's commits of a row each."""
    for id in range(first, first + commits):
        table_of(world).foreign(world.table(id, 1))
    return list(range(first, first + commits))


def late_commit(world: World, plan: Plan, vote: Vote) -> str:
    """What comes of a commit that has slept."""
    try:
        return str(world.participant(plan).commit(plan, world.fence(1, vote.attempt), vote).outcome)
    except FencedError:
        return "fenced"


def test_rows_are_one_snapshot_and_the_log_s_file_is_the_table_s(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    path = table_of(world).path
    assert table_of(world).version().number == 1, "raising the head makes none"
    [file] = (path / "bucket-0").iterdir()
    assert file.stat().st_nlink == 2, "a second name"
    snapshot = json.loads((path / "snapshot" / "snapshot-1").read_text())
    assert (snapshot["totalRecordCount"], snapshot["properties"]["airflow_ft.checkpoint"]) == (40, "1")
    assert (path / "snapshot" / "LATEST").read_text() == "1"
    assert not list((path / "consumer").iterdir()), "nothing keeps snapshots from expiring"


def test_a_file_that_waited_long_in_the_log_is_not_an_orphan(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    plan = world.plan()
    vote = world.prepare(plan)
    for file in (tmp_path / "wal").rglob("*.parquet"):
        os.utime(file, (0, 0))
    world.commit(plan, vote)
    [file] = (table_of(world).path / "bucket-0").iterdir()
    assert file.stat().st_mtime > 1e9


def test_a_copy_from_another_file_system_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    plan = world.plan()
    vote = world.prepare(plan)
    link = os.link

    def refused(source: Any, target: Any, **more: Any) -> None:
        if str(target).endswith(".parquet"):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        link(source, target, **more)

    monkeypatch.setattr(os, "link", refused)
    with synced() as seen:
        world.commit(plan, vote)
    [file] = (table_of(world).path / "bucket-0").iterdir()
    assert file.stat().st_nlink == 1 and file.stat().st_ino in seen


def test_new_folders_above_a_new_table_are_synced(tmp_path: Path) -> None:
    """The next process finds the table, and does not sync them."""
    world = world_of(tmp_path)
    path = table_of(world).path
    with synced(before=path / OURS) as seen:
        world.deliver(world.plan())
    assert {each.stat().st_ino for each in (path.parent, tmp_path)} <= seen


def test_others_commit_between_and_beside(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for number in range(1, 4):
        plan = world.plan()
        vote = world.prepare(plan)
        others(world, 1, number)
        world.commit(plan, vote)
        world.predecessor = number
    assert world.target.ids() == [1, 2, 3, *world.ids_of(1, 2, 3)]


def test_a_commit_that_another_writer_overtakes_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    there = list[set[Path]]()

    def overtake() -> None:
        others(world, 1)
        there.append(set((table_of(world).path / "bucket-0").iterdir()))

    before_the_snapshot(monkeypatch, overtake)
    world.deliver(world.plan())
    assert world.target.ids() == [0, *world.ids_of(1, 2)]
    assert [set((table_of(world).path / "bucket-0").iterdir())] == there, "the first try's file is the second's"


def test_expired_snapshots_take_no_memory_along(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    others(world, 5)
    table_of(world).expire(keep=1)
    plan = world.plan()
    proof = world.deliver(plan)
    assert world.deliver(plan) == proof and world.target.ids() == [*range(5), *world.ids_of(1, 2)]


@pytest.mark.parametrize("between", [0, 1, 20])
def test_a_sleeper_meets_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int) -> None:
    """Also where the number of its snapshot has expired since, and is free again."""
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    more: list[int] = []

    def successor() -> None:
        more.extend(others(world, between))
        world.commit(plan, world.prepare(plan))
        more.extend(others(world, between, 20))
        table_of(world).expire(keep=2)

    before_the_snapshot(monkeypatch, successor)
    assert late_commit(world, plan, vote) == "fenced"
    world.predecessor = plan.number
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.outcome is Outcome.COMMITTED
    world.deliver(world.plan())
    assert world.target.ids() == sorted([*more, *world.ids_of(1, 2, 3)])


def test_a_sleeper_whose_number_is_free_again_commits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No successor was there, only other writers, whose snapshots have expired in part."""
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)

    def expired() -> None:
        others(world, 9)
        table_of(world).expire(keep=3)

    before_the_snapshot(monkeypatch, expired)
    assert late_commit(world, plan, vote) == str(Outcome.COMMITTED)
    assert world.target.ids() == [*range(9), *world.ids_of(1, 2)]
    numbers = table_of(world).place.numbers("snapshot")
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "no snapshot before the earliest"


@pytest.mark.parametrize("aborted", [7, 8, 20])
def test_a_sleeper_whose_document_is_free_again_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aborted: int
) -> None:
    """Aborted numbers take two documents each, and no snapshot, so the number of its snapshot is free, too."""
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    append = Chain.append

    def late(self: Chain, document: Document) -> None:
        monkeypatch.setattr(Chain, "append", append)
        world.abort(plan, epoch=2)
        for _ in range(aborted):
            following = world.plan(world.table(80, 40))
            world.prepare(following, epoch=2)
            world.abort(following, epoch=2)
        append(self, document)

    monkeypatch.setattr(Chain, "append", late)
    assert late_commit(world, plan, vote) == "fenced"
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.outcome is Outcome.ABORTED
    assert world.target.ids() == world.ids_of(1)


class Died(BaseException):
    """The process ends."""


def dies(monkeypatch: pytest.MonkeyPatch, world: World, plan: Plan, vote: Vote, where: str) -> None:
    with monkeypatch.context() as patched, pytest.raises(Died):

        def die(*_: Any) -> None:
            raise Died

        patched.setattr(Version if where == "_create" else type(table_of(world).place), where, die)
        participant_of(world, plan).commit(plan, world.fence(1, world.attempt()), vote)


def test_a_consumer_keeps_the_snapshot_of_a_process_that_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    dies(monkeypatch, world, plan, world.prepare(plan), "hint")
    [consumer] = (table_of(world).path / "consumer").iterdir()
    assert json.loads(consumer.read_text()) == {"nextSnapshot": 2}
    others(world, 5)
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.outcome is Outcome.COMMITTED
    world.predecessor = 2
    world.deliver(world.plan())
    assert world.target.ids() == [*range(5), *world.ids_of(1, 2, 3)] and not consumer.exists()


def test_a_document_without_its_snapshot_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    dies(monkeypatch, world, plan, world.prepare(plan), "_create")
    assert world.participant(plan).proof(plan) is None
    assert participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {}).outcome is Outcome.ABORTED
    assert table_of(world).version().number == 2, "the number of its snapshot is taken"
    assert world.target.ids() == world.ids_of(1)


def test_a_sleeper_that_settles_does_not_turn_the_table_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that it takes was given since, and has expired."""
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    dies(monkeypatch, world, plan, vote, "_create")

    def successor() -> None:
        world.commit(plan, world.prepare(plan))
        others(world, 12)
        world.predecessor = plan.number
        world.deliver(world.plan())
        table_of(world).expire(keep=10)

    before_the_snapshot(monkeypatch, successor)
    assert late_commit(world, plan, vote) == "fenced"
    numbers = table_of(world).place.numbers("snapshot")
    assert len(numbers) == 10 and (table_of(world).path / "snapshot" / "LATEST").read_text() == str(numbers[-1])
    world.deliver(world.plan())
    assert world.target.ids() == [*range(12), *world.ids_of(1, 2, 3, 4)]


def test_a_late_hint_names_the_newest_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    replaced = LocalFileSystem.replace

    def late(self: LocalFileSystem, uri: str, data: bytes) -> None:
        if uri.endswith("LATEST"):
            monkeypatch.setattr(LocalFileSystem, "replace", replaced)
            others(world, 5)
        replaced(self, uri, data)

    monkeypatch.setattr(LocalFileSystem, "replace", late)
    world.deliver(world.plan())
    assert (table_of(world).path / "snapshot" / "LATEST").read_text() == "6"


def test_a_snapshot_of_another_writer_in_our_place_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that renames its file onto the name, as pypaimon does, replaces what it did not see."""
    world = world_of(tmp_path)
    world.deliver(world.plan())
    create = Version._create

    def replacing(self: Version, snapshot: Any) -> None:
        monkeypatch.setattr(Version, "_create", create)
        others(world, 1)
        theirs = table_of(world).path / "snapshot" / "snapshot-2"
        kept = theirs.rename(theirs.with_name("theirs"))
        create(self, snapshot)
        kept.replace(theirs)

    monkeypatch.setattr(Version, "_create", replacing)
    world.deliver(world.plan())
    assert world.target.ids() == [0, *world.ids_of(1, 2)]


@pytest.mark.parametrize("where", ["hint", "_create"])
def test_an_expired_snapshot_that_alone_knew_halts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The consumer was removed. Files that later snapshots still name were committed."""
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    dies(monkeypatch, world, plan, world.prepare(plan), where)
    others(world, 5)
    table_of(world).expire(keep=2)
    if where == "hint":
        assert world.participant(plan).proof(plan) is not None
        return
    with raises(StoreBehindSinkError, "snapshot_lost", snapshot=2, path=str(table_of(world).path)):
        world.participant(plan).proof(plan)


@pytest.mark.parametrize("there", [True, False])
def test_a_person_settles_a_lost_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    """Of the rows that are there, a compaction has rewritten the file."""
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan()
    dies(monkeypatch, world, plan, world.prepare(plan), "hint" if there else "_create")
    others(world, 5)
    table_of(world).expire(keep=2)
    with monkeypatch.context() as patched:
        patched.setattr(Version, "_names", lambda *_: False)
        with raises(StoreBehindSinkError, "snapshot_lost", snapshot=2) as caught:
            world.participant(plan).proof(plan)
        assert caught.error is not None
        memory = next((table_of(world).path / "_airflow_ft").glob("*/*"))
        if there:
            Path(caught.error.remedy.split("touch '")[1].split("'")[0]).touch()
        else:
            max(memory.glob("*.json")).unlink()
        proof = world.participant(plan).proof(plan)
        assert (proof is not None) == there
        world.deliver(plan)
    world.deliver(world.plan())
    assert world.target.ids() == [*range(5), *world.ids_of(1, 2, 3)]


@pytest.mark.parametrize("what", ["removed", "of another", "of another, and followed"])
def test_a_snapshot_of_ours_that_is_gone_halts(tmp_path: Path, what: str) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    world.deliver(world.plan())
    table = table_of(world)
    ours = table.path / "snapshot" / "snapshot-2"
    ours.unlink()
    (ours.parent / "LATEST").unlink()
    if what != "removed":
        others(world, 1 + what.endswith("followed"))
    with raises(StoreBehindSinkError, "snapshot_replaced", snapshot=2, path=str(table.path)):
        world.prepare(world.plan())


def test_a_reused_number_of_an_expired_snapshot_is_no_error(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    others(world, 2)
    expired = json.loads((table_of(world).path / "snapshot" / "snapshot-1").read_text())
    table_of(world).expire(keep=2)
    table_of(world).place.create("snapshot", {**expired, "uuid": "of a writer that slept"})
    world.deliver(world.plan())
    assert world.target.ids() == [0, 1, *world.ids_of(1, 2)]


def test_manifests_are_put_together(tmp_path: Path) -> None:
    world = world_of(tmp_path, partition_by=["text"])
    for number in range(35):
        world.deliver(world.plan(world.table(number, 1, texts=3)))
    version = table_of(world).version()
    listed = version.manifests.listed(version.snapshot)
    assert len(listed) < 10 and sum(record["_NUM_ADDED_FILES"] for record in listed) == 35
    assert world.target.ids() == list(range(35))


def test_columns_are_added_by_us_and_by_others(tmp_path: Path) -> None:
    world = world_of(tmp_path, schema_evolution=True)
    world.deliver(world.plan())
    world.deliver(world.plan(pa.table({"id": [1], "more": ["a"]})))
    table = table_of(world)
    schema = dict(table.version().schema or {})
    renamed = [{**field, "name": "renamed"} if field["name"] == "more" else field for field in schema["fields"]]
    table.place.create("schema", {**schema, "id": schema["id"] + 1, "fields": renamed})
    world.deliver(world.plan(pa.table({"id": [2], "renamed": ["b"]})))
    rows = table.read().slice(40).to_pylist()
    assert [(row["id"], row["renamed"]) for row in rows] == [(1, "a"), (2, "b")]
    assert table.version().schema is not None and table.read().column_names == ["id", "text", "renamed"]


def test_a_column_that_is_lacking_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    plan = world.plan(pa.table({"id": [1], "more": ["a"]}))
    with raises(UnfitTargetError, "column_missing", sink=SINK, column="more"):
        world.prepare(plan)
    [planned] = plan.participants
    found = schema_problems(planned, NOTHING, {SINK: pa.schema([("id", pa.string())])})
    assert [(each.code, each.column, each.sink) for each in found] == [("column_unfit", "id", SINK)]


@pytest.mark.parametrize("key", [[], ["id"]])
def test_a_column_that_is_dropped_before_the_commit_is_named(tmp_path: Path, key: list[str]) -> None:
    """Also where the sink adds columns, as it does in `prepare` alone."""
    world = world_of(tmp_path, schema_evolution=True, primary_key=key)
    plan = world.plan()
    vote = world.prepare(plan)
    schema = dict(table_of(world).version().schema or {})
    rest = [field for field in schema["fields"] if field["name"] != "text"]
    table_of(world).place.create("schema", {**schema, "id": 1, "fields": rest})
    with raises(UnfitTargetError, "column_missing", column="text", sink=SINK):
        world.commit(plan, vote)
    world.commit(plan, world.prepare(plan))
    assert world.target.ids() == world.ids_of(1)


def test_a_table_that_others_alone_can_write_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    table = table_of(world)
    schema = dict(table.version().schema or {})
    options = {**schema["options"], "deletion-vectors.enabled": "true"}
    table.place.create("schema", {**schema, "id": 1, "options": options})
    plan = world.plan()
    with raises(UnfitTargetError, "table_unsupported", sink=SINK, setting="deletion-vectors.enabled"):
        world.prepare(plan)
    [found] = [each.look() for each in required("p", plan.participants[0], NOTHING)]
    assert [each.code for each in found.problems] == ["table_unsupported"]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    table_of(world).path.mkdir(parents=True)
    (table_of(world).path / "part-00000.parquet").write_bytes(b"something")
    with raises(UnfitTargetError, "not_a_table", path=str(table_of(world).path)):
        world.prepare(world.plan())


def test_a_file_in_the_place_of_the_table_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    path = table_of(world).path
    path.parent.mkdir(parents=True)
    path.touch()
    with raises(SinkAccessError, "folder_unusable", path=str(path)):
        world.prepare(world.plan())


def test_what_the_table_has_forgotten_halts(tmp_path: Path) -> None:
    for loss in ("the memory", "a byte of it", "all"):
        world = world_of(tmp_path / loss.replace(" ", ""))
        world.deliver(world.plan())
        path = table_of(world).path
        if loss == "the memory":
            shutil.rmtree(path / "_airflow_ft")
        elif loss == "a byte of it":
            newest = max((path / "_airflow_ft").rglob("*.json"))
            newest.write_bytes(newest.read_bytes().replace(b'"floor":0', b'"floor":9'))
        else:
            shutil.rmtree(path)
        with raises(StoreBehindSinkError, "ledger_damaged" if loss == "a byte of it" else "ledger_lost"):
            world.prepare(world.plan())
        assert path.exists() == (loss != "all"), "no table is made in the place of a lost one"


def test_damaged_files_of_the_table_are_told(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.deliver(world.plan())
    manifest = next((table_of(world).path / "manifest").glob("manifest-list-*"))
    for each in (table_of(world).path / "manifest").glob("manifest-list-*"):
        each.write_bytes(b"{")
    plan = world.plan()
    with raises(SinkAccessError, "log_unreadable"):
        world.commit(plan, world.prepare(plan))
    assert manifest.exists()


def test_two_pipelines_deliver_into_one_table(tmp_path: Path) -> None:
    one, two = world_of(tmp_path), world_of(tmp_path)
    for _ in range(2):
        one.deliver(one.plan())
        two.deliver(two.plan(two.table(1000 * two.number + 5000, 2)))
    assert one.target.ids() == sorted([*one.ids_of(1, 2), 5000, 5001, 6000, 6001])


def test_verify_reads_days_that_python_does_not_have(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    days = pa.array([0, 5_000_000, -800_000], pa.int32()).cast(pa.date32())
    moments = pa.array([0, 2**62, -(2**62)], pa.int64()).cast(pa.timestamp("us"))
    inner = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), days)
    plan = world.plan(pa.table({"id": [1, 2, 3], "day": days, "at": moments, "days": inner}))
    delivered = [Delivered(plan, world.deliver(plan), None)]
    table = table_of(world)
    [found] = verify.verify(delivered, world.participant_plan(), table.connection, open_wal())
    assert found.is_exact
    table.foreign(table.read().slice(1, 1))
    [found] = verify.verify(delivered, world.participant_plan(), table.connection, open_wal())
    assert not found.is_exact


def test_rows_are_divided_among_buckets(tmp_path: Path) -> None:
    world = world_of(tmp_path, partition_by=["text"], buckets=3, bucket_key=["id"])
    for number in range(2):
        world.deliver(world.plan(world.table(40 * number, 40, texts=2)))
    version = table_of(world).version()
    live = version.manifests.live(version.manifests.listed(version.snapshot))
    assert {record["_TOTAL_BUCKETS"] for record in live} == {3} and len({record["_PARTITION"] for record in live}) == 2
    numbers: dict[Any, list[tuple[int, int]]] = {}
    for record in live:
        file = record["_FILE"]
        bounds = (file["_MIN_SEQUENCE_NUMBER"], file["_MAX_SEQUENCE_NUMBER"])
        numbers.setdefault((record["_PARTITION"], record["_BUCKET"]), []).append(bounds)
        assert path_of(version, record).rpartition("/")[0].endswith(f"bucket-{record['_BUCKET']}")
    for (_, last), (first, _) in (sorted(each) for each in numbers.values()):
        assert first == last + 1, "numbers of rows follow each other in each bucket"
    assert world.target.ids() == list(range(80))


def test_a_table_with_other_buckets_is_refused(tmp_path: Path) -> None:
    world = world_of(tmp_path, buckets=3, bucket_key=["id"])
    world.deliver(world.plan())
    other = replace(table_of(world).sink, buckets=4)
    found = list(CHECKS.problems(other, table_of(world).version(), world.table(1).schema, SINK))
    assert [(each.code, each.fields["buckets"]) for each in found] == [("key_unfit", 3)]
    schema = dict(table_of(world).version().schema or {})
    table_of(world).place.create("schema", {**schema, "id": 1, "options": {**schema["options"], "bucket": "2"}})
    world.target.sink = replace(other, buckets=0, bucket_key=())
    assert not list(CHECKS.problems(world.target.sink, table_of(world).version(), world.table(1).schema, SINK))
    plan = world.plan()
    vote = world.prepare(plan)
    with raises(UnfitTargetError, "table_unsupported", setting="bucket"):
        world.commit(plan, vote)
    world.commit_point = False
    with raises(UnfitTargetError, "table_unsupported", setting="bucket"):
        world.prepare(world.plan_of(plan.number, *plan.segments))
