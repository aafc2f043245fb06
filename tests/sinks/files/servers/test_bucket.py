"""A folder in a bucket: what if the process dies before each request that changes something, or sleeps there? And what
is told when the store, the connection or somebody else is in the way?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import obstore
import pytest

from airflow_ft import FilesSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import (
    ConfigurationError,
    HeuristicCommitError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
    WalCorruptError,
)
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks import doctor
from airflow_ft.sinks.files import staged, verify
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.testing.world import World
from airflow_ft.wal import open_wal
from tests.integration.proxy import Proxy
from tests.raising import raises
from tests.sinks.files.bucket import Bucket, environment_elsewhere
from tests.sinks.files.dying import Acting
from tools.servers import S3

LOST = Vote("", 0, 0, None, {})  # names nothing that was prepared


def bucket_of(world: World) -> Bucket:
    assert isinstance(world.target, Bucket)
    return world.target


def small(world: World) -> Any:
    return world.table((world.number + 1) * 40, 2)


def worlds(s3: S3, folder: Path, **settings: Any) -> Iterator[tuple[int, World, Bucket]]:
    """One for each change, with a checkpoint that was delivered before."""
    for at in count():
        (folder / str(at)).mkdir()
        world = World(Bucket(s3, **settings), folder / str(at))
        world.deliver(world.plan(small(world)))
        yield at, world, bucket_of(world)


def is_whole(bucket: Bucket, *numbers: int) -> bool:
    return bucket.ids() == [id for number in numbers for id in (number * 40, number * 40 + 1)]


def acting(world: World, plan: Plan, action: str, vote: Vote | None = None, at: int = -1, stop: str = "kill") -> Acting:
    return Acting(plan, action, world.attempt(), vote, at, stop, world.target.connection)


def proof_of(world: World, plan: Plan) -> Any:
    return world.participant(plan).proof(plan)


# --- dying ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitioned", [False, True], ids=["one file", "several files"])
@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.sampled("deaths")
def test_whoever_dies_anywhere_is_followed_by_one_who_finishes(
    s3: S3, tmp_path: Path, action: str, partitioned: bool
) -> None:
    """One file comes as a whole; of several some may be seen, until the next one comes and the marker says: all."""
    for at, world, bucket in worlds(s3, tmp_path, partition_by=("text",) if partitioned else ()):
        plan = world.plan(small(world))
        if action == "prepare":
            ended = acting(world, plan, action, at=at).wait()
            assert is_whole(bucket, 1), f"nothing is visible before the decision (died before change {at})"
            vote = world.prepare(plan)
        else:
            vote = world.prepare(plan) if action == "commit" else LOST
            ended = acting(world, plan, "commit", vote, at).wait()
            seen = bucket.ids()
            assert partitioned or is_whole(bucket, 1) or is_whole(bucket, 1, 2), f"died before change {at}: {seen}"
            assert set(seen) <= {40, 41, 80, 81} and len(set(seen)) == len(seen)
            assert proof_of(world, plan) is None or is_whole(bucket, 1, 2), "a marker says that all is there"
        assert world.commit(plan, vote).counts == {"rows": 2}
        assert proof_of(world, plan).outcome is Outcome.COMMITTED
        assert is_whole(bucket, 1, 2)
        world.predecessor = 2
        world.deliver(world.plan(small(world)))
        assert is_whole(bucket, 1, 2, 3) and bucket.staged() == []
        if ended == "done":
            assert at >= 3
            return
        assert ended == ""


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.sampled("deaths")
def test_a_crash_in_the_first_prepare_blocks_no_later_try(s3: S3, tmp_path: Path) -> None:
    for at in count():
        (tmp_path / str(at)).mkdir()
        world = World(Bucket(s3), tmp_path / str(at))
        plan = world.plan(small(world))
        ended = acting(world, plan, "prepare", at=at).wait()
        assert bucket_of(world).ids() == []
        world.commit(plan, world.prepare(plan))
        assert is_whole(bucket_of(world), 1)
        if ended == "done":
            assert at >= 7
            return


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.sampled("deaths")
def test_the_next_try_finishes_an_abort_that_crashed(s3: S3, tmp_path: Path) -> None:
    for at, world, bucket in worlds(s3, tmp_path):
        plan = world.plan(small(world))
        vote = world.prepare(plan)
        ended = acting(world, plan, "abort", at=at).wait()
        assert is_whole(bucket, 1)
        aborted = world.participant(plan).abort(plan, world.fence(1, world.attempt()), {"message": "a test"})
        assert aborted.outcome is Outcome.ABORTED and bucket.staged() == []
        assert world.commit(plan, vote).outcome is Outcome.ABORTED, "and a late commit meets the tombstone"
        following = world.plan_of(3, *plan.segments)
        world.commit(following, world.prepare(following))
        assert is_whole(bucket, 1, 2)
        if ended == "done":
            assert at > 2
            return


# --- sleeping ------------------------------------------------------------------------------------------------------


def for_each_sleeper(
    s3: S3,
    tmp_path: Path,
    action: str,
    meanwhile: Callable[[World, Bucket, Plan, Vote], None],
    is_right: Callable[[Bucket], bool],
) -> None:
    for at, world, bucket in worlds(s3, tmp_path, partition_by=("text",)):
        plan = world.plan(small(world))
        vote = LOST if action == "deliver what is lost" else world.prepare(plan)
        sleeper = acting(world, plan, "prepare" if action == "prepare" else "commit", vote, at, "sleep")
        stood = sleeper.wait_until_stopped()
        if stood:
            meanwhile(world, bucket, plan, vote)
        ended = sleeper.wake() if stood else sleeper.wait()
        if not stood:
            assert ended == "done" and at > 3
            return
        assert is_right(bucket), f"it slept before change {at}, and ended with {ended}: {bucket.files()}"


@pytest.mark.parametrize("deleted", ["", "at once", "when it was pruned"])
@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.sampled("sleepers")
def test_a_process_that_sleeps_through_a_delivery_adds_nothing(
    s3: S3, tmp_path: Path, action: str, deleted: str
) -> None:
    def meanwhile(world: World, bucket: Bucket, plan: Plan, vote: Vote) -> None:
        world.commit(plan, world.prepare(plan) if action == "prepare" else vote)
        world.predecessor = 2
        if deleted == "when it was pruned":
            world.deliver(world.plan(small(world)))
            world.participant(plan).forget(world.fence(1, world.attempts), 2)
        if deleted:
            bucket.delete_checkpoint(2)

    left = {"": (1, 2), "at once": (1,), "when it was pruned": (1, 3)}[deleted]
    for_each_sleeper(s3, tmp_path, action, meanwhile, lambda bucket: is_whole(bucket, *left))


@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
@pytest.mark.server
@pytest.mark.slow
@pytest.mark.sampled("sleepers")
def test_a_process_that_sleeps_through_an_abort_adds_nothing(s3: S3, tmp_path: Path, action: str) -> None:
    """The decision log never has one number committed and aborted. Should it, then somebody is told."""

    def meanwhile(world: World, bucket: Bucket, plan: Plan, vote: Vote) -> None:
        for _ in range(2):
            try:
                world.participant(plan).abort(plan, world.fence(1, world.attempt()), {"message": "a test"})
            except HeuristicCommitError as error:
                assert "checkpoint=0000000002" in error.headline
                bucket.delete_checkpoint(2)  # as the error says
                bucket.delete(*(name for name in bucket.names() if name.endswith("markers/0000000002.json")))

    for_each_sleeper(s3, tmp_path, action, meanwhile, lambda bucket: is_whole(bucket, 1))


# --- what is told --------------------------------------------------------------------------------------------------


@pytest.fixture
def world(s3: S3, tmp_path: Path) -> World:
    return World(Bucket(s3), tmp_path)


@pytest.mark.server
def test_files_are_split_at_their_size_in_readable_partitions(s3: S3, tmp_path: Path) -> None:
    world = World(Bucket(s3, format="csv", file_bytes=1 << 18, success_file=True, partition_by=("which",)), tmp_path)
    bucket = bucket_of(world)
    rows = world.table(0, 200_000).append_column("which", [["a/b", "50%", None, "x y"] * 50_000])
    proof = world.deliver(world.plan(rows))
    assert proof.counts == {"rows": 200_000} and bucket.ids() == list(range(200_000))
    assert {name.split("/")[1] for name in bucket.files() if "=" in name.split("/")[1]} == {
        "which=a%2Fb", "which=50%25", "which=__HIVE_DEFAULT_PARTITION__", "which=x y",
    }  # fmt: skip
    assert "checkpoint=0000000001/_SUCCESS" in bucket.names()
    assert len(bucket.files()) >= 8


@pytest.mark.server
def test_a_file_that_s3_cannot_copy_is_refused_in_time(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Bucket(s3, format="csv"), tmp_path)
    monkeypatch.setattr(staged, "LARGEST", 1 << 20)
    with raises(UnfitTargetError, "limit_reached", limit=1 << 20):
        world.prepare(world.plan(world.table(0, 100_000)))
    assert bucket_of(world).staged() == []


@pytest.mark.server
def test_the_files_of_the_log_are_sent_as_they_are_and_compared(world: World) -> None:
    plan = world.plan()
    [file] = list(world.folder.rglob("*.parquet"))
    data = file.read_bytes()
    file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    with raises(WalCorruptError, "wal_corrupt"):
        world.prepare(plan)
    file.write_bytes(data)
    world.deliver(plan)
    bucket = bucket_of(world)
    [name] = bucket.files()
    assert bucket.manifest(1)["files"][0]["bytes"] == bucket.names()[name] == len(data)


@pytest.mark.server
def test_verify_names_what_is_gone_and_what_was_changed(world: World) -> None:
    bucket = bucket_of(world)
    delivered = [Delivered(plan, world.deliver(plan), None) for plan in (world.plan() for _ in range(3))]
    [planned] = delivered[0].plan.participants

    def verified() -> Any:
        [report] = verify.verify(delivered, planned, bucket.connection, open_wal())
        return report

    assert verified().missing == 0 and verified().repeated == 0
    first, second, third = bucket.files()
    with bucket.reader.open_input_file(f"{bucket.path}/{second}") as file:
        data = bytes(file.read())
    bucket.put(second, bytes(len(data)))
    bucket.put("checkpoint=0000000003/copy.parquet", data)
    bucket.delete(first)
    found = verified()
    assert [(each.number, each.rows) for each in found.differences] == [(1, 40), (2, 40)]
    [[gone], [changed]] = (each.samples for each in found.differences)
    assert "gone" in gone and "checksum" in changed
    assert found.repeated == 40 and "checkpoint=0000000003/copy.parquet is a copy" in found.notes[0]
    assert third


@pytest.mark.server
def test_a_store_without_conditional_writes_is_refused_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put
    monkeypatch.setattr(obstore, "put", lambda store, key, data, **_: put(store, key, data))
    with raises(UnfitTargetError, "file_system_unsupported", feature="If-None-Match"):
        world.prepare(world.plan())
    assert bucket_of(world).names() == {}


@pytest.mark.server
def test_a_store_that_knows_no_conditions_is_refused(world: World) -> None:
    port = world.target.connection.port
    assert port is not None
    with Proxy(port) as proxy:
        proxy.answer_501(b"if-none-match")
        world.target.connection = replace(world.target.connection, port=proxy.port)
        with raises(UnfitTargetError, "file_system_unsupported", feature="If-None-Match"):
            world.prepare(world.plan())


@pytest.mark.server
def test_files_lost_half_way_are_reported_and_delivered_again(s3: S3, tmp_path: Path) -> None:
    """Somebody's rule has deleted what was prepared, when some of it had been shown."""
    world = World(Bucket(s3, partition_by=("text",)), tmp_path)
    bucket, plan = bucket_of(world), world.plan(small(world))
    vote = world.prepare(plan)
    staged = bucket.staged()
    manifest = bucket.text(next(name for name in staged if name.endswith("_airflow_ft")))
    bucket.put("checkpoint=0000000001/_airflow_ft", manifest.encode())  # as whoever died here did
    bucket.delete(*staged)
    folder = f"s3://{bucket.path}/checkpoint=0000000001"
    with raises(StoreBehindSinkError, "store_behind_sink", path=folder) as caught:
        world.commit(plan, vote)
    assert caught.error is not None and folder in caught.error.remedy
    bucket.delete_checkpoint(1)
    world.commit(plan, vote)
    assert is_whole(bucket, 1)


@pytest.mark.server
def test_what_is_in_the_way_is_told(world: World) -> None:
    bucket, plan = bucket_of(world), world.plan()
    bucket.put("checkpoint=0000000001/something", b"of somebody")
    with raises(UnfitTargetError, "path_occupied"):
        world.prepare(plan)
    bucket.delete("checkpoint=0000000001/something")
    vote = world.prepare(plan)
    bucket.put("checkpoint=0000000001/part-00000.parquet", b"of somebody")
    with raises(UnfitTargetError, "path_occupied"):
        world.commit(plan, vote)
    bucket.delete("checkpoint=0000000001/part-00000.parquet")
    world.commit(plan, vote)
    assert bucket.ids() == world.ids_of(1)


@pytest.mark.server
def test_the_store_is_away_and_comes_back(world: World) -> None:
    plan = world.plan()
    vote = world.prepare(plan)
    away = replace(world.target.connection, port=1)
    with raises(SinkUnavailableError, "server_unreachable") as caught:
        world.participant(plan, away).commit(plan, world.fence(1, world.attempt()), vote)
    assert caught.error is not None and "127.0.0.1:1/" in caught.error.headline
    world.commit(plan, vote)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.server
def test_aws_variables_lead_no_named_connection_elsewhere(world: World) -> None:
    with environment_elsewhere():
        world.deliver(world.plan())
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.server
def test_the_doctor_tells_of_bucket_and_keys(world: World) -> None:
    plan = world.plan()
    [planned] = plan.participants
    connection = world.target.connection

    def last_check(connection: ConnectionInfo) -> Any:
        [check] = doctor.examine(world.pipeline, planned, connection, ())
        return check

    assert last_check(connection).verdict == Verdict.OK
    for wrong in (
        replace(connection, password="n0t-the-One"),
        replace(connection, login="another"),
        replace(connection, extra={**connection.extra, "aws_session_token": "n0t-the-One"}),
    ):
        check = last_check(wrong)
        shown = f"{check.to_json()}"
        assert check.verdict != Verdict.OK and "refuses s3://" in check.text and "n0t-the-One" not in shown


def test_a_bad_folder_or_connection_is_refused() -> None:
    for folder in ("s3://bucket", "s3://bucket/", "s3://Bucket_/x", "s3:///x", "s3a://bucket/x", "s3://a b@bucket/x"):
        with pytest.raises(ConfigurationError):
            FilesSink(folder=folder)
    with pytest.raises(ConfigurationError) as caught:
        FilesSink(folder="s3://AKIA1:hid/den@bucket/x")
    assert "s3://CONNECTION@BUCKET/FOLDER" in caught.value.remedy
    assert "AKIA1" not in repr(caught.value) and "den" not in f"{caught.value.args} {caught.value.fields}"
    with raises(ConfigurationError, "argument_invalid", argument="file_bytes"):
        FilesSink(folder="s3://bucket/x", file_bytes=(4 << 30) + 1)
    assert FilesSink(folder="s3://aws@bucket/x").participant == "files-s3-aws-bucket-x"
    extra = {"role_arn": "arn:aws:iam::1:role/x"}
    with raises(ConfigurationError, "connection_invalid", settings=["role_arn"]):
        Objects.of("s3://aws@bucket/x", ConnectionInfo("aws", "aws", login="a", password="hidden", extra=extra), "m")
    with raises(ConfigurationError, "connection_invalid", fields=["login", "password"]):
        Objects.of("s3://aws@bucket/x", ConnectionInfo("aws", "aws", extra={"region_name": "eu-north-1"}), "m")
    shown = repr(Objects.of("s3://aws@bucket/x", ConnectionInfo("aws", "aws", login="a", password="hidden"), "m"))
    assert "hidden" not in shown
