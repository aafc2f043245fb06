"""Whatever is written, in whichever order: what a list says of a pipeline is what the tables say; and who has asked
before is told by the mark whether to ask again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_ft.protocol.errors import AirflowFtError, StoreUnavailableError
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import AfterAbort, CheckpointState, RunKey, StateSizes
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus, RequestKind
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store import summary
from airflow_ft.store.database import Database
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.summary import FEW
from tests.store.races import race
from tests.store.scene import RUN, Scene, a_position
from tests.store.summary import differences

S = CheckpointState
NAMES = ("orders", "parcels", "returns")
TABLES = ("pipeline", "checkpoint", "vote", "run", "lease", "delivery", "event", "source_lag", "request", "barrier")
RUNS = [RUN, *(RunKey(dag, "run-1") for dag in ("A", "b", "z"))]
SPECS: list[dict[str, Any]] = [{}, {"late_after": 60.0}, {"late_after": None}]
NEXT = {
    S.TRIGGERED: ["begin"] + ["publish"] * 4,
    S.STAGED: ["plan"] * 4 + ["vote"] * 6 + ["deliver", "plan at once", "attempt", "abort", "rewind with"],
    S.PREPARED: ["decide", "decide", "quarantine"],
    S.COMMITTING: ["prove", "prove", "prove", "quarantine"],
    S.QUARANTINED: ["release"],
    S.COMPLETED: ["finalise", "prune", "sizes"],
}
"""What is done to a checkpoint, mostly; now and then anything is tried."""


class Walker:
    """Somebody who tries anything at any of the pipelines, with the epoch in force."""

    def __init__(self, store: DecisionLog, dice: random.Random) -> None:
        self._store, self._dice = store, dice

    def step(self) -> str:
        """Does something, which may be refused; what it was."""
        store, dice = self._store, self._dice
        name = dice.choice(NAMES)
        scene = Scene(store, name, store.register(name).epoch)
        opened = store.open_checkpoints(name)
        found = dice.choice(opened[-4:]) if opened and dice.random() < 0.9 else None
        number = found.number if found else dice.randint(1, store.pipeline(name).next_number)
        at_one, at_all = self._at_one(scene, number), self._at_all(scene)
        if store.pipeline(name).status is not PipelineStatus.ACTIVE and dice.random() < 0.5:
            action = "resume"
        elif found is not None and dice.random() < 0.75:
            action = dice.choice(NEXT.get(found.state, ["plan"]))
        elif dice.random() < 0.6:
            action = dice.choice(["take", "begin", "trigger", "trigger", "trigger"])
        else:
            action = dice.choice([*at_one, *at_all])
        try:
            (at_one | at_all)[action]()
        except AirflowFtError as error:
            return f"{action} of {name} {number}: {error}"
        return f"{action} of {name} {number}"

    def _at_one(self, scene: Scene, number: int) -> dict[str, Callable[[], object]]:
        store, name, epoch, dice = scene.store, scene.pipeline, scene.epoch, self._dice
        participant = dice.choice(["db", "log"])

        def parts() -> list[int]:
            free = [
                c.number
                for c in store.open_checkpoints(name)
                if c.number < number and c.is_undelivered and dice.random() < 0.7
            ]
            return [*free, *([number] if scene.checkpoint(number).segment else [])]

        return {
            "publish": lambda: scene.publish(number, segment=dice.random() < 0.8, as_of=store.now()),
            "plan": lambda: scene.plan(number, parts()),
            "plan at once": lambda: scene.plan_at_least_once(number, parts()),
            "attempt": lambda: scene.attempt(number, participant),
            "vote": lambda: scene.vote(number, participant),
            "decide": lambda: scene.decide(number),
            "prove": lambda: scene.prove(number, participant) if scene.checkpoint(number).plan else None,
            "deliver": lambda: scene.complete(number, parts()),
            "finalise": lambda: store.finalise(name, number),
            "abort": lambda: scene.abort(number),
            "rewind with": lambda: scene.abort(number, AfterAbort.REWOUND, dice.randint(1, number)),
            "rewind": lambda: store.rewind(name, epoch, number, a_position(number), "a walk"),
            "rolled back": lambda: scene.rolled_back(number, participant),
            "quarantine": lambda: scene.quarantine(number),
            "release": lambda: scene.release(number),
            "prune": lambda: store.prune(name, number),
            "sizes": lambda: store.record_state_sizes(name, epoch, number, StateSizes(1, dice.randint(1, 9), 3)),
            "lags": lambda: store.record_lags(name, epoch, number, [Lag("orders", Unit.RECORDS, dice.randint(0, 9))]),
            "savepoint": lambda: store.note_savepoint(name, number, "a walk", {}),
        }

    def _at_all(self, scene: Scene) -> dict[str, Callable[[], object]]:
        store, name, epoch, dice = scene.store, scene.pipeline, scene.epoch, self._dice
        run, other = dice.choice(RUNS), dice.choice(NAMES)
        there = store.register(other)
        return {
            "take": scene.take,
            "begin": lambda: store.begin_stage(name, epoch, run, spec=dice.choice(SPECS)),
            "begin again": lambda: store.begin_again(name, epoch, run),
            "trigger": lambda: scene.trigger(dice.choice([None, run])),
            "end": lambda: store.end_stage(name, epoch, run, None, complete=dice.random() < 0.7),
            "read all": lambda: store.read_all(name, epoch, run, store.now()),
            "give up": lambda: store.give_up(name, epoch, AbortReason.STOPPED, "a walk"),
            "halt": lambda: store.halt(name, dice.choice(list(HaltReason)), "a walk"),
            "resume": lambda: store.resume(name, "a walk"),
            "retire": lambda: store.retire(name, "a walk"),
            "enter": lambda: store.enter_turn(name, run, store.now(), RUNS if dice.random() < 0.3 else ()),
            "leave": lambda: store.leave_turn(name, run),
            "adopt run": lambda: store.adopt_run(name, epoch, run),
            "adopt": lambda: store.adopt(name, epoch, {"db": dice.randint(1, 40)}, "a walk", expected=epoch),
            "reset": lambda: store.reset_state(name, epoch, a_position(0), "a walk"),
            "restore": lambda: store.restore(name, epoch, a_position(0), "a walk"),
            "rename": lambda: (
                store.rename(other, there.epoch, 0, name, epoch, a_position(0), "a walk") if other != name else None
            ),
            "renew": lambda: store.renew_lease(name, epoch, "worker", "it counts"),
            "release lease": lambda: store.release_lease(name, "worker"),
            "ask": lambda: store.answer(name, store.ask(name, RequestKind.STOP, {}, "a walk"), "no", epoch=epoch),
            "inject": lambda: store.inject(f"barrier-{dice.randint(1, 9)}", {name, other}, "a walk"),
            "forget": lambda: store.forget_events(name, 2, 5),
        }


class _Dying:
    """A database of which a write now and then ends before it is committed."""

    def __init__(self, database: Any, dice: random.Random) -> None:
        self._database, self._dice = database, dice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextmanager
    def write(self) -> Iterator[Any]:
        with self._database.write() as tx:
            yield tx
            if self._dice.random() < 0.05:
                raise StoreUnavailableError("it died.", remedy="go on.")


def everything(database: Database) -> list[list[dict[str, Any]]]:
    return [database.read(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in TABLES]


class TestWalks:
    @pytest.mark.slow
    @pytest.mark.sampled
    @pytest.mark.parametrize("few", [FEW, 2])
    @pytest.mark.parametrize("seed", range(4))
    def test_the_kept_summary_always_agrees_with_the_tables(
        self, store: DecisionLog, monkeypatch: pytest.MonkeyPatch, seed: int, few: int
    ) -> None:
        """The mark changes with each write that changes a row, and only then."""
        counts = summary._COUNTS.replace(f"> {FEW} ", f"> {few} ").replace(f"LIMIT {FEW + 1}", f"LIMIT {few + 1}")
        assert counts.count(f"> {few} ") == 3 and f"LIMIT {few + 1})" in counts
        monkeypatch.setattr(summary, "_COUNTS", counts)
        dice = random.Random(seed)
        for name in NAMES:
            store.register(name)
        database = store._database  # type: ignore[attr-defined]
        store._database = _Dying(database, dice)  # type: ignore[attr-defined]
        walker, written = Walker(store, dice), 0
        for _ in range(300):
            if dice.random() < 0.02:  # the clock was put back
                with database.write() as tx:
                    tx.change("UPDATE pipeline SET changed_at = changed_at + 3600000000 WHERE name = 'orders'")
            marks, before = [store.mark(), *map(store.mark, NAMES)], everything(database)
            done = walker.step()
            assert differences(database) == [], done
            after = everything(database)
            assert ([store.mark(), *map(store.mark, NAMES)] != marks) is (after != before), done
            written += after != before
        assert written > 100
        events = {event.kind for name in NAMES for event in store.events(name, limit=10_000)}
        assert events >= {"COMPLETED", "REWOUND"}


class TestLookingMeanwhile:
    def test_readers_beside_writers_find_the_summary_consistent(self, store: DecisionLog, store_url: str) -> None:
        """Different answers never have the same mark."""

        def work(store: DecisionLog, index: int) -> list[str]:
            database = store._database  # type: ignore[attr-defined]
            if index >= 2:
                walker = Walker(store, random.Random(index))
                for _ in range(60):
                    walker.step()
                return []
            wrong, looks = [], []
            for _ in range(150):
                wrong += differences(database)
                looks.append((store.mark(), everything(database)))
            looks.append((store.mark(), []))
            for (mark, first), (again, second), (last, _) in zip(looks, looks[1:], looks[2:], strict=False):
                if mark == again == last and first != second:
                    wrong.append(f"{mark} stands for two answers")
            return wrong

        assert race(store_url, work, processes=5) == [[]] * 5
        assert differences(store._database) == []  # type: ignore[attr-defined]
