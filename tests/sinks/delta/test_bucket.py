"""A table in a bucket: what if the process dies before each request that changes something, or sleeps there? And what
of the log is read once more?
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from airflow_ft.core.errors import SinkAccessError, StoreBehindSinkError, TransientError, UnfitTargetError
from airflow_ft.core.model import Outcome, Plan, Vote
from airflow_ft.sinks.delta.place import Place
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.testing.world import Fate, World
from tests.density import stride
from tests.sinks.delta.test_crashes import ids, small
from tests.sinks.delta.world import TableInBucket, participant_of
from tests.sinks.files.dying import Acting
from tools.servers import S3

pytestmark = pytest.mark.server


def table_of(world: World) -> TableInBucket:
    assert isinstance(world.target, TableInBucket)
    return world.target


def begun(s3: S3, folder: Path, *, delivered: bool = True) -> Iterator[tuple[int, World]]:
    """One for each change, with a checkpoint that was delivered before."""
    for at in count():
        (folder / str(at)).mkdir()
        world = World(TableInBucket(s3), folder / str(at))
        if delivered:
            world.deliver(world.plan(small(world)))  # type: ignore[arg-type]
        yield at, world


def acting(world: World, plan: Plan, act: str, vote: Vote | None, at: int, stop: str = "kill") -> Acting:
    return Acting(plan, act, world.attempt(), vote, at, stop, world.target.connection)


def goes_on(world: World, *numbers: int) -> None:
    """The next checkpoint comes, once."""
    world.predecessor = world.number
    world.deliver(world.plan(small(world)))  # type: ignore[arg-type]
    assert world.target.ids() == ids(*numbers, world.number)


# --- dying -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("act", ["prepare", "commit", "abort", "forget"])
def test_whoever_dies_anywhere_leaves_all_or_nothing_and_the_next_one_finishes(
    s3: S3, tmp_path: Path, act: str
) -> None:
    for at, world in begun(s3, tmp_path):
        plan: Plan = world.plan(small(world))  # type: ignore[arg-type]
        vote = world.prepare(plan)
        if act == "forget":
            world.commit(plan, vote)
        ended = acting(world, plan, act, vote, at).wait()
        assert world.target.ids() in ((ids(1), ids(1, 2)) if act in ("commit", "forget") else (ids(1),)), at
        if act == "abort":
            proof = participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {})
            assert proof.outcome is Outcome.ABORTED and world.commit(plan, vote).outcome is Outcome.ABORTED
            assert world.target.ids() == ids(1)
        else:
            if act == "forget":
                participant_of(world, plan).forget(world.fence(1, 99), 2)
            else:
                assert world.commit(plan, world.prepare(plan)).counts == {"rows": 2}
            goes_on(world, 1, 2)
        if ended == "done":
            assert at > 2
            return
        assert ended == ""


@pytest.mark.slow
@pytest.mark.rotating
def test_whoever_dies_in_the_very_first_prepare_leaves_nothing_in_the_way(s3: S3, tmp_path: Path) -> None:
    for at, world in begun(s3, tmp_path, delivered=False):
        plan = world.plan(small(world))  # type: ignore[arg-type]
        ended = acting(world, plan, "prepare", None, at).wait()
        assert world.target.ids() == []
        assert world.commit(plan, world.prepare(plan)).outcome is Outcome.COMMITTED
        goes_on(world, 1)
        if ended == "done":
            assert at > 5
            return
        assert ended == ""


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("act", ["commit", "prepare"])
def test_a_sleeper_adds_nothing_beside_its_successor(s3: S3, tmp_path: Path, act: str) -> None:
    """The successor delivers, or aborts; somebody else appends meanwhile, and has the log put together."""
    for at, world in begun(s3, tmp_path):
        aborts, others = at % 2 == 1, at % 3 == 1
        plan = world.plan(small(world))  # type: ignore[arg-type]
        vote = world.prepare(plan)
        zombie = acting(world, plan, act, vote, at, stop="freeze")
        if not zombie.wait_until_it_stands():
            assert zombie.wait() == "done" and at > 2
            return
        table, expected = table_of(world), ids(1)
        if others:
            write_deltalake(table.uri, world.table(9_000, 1), mode="append", storage_options=table.options)
            expected = [*expected, 9_000]
        if aborts:
            outcome = participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {}).outcome
        else:
            outcome = world.commit(plan, vote).outcome
        if others:
            table.open().create_checkpoint()
            table.open().optimize.compact()
        told = zombie.wake()
        assert told in ("done", "FencedError"), told
        if outcome is Outcome.COMMITTED:
            expected = [*expected, *ids(2)]
        assert world.target.ids() == sorted(expected), f"it slept before change {at}: {told}"
        found = participant_of(world, plan).proof(plan)
        assert found is not None and found.outcome is outcome


@pytest.mark.slow
@pytest.mark.rotating
@pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY], ids=["a request", "a reply"])
def test_what_is_lost_on_the_way_of_a_commit_comes_once(s3: S3, tmp_path: Path, fate: Fate) -> None:
    """Here and there; the conformance kit loses each."""
    expected: list[int] = []
    world = World(TableInBucket(s3), tmp_path)
    for trip in range(1, 200, stride(6)):
        plan = world.plan(small(world))  # type: ignore[arg-type]
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


# --- versions -------------------------------------------------------------------------------------------------------


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
        except Exception:
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
    with pytest.raises(StoreBehindSinkError, match="forgotten a delivery"):
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
    with pytest.raises(UnfitTargetError, match="replaces an object"):
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
    with pytest.raises(SinkAccessError, match="is refused: SignatureDoesNotMatch") as error:
        participant.commit(plan, world.fence(1, world.attempt()), vote)
    assert "\x1b" not in str(error.value) and "n0t" not in str(error.value)
