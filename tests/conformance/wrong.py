"""Plays a case of the kit against a sink as it is, then with a defect, which the case must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World

Defect = Callable[[], None]
Case = tuple[Defect, str, dict[str, Any]]
"""A defect, the case of the kit that notices it, and the arguments of the case."""


def each(cases: Sequence[Case]) -> pytest.MarkDecorator:
    """Return the parameters of a test that plays each of these."""
    return pytest.mark.parametrize("case", cases, ids=[defect.__name__ for defect, _, _ in cases])


Play = Callable[[World], None]


def each_play(cases: Sequence[tuple[Defect, Play]]) -> pytest.MarkDecorator:
    """Return the parameters `defect` and `play` of a test that plays each of these."""
    names = [f"{defect.__name__}-{play.__name__}" for defect, play in cases]
    return pytest.mark.parametrize(("defect", "play"), cases, ids=names)


def is_noticed(
    world: Callable[[Path], World], defect: Defect, play: Play, folder: Path, *patched: tuple[Any, str]
) -> None:
    """Assert that `play` fails with the defect, and passes without it. `world` makes one in a folder."""
    with _put_back(patched):
        with closing(world(folder / "right")) as right:
            play(right)
        defect()
        errors = (AssertionError, AirflowFtError, pytest.fail.Exception)
        with closing(world(folder / "wrong")) as wrong, pytest.raises(errors):
            play(wrong)


def notices(
    target: Callable[[], AbstractContextManager[Any]],
    case: Case,
    folder: Path,
    *patched: tuple[Any, str],
    right: Defect | None = None,
    kit: type[ParticipantConformance] = ParticipantConformance,
) -> None:
    """Assert that the case notices the defect, and passes without it.

    Args:
        target: opens a place for rows.
        case: the defect and who notices it.
        folder: an empty one.
        patched: what defects replace, to be put back.
        right: makes the sink easier to test, as all defects do.
        kit: has the case.
    """
    defect, name, given = case
    play = partial(getattr(kit(), name), **given)
    with _put_back(patched):
        with _world(target, folder / "right", right) as world:
            play(world)
        with _world(target, folder / "wrong", defect) as world, pytest.raises(AssertionError):
            play(world)


@contextmanager
def _put_back(patched: Sequence[tuple[Any, str]]) -> Iterator[None]:
    """What a block replaces is put back. In it the kit strikes at every call: a defect may show at one only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParticipantConformance, "places", (0, 1))
        for where, attribute in patched:
            patch.setattr(where, attribute, getattr(where, attribute))
        yield


@contextmanager
def _world(target: Callable[[], AbstractContextManager[Any]], folder: Path, flaw: Defect | None) -> Iterator[World]:
    folder.mkdir()
    if flaw is not None:
        flaw()
    with target() as opened, closing(World(opened, folder)) as world:
        if flaw is not None:
            opened.flaw = f"{flaw.__module__}:{flaw.__name__}"
        yield world


def marker_first(give: Callable[[Any, Any, Any], object] = lambda participant, changes, plan: None) -> Any:
    """Return a `_deliver` that writes the marker before the rows; `give` notes before it what rows need."""

    def deliver(self: Any, plan: Any, fence: Any, set_aside: bool, more: Any) -> Proof:
        counts = {name: sum(segment.rows.get(name, 0) for segment in plan.segments) for name in self.sinks}
        with self._writing(fence, plan) as (changes, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):
                standing: Proof = self._current_proof(ledger, plan)
                return standing
            give(self, changes, plan)
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, {})
            ledger.deliver_head(plan.number)
        with self._writing(fence, plan) as (db, _):
            self._insert(db, plan, [self.wal.open(segment) for segment in plan.segments], None)
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, {})

    return deliver
