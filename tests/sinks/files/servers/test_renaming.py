"""A folder passes from a pipeline to the one that it goes on as: once, whoever dies or sleeps meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import DeclinedError, ForeignOwnerError, StoreBehindSinkError, UnfitTargetError
from airflow_ft.protocol.model import Former, Plan
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.files import requirements, verify
from airflow_ft.sinks.files.ledger import Ledger
from airflow_ft.sinks.files.staged import Staged
from airflow_ft.testing.world import OURS, THEIRS, Target, World
from airflow_ft.wal import open_wal
from tests.raising import raises
from tests.sinks.files.bucket import Bucket
from tests.sinks.files.dying import Acting
from tests.sinks.files.world import Folder

Make = Callable[[str], World]


@pytest.fixture(params=["a disk", pytest.param("S3", marks=pytest.mark.server)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A pipeline `old`, whose folder is not there yet."""

    def made(name: str = "0") -> World:
        folder = tmp_path / name
        folder.mkdir()
        kind = {"partition_by": ("text",)}
        target = Folder(folder, **kind) if request.param == "a disk" else Bucket(request.getfixturevalue("s3"), **kind)
        return World(target, folder, pipeline="old")

    return made


def small(world: World) -> Any:
    return world.table((world.number + 1) * 40, 2)


def seen(world: World, *numbers: int) -> bool:
    """Whether readers see the rows of these, and no others."""
    return world.target.ids() == [id for number in numbers for id in (number * 40, number * 40 + 1)]


def ledger_of(target: Target) -> Ledger:
    folder: str = target.sink.folder  # type: ignore[attr-defined]
    return Ledger.of(folder, target.connection)


def prepared_in(target: Target) -> list[str]:
    ledger = ledger_of(target)
    return ledger.files.names(ledger.staging()[0])


def changed(plan: Plan, **more: Any) -> Plan:
    return replace(plan, participants=(replace(plan.participants[0], **more),))


def renamed(old: World, name: str = "new") -> World:
    """The pipeline that it goes on as, with attempts that are lower than the old ones, and numbers that go on."""
    return World(old.target, old.folder, pipeline=name, number=old.number)


def first_of(new: World, former: Former) -> Plan:
    return changed(new.plan(small(new)), former=former)


def old_with(make: Make, name: str = "0") -> tuple[World, Former]:
    """It has delivered 1 and 2, and given 3 up."""
    world = make(name)
    world.attempts = 20
    for _ in range(2):
        world.deliver(world.plan(small(world)))
    give_up(world)
    return world, Former("old", 2, 4)


def give_up(world: World) -> None:
    third = world.plan(small(world))
    world.prepare(third)
    world.participant(third).abort(third, world.fence(1, world.attempt()), {"message": "a test"})


def deliver_first(new: World, former: Former) -> Plan:
    plan = first_of(new, former)
    new.deliver(plan)
    return plan


# --- what passes -----------------------------------------------------------------------------------------------------


def test_a_renamed_pipeline_continues_its_folder_and_numbers(make: Make) -> None:
    """Readers see both parts, and verify, doctor, pruning and adoption work on."""
    world = make("0")
    world.attempts = 20
    theirs = [Delivered(plan, world.deliver(plan), None) for plan in (world.plan(small(world)) for _ in range(2))]
    head = json.loads(_newest_head(world.target))
    assert "pipeline" not in head and "since" not in head, "it has had one owner"
    new, former = renamed(world), Former("old", 2, 3)
    [planned] = first_of(new, former).participants
    assert lacks(requirements.required("new", planned, new.target.connection)) == []
    [check] = doctor.examine("new", planned, new.target.connection, (), OURS)
    assert check.verdict is Verdict.OK and "takes it over from 'old'" in check.text
    new.number -= 1
    mine = [Delivered(plan := first_of(new, former), new.deliver(plan), None)]
    assert seen(new, 1, 2, 3) and ledger_of(new.target).pipeline() == "new"
    mine += [Delivered(plan, new.deliver(plan), None) for plan in (new.plan(small(new)) for _ in range(2))]
    assert seen(new, 1, 2, 3, 4, 5) and prepared_in(new.target) == []
    for delivered in (theirs, mine):
        [planned] = delivered[0].plan.participants
        [report] = verify.verify(delivered, planned, new.target.connection, open_wal())
        assert report.is_exact and report.notes == ()
    opened = new.participant(mine[-1].plan)
    found = opened.head("new")
    assert found is not None and found.number == 5 and opened.head("old") is None
    opened.forget(new.fence(1, new.attempt()), 3)
    assert opened.proof(theirs[-1].plan) is None and opened.proof(mine[-1].plan) is not None
    new.deliver(new.plan(small(new)))
    assert seen(new, *range(1, 7))
    [check] = doctor.examine("new", planned, new.target.connection, (), OURS)
    assert check.verdict is Verdict.OK and "6 checkpoints are visible" in check.text
    opened.adopt(new.fence(9, 1, THEIRS), 6)
    last = new.plan_of(7, new.segment(7, small(new)), installation=THEIRS)
    new.commit(last, new.prepare(last, 2, 9), 3, 9)
    assert seen(new, *range(1, 8)), "a lost decision log"


def test_the_old_name_is_shut_out_but_its_deliveries_stay_proven(make: Make) -> None:
    world = make("0")
    world.attempts = 20
    settled = world.plan(small(world))
    world.deliver(settled)
    late_one = world.plan(small(world))
    deliver_first(renamed(world), Former("old", 1, 3))
    ranks = [world.fence(epoch, 99) for epoch in (1, 50)]
    for fence in ranks:
        late = world.participant(late_one)
        actions: tuple[Callable[[], object], ...] = (
            lambda: late.prepare(late_one, fence),  # noqa: B023
            lambda: late.commit(late_one, fence, Vote("", 0, 0, None)),  # noqa: B023
            lambda: late.forget(fence, 2),  # noqa: B023
            lambda: late.adopt(replace(fence, installation=THEIRS), 9),  # noqa: B023
        )
        for action in actions:
            with raises(UnfitTargetError, "target_shared", owner="new"):
                action()
        assert late.abort(late_one, fence, {}).outcome is Outcome.ABORTED, "nothing of it can be there"
        late.end_orphans(replace(fence, installation=THEIRS), None)
    assert seen(world, 1, 3) and prepared_in(world.target) == []
    found = world.participant(settled).proof(settled)
    assert found is not None and found.outcome is Outcome.COMMITTED
    stranger = replace(settled, pipeline="stranger")
    assert world.participant(stranger).proof(stranger) is None


def test_it_passes_on_again(make: Make) -> None:
    world, former = old_with(make)
    new = renamed(world)
    fourth = deliver_first(new, former)
    newest = renamed(new, "newest")
    last = deliver_first(newest, Former("new", 4, 5))
    assert seen(world, 1, 2, 4, 5)
    for plan in (fourth, last):
        assert newest.participant(plan).proof(plan) is not None
    assert ledger_of(world.target).has_been_of("old")


def test_a_new_log_may_reuse_numbers_of_the_former_pipeline(make: Make) -> None:
    """The folder passes, and before anything is prepared the log is lost: so nothing tells how far numbers had come."""
    world = make("0")
    world.deliver(world.plan(small(world)))
    new = renamed(world)
    new.number = 8
    first = changed(new.plan(small(new).rename_columns(["id", "strange"])), former=Former("old", 1, 9))
    with raises(DeclinedError, "job_column_missing", column="text"):
        new.prepare(first)
    new.participant(first).adopt(new.fence(9, 0, THEIRS), 1)
    for number in (2, 3):
        new.predecessor = number - 1
        plan = new.plan_of(number, new.segment(number, new.table(40 * number, 2)), installation=THEIRS)
        new.prepare(plan, epoch=9)
    assert len(prepared_in(new.target)) == 2


# --- what does not ---------------------------------------------------------------------------------------------------


def test_a_folder_of_another_owner_or_number_is_not_taken_over(make: Make) -> None:
    world, former = old_with(make)
    new = renamed(world)
    before = _all(world.target)
    refused: tuple[tuple[Former, str, dict[str, Any]], ...] = (
        (replace(former, number=1), "number_differs", {"number": 1, "found": 2}),
        (replace(former, number=7), "number_differs", {"number": 7, "found": 2}),
        (replace(former, pipeline="another"), "target_shared", {"owner": "old"}),
    )
    for given, code, fields in refused:
        plan = changed(new.plan_of(4, new.segment(4, small(new))), former=given)
        with raises(UnfitTargetError, code, **fields):
            new.prepare(plan)
    [planned] = changed(plan, former=replace(former, pipeline="another")).participants
    [lacking] = lacks(requirements.required("new", planned, world.target.connection))
    assert (lacking.code, lacking.fields["owner"]) == ("target_shared", "old")
    foreign = replace(plan, installation=THEIRS)
    with pytest.raises(ForeignOwnerError):
        new.prepare(changed(foreign, former=former))
    later = changed(plan, former=former, predecessor=3)
    with raises(UnfitTargetError, "target_shared", owner="old"):
        new.prepare(later)
    assert _all(world.target) == before and seen(world, 1, 2)
    world.deliver(world.plan(small(world)))
    assert seen(world, 1, 2, 4), "the old one goes on"


def test_what_the_old_name_shows_while_the_folder_passes_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are settled before; should one not be, it is found between the head and what is removed behind it."""
    world, former = old_with(make)
    fourth = world.plan(small(world))
    vote = world.prepare(fourth)
    new = renamed(world)
    plan = first_of(new, replace(former, below=5))
    remove = Staged.remove

    def late(staged: Staged, which: Any) -> None:
        with monkeypatch.context() as once:
            once.setattr(Staged, "remove", remove)
            staged.publish(4, (1, vote.prepared))
        remove(staged, which)

    with monkeypatch.context() as patch:
        patch.setattr(Staged, "remove", late)
        with pytest.raises(StoreBehindSinkError) as caught:
            new.prepare(plan)
        assert "delivered checkpoint 4" in caught.value.headline
    with pytest.raises(StoreBehindSinkError) as caught:
        new.prepare(plan)
    assert "delivered checkpoint 4" in caught.value.headline
    assert seen(world, 1, 2, 4)


# --- whoever dies, or sleeps -----------------------------------------------------------------------------------------


def worlds(make: Make) -> Iterator[tuple[int, World, Former]]:
    for at in count():
        yield at, *old_with(make, str(at))


def acting(world: World, plan: Plan, action: str, at: int, vote: Vote | None = None, stop: str = "kill") -> Acting:
    return Acting(plan, action, world.attempt(), vote, at, stop, world.target.connection)


@pytest.mark.slow
@pytest.mark.sampled
def test_a_crash_during_the_handover_leaves_exactly_one_owner(make: Make) -> None:
    owners = []
    for at, world, former in worlds(make):
        new = renamed(world)
        plan = first_of(new, former)
        ended = acting(new, plan, "prepare", at).wait()
        owners.append(ledger_of(world.target).pipeline())
        assert seen(world, 1, 2), f"nothing is visible before the decision (died before change {at})"
        new.deliver(plan)
        assert seen(world, 1, 2, 4) and ledger_of(world.target).pipeline() == "new"
        new.deliver(new.plan(small(new)))
        assert seen(world, 1, 2, 4, 5) and prepared_in(world.target) == []
        if ended == "done":
            assert at > 2 and owners == sorted(owners, reverse=True) and set(owners) == {"old", "new"}
            return
        assert ended == ""


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("action", ["prepare", "commit", "deliver what is lost"])
def test_whoever_of_the_old_name_sleeps_shows_nothing_behind_it(make: Make, action: str) -> None:
    """Also what its log has not settled: either it is there before, and nothing passes; or it never comes."""
    passed = []
    for at, world, former in worlds(make):
        plan = world.plan(small(world))
        vote = world.prepare(plan) if action == "commit" else Vote("", 0, 0, None)
        sleeper = acting(world, plan, "prepare" if action == "prepare" else "commit", at, vote, "sleep")
        stood = sleeper.wait_until_stopped()
        if not stood:
            assert sleeper.wait() == "done" and at > 3 and (True in passed) and (action == "prepare" or False in passed)
            return
        new = renamed(world)
        mine = first_of(new, replace(former, below=5))
        try:
            new.deliver(mine)
        except UnfitTargetError as error:
            assert (error.code, error.fields["found"]) == ("number_differs", 4)
            passed.append(False)
        else:
            passed.append(True)
        ended = sleeper.wake()
        if passed[-1]:
            assert ended in ("UnfitTargetError", "SinkUnavailableError", "StoreBehindSinkError"), (at, ended)
            assert seen(world, 1, 2, 5), f"it slept before change {at}"
            new.deliver(new.plan(small(new)))
            assert seen(world, 1, 2, 5, 6) and prepared_in(world.target) == []
        else:
            assert seen(world, 1, 2, 4), f"it slept before change {at}"
            assert ledger_of(world.target).pipeline() == "old"


# --- looking ---------------------------------------------------------------------------------------------------------


def _newest_head(target: Target) -> bytes:
    ledger = ledger_of(target)
    return ledger.files.read(ledger.uri("head", max(ledger.files.names(ledger.uri("head")))))


def _all(target: Target) -> dict[str, int]:
    ledger = ledger_of(target)
    return ledger.files.tree(ledger.root)
