"""What the results of runs count: each confirmed checkpoint once, whichever run staged it and whoever died."""

from __future__ import annotations

import random

import pytest

from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.model import AfterAbort, RunKey
from airflow_ft.store.errors import UnknownPipelineError
from tests.store.scene import LATER_RUN, PIPELINE, RUN, Scene

THIRD_RUN = RunKey("dag", "run-3")
ROWS = 11
"""Of one checkpoint of `Scene`, over its sinks."""


def counted(scene: Scene, run: RunKey) -> Confirmed:
    return scene.store.counted(PIPELINE, run)


def numbers(scene: Scene, run: RunKey) -> tuple[list[int], list[int]]:
    """All numbers that the result of the run counts, and the recovered ones among them."""
    found = counted(scene, run)
    assert found.rows == ROWS * found.numbers.count and found.recovered_rows == ROWS * found.recovered.count
    return list(found.numbers.newest), list(found.recovered.newest)


class Runs:
    """Runs of a pipeline, as `steps` lets them work."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def works(self, run: RunKey, count: int = 1, ended: tuple[RunKey, ...] = ()) -> list[int]:
        assert self.scene.store.enter_turn(PIPELINE, run, None, ended) == run
        return self.scene.stage(count, run=run) if count else []

    def confirms(self, run: RunKey) -> None:
        self.scene.store.leave_turn(PIPELINE, run, confirmed=True)


@pytest.fixture
def runs(scene: Scene) -> Runs:
    return Runs(scene)


def test_a_run_counts_its_own_and_says_the_same_again(scene: Scene, runs: Runs) -> None:
    for number in runs.works(RUN, 2):
        scene.complete(number)
    assert numbers(scene, RUN) == ([], []), "it is not confirmed"
    for _ in range(2):
        runs.confirms(RUN)
        assert numbers(scene, RUN) == ([1, 2], [])
    for number in runs.works(LATER_RUN):
        scene.complete(number)
    runs.confirms(RUN)  # its task is cleared while the other one works
    runs.confirms(LATER_RUN)
    assert (numbers(scene, RUN), numbers(scene, LATER_RUN)) == (([1, 2], []), ([3], []))


@pytest.mark.parametrize("delivered", ["by itself", "by the next run"])
def test_what_a_killed_run_left_is_counted_by_the_next(scene: Scene, runs: Runs, delivered: str) -> None:
    left = runs.works(RUN, 2)
    if delivered == "by itself":
        for number in left:
            scene.complete(number)
    own = runs.works(LATER_RUN, 1, ended=(RUN,))
    for number in own if delivered == "by itself" else [*left, *own]:
        scene.complete(number)
    runs.confirms(LATER_RUN)
    assert numbers(scene, LATER_RUN) == ([1, 2, 3], [1, 2])
    runs.confirms(RUN)  # it wakes up, or is cleared
    assert numbers(scene, RUN) == ([], [])


def test_of_two_that_race_one_counts(scene: Scene, runs: Runs) -> None:
    for number in runs.works(RUN):
        scene.complete(number)
    runs.works(LATER_RUN, 0, ended=(RUN,))
    runs.confirms(RUN)
    assert numbers(scene, RUN) == ([], []), "the other one has the turn"
    runs.confirms(LATER_RUN)
    runs.confirms(RUN)
    assert (numbers(scene, RUN), numbers(scene, LATER_RUN)) == (([], []), ([1], [1]))


def test_a_run_that_failed_first_counts_what_is_confirmed_later(scene: Scene, runs: Runs) -> None:
    [number] = runs.works(RUN)
    scene.store.leave_turn(PIPELINE, RUN)
    scene.complete(number)  # by `airflow ft recover`
    runs.confirms(LATER_RUN)
    assert numbers(scene, LATER_RUN) == ([], []), "it had no turn, and has no part in it"
    runs.confirms(RUN)
    assert numbers(scene, RUN) == ([1], [])


def test_a_run_that_leaves_its_turn_first_counts_later(scene: Scene, runs: Runs) -> None:
    """A stream of a group, whose other streams may still fail. If one does, the next run counts."""
    for number, run in enumerate((RUN, LATER_RUN, THIRD_RUN), 1):
        scene.complete(runs.works(run)[0])
        assert not any(numbers(scene, run)), number
        scene.store.leave_turn(PIPELINE, run, confirmed=True, counts=False)
    for run in (LATER_RUN, RUN, THIRD_RUN):
        scene.store.count_run(PIPELINE, run)
    assert [numbers(scene, run) for run in (RUN, LATER_RUN, THIRD_RUN)] == [([], []), ([1, 2], [1]), ([3], [])]


def test_what_is_not_settled_yet_waits_for_a_later_run(scene: Scene, runs: Runs) -> None:
    first, second = runs.works(RUN, 2)
    scene.complete(first)
    scene.prepare(second)
    scene.abort(second, AfterAbort.CARRIED)
    runs.works(LATER_RUN, 0, ended=(RUN,))
    runs.confirms(LATER_RUN)
    assert numbers(scene, LATER_RUN) == ([first], [first])
    [third] = runs.works(THIRD_RUN)
    scene.complete(third, [second, third])
    runs.confirms(THIRD_RUN)
    assert numbers(scene, THIRD_RUN) == ([second, third], [second])


def test_a_pipeline_that_is_not_there_is_told(scene: Scene) -> None:
    with pytest.raises(UnknownPipelineError):
        scene.store.counted("nope", RUN)


@pytest.mark.parametrize("seed", range(2))
def test_each_confirmed_checkpoint_is_in_the_result_of_one_run(scene: Scene, runs: Runs, seed: int) -> None:
    dice = random.Random(seed)
    begun: list[RunKey] = []
    waiting: list[int] = []
    for place in range(30):
        run = RunKey("dag", f"run-{place}")
        waiting += runs.works(run, dice.randrange(3), ended=tuple(begun))
        begun.append(run)
        while waiting and dice.random() < 0.7:
            scene.complete(waiting.pop(0))
        if not waiting and dice.random() < 0.6:
            runs.confirms(run)
        if dice.random() < 0.3:
            runs.confirms(dice.choice(begun))  # cleared, or awake again
    for number in waiting:
        scene.complete(number)
    last = RunKey("dag", "the last")
    runs.works(last, 0, ended=tuple(begun))
    runs.confirms(last)
    results = {run: numbers(scene, run)[0] for run in [*begun, last]}
    assert sorted(n for found in results.values() for n in found) == [
        c.number for c in reversed(scene.store.checkpoints(PIPELINE, 1000)) if c.is_confirmed
    ]
