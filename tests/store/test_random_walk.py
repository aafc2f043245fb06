"""Thousands of random writes beside a model that a person can read, and laws that hold after each of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_ft.protocol.confirmed import confirmed_of
from airflow_ft.protocol.errors import AirflowFtError, StateConflictError
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState
from airflow_ft.protocol.planning import live_plans, quarantined
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import UNFINISHED, is_allowed
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene, a_position

S = CheckpointState
STEPS = 250


def moves(scene: Scene, dice: random.Random, number: int) -> dict[str, Callable[[], object]]:
    """Everything that anybody might try at a number, sensible or not."""
    known = scene.store.checkpoints(PIPELINE, limit=100)
    name = dice.choice(["db", "log"])
    free = [c.number for c in known if c.is_undelivered and c.number < number and dice.random() < 0.7]
    own = [number] if known and scene.checkpoint(number).segment else []
    start = dice.randint(1, number)
    return {
        "take": scene.take,
        "begin": lambda: scene.store.begin_stage(PIPELINE, scene.epoch, RUN),
        "trigger": scene.trigger,
        "publish": lambda: scene.publish(number, segment=dice.random() < 0.8),
        "plan": lambda: scene.plan(number, [*sorted(free), *own]),
        "plan at least once": lambda: scene.plan_at_least_once(number, [*sorted(free), *own]),
        "vote": lambda: scene.vote(number, name),
        "attempt": lambda: scene.attempt(number, name),
        "decide": lambda: scene.decide(number),
        "prove": lambda: scene.prove(number, name) if scene.checkpoint(number).plan else None,
        "finalise": lambda: scene.store.finalise(PIPELINE, number),
        "abort": lambda: scene.abort(number),
        "abort and rewind": lambda: scene.abort(number, AfterAbort.REWOUND, start),
        "rewind": lambda: scene.store.rewind(PIPELINE, scene.epoch, start, a_position(start), "a walk"),
        "prune": lambda: scene.store.prune(PIPELINE, number),
        "quarantine": lambda: scene.quarantine(number),
        "release": lambda: scene.release(number),
    }


RARE = {"take", "abort", "abort and rewind", "rewind"}
NEXT = {
    S.TRIGGERED: ["publish"],
    S.STAGED: ["plan", "plan", "plan at least once", "vote", "vote", "vote", "vote"],
    S.PREPARED: ["decide"],
    S.COMMITTING: ["prove"],
    S.COMPLETED: ["finalise"],
    S.QUARANTINED: ["release"],
}


def choose(scene: Scene, dice: random.Random) -> tuple[str, Callable[[], object]]:
    """Mostly what a run would do next, now and then anything at any number."""
    opened = scene.store.open_checkpoints(PIPELINE)
    known = scene.store.checkpoints(PIPELINE, limit=10)
    checkpoint = dice.choice((opened or known)[:4] if dice.random() < 0.8 else known) if known else None
    possible = moves(scene, dice, checkpoint.number if checkpoint else 1)
    if dice.random() < 0.75:
        new = ["begin", "trigger", "trigger", "trigger"]
        name = dice.choice(new if checkpoint is None or len(opened) < 3 else NEXT.get(checkpoint.state, ["trigger"]))
    else:
        name = dice.choice([move for move in possible if move not in RARE or dice.random() < 0.3])
    return name, possible[name]


def check_counts(store: DecisionLog, known: list[Checkpoint]) -> None:
    states = Counter(c.state for c in known)
    found = store.checkpoint_counts(PIPELINE)
    assert (found.completed, found.subsumed, found.failed) == (
        states[S.COMPLETED],
        states[S.SUBSUMED],
        states[S.ABORTED],
    )
    assert found.in_progress == sum(states[each] for each in UNFINISHED) and found.triggered == len(known)


def check_summary(store: DecisionLog, known: list[Checkpoint]) -> None:
    """What is kept of it for a list is what its checkpoints say."""
    states = Counter(c.state for c in known)
    found = store.overview(PIPELINE)
    assert (found.quarantined, found.committing) == (states[S.QUARANTINED], states[S.COMMITTING])
    assert found.undelivered == sum(c.is_undelivered for c in known)
    assert set(found.dags) >= {c.run.dag_id for c in known if c.run is not None}


def check_bounded_reads(scene: Scene, known: list[Checkpoint]) -> None:
    """The queries that read a part say of it what the checkpoints say themselves."""
    store = scene.store
    through = known[len(known) // 2].number if known else 0
    left = [c.number for c in known if not c.is_settled]
    assert [c.number for c in store.unsettled(PIPELINE)] == left
    check_counts(store, known)
    check_summary(store, known)
    assert [c.number for c in store.unsettled(PIPELINE, limit=1)] == left[:1]
    assert [c.number for c in store.unsettled(PIPELINE, through=through)] == [n for n in left if n <= through]
    assert store.undelivered(PIPELINE) == sum(c.is_undelivered for c in known)
    live = [c.number for c in live_plans(known) if c.number < through]
    found = store.planned_before(PIPELINE, through)
    assert (found.number if found else 0) == max(live, default=0)
    waiting = sorted([*live_plans(known), *quarantined(known)], key=lambda c: c.number)
    for name in ("db", "log"):
        unproven = [c for c in waiting if c.number <= through and name in c.votes and c.proof_of(name) is None]
        assert store.first_unproven(PIPELINE, through, name) == (unproven[0] if unproven else None)
        assert store.open_checkpoints(PIPELINE, (through, name)) == [
            c for c in waiting if c.number < through and (c.state is not S.COMMITTING or c.proof_of(name) is None)
        ]
    for run in (RUN, LATER_RUN):
        own = [c for c in known if c.run == run]
        assert [c.number for c in store.unsettled(PIPELINE, run=run)] == [c.number for c in own if not c.is_settled]
        published = [c.number for c in own if c.segment and c.after_abort is not AfterAbort.REWOUND]
        assert store.last_published(PIPELINE, run) == max(published, default=0)
        assert store.confirmed(PIPELINE, run) == confirmed_of(
            store, PIPELINE, [c.number for c in own if c.is_confirmed]
        )
        proven = [c.number for c in own if "db" in c.votes and c.votes["db"].proof]
        assert store.proven(PIPELINE, run, "db") == proven


def check_laws(scene: Scene, before: dict[int, Checkpoint]) -> dict[int, Checkpoint]:
    """What must be true after every write, whoever did it; the checkpoints as they are now."""
    store = scene.store
    now = {c.number: c for c in store.checkpoints(PIPELINE, limit=10_000)}
    for number, checkpoint in now.items():
        old = before.get(number)
        if old is not None and old.state is not checkpoint.state:
            assert is_allowed(old.state, checkpoint.state) or checkpoint.state is S.COMPLETED
        if old is not None and old.segment is not None:
            assert checkpoint.segment == old.segment  # I1
        if old is not None and old.plan is not None:
            assert checkpoint.plan == old.plan
        if old is not None and old.delivered_by is not None:
            assert checkpoint.delivered_by == old.delivered_by  # I2
    delivered = [s.number for c in now.values() if c.state is S.COMPLETED and c.plan for s in c.plan.segments]
    assert len(delivered) == len(set(delivered))  # I2: in one completed plan only
    assert set(delivered) == {c.number for c in now.values() if c.delivered_by is not None}
    for checkpoint in now.values():
        rewound = checkpoint.after_abort is AfterAbort.REWOUND
        assert not (rewound and checkpoint.delivered_by is not None)
        if checkpoint.segment is not None and not rewound:
            # I10: published rows are delivered, or still to be delivered; there is no third.
            assert (checkpoint.delivered_by is not None) is not checkpoint.is_undelivered
        if checkpoint.state in (S.PREPARED, S.COMMITTING, S.COMPLETED):
            assert checkpoint.plan is not None
    expected = [
        c.number
        for c in sorted(now.values(), key=lambda c: c.number)
        if c.state in UNFINISHED or c.is_undelivered or (c.state is S.COMPLETED and not c.finalised)
    ]
    assert scene.open_numbers() == expected
    check_bounded_reads(scene, [now[number] for number in sorted(now)])
    retained = [c.number for c in now.values() if c.delivered_by is not None][:2]  # newest first
    pruned = {e.number for e in store.events(PIPELINE, limit=100_000) if e.kind == "PRUNING"}
    assert [c.number for c in store.prunable(PIPELINE, 2, 1000)] == [
        c.number
        for c in sorted(now.values(), key=lambda c: c.number)
        if c.segment
        and c.delivered_by
        and c.finalised
        and c.number not in pruned
        and len(retained) == 2
        and c.delivered_by < retained[-1]
    ]
    decided = [c for c in now.values() if c.decided_at is not None]
    for checkpoint in decided:
        assert checkpoint.state in (S.COMMITTING, S.COMPLETED, S.QUARANTINED)  # I3: never lost again
    kept = [c.number for c in now.values() if c.state is S.QUARANTINED]
    assert len(kept) <= 1
    for number in kept:  # I4: nothing goes past it
        new = [
            n for n, c in now.items() if n > number and c.decided_at and not (before.get(n) and before[n].decided_at)
        ]
        assert not new
    assert store.last_delivered(PIPELINE, "db") == max((c.number for c in decided), default=0)
    completed = [c.number for c in now.values() if c.state is S.COMPLETED]
    latest = store.latest_confirmed(PIPELINE)
    assert (latest.number if latest else 0) == max(completed, default=0)
    published = [c.number for c in now.values() if c.staged_at is not None]
    assert store.pipeline(PIPELINE).last_published == max(published, default=0)
    return now


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(8))
def test_the_laws_hold_on_every_walk(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        scene.take()
        checkpoints: dict[int, Checkpoint] = {}
        done: set[str] = set()
        for _ in range(STEPS):
            name, move = choose(scene, dice)
            events = len(scene.event_texts())
            try:
                move()
                done.add(name)
            except AirflowFtError as error:
                if name not in ("vote", "publish"):  # these two are several operations
                    assert len(scene.event_texts()) == events, f"{name} failed ({error}), but left something"
            checkpoints = check_laws(scene, checkpoints)
        assert S.COMPLETED in {c.state for c in checkpoints.values()}, "the walk has delivered nothing"
        assert {"plan", "decide", "prove", "finalise"} <= done


def test_a_zombie_walks_in_vain(tmp_path: Path) -> None:
    """I5: whatever the holder of an older epoch tries, nothing changes."""
    dice = random.Random(1)
    with SqliteStore(tmp_path / "ft.db") as store:
        owner, zombie = Scene(store), Scene(store)
        zombie.epoch = owner.take()
        owner.stage(3)
        owner.prepare(1)
        owner.take("successor")
        owner.prepare(2)
        owner.trigger()
        before = (store.checkpoints(PIPELINE), store.pipeline(PIPELINE), owner.event_texts())
        tried = 0
        for _ in range(150):
            possible = moves(zombie, dice, dice.randint(1, 4))
            for name in ("take", "finalise", "prune"):  # these are not fenced
                del possible[name]
            move = dice.choice(list(possible))
            try:
                result = possible[move]()
            except StateConflictError as error:
                pytest.fail(f"{move}: {error}")
            except AirflowFtError:
                tried += 1
            else:
                assert result is None and move == "prove", move
            assert (store.checkpoints(PIPELINE), store.pipeline(PIPELINE), owner.event_texts()) == before
        assert tried > 100
        assert AbortReason.USER not in {c.reason for c in before[0]}
