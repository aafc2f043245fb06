"""The folder itself: whose it is, what is in its way, what readers see when, and what doctor and verify find."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_ft import FilesSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    AirflowFtError,
    DeclinedError,
    FencedError,
    HaltError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import CheckpointingMode, Fence, Plan
from airflow_ft.protocol.orphans import OrphanKind, PreparedEnding
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.files import requirements, verify
from airflow_ft.sinks.files.ledger import Ledger, Owned
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.sinks.files.participant import FilesParticipant, open_participant
from airflow_ft.sinks.files.staged import room
from airflow_ft.testing.world import OURS, SINK, THEIRS, World
from airflow_ft.wal import open_wal
from airflow_ft.wal.hdfs import HdfsFileSystem
from airflow_ft.wal.local import LocalFileSystem, local_path
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises
from tests.sinks.files.world import Folder, folder_of, participant_of, world_of
from tests.wal.test_filesystem import without_links

NONE = 0xFFFFFFFF
DEFAULT_ACL = struct.pack("<I" + 5 * "HHI", 2, 1, 7, NONE, 2, 5, 54_321, 4, 5, NONE, 16, 5, NONE, 32, 0, NONE)
"""As the kernel stores it (linux/posix_acl_xattr.h): a user of that id may read."""


def access(path: Path) -> Any:
    found = path.stat()
    lists = {name: os.getxattr(path, name) for name in os.listxattr(path) if "posix_acl" in name}
    return found.st_mode, found.st_uid, found.st_gid, lists


@pytest.fixture
def world(tmp_path: Path) -> World:
    return world_of(tmp_path)


# --- what readers see ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_reader_that_lists_all_the_time_sees_whole_checkpoints(tmp_path: Path) -> None:
    """Three partitions, in files of their own: a reader lists first, and opens what it has listed."""
    world = world_of(tmp_path, partition_by=("which",))
    folder, seen, done = folder_of(world), set(), threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not done.is_set():
            files = ds.dataset(folder.path, format="parquet").files if folder.path.is_dir() else []
            numbers = [file.split("checkpoint=")[1][:10] for file in files]
            ids = {id for file in files for id in ds.dataset(file, format="parquet").to_table()["id"].to_pylist()}
            whole = all(numbers.count(number) == 3 for number in numbers)
            if not whole or ids != set(range(30 * len(set(numbers)))):
                wrong.append(str(files))
            seen.add(len(files))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(15):
        ids = range(number * 30, number * 30 + 30)
        rows = pa.table({"id": pa.array(ids, pa.int64()), "which": [str(id % 3) for id in ids]})
        plan = world.plan(rows)
        vote = world.prepare(plan)
        if number % 5 == 4:
            participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {"message": "a test"})
            plan = world.plan(rows)
            vote = world.prepare(plan)
        world.commit(plan, vote)
        world.predecessor = plan.number
    done.set()
    reader.join()
    assert not wrong and len(seen) > 3 and folder.ids() == list(range(450))


def test_prepared_rows_are_durable_and_hidden_from_readers(world: World) -> None:
    plan = world.plan()
    vote = world.prepare(plan)
    folder = folder_of(world)
    assert folder.files() == [] and ds.dataset(folder.path, format="parquet").files == []
    assert [each.name for each in folder.path.iterdir()] == ["_airflow_ft"]
    shutil.rmtree(tmp := folder.staged / f"1.1-{vote.prepared}")
    world.commit(plan, vote)
    assert not tmp.exists() and folder.ids() == world.ids_of(1), "what is lost is delivered from the log"


def test_rows_are_synced_before_the_vote_and_before_the_marker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this order, since power may fail between any two of them."""
    seen: list[str] = []

    def record(name: str) -> None:
        real = getattr(LocalFileSystem, name)

        def recorded(self: Any, uri: str, *more: Any) -> Any:
            found = real(self, uri, *more)
            place = uri.rpartition("orders")[2].removeprefix("/_airflow_ft")
            seen.append(f"{name} {place}".rstrip())
            return found

        monkeypatch.setattr(LocalFileSystem, name, recorded)

    for name in ("write", "sync_tree", "rename_folder", "sync_folders"):
        record(name)
    plan = world.plan()
    vote = world.prepare(plan)
    last = [each for each in seen if "1.1-1" in each]
    assert last[0] == "write .airflow_ft/1.1-1/_airflow_ft" and last[-1] == "sync_tree .airflow_ft/1.1-1"
    assert {"sync_folders", "sync_folders /head"} <= set(seen), "and so is what they lie in"
    seen.clear()
    world.commit(plan, vote)
    assert seen[-4:] == [
        "rename_folder .airflow_ft/1.1-1", "sync_folders", "write /markers/0000000001.json", "sync_folders /markers",
    ]  # fmt: skip


def test_rows_are_prepared_inside_the_folder_if_not_beside_it(world: World) -> None:
    """No permission there, or another file system: whatever it is, a rename was tried."""
    folder = folder_of(world)
    folder.staged.write_text("in the way")
    plan = world.plan()
    vote = world.prepare(plan)
    inside = folder.path / "_airflow_ft" / "staged"
    assert [each.name for each in inside.iterdir()] == [f"1.1-{vote.prepared}"] and folder.ids() == []
    folder.staged.unlink()
    world.commit(plan, vote)
    world.predecessor = 1
    world.prepare(world.plan())
    assert folder.ids() == world.ids_of(1) and len(list(inside.iterdir())) == 1, "it stays where it was"
    assert not folder.staged.exists()


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN, errno.EXDEV])
def test_only_a_lasting_error_moves_staging_inside(world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    plan = world.plan()
    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "rename_folder", refuse)
        if number == errno.EXDEV:
            world.prepare(plan)
        else:
            with raises(SinkUnavailableError, "file_system_failed"):
                world.prepare(plan)
    world.deliver(plan)
    assert (folder_of(world).path / "_airflow_ft" / "staged").exists() == (number == errno.EXDEV)


def test_a_folder_at_the_top_of_a_file_system_is_synced() -> None:
    ledger = Ledger.of("/orders", ConnectionInfo("", ""))
    ledger._known.update(pipeline="p", staged="beside")
    assert [local_path(uri) for uri in ledger.staging()] == [Path("/_orders.airflow_ft"), Path("/")]


@pytest.mark.parametrize("stays", ["beside", "inside"])
@pytest.mark.parametrize(
    ("mode", "acl"), [(0o700, None), (0o2750, None), (0o750, DEFAULT_ACL)], ids=["private", "setgid", "default ACL"]
)
def test_rows_are_as_open_as_others_made_in_their_folder(world: World, mode: int, acl: Any, stays: str) -> None:
    """Also while they are hidden, and where files of the log become theirs by a link."""
    folder, is_root = folder_of(world), os.geteuid() == 0
    if stays == "inside":
        folder.staged.write_text("in the way")
    folder.path.mkdir()
    os.chown(folder.path, -1, 12_345 if is_root else os.getgid())
    folder.path.chmod(mode)
    if acl is not None:
        os.setxattr(folder.path, "system.posix_acl_default", acl)
    plan = world.plan()
    vote = world.prepare(plan)
    if stays == "beside":
        assert access(folder.staged) == access(folder.path)
        folder.staged.chmod(0o777)
        vote = world.prepare(plan)
        assert access(folder.staged) == access(folder.path), "also later"
    world.commit(plan, vote)
    (made := folder.path / "made").mkdir()
    (made / "file").touch()
    shown = folder.path / "checkpoint=0000000001"
    assert access(shown) == access(made) and access(shown / "part-00000.parquet") == access(made / "file")


def test_a_staging_folder_with_the_wrong_access_warns(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.prepare(plan := world.plan())
    assert not caplog.records
    monkeypatch.setattr(LocalFileSystem, "make_like", lambda *_: False)
    world.prepare(plan)
    assert str(folder_of(world).staged) in caplog.text and "chgrp" in caplog.text


def test_files_of_the_log_are_linked_where_access_is_the_same(world: World) -> None:
    world.deliver(world.plan())
    assert (folder_of(world).path / "checkpoint=0000000001" / "part-00000.parquet").stat().st_nlink == 2


@pytest.mark.parametrize("lost", ["a file", "the end of a file", "the manifest"])
def test_damaged_prepared_rows_are_delivered_from_the_log(world: World, lost: str) -> None:
    plan = world.plan()
    vote = world.prepare(plan)
    staged = folder_of(world).staged / f"1.1-{vote.prepared}"
    file = staged / ("_airflow_ft" if lost == "the manifest" else "part-00000.parquet")
    data = file.read_bytes()
    file.unlink()
    if lost == "the end of a file":
        file.write_bytes(data[:-1])
    world.commit(plan, vote)
    assert folder_of(world).ids() == world.ids_of(1) and list(staged.parent.iterdir()) == []


def test_at_least_once_commits_what_it_prepared_without_a_vote(world: World) -> None:
    """The commit does not read the write-ahead log again."""
    [planned] = plan_delivery({SINK: world.target.sink}, mode=CheckpointingMode.AT_LEAST_ONCE).participants
    plan = replace(world.plan(), participants=(planned,), mode=CheckpointingMode.AT_LEAST_ONCE)
    participant, fence = participant_of(world, plan), world.fence(1, 1)
    participant.prepare(plan, fence)
    shutil.rmtree(world.folder / "wal")  # it is not read once more
    assert participant.commit(plan, fence, Vote(planned.name, 1, 0, None, {})).outcome is Outcome.COMMITTED
    assert folder_of(world).ids() == world.ids_of(1)


# --- whose folder it is ----------------------------------------------------------------------------------------------


def test_a_folder_belongs_to_one_pipeline(world: World) -> None:
    plan = world.plan()
    world.deliver(plan)
    world.pipeline = "another"
    other = replace(plan, pipeline="another")
    owned = {"owner": plan.pipeline, "path": str(folder_of(world).path)}
    with raises(UnfitTargetError, "target_shared", **owned):
        participant_of(world, other).prepare(other, world.fence(1, 1))
    for predecessor in (0, 1):
        later = replace(other, number=2, participants=(replace(other.participants[0], predecessor=predecessor),))
        with raises(UnfitTargetError, "target_shared", **owned):
            participant_of(world, later).commit(later, world.fence(1, 9))
    with raises(UnfitTargetError, "target_shared", **owned):
        participant_of(world, other).forget(world.fence(1, 9), 1)
    opened = participant_of(world, other)
    assert opened.head("another") is None and opened.proof(other) is None
    assert opened.orphans("another", THEIRS) == () and opened.heuristic(other) == ""
    opened.end_orphans(world.fence(9, 9, THEIRS), None)
    assert folder_of(world).ids() == world.ids_of(1)


def test_two_sinks_of_one_folder_are_refused_before_the_decision(tmp_path: Path) -> None:
    """By a symbolic link. One took for its own what the other had prepared, and whose rows nobody wrote."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    sinks = {name: FilesSink(folder=str(tmp_path / name / "orders")) for name in ("real", "link")}
    rows = {name: pa.table({"id": range(count)}) for name, count in (("real", 2), ("link", 3))}
    segment = write_segment(SegmentFolder(str(tmp_path / "wal"), "p", 1, 1, 1), 1, rows)
    planned = plan_delivery(sinks).participants
    plan = Plan("p", OURS, 1, (segment,), planned, None)
    one, other = (open_participant(each, ConnectionInfo(each.name, ""), open_wal()) for each in plan.participants)
    one.prepare(plan, Fence("p", OURS, 1, 1))
    with raises(UnfitTargetError, "folder_shared") as caught:
        other.prepare(plan, Fence("p", OURS, 1, 2))
    assert caught.error is not None and {"'real'", "'link'"} <= set(caught.error.headline.replace(",", " ").split())


def test_a_memory_that_is_gone_stops_the_pipeline(world: World) -> None:
    world.deliver(world.plan())
    shutil.rmtree(folder_of(world).path / "_airflow_ft")
    plan = world.plan()
    with raises(StoreBehindSinkError, "ledger_lost") as caught:
        world.prepare(plan)
    assert caught.error is not None and str(folder_of(world).path / "_airflow_ft") in caught.error.remedy
    assert folder_of(world).ids() == world.ids_of(1)


def test_a_damaged_memory_is_named(world: World) -> None:
    plan = world.plan()
    world.deliver(plan)
    [marker] = (folder_of(world).path / "_airflow_ft" / "markers").iterdir()
    marker.write_text("{")
    with pytest.raises(HaltError) as caught:
        participant_of(world, plan).proof(plan)
    assert "0000000001.json" in caught.value.headline


def test_markers_without_a_head_are_refused(world: World) -> None:
    world.deliver(world.plan())
    shutil.rmtree(folder_of(world).path / "_airflow_ft" / "head")
    world.predecessor = 0
    with pytest.raises(HaltError) as caught:
        world.prepare(world.plan())
    assert "_airflow_ft/head" in caught.value.remedy


def test_concurrent_changes_of_a_head_are_made_one_by_one(tmp_path: Path) -> None:
    first = Owned(installation=OURS, epoch=0, attempt=0, last_delivered=0, floor=0)

    def work(times: int) -> None:
        ledger = Ledger.of(str(tmp_path), ConnectionInfo("", ""))
        for _ in range(times):
            ledger.change(lambda head: replace(head or first, epoch=(head or first).epoch + 1))

    threads = [threading.Thread(target=work, args=(50,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    head = Ledger.of(str(tmp_path), ConnectionInfo("", "")).head()
    assert head is not None and head.epoch >= 200, "none was lost"
    assert 16 <= len(list((tmp_path / "_airflow_ft" / "head").iterdir())) <= 20, "old versions are deleted"


def test_who_slept_while_versions_were_deleted_has_lost(tmp_path: Path) -> None:
    ledger, others = Ledger.of(str(tmp_path), ConnectionInfo("", "")), Ledger.of(str(tmp_path), ConnectionInfo("", ""))
    first = Owned(installation=OURS, epoch=1, attempt=0, last_delivered=0, floor=0)
    ledger.change(lambda _: first)
    asked: list[int] = []

    def slow(head: Owned | None) -> Owned:
        assert head is not None
        asked.append(head.epoch)
        if len(asked) == 1:
            for epoch in range(2, 50):
                others.change(lambda found, epoch=epoch: replace(found or first, epoch=epoch))  # type: ignore[misc]
        return replace(head, attempt=7)

    assert ledger.change(slow).epoch == 49 and asked == [1, 49]
    assert ledger.head() == replace(first, epoch=49, attempt=7)


# --- what is in the way ----------------------------------------------------------------------------------------------


def test_something_else_in_the_place_of_a_checkpoint_is_named(world: World) -> None:
    plan = world.plan()
    vote = world.prepare(plan)
    place = folder_of(world).path / "checkpoint=0000000001"
    place.mkdir()
    (place / "mine.txt").touch()
    for action in (lambda: world.prepare(plan), lambda: world.commit(plan, vote)):
        with raises(UnfitTargetError, "path_occupied", path=str(place)):
            action()
    shutil.rmtree(place)
    world.commit(plan, world.prepare(plan))
    assert folder_of(world).ids() == world.ids_of(1)


def test_what_was_moved_by_hand_before_the_decision_is_found(world: World) -> None:
    plan = world.plan()
    vote = world.prepare(plan)
    assert participant_of(world, plan).heuristic(plan) == ""
    folder = folder_of(world)
    place = folder.path / "checkpoint=0000000001"
    (folder.staged / f"1.1-{vote.prepared}").rename(place)
    early = participant_of(world, plan).heuristic(plan)
    assert str(place) in early and "40 rows" in early
    with raises(AbortedHeuristicCommitError, "heuristic_commit_aborted") as caught:
        participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {"message": "a test"})
    assert caught.error is not None and str(place) in caught.error.headline
    assert f"airflow ft resume {world.pipeline}" in caught.error.remedy
    again = world.prepare(plan)
    assert world.commit(plan, again).outcome is Outcome.COMMITTED, "should it be decided, it is there"
    assert folder.ids() == world.ids_of(1)


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [
        (errno.ENOSPC, SinkUnavailableError, "disk_full"),
        (errno.EDQUOT, SinkUnavailableError, "disk_full"),
        (errno.EACCES, SinkAccessError, "folder_unusable"),
        (errno.EROFS, SinkAccessError, "folder_unusable"),
        (errno.EXDEV, SinkAccessError, "file_systems_differ"),
        (errno.EIO, SinkUnavailableError, "file_system_failed"),
    ],
)
@pytest.mark.parametrize("action", ["prepare", "commit", "abort"])
def test_a_file_system_error_is_reported_and_shows_no_rows(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[AirflowFtError], code: str, action: str
) -> None:
    plan = world.plan()
    vote = world.prepare(plan)
    refuse: Callable[..., None] = lambda *_: (_ for _ in ()).throw(OSError(number, os.strerror(number)))  # noqa: E731
    with monkeypatch.context() as broken:
        broken.setattr("airflow_ft.wal.local.LocalFileSystem.sync_tree", refuse)
        broken.setattr("airflow_ft.wal.local.LocalFileSystem.rename_folder", refuse)
        broken.setattr("airflow_ft.wal.local.LocalFileSystem.remove_tree", refuse)
        where = {"pipeline": world.pipeline, "participant": world.target.connection.conn_id}
        with raises(kind, code, **where):
            if action == "prepare":
                world.prepare(plan)
            elif action == "commit":
                world.commit(plan, vote)
            else:
                participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {})
    assert folder_of(world).ids() == []
    world.commit(plan, world.prepare(plan))
    assert folder_of(world).ids() == world.ids_of(1)


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_told(world: World) -> None:
    """As far as a bound on the size of a file goes: what is half written is removed."""
    import resource
    import signal

    plan = world.plan(pa.table({"id": range(400_000), "text": [os.urandom(16).hex() for _ in range(400_000)]}))
    world.target.sink = FilesSink(folder=str(folder_of(world).path), format="csv")
    plan = replace(plan, participants=(world.participant_plan(),))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, hard))
        with raises(SinkUnavailableError, "file_system_failed"):
            world.prepare(plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    folder = folder_of(world)
    assert folder.files() == [] and list((folder.staged).iterdir()) == []


def test_a_folder_that_is_none_is_told(world: World) -> None:
    folder_of(world).path.write_text("a file")
    plan = world.plan()
    with raises(SinkAccessError, "folder_unusable", path=str(folder_of(world).path)) as caught:
        world.prepare(plan)
    path = str(folder_of(world).path)
    assert caught.error is not None and path in caught.error.headline and path in caught.error.remedy
    [check] = checks(world)
    assert (check.verdict, check.name) == (Verdict.PROBLEM, "folder") and path in check.text


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rows", "code", "column"),
    [
        ({"partition_by": ("country",)}, {"id": [1]}, "job_column_missing", "country"),
        ({"partition_by": ("countr",)}, {"id": [1], "country": ["a"]}, "job_column_missing", "countr"),
        ({"partition_by": ("id",)}, {"id": [1]}, "no_column_left", ""),
        ({"partition_by": ("ratio",)}, {"id": [1], "ratio": [0.5]}, "column_unfit", "ratio"),
        ({}, {"id": [1], "Checkpoint": [1]}, "column_reserved", "Checkpoint"),
    ],
)
def test_columns_that_do_not_fit_are_named_before_computing(
    tmp_path: Path, settings: Any, rows: Any, code: str, column: str
) -> None:
    world = world_of(tmp_path, **settings)
    table = pa.table(rows)
    with raises(DeclinedError, code, column=column, sink=SINK):
        world.prepare(world.plan(table))
    planned, connection = world.participant_plan(), world.target.connection
    [problem] = requirements.schema_problems(planned, connection, {SINK: table.schema})
    assert problem.sink == SINK and problem.remedy


@pytest.mark.parametrize(
    ("format", "later", "fields"),
    [
        ("parquet", {"id": ["1"], "text": ["a"]}, {"column": "id", "type": "string", "before": "int64"}),
        ("csv", {"id": [1], "text": ["a"], "more": [1]}, {"column": "more", "before": ["id", "text"]}),
        ("csv", {"text": ["a"], "id": [1]}, {"column": "", "columns": ["text", "id"], "before": ["id", "text"]}),
        ("parquet", {"id": [1]}, {}),
        ("json", {"id": [1], "text": ["a"], "more": [1]}, {}),
    ],
)
def test_columns_may_change_only_as_readers_can_follow(tmp_path: Path, format: str, later: Any, fields: Any) -> None:
    world = world_of(tmp_path, format=format)
    world.deliver(world.plan())
    table = pa.table(later)
    found = requirements.schema_problems(world.participant_plan(), world.target.connection, {SINK: table.schema})
    plan = world.plan(table)
    if not fields:
        assert not found
        world.deliver(plan)
        assert folder_of(world).ids() == sorted([*world.ids_of(1), 1])
    else:
        with raises(UnfitTargetError, "layout_changed", **fields):
            world.prepare(plan)
        assert len(found) == 1 and folder_of(world).ids() == world.ids_of(1)


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_nested_values_may_begin_or_cease_to_be_null(tmp_path: Path, format: str) -> None:
    world = world_of(tmp_path, format=format)
    for id, value in enumerate((1, None, 2)):
        kind = pa.struct([pa.field("a", pa.list_(pa.field("element", pa.int64(), value is None)), value is None)])
        world.deliver(world.plan(pa.table({"id": [id], "in": pa.array([{"a": [value]}], kind)})))
    rows = ds.dataset(folder_of(world).path, format=format).to_table().to_pylist()
    assert sorted((row["id"], row["in"]["a"]) for row in rows) == [(0, [1]), (1, [None]), (2, [2])]


@pytest.mark.parametrize("where", ["one plan", "waiting", "long ago"])
def test_columns_are_compared_with_all_rows_that_come_before(tmp_path: Path, where: str) -> None:
    world = world_of(tmp_path, format="parquet" if where == "long ago" else "csv")
    first, later = pa.table({"id": [1], "a": ["x"], "b": ["y"]}), pa.table({"id": [2], "b": ["y"], "a": ["x"]})
    if where == "one plan":
        plan = world.plan_of(1, world.segment(1, first), world.segment(2, later))
    else:
        vote = world.prepare(waits := world.plan(first))
        if where == "long ago":
            world.commit(waits, vote)
            world.predecessor = waits.number
            world.deliver(world.plan(pa.table({"id": [2]})))
            later = pa.table({"id": [3], "a": [1]})
        else:
            world.predecessor = waits.number
        plan = world.plan(later)
    with raises(UnfitTargetError, "layout_changed"):
        world.prepare(plan)
    if where == "waiting":  # what waits may be aborted
        world.participant(waits).abort(waits, world.fence(1, world.attempt()), {})
        world.predecessor = 0
        world.deliver(world.plan(later))
        assert folder_of(world).ids() == [2]


def test_another_format_or_partitioning_needs_another_folder(world: World) -> None:
    world.deliver(world.plan())
    changes: tuple[dict[str, Any], ...] = ({"format": "json"}, {"partition_by": ["text"]})
    for settings in changes:
        world.target.sink = FilesSink(folder=str(folder_of(world).path), **settings)
        [setting] = settings
        with raises(UnfitTargetError, "layout_changed", setting=setting):
            world.prepare(world.plan())


# --- adoption --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", list(PreparedEnding))
def test_a_person_ends_what_a_former_owner_left_prepared(world: World, ending: PreparedEnding) -> None:
    first = world.plan()
    world.deliver(first)
    plan = world.plan()
    vote = world.prepare(plan)
    participant = participant_of(world, plan)
    [orphan] = participant.orphans(world.pipeline, THEIRS)
    assert (orphan.kind, orphan.number, orphan.of) == (OrphanKind.PREPARED, 2, 1)
    assert "40 rows" in orphan.text and "checkpoint=0000000002" in orphan.commit and orphan.roll_back
    assert participant.orphans(world.pipeline, OURS) == []
    with raises(StateConflictError, "prepared_foreign") as caught:
        participant.end_orphans(world.fence(5, 0, THEIRS), None)
    assert caught.error is not None and "--prepared" in caught.error.remedy
    for _ in range(2):
        participant.end_orphans(world.fence(5, 0, THEIRS), ending)
    rows = world.ids_of(1, 2) if ending is PreparedEnding.COMMIT else world.ids_of(1)
    assert folder_of(world).ids() == rows and not participant.orphans(world.pipeline, THEIRS)
    participant.adopt(world.fence(5, 0, THEIRS), 2)
    with pytest.raises(HaltError):
        world.commit(plan, vote)
    following = world.plan_of(3, world.segment(3, world.table(3 * 40)), installation=THEIRS)
    following = replace(following, participants=(replace(following.participants[0], predecessor=2),))
    world.commit(following, world.prepare(following, epoch=5), epoch=5)
    assert folder_of(world).ids() == sorted([*rows, *world.ids_of(3)])


def test_nothing_is_marked_as_committed_over_a_foreign_folder(world: World) -> None:
    plan = world.plan()
    world.prepare(plan)
    place = folder_of(world).path / "checkpoint=0000000001"
    place.mkdir()
    (place / "foreign.csv").write_text("1\n")
    participant = participant_of(world, plan)
    with raises(UnfitTargetError, "path_occupied"):
        participant.end_orphans(world.fence(5, 0, THEIRS), PreparedEnding.COMMIT)
    shutil.rmtree(place)
    participant.end_orphans(world.fence(5, 0, THEIRS), PreparedEnding.COMMIT)
    assert folder_of(world).ids() == world.ids_of(1)


def test_tombstones_of_a_former_owner_make_way(world: World) -> None:
    plan = world.plan()
    world.prepare(plan)
    participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {"message": "for a test"})
    participant = participant_of(world, plan)
    [orphan] = participant.orphans(world.pipeline, THEIRS)
    assert orphan.kind is OrphanKind.ABORTED and "for a test" in orphan.text
    participant.end_orphans(world.fence(5, 0, THEIRS), None)
    with pytest.raises(StateConflictError):
        participant.adopt(world.fence(5, 0, THEIRS), 0)
    participant.adopt(world.fence(5, 0, THEIRS), 1)
    later = replace(plan, number=2)
    with pytest.raises(HaltError):
        world.prepare(later)
    with raises(FencedError, "fenced", head_epoch=5):  # another adoption has gone further
        participant.end_orphans(world.fence(4, 9, THEIRS), None, make_way=True)


def test_two_adoptions_at_once_leave_the_newest_head_and_rows(world: World) -> None:
    """One of them looks before the other has adopted, and goes on when that one has prepared its first number."""
    plan = world.plan()
    world.deliver(plan)
    late, participant = participant_of(world, plan), participant_of(world, plan)
    looks = iter([late.ledger.head()])
    later = replace(world.plan_of(2, world.segment(2, world.table(2 * 40))), installation=THEIRS)
    participant.end_orphans(world.fence(6, 0, THEIRS), None)
    participant.adopt(world.fence(6, 0, THEIRS), 1)
    later = replace_predecessor(later, 1)
    vote = world.prepare(later, 7, epoch=6)
    head, ledger = Ledger.head, late.ledger
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "head", lambda self: next(looks, None) if self is ledger else head(self))
        with pytest.raises(FencedError):
            late.end_orphans(world.fence(5, 0, THEIRS), None)
    found = participant.ledger.head()
    assert found is not None and (found.installation, found.rank) == (THEIRS, (6, 7))
    assert participant.staged.all() == [(2, (6, 7))], "what it has prepared is there"
    world.commit(later, vote, 8, epoch=6)
    assert folder_of(world).ids() == world.ids_of(1, 2)


def test_a_late_adoption_keeps_rows_that_a_newer_one_prepared(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has raised the head, and stands still before it removes what is left."""
    plan = world.plan()
    world.deliver(plan)
    left = world.plan()
    world.prepare(left)
    later = replace_predecessor(
        world.plan_of(3, world.segment(3, world.table(3 * 40)), installation=THEIRS), predecessor=1
    )

    def beside(*_: object) -> None:
        monkeypatch.undo()
        newer = participant_of(world, plan)
        newer.end_orphans(world.fence(6, 0, THEIRS), PreparedEnding.ROLLBACK)
        newer.adopt(world.fence(6, 0, THEIRS), 1)
        world.prepare(later, 7, epoch=6)

    monkeypatch.setattr(FilesParticipant, "_end_prepared", beside)
    late = participant_of(world, plan)
    late.end_orphans(world.fence(5, 0, THEIRS), PreparedEnding.ROLLBACK)
    assert late.staged.all() == [(3, (6, 7))]


def test_a_file_system_without_hard_links_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts would write the same version of the head, and each believe that it is alone."""
    without_links(monkeypatch)
    with raises(UnfitTargetError, "file_system_unsupported", feature="hard links"):
        world.prepare(world.plan())
    assert folder_of(world).files() == []


# --- doctor and verify -----------------------------------------------------------------------------------------------


def checks(world: World, *rows: Plan) -> list[Check]:
    readers = [open_wal().open(segment) for plan in rows for segment in plan.segments]
    return doctor.examine(world.pipeline, world.participant_plan(), world.target.connection, readers)


def test_the_doctor_looks_at_folder_and_columns(world: World) -> None:
    [check] = checks(world, world.plan())
    assert check.verdict is Verdict.OK and "0 checkpoints are visible" in check.text and "bytes are free" in check.text
    assert not folder_of(world).path.exists(), "it leaves nothing there"
    world.deliver(world.plan())
    bad = world.plan(pa.table({"id": ["1"], "checkpoint": [1]}))
    found = checks(world, bad)
    assert [each.verdict for each in found] == [Verdict.OK, Verdict.PROBLEM, Verdict.PROBLEM]
    assert "1 checkpoint is" in found[0].text and all(each.remedy for each in found[1:])
    world.pipeline = "another"
    [check] = checks(world, bad)
    assert check.verdict is Verdict.PROBLEM and "is the folder of pipeline" in check.text


@pytest.mark.parametrize("which", ["doctor", "ready"])
def test_a_folder_that_cannot_be_created_is_refused(tmp_path: Path, which: str) -> None:
    plan = plan_delivery({"rows": FilesSink(folder="/proc/x/out", name="lake")}).participants[0]
    connection = ConnectionInfo("lake", "")
    if which == "doctor":
        [check] = doctor.examine("p", plan, connection, [])
        assert (check.verdict, check.code) == (Verdict.PROBLEM, "folder_unusable")
    else:
        [error] = lacks(requirements.required("p", plan, connection), OURS, str)
        assert isinstance(error, SinkAccessError) and error.code == "folder_unusable"


def verified(world: World, *plans: Plan) -> SinkReport:
    delivered = [Delivered(plan, participant_of(world, plan).proof(plan), None) for plan in plans]
    [found] = verify.verify(delivered, world.participant_plan(), ConnectionInfo("", ""), open_wal())
    return found


def test_verify_names_each_lost_changed_or_copied_file(tmp_path: Path) -> None:
    world = world_of(tmp_path, partition_by=("which",))
    plans = []
    for number in range(3):
        rows = pa.table({"id": range(number * 4, number * 4 + 4), "which": ["a", "b", "b", "c"]})
        plans.append(world.plan(rows))
        world.deliver(plans[-1])
    empty = world.plan(world.table(0, 0).append_column("which", pa.array([], pa.string())).drop_columns(["text"]))
    world.deliver(empty)
    assert verified(world, *plans, empty).is_exact and verified(world, *plans).expected == 12
    path = folder_of(world).path
    lost, changed, first = (path / folder_of(world).files()[index] for index in (4, 5, 0))
    lost.unlink()
    changed.chmod(0o644)
    data = bytearray(changed.read_bytes())
    data[-20] ^= 1
    changed.write_bytes(data)
    shutil.copy(first, path / "checkpoint=0000000003" / "which=a" / "copy.parquet")
    shutil.copy(first, path / "_hidden.parquet")
    report = verified(world, *plans)
    assert (report.expected, report.missing, report.repeated) == (12, 3, 1) and not report.is_exact
    assert [(each.number, each.file, each.rows) for each in report.differences] == [
        (2, str(lost.relative_to(path)), 2),
        (2, str(changed.relative_to(path)), 1),
    ]
    assert report.differences[0].samples == ("it is gone",) and "checksum" in report.differences[1].samples[0]
    assert report.notes == ("checkpoint=0000000003/which=a/copy.parquet is a copy of a delivered file",)
    assert verified(world, plans[0]).repeated == 1, "also where it is alone compared"


def test_verify_reads_the_manifests_of_suspects_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plans, read = [], []
    for rows in (10, 1000, 10):
        plans.append(world.plan(world.table(0, rows)))
        world.deliver(plans[-1])
    manifest = Ledger.manifest
    monkeypatch.setattr(Ledger, "manifest", lambda self, folder: read.append(folder[-1]) or manifest(self, folder))
    assert verified(world, plans[0]).is_exact and read == ["1", "3"], "3 has a file of that size"


def test_a_flipped_bit_in_a_file_of_ours_changes_no_answer(world: World) -> None:
    """Each of them holds its own checksum. What was prepared is delivered from the log again."""
    first = world.plan()
    proof = world.deliver(first)
    folder, second = folder_of(world), world.plan()
    vote = world.prepare(second)
    staged = next(folder.staged.iterdir())
    shown = folder.path / "checkpoint=0000000001"
    ours = folder.path / "_airflow_ft"
    head = max((ours / "head").iterdir())
    for file in (head, ours / "pipeline.json", next((ours / "markers").iterdir()), shown / "_airflow_ft"):
        data = file.read_bytes()
        file.chmod(0o644)
        for bit in random.Random(7).sample(range(8 * len(data)), 40):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            file.write_bytes(changed)
            with suppress(StoreBehindSinkError):
                assert participant_of(world, first).proof(first) == proof
            with suppress(StoreBehindSinkError):
                assert participant_of(world, first).head(world.pipeline).number == 1
            if file.parent == shown:
                assert verified(world, first).missing in (0, 40)
        file.write_bytes(data)
    manifest = staged / "_airflow_ft"
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes().replace(b'"rows":40', b'"rows":41'))
    assert world.commit(second, vote).counts == {SINK: 40} and world.target.ids() == world.ids_of(1, 2)


def test_a_checkpoint_that_is_gone_or_was_replaced_is_found(world: World) -> None:
    plans = [world.plan(), world.plan()]
    for plan in plans:
        world.deliver(replace_predecessor(plan, plan.number - 1))
    folder = folder_of(world)
    manifest = folder.manifest(2)
    shutil.rmtree(folder.path / "checkpoint=0000000001")
    (folder.path / "checkpoint=0000000002" / "_airflow_ft").write_text(json.dumps({**manifest, "files": []}))
    report = verified(world, *plans)
    assert report.missing == 80 and [each.file for each in report.differences] == [
        "checkpoint=0000000001", "checkpoint=0000000002",
    ]  # fmt: skip
    shutil.rmtree(folder.path)
    with raises(SinkUnavailableError, "folder_missing", path=str(folder.path)):
        verified(world, *plans)


def replace_predecessor(plan: Plan, predecessor: int) -> Plan:
    return replace(plan, participants=tuple(replace(each, predecessor=predecessor) for each in plan.participants))


def test_a_fenced_preparation_leaves_nothing_that_stays(world: World) -> None:
    plan = world.plan()
    world.prepare(plan, 5)
    with pytest.raises(FencedError):
        world.prepare(plan, 3)
    staged = folder_of(world).staged
    assert [each.name for each in staged.iterdir()] == ["1.1-5"]
    (staged / "1.1-2").mkdir()  # of one that woke up late
    vote = world.prepare(plan, 7)
    assert [each.name for each in staged.iterdir()] == ["1.1-7"]
    world.commit(plan, vote, 8)
    (staged / "1.1-6").mkdir()
    world.predecessor, world.attempts = 1, 8
    later = world.plan()
    vote = world.prepare(later)
    assert [each.name for each in staged.iterdir()] == [f"2.1-{vote.prepared}"]


def test_the_readme_of_the_folder_s_memory_holds(world: World) -> None:
    """What docs/files.md draws."""
    world.deliver(world.plan())
    path = folder_of(world).path
    assert sorted(str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()) == [
        "_airflow_ft/head/00000001.json",
        "_airflow_ft/head/00000002.json",
        "_airflow_ft/markers/0000000001.json",
        "_airflow_ft/pipeline.json",
        "checkpoint=0000000001/_airflow_ft",
        "checkpoint=0000000001/part-00000.parquet",
    ]  # fmt: skip
    assert isinstance(world.target, Folder)


def test_the_newest_committed_marker_bounds_what_is_complete(tmp_path: Path) -> None:
    """What docs/files.md tells readers of a bucket, where files of a checkpoint appear one after the other."""
    world = world_of(tmp_path, partition_by=("text",))
    for _ in range(3):
        delivered = world.plan(world.table((world.number + 1) * 40, 2))
        world.deliver(delivered)
    unfinished = world.plan(world.table(160, 2))
    world.participant(delivered).forget(world.fence(1, world.attempt()), delivered.number - 1)
    path = folder_of(world).path
    shown = path / f"checkpoint={unfinished.number:010}" / "text=row 160"
    shown.mkdir(parents=True)
    shutil.copy(next(path.rglob("*.parquet")), shown)
    markers = [json.loads(each.read_text()) | {"name": each.stem} for each in (path / "_airflow_ft/markers").iterdir()]
    newest = max(int(each["name"]) for each in markers if each["outcome"] == "committed")
    complete = [each for each in path.glob("checkpoint=*") if int(each.name.partition("=")[2]) <= newest]
    rows = ds.dataset([str(file) for each in complete for file in each.rglob("*.parquet")]).to_table()
    assert sorted(rows["id"].to_pylist()) == [40, 41, 80, 81, 120, 121]


@pytest.mark.parametrize("decides", [True, False])
def test_overlong_partition_paths_are_refused_before_a_decision(tmp_path: Path, decides: bool) -> None:
    """Each folder has a name that is short enough; one in the other they have not."""
    columns = [f"c{number}" for number in range(20)]
    world = world_of(tmp_path, partition_by=columns)
    world.commit_point = decides
    values = {name: ["short", 250 * "x", None] for name in columns}
    rows = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"], **values})
    plan = world.plan(rows)
    with pytest.raises(DeclinedError) as caught:
        world.prepare(plan)
    assert "row 2 of" in caught.value.headline and "c0, c1" in caught.value.headline
    assert world.target.ids() == []
    world.commit(plan := world.plan(rows), world.vote_without_prepare(plan), set_aside=True)
    assert world.target.ids() == [1, 3]


def test_a_null_in_a_column_with_a_long_name_is_refused(tmp_path: Path) -> None:
    name = 240 * "n"
    world = world_of(tmp_path, partition_by=[name])
    with pytest.raises(DeclinedError) as caught:
        world.prepare(world.plan(pa.table({"id": [1, 2], "text": ["a", "b"], name: ["x", None]})))
    assert "row 2 of" in caught.value.headline and "255 bytes" in caught.value.headline


@pytest.mark.parametrize(
    ("root", "files", "found"),
    [
        ("hdfs://namenode:8020/data/orders", HdfsFileSystem, 8000 - 12 - 200),
        ("s3://bucket/data/orders", Objects, 1024 - 11 - 200),
        ("file:///no/such/folder", LocalFileSystem, 4095 - 15 - 200),
    ],
)
def test_each_file_system_has_room_for_a_path(root: str, files: Any, found: int) -> None:
    assert room(files.__new__(files), root) == found


def test_a_checkpoint_lists_the_folder_but_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds all checkpoints ever delivered, so each look takes longer than the one before."""
    world.deliver(world.plan())
    root, names = participant_of(world, world.plan()).ledger.root, LocalFileSystem.names
    looks: list[str] = []
    monkeypatch.setattr(LocalFileSystem, "names", lambda self, uri: (looks.append(uri), names(self, uri))[1])
    world.deliver(world.plan_of(2, world.segment(2, world.table(40))))
    assert looks.count(root) == 2


@pytest.mark.parametrize("numbers", [(9, 10, 11), (9_999_999_998, 9_999_999_999, 10_000_000_000, 10_000_000_001)])
def test_later_checkpoints_are_found_by_number(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    ledger = Ledger.of(str(tmp_path), ConnectionInfo("", ""))
    for name in (*map(ledger.label, numbers), "checkpoint=00000000001", "checkpoint=x", "other"):
        (tmp_path / name).mkdir()
    assert [ledger.visible(above) for above in numbers] == [list(numbers[at + 1 :]) for at in range(len(numbers))]
    assert ledger.visible() == [1, *numbers]
