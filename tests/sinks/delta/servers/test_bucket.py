"""A table in a bucket: what if a request is lost, or a version replaced; and what of the log is read again?"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from airflow_ft.protocol.errors import (
    ConfigurationError,
    SinkAccessError,
    StoreBehindSinkError,
    TransientError,
    UnfitTargetError,
)
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.testing.world import Fate, World
from tests.density import stride
from tests.raising import raises
from tests.sinks.delta.servers.test_crashes import ids, small
from tests.sinks.delta.world import TableInBucket, participant_of, table_of
from tests.sinks.files.bucket import environment_elsewhere
from tools.servers import S3

pytestmark = pytest.mark.server


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY], ids=["a request", "a reply"])
def test_what_is_lost_on_the_way_of_a_commit_comes_once(s3: S3, tmp_path: Path, fate: Fate) -> None:
    """Here and there; the conformance kit loses each."""
    expected: list[int] = []
    world = World(TableInBucket(s3), tmp_path)
    for trip in range(1, 200, stride(6)):
        plan = world.plan(small(world))
        vote = world.prepare(plan)
        table_of(world).open().create_checkpoint()
        with world.target.losing(fate, trip) as way:
            assert way is not None
            connection, is_lost = way
            with suppress(TransientError):
                world.participant(plan, connection).commit(plan, world.fence(1, world.attempt()), vote)
            lost = is_lost()
        assert world.commit(plan, vote).outcome is Outcome.COMMITTED
        expected += ids(plan.number)
        world.predecessor = plan.number
        assert world.target.ids() == expected, f"round trip {trip + 1}"
        if not lost:
            assert trip > 20
            return


def test_a_version_is_given_once_whatever_the_environment_says(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS_S3_ALLOW_UNSAFE_RENAME would have delta-rs replace what is there."""
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    world = World(TableInBucket(s3), tmp_path)
    world.deliver(world.plan())
    place, begin, won = Place.of(table_of(world).sink, world.target.connection), threading.Barrier(6), []

    def write(name: str) -> None:
        table = place.open()
        begin.wait()
        add = [AddAction(name, 1, {}, 0, True, '{"numRecords":0}')]
        once = CommitProperties(max_commit_retries=0)
        try:
            table.create_write_transaction(add, "append", table.schema(), None, commit_properties=once)
        except CommitFailedError:
            return
        won.append(name)

    threads = [threading.Thread(target=write, args=(f"file-{number}",)) for number in range(6)]
    before = place.open().version()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and place.open().version() == before + 1
    with pytest.raises(FileExistsError):
        place.take(before + 1, place.commit_uri(0))


def test_aws_variables_lead_no_named_connection_elsewhere(s3: S3, tmp_path: Path) -> None:
    world = World(TableInBucket(s3), tmp_path)
    plan = world.plan()
    with environment_elsewhere() as environment:
        with raises(ConfigurationError, "arguments_conflict", variables=["AWS_SESSION_TOKEN"]):
            world.prepare(plan)
        environment.delenv("AWS_SESSION_TOKEN")
        world.deliver(plan)
    assert world.target.ids() == world.ids_of(1)


@pytest.mark.parametrize("has_read", [True, False], ids=["a participant that has read it", "another one"])
def test_a_version_that_somebody_has_replaced_halts(s3: S3, tmp_path: Path, has_read: bool) -> None:
    """As a writer without conditions does it: the rows are gone, and the next checkpoint says so."""
    world = World(TableInBucket(s3), tmp_path)
    plan = world.plan()
    following = participant_of(world, plan)
    following.prepare(plan, world.fence(1, world.attempt()))
    following.commit(plan, world.fence(1, world.attempt()))
    if not has_read:
        following = participant_of(world, plan)
    place = Place.of(table_of(world).sink, world.target.connection)
    newest = place.commit_uri(place.open().version())
    place.files.remove(newest)
    place.files.write(newest, b'{"commitInfo":{"operation":"WRITE"}}')
    world.predecessor = 1
    plan = world.plan()
    following.prepare(plan, world.fence(1, world.attempt()))
    with raises(StoreBehindSinkError, "store_behind_sink"):
        following.commit(plan, world.fence(1, world.attempt()))
    assert world.target.ids() == []


def test_a_store_that_replaces_what_is_there_is_refused(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(TableInBucket(s3), tmp_path)
    plan = world.plan()
    write = Objects.write

    def replacing(objects: Objects, uri: str, data: bytes) -> None:
        objects.remove(uri)
        write(objects, uri, data)

    monkeypatch.setattr(Objects, "write", replacing)
    with raises(UnfitTargetError, "file_system_unsupported", feature="If-None-Match"):
        world.prepare(plan)
    assert world.target.ids() == []


def test_what_was_read_is_not_read_again(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(TableInBucket(s3), tmp_path)
    plan = world.plan()
    opened: list[Any] = []
    real = Place.open

    def counted(place: Place) -> DeltaTable:
        opened.append(place)
        return real(place)

    monkeypatch.setattr(Place, "open", counted)
    participant = world.participant(plan)
    for number in range(1, 4):
        vote = Vote("", 0, 0, None, dict(participant.prepare(plan, world.fence(1, world.attempt()))))
        assert participant.commit(plan, world.fence(1, world.attempt()), vote).outcome is Outcome.COMMITTED
        world.predecessor = number
        plan = world.plan()
        write_deltalake(table_of(world).uri, world.table(9_000 + number, 1), mode="append",
                        storage_options=table_of(world).options)  # fmt: skip
    assert len(opened) == 1 and world.target.ids() == sorted([*world.ids_of(1, 2, 3), 9_001, 9_002, 9_003])


def test_a_wrong_password_is_told_by_the_commit_too(s3: S3, tmp_path: Path) -> None:
    """delta-rs tells its errors in lines and colours."""
    world = World(TableInBucket(s3), tmp_path)
    plan = world.plan()
    vote = world.prepare(plan)
    participant = participant_of(world, plan)
    participant.place.options["AWS_SECRET_ACCESS_KEY"] = "n0t-the-One"  # type: ignore[index]
    with raises(SinkAccessError, "access_refused") as error:
        participant.commit(plan, world.fence(1, world.attempt()), vote)
    text = str(error.value)
    assert "SignatureDoesNotMatch" in text and "\x1b" not in text and "n0t" not in text
