"""The files sink on a real HDFS: prepared out of sight, visible by one rename, also when the process dies before each
request that changes something; and what is in the way is told."""

from __future__ import annotations

import io
import os
import uuid
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft import FilesSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import FencedError, SinkUnavailableError, UnfitTargetError
from airflow_ft.protocol.model import Former
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks import doctor
from airflow_ft.sinks.files import verify
from airflow_ft.testing.world import SINK, Target, World
from airflow_ft.wal import open_wal
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.hdfs import HdfsFileSystem, _client
from tests.raising import raises
from tests.sinks.files.dying import Acting
from tools.servers import Hdfs

pytestmark = [pytest.mark.sampled(among="HDFS"), pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(300)]


class Folder(Target):
    """Read file by file, passing what readers pass."""

    def __init__(self, url: str) -> None:
        top = f"{url}/{uuid.uuid4().hex}"
        self.url, self.staged = f"{top}/orders", f"{top}/_orders.airflow_ft"
        self.sink = FilesSink(folder=self.url, partition_by=("which",), name="lake")
        self.connection = ConnectionInfo("lake", "")

    def ids(self) -> list[int]:
        files = filesystem(self.url)
        seen = [name for name in files.tree(self.url) if not any(part[0] in "._" for part in name.split("/"))]
        tables = [pq.read_table(io.BytesIO(files.read(files.uri(self.url, *name.split("/"))))) for name in seen]
        return sorted(id for table in tables for id in table["id"].to_pylist())


def rows(first: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + 4), pa.int64()), "which": ["a/b", "50%", None, "a/b"]})


def test_a_folder_on_hdfs_shows_each_checkpoint_once_and_whole(hdfs: Hdfs, tmp_path: Path) -> None:
    target = Folder(hdfs.url)
    world, files = World(target, tmp_path), filesystem(target.url)
    plan = world.plan(rows(0))
    old = world.prepare(plan)
    vote = world.prepare(plan)
    assert target.ids() == [] and len(files.names(f"{target.staged}")) == 1
    with pytest.raises(FencedError):
        world.commit(plan, old, old.prepared)
    for _ in range(2):
        proof = world.commit(plan, vote)
        assert (proof.outcome, proof.counts[SINK]) == (Outcome.COMMITTED, 4) and target.ids() == [0, 1, 2, 3]
    world.predecessor = 1
    aborted = world.plan(rows(4))
    world.prepare(aborted)
    world.participant(aborted).abort(aborted, world.fence(1, world.attempt()), {"message": "a test"})
    assert target.ids() == [0, 1, 2, 3] and files.names(f"{target.staged}") == []
    following = world.plan(rows(4))
    vote = world.prepare(following)
    files.write(f"{target.url}/checkpoint=0000000003/mine", b"")
    with raises(UnfitTargetError, "path_occupied") as caught:
        world.commit(following, vote)
    assert caught.error is not None and caught.error.fields["path"].endswith("checkpoint=0000000003")
    files.remove_tree(f"{target.url}/checkpoint=0000000003")
    files.remove_tree(f"{target.staged}")
    world.commit(following, vote)
    assert target.ids() == list(range(8)), "what is lost is delivered from the log"
    found = [Delivered(each, world.participant(each).proof(each), None) for each in (plan, following)]
    [report] = verify.verify(found, world.participant_plan(), target.connection, open_wal())
    assert report.is_exact and report.expected == 8
    [check] = doctor.examine(world.pipeline, world.participant_plan(), target.connection, [])
    assert check.verdict == "ok" and "2 checkpoints are visible" in check.text


def test_hidden_rows_on_hdfs_are_as_open_as_visible_ones(hdfs: Hdfs, tmp_path: Path) -> None:
    target = Folder(hdfs.url)
    world, client = World(target, tmp_path), _client(f"{hdfs.host}:{hdfs.port}")
    path, staged = (url.removeprefix(hdfs.url) for url in (target.url, target.staged))
    client.mkdirs(path, 0o750, create_parent=True)
    client.set_owner(path, group="analysts")
    world.prepare(plan := world.plan(rows(0)))
    hidden = client.get_file_info(staged)
    assert (hidden.permission, hidden.group) == (0o750, "analysts")
    world.commit(plan, world.prepare(plan))
    folder, file = (client.get_file_info(f"{path}/checkpoint=0000000001{name}") for name in ("", "/_airflow_ft"))
    assert (folder.permission, folder.group, file.group) == (0o750, "analysts", "analysts")


def test_rows_on_hdfs_are_prepared_inside_a_folder_with_acls(hdfs: Hdfs, tmp_path: Path) -> None:
    from hdfs_native import AclEntry

    target = Folder(hdfs.url)
    world, client = World(target, tmp_path), _client(f"{hdfs.host}:{hdfs.port}")
    path = target.url.removeprefix(hdfs.url)
    client.mkdirs(path, 0o750, create_parent=True)
    client.modify_acl_entries(path, [AclEntry("user", "default", "r-x", "bob")])
    world.prepare(plan := world.plan(rows(0)))
    assert filesystem(target.url).names(f"{target.url}/_airflow_ft/staged") != []
    world.commit(plan, world.prepare(plan))
    there = client.get_acl_status(f"{path}/checkpoint=0000000001").entries
    assert "bob" in [each.name for each in there] and target.ids() == [0, 1, 2, 3]


@pytest.mark.parametrize("quota", ["names", "bytes"])
def test_a_quota_on_hdfs_is_compared_before_the_decision(hdfs: Hdfs, tmp_path: Path, quota: str) -> None:
    """It counts in the folder of the rename, not in the one beside it where the rows are prepared."""
    target = Folder(hdfs.url)
    world, path = World(target, tmp_path), target.url.removeprefix(hdfs.url)
    world.deliver(world.plan(rows(0)))
    client = _client(f"{hdfs.host}:{hdfs.port}")
    found = client.get_content_summary(path)
    plan = world.plan(rows(4).append_column("text", [[os.urandom(400_000).hex() for _ in range(4)]]))
    bounds = {
        "names": ("-setQuota", found.file_count + found.directory_count + 4),
        "bytes": ("-setSpaceQuota", found.space_consumed + (2 << 20)),
    }
    command, bound = bounds[quota]
    hdfs.admin(command, str(bound), path)
    with raises(SinkUnavailableError, "limit_reached"):
        world.prepare(plan)
    assert filesystem(target.url).names(target.staged) == []
    hdfs.admin(command.replace("-set", "-clr"), path)
    assert HdfsFileSystem().quota(target.url)[0] == 0, "there is none"
    world.deliver(plan)
    assert target.ids() == list(range(8))


@pytest.mark.release
@pytest.mark.parametrize("stop", ["kill", "sleep"])
@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
def test_whoever_dies_or_sleeps_anywhere_leaves_all_or_nothing(
    hdfs: Hdfs, tmp_path: Path, action: str, stop: str
) -> None:
    first, both = [0, 1, 2, 3], list(range(8))
    for at in count():
        (tmp_path / str(at)).mkdir()
        target = Folder(hdfs.url)
        world = World(target, tmp_path / str(at))
        world.deliver(world.plan(rows(0)))
        plan = world.plan(rows(4))
        vote = Vote("", 0, 0, None, {}) if action == "deliver what is lost" else world.prepare(plan)
        acting = Acting(plan, "prepare" if action == "prepare" else "commit", world.attempt(), vote, at, stop)
        stood = stop == "sleep" and acting.wait_until_stopped()
        ended = "" if stood else acting.wait()
        assert target.ids() in ([first] if action == "prepare" else [first, both]), f"before change {at}"
        assert world.commit(plan, world.prepare(plan) if action == "prepare" else vote).counts == {SINK: 4}
        assert target.ids() == both
        if stood:
            acting.wake()
            assert target.ids() == both, f"it slept before change {at}"
        assert filesystem(target.url).names(target.staged) == [] or stood
        if ended == "done":
            assert at > 4
            return


def test_a_folder_on_hdfs_follows_the_rename_of_its_pipeline(hdfs: Hdfs, tmp_path: Path) -> None:
    old = World(Folder(hdfs.url), tmp_path, pipeline="old", attempts=20)
    old.deliver(old.plan(rows(0)))
    late = old.plan(rows(4))
    vote = old.prepare(late)
    passed(old, Former("old", 1, 3))
    assert old.target.ids() == [0, 1, 2, 3, 8, 9, 10, 11]
    with raises(UnfitTargetError, "target_shared", owner="new"):
        old.commit(late, vote)
    assert old.target.ids() == [0, 1, 2, 3, 8, 9, 10, 11]


def passed(old: World, former: Former, at: int = -1) -> str:
    """The new name begins, in a process that is killed before that change, and then in this one."""
    new = World(old.target, old.folder, pipeline="new", number=former.below - 1)
    plan = new.plan(rows(8))
    plan = replace(plan, participants=(replace(plan.participants[0], former=former),))
    ended = Acting(plan, "prepare", new.attempt(), at=at).wait() if at >= 0 else ""
    new.deliver(plan)
    return ended


@pytest.mark.release
def test_a_rename_killed_at_any_change_on_hdfs_can_be_repeated(hdfs: Hdfs, tmp_path: Path) -> None:
    for at in count():
        (tmp_path / str(at)).mkdir()
        old = World(Folder(hdfs.url), tmp_path / str(at), pipeline="old", attempts=20)
        old.deliver(old.plan(rows(0)))
        ended = passed(old, Former("old", 1, 2), at)
        assert old.target.ids() == [0, 1, 2, 3, 8, 9, 10, 11], f"died before change {at}"
        if ended == "done":
            assert at > 2
            return
