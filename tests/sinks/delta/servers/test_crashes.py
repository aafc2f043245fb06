"""What if the process dies before or behind each change that it makes, or sleeps there beside its successor? On disk,
and in a bucket before each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.testing.world import World
from tests.sinks.delta.world import TableInBucket, participant_of, table_of, world_of
from tests.sinks.files.dying import Acting

pytestmark = [pytest.mark.slow, pytest.mark.sampled]
ADOPTED, REWRITTEN, BUCKET = (
    "files as they are",
    "rows written anew",
    pytest.param("in a bucket", marks=pytest.mark.server),
)
Make = Callable[[int], World]


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A world for each change, of the kind that the test was given."""

    def world(at: int) -> World:
        (tmp_path / str(at)).mkdir()
        if request.param == "in a bucket":
            return World(TableInBucket(request.getfixturevalue("s3")), tmp_path / str(at))
        return world_of(tmp_path / str(at), **({} if request.param == ADOPTED else {"partition_by": ("text",)}))

    return world


def small(world: World) -> pa.Table:
    return world.table((world.number + 1) * 40, 2)


def begun(make: Make) -> Iterator[tuple[int, World]]:
    """One for each change, with a checkpoint that was delivered before."""
    for at in count():
        world = make(at)
        world.deliver(world.plan(small(world)))
        yield at, world


def fewest(world: World) -> int:
    """More changes than so many belong to each act: a request takes the place of several changes on disk."""
    return 2 if isinstance(world.target, TableInBucket) else 3


def acting(world: World, plan: Plan, action: str, vote: Vote | None, at: int, stop: str = "kill") -> Acting:
    return Acting(plan, action, world.attempt(), vote, at, stop, world.target.connection)


def ids(*numbers: int) -> list[int]:
    return [id for number in numbers for id in (number * 40, number * 40 + 1)]


def continues(world: World, *numbers: int) -> None:
    """The next checkpoint comes, once."""
    world.predecessor = world.number
    world.deliver(world.plan(small(world)))
    assert world.target.ids() == ids(*numbers, world.number)


@pytest.mark.parametrize("action", ["prepare", "commit", "abort", "forget"])
@pytest.mark.parametrize("make", [ADOPTED, REWRITTEN, BUCKET], indirect=True)
def test_a_crash_leaves_all_or_nothing_and_the_next_try_finishes(make: Make, action: str) -> None:
    for at, world in begun(make):
        plan: Plan = world.plan(small(world))
        vote = world.prepare(plan)
        if action == "forget":
            world.commit(plan, vote)
        ended = acting(world, plan, action, vote, at).wait()
        assert world.target.ids() in ((ids(1), ids(1, 2)) if action in ("commit", "forget") else (ids(1),)), at
        if action == "abort":
            proof = participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {})
            assert proof.outcome is Outcome.ABORTED and world.commit(plan, vote).outcome is Outcome.ABORTED
            world.number = 1
            assert world.target.ids() == ids(1)
        else:
            if action == "forget":
                participant_of(world, plan).forget(world.fence(1, 99), 2)
            else:
                assert world.commit(plan, world.prepare(plan)).counts == {"rows": 2}
            assert world.target.ids() == ids(1, 2)
        if action != "abort":
            continues(world, 1, 2)
        if ended == "done":
            assert at > fewest(world)
            return
        assert ended == ""


@pytest.mark.parametrize("make", [ADOPTED, BUCKET], indirect=True)
def test_a_crash_in_the_first_prepare_blocks_no_later_try(make: Make) -> None:
    for at in count():
        world = make(at)
        plan = world.plan(small(world))
        ended = acting(world, plan, "prepare", None, at).wait()
        assert world.target.ids() == []
        assert world.commit(plan, world.prepare(plan)).outcome is Outcome.COMMITTED
        continues(world, 1)
        if ended == "done":
            assert at > 5
            return
        assert ended == ""


@pytest.mark.parametrize("rebase", ["", "1"], ids=["as it is", "delta-rs rebases as often as it likes"])
@pytest.mark.parametrize("action", ["commit", "prepare"])
@pytest.mark.parametrize("make", [ADOPTED, BUCKET], indirect=True)
def test_a_sleeper_adds_nothing_beside_its_successor(
    make: Make, action: str, rebase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor delivers, or aborts; somebody else appends meanwhile, and has the log put together."""
    monkeypatch.setenv("REBASE", rebase)
    for at, world in begun(make):
        aborts, others = at % 2 == 1, at % 3 == 1
        plan = world.plan(small(world))
        vote = world.prepare(plan)
        zombie = acting(world, plan, action, vote, at, "freeze")
        table, expected = table_of(world), ids(1)
        if not zombie.wait_until_stopped():
            assert zombie.wait() == "done" and at > fewest(world)
            return
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
        ended = zombie.wake()
        assert ended in ("done", "FencedError"), ended
        if outcome is Outcome.COMMITTED:
            expected = [*expected, *ids(2)]
        assert world.target.ids() == sorted(expected), f"it slept before change {at}: {ended}"
        found = participant_of(world, plan).proof(plan)
        assert found is not None and found.outcome is outcome


def test_a_name_in_the_log_that_is_free_again_is_no_way_in(tmp_path: Path) -> None:
    """Log cleanup has removed the version that the sleeper commits next; nobody looks there any more."""
    world = world_of(tmp_path)
    world.deliver(world.plan(small(world)))
    plan = world.plan(small(world))
    vote = world.prepare(plan)
    seen: set[str] = set()
    for at in count():
        zombie = Acting(plan, "commit", world.attempt(), vote, at, stop="freeze")
        assert zombie.wait_until_stopped()
        if any(
            each.name.startswith(f"checkpoint-{plan.number:010}.1-{world.attempts}")
            for each in table_of(world).path.iterdir()
        ):
            state = sorted((table_of(world).path / "_airflow_ft").rglob("*.json"))
            if seen and len(state) > len(seen):
                break  # its ledger is written: the next thing is the commit
            seen = {each.name for each in state}
        zombie.process.kill()
        zombie.wait()
    assert world.commit(plan, vote).outcome is Outcome.COMMITTED
    table = DeltaTable(str(table_of(world).path))
    table.create_checkpoint()
    newest = table.version()
    for commit in (table_of(world).path / "_delta_log").glob("*.json"):
        if int(commit.stem) < newest:
            commit.unlink()
    assert zombie.wake() in ("done", "FencedError")
    assert world.target.ids() == ids(1, 2)
    continues(world, 1, 2)
