"""What if the process dies before each change that it makes in the folder, or sleeps there beside its successor?"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import HeuristicCommitError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.testing.world import World
from tests.sinks.files.dying import Acting
from tests.sinks.files.world import Folder, folder_of, participant_of, world_of

pytestmark = [pytest.mark.slow, pytest.mark.sampled]
LOST = Vote("", 0, 0, None, {})  # names nothing that was prepared


def worlds(folder: Path) -> Iterator[tuple[int, World, Folder]]:
    """One for each change, with a checkpoint that was delivered before."""
    for at in count():
        world = world_of(folder / str(at), partition_by=("text",))
        (folder / str(at)).mkdir()
        world.deliver(world.plan(small(world)))
        yield at, world, folder_of(world)


def small(world: World) -> object:
    return world.table((world.number + 1) * 40, 2)


def staged(folder: Folder) -> list[str]:
    return sorted(each.name for each in (folder.staged).iterdir())


def is_whole(folder: Folder, *numbers: int) -> bool:
    return folder.ids() == [id for number in numbers for id in (number * 40, number * 40 + 1)]


def settle(world: World, plan: Plan) -> None:
    """Decided: prepared anew, if need be, and committed."""
    assert world.commit(plan, world.prepare(plan)).outcome is Outcome.COMMITTED


@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
def test_a_crash_leaves_all_or_nothing_and_the_next_try_finishes(tmp_path: Path, action: str) -> None:
    for at, world, folder in worlds(tmp_path):
        plan = world.plan(small(world))
        if action == "prepare":
            ended = Acting(plan, action, world.attempt(), at=at).wait()
            assert is_whole(folder, 1), f"nothing is visible before the decision (died before change {at})"
            settle(world, plan)
        else:
            vote = world.prepare(plan) if action == "commit" else LOST
            ended = Acting(plan, "commit", world.attempt(), vote, at).wait()
            assert is_whole(folder, 1) or is_whole(folder, 1, 2), f"all or nothing (died before change {at})"
            assert world.commit(plan, vote).counts == {"rows": 2}
        found = participant_of(world, plan).proof(plan)
        assert found is not None and found.outcome is Outcome.COMMITTED
        assert is_whole(folder, 1, 2)
        world.predecessor = 2
        world.deliver(world.plan(small(world)))
        assert is_whole(folder, 1, 2, 3) and staged(folder) == []
        if ended == "done":
            assert at > 5
            return
        assert ended == ""


def test_a_crash_in_the_first_prepare_blocks_no_later_try(tmp_path: Path) -> None:
    for at in count():
        world = world_of(tmp_path / str(at))
        (tmp_path / str(at)).mkdir()
        plan = world.plan(small(world))
        ended = Acting(plan, "prepare", world.attempt(), at=at).wait()
        assert folder_of(world).ids() == []
        settle(world, plan)
        assert is_whole(folder_of(world), 1)
        if ended == "done":
            assert at > 10
            return


def test_a_process_that_sleeps_in_the_first_prepare_does_no_harm(tmp_path: Path) -> None:
    """He has seen that nothing is there; what his successor has delivered meanwhile is no ledger that lost its head."""
    for at in count():
        world = world_of(tmp_path / str(at))
        (tmp_path / str(at)).mkdir()
        plan = world.plan(small(world))
        sleeper = Acting(plan, "prepare", world.attempt(), at=at, stop="sleep")
        if not sleeper.wait_until_stopped():
            assert sleeper.wait() == "done" and at > 10
            return
        settle(world, plan)
        assert sleeper.wake() in ("done", "FencedError", "SinkUnavailableError"), f"it slept before change {at}"
        assert is_whole(folder_of(world), 1)


def test_the_next_try_finishes_an_abort_that_crashed(tmp_path: Path) -> None:
    for at, world, folder in worlds(tmp_path):
        plan = world.plan(small(world))
        vote = world.prepare(plan)
        ended = Acting(plan, "abort", world.attempt(), at=at).wait()
        assert is_whole(folder, 1)
        aborted = participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {"message": "a test"})
        assert aborted.outcome is Outcome.ABORTED and staged(folder) == []
        assert world.commit(plan, vote).outcome is Outcome.ABORTED, "and a late commit meets the tombstone"
        assert is_whole(folder, 1)
        following = world.plan_of(3, *plan.segments)
        settle(world, following)
        assert is_whole(folder, 1, 2)
        if ended == "done":
            assert at > 3
            return


@pytest.mark.parametrize("deleted", ["", "at once", "when it was pruned"])
@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
def test_a_process_that_sleeps_through_a_delivery_adds_nothing(tmp_path: Path, action: str, deleted: str) -> None:
    """Deleted: by somebody who keeps checkpoints for some days only."""

    def meanwhile(world: World, folder: Folder, plan: Plan, vote: Vote) -> None:
        if action == "prepare":
            settle(world, plan)
        else:
            world.commit(plan, vote)
        world.predecessor = 2
        if deleted == "when it was pruned":
            world.deliver(world.plan(small(world)))
            participant_of(world, plan).forget(world.fence(1, world.attempts), 2)
        if deleted:
            shutil.rmtree(folder.path / "checkpoint=0000000002")

    left = {"": (1, 2), "at once": (1,), "when it was pruned": (1, 3)}[deleted]
    for_each_sleeper(tmp_path, action, meanwhile, lambda folder: is_whole(folder, *left))


@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
def test_a_process_that_sleeps_through_an_abort_adds_nothing(tmp_path: Path, action: str) -> None:
    """The decision log never has one number committed and aborted. Should it, then somebody is told."""
    errors = []

    def meanwhile(world: World, folder: Folder, plan: Plan, vote: Vote) -> None:
        for _ in range(2):
            try:
                participant_of(world, plan).abort(plan, world.fence(1, world.attempt()), {"message": "a test"})
            except HeuristicCommitError as error:
                assert not is_whole(folder, 1), "the sleeper had renamed before"
                assert str(folder.path / "checkpoint=0000000002") in error.headline
                errors.append(error)
                shutil.rmtree(folder.path / "checkpoint=0000000002")  # as the error says
                (folder.path / "_airflow_ft" / "markers" / "0000000002.json").unlink(missing_ok=True)

    for_each_sleeper(tmp_path, action, meanwhile, lambda folder: is_whole(folder, 1))
    assert bool(errors) == (action != "prepare")


def for_each_sleeper(
    tmp_path: Path,
    action: str,
    meanwhile: Callable[[World, Folder, Plan, Vote], None],
    is_right: Callable[[Folder], bool],
) -> None:
    for at, world, folder in worlds(tmp_path):
        plan = world.plan(small(world))
        vote = world.prepare(plan) if action == "commit" else LOST
        step = "prepare" if action == "prepare" else "commit"
        sleeper = Acting(plan, step, world.attempt(), vote, at, stop="freeze")
        try:
            stood = sleeper.wait_until_stopped()
            meanwhile(world, folder, plan, vote)
            ended = sleeper.wake() if stood else sleeper.wait()
        finally:
            sleeper.process.kill()
        assert ended in ("done", "FencedError", "SinkUnavailableError", "StoreBehindSinkError"), ended
        assert is_right(folder), f"it slept before change {at}: {folder.files()}"
        if not stood:
            assert at > 5
            return
