"""Two persons adopt a pipeline at the same moment. The second one comes, and is done, at any call of the first one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.adoption import adopt
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, FencedError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Promise
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.store import open_store
from tests.protocol.systems import ModelParticipant, System
from tests.protocol.world import PIPELINE, Crash, Fault, World, crash
from tests.raising import raises
from tests.through import Through

COMMIT, ROLLBACK = PreparedEnding
SINKS, NUMBER = ("db", "log"), 8


@dataclass
class Branches(System):
    """A sink in which a former owner left two branches of a number, which end one after the other."""

    ended: dict[str, PreparedEnding] = field(default_factory=dict)


@dataclass
class Branched(ModelParticipant):
    """Lists the branches that are prepared or visible, and ends the prepared ones."""

    system: Branches

    def orphans(self, pipeline: str, installation: str) -> list[Orphan]:
        names = [f"{self.name}-{each}" for each in (1, 2)]
        left = [name for name in names if self.system.ended.get(name) is not ROLLBACK]
        return [self._orphan(name, name in self.system.ended) for name in left]

    def _orphan(self, name: str, visible: bool) -> Orphan:
        kind, end = (OrphanKind.COMMITTED, "") if visible else (OrphanKind.PREPARED, f"XA COMMIT '{name}'")
        return Orphan(NUMBER, name, kind, "former", name, 2, end, end)

    def end_orphans(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        self._raise(fence)
        for orphan in self.orphans(fence.pipeline, fence.installation):
            if orphan.kind is OrphanKind.PREPARED:
                assert ending is not None
                self.end(orphan.branch, ending)

    def end(self, branch: str, ending: PreparedEnding) -> None:
        """The server does not look at the head: another process may have raised it."""
        self.system.ended.setdefault(branch, ending)

    def adopt(self, fence: Fence, number: int) -> None:
        self._raise(fence)
        super().adopt(fence, number)
        self.system.owner = fence.installation

    def _raise(self, fence: Fence) -> None:
        if fence.rank < self.system.rank:
            raise FencedError("the head is newer.", head_epoch=self.system.rank[0])
        self.system.rank = fence.rank


class Halted:
    """A pipeline that a former owner's head has halted; both sinks show number 7 as the last one."""

    def __init__(self, folder: Path) -> None:
        self.systems = {name: Branches(Promise.TWO_PHASE, rank=(9, 30), last=7, owner="former") for name in SINKS}
        world = World(folder, systems=dict(self.systems))
        self.url = world.store.url
        world.store.register(PIPELINE)
        self.plans = world.delivery.participants
        self.halt(world.store)
        world.store.close()

    def halt(self, store: Any, reason: HaltReason = HaltReason.FOREIGN_OWNER) -> None:
        store.halt(PIPELINE, reason, "a test", participants=self.plans)

    def adopt(self, ending: PreparedEnding, fault: Fault | None = None) -> None:
        def opened(plan: ParticipantPlan) -> Any:
            found = Branched(plan.name, self.systems[plan.name], [])
            if fault is None:
                return found
            end = found.end
            found.end = lambda *given: fault.around("end", lambda: end(*given))  # type: ignore[method-assign]
            return Through(found, fault, plan.name)

        with closing(open_store(self.url)) as store:
            through: Any = store if fault is None else Through(store, fault, "store")
            adopt(through, PIPELINE, opened, "a person", ending=ending, accept_partial=True)

    def status(self) -> tuple[PipelineStatus, HaltReason | None]:
        with closing(open_store(self.url)) as store:
            row = store.pipeline(PIPELINE)
        return row.status, row.halt_reason

    @property
    def endings(self) -> Mapping[str, PreparedEnding]:
        return {name: ending for system in self.systems.values() for name, ending in system.ended.items()}


def at_each_call(folder: Path, ending: PreparedEnding, beside: Any) -> list[tuple[Halted, str]]:
    """Let one adopt once for each of its calls, before which `beside` is called. Returns what is left each time."""
    left, at = [], 0
    while True:
        at += 1
        (place := folder / str(at)).mkdir()
        halted = Halted(place)
        fault = Fault(at, "before", lambda halted=halted: beside(halted))  # type: ignore[misc]
        try:
            halted.adopt(ending, fault)
        except (AirflowFtError, Crash):
            assert fault.struck
        if not fault.struck:
            return left
        left.append((halted, fault.struck))


@pytest.mark.parametrize("ending", PreparedEnding)
def test_two_adoptions_never_end_one_checkpoint_differently(tmp_path: Path, ending: PreparedEnding) -> None:
    other = ROLLBACK if ending is COMMIT else COMMIT
    refused: list[str] = []

    def adopt_otherwise(halted: Halted) -> None:
        try:
            halted.adopt(other)
        except ConfigurationError as error:
            assert (error.code, error.fields["ending"]) == ("ending_differs", ending.value)
            refused.append(error.code)

    found = at_each_call(tmp_path, ending, adopt_otherwise)
    assert any(other in halted.endings.values() for halted, _ in found), "the second one was faster"
    assert len(refused) > 6, "the first one was faster"
    for halted, struck in found:
        assert len(halted.endings) == 4 and len({*halted.endings.values()}) == 1, struck
        assert halted.status() == (PipelineStatus.ACTIVE, None), struck


def test_an_adoption_that_died_is_repeated_with_the_same_choice(tmp_path: Path) -> None:
    for halted, struck in at_each_call(tmp_path, ROLLBACK, lambda _: crash()):
        if 0 < len(halted.endings) < 4:
            with raises(ConfigurationError, "ending_differs", ending="rollback"):
                halted.adopt(COMMIT)
        halted.adopt(ROLLBACK)
        assert {*halted.endings.values()} == {ROLLBACK} and len(halted.endings) == 4, struck


def test_what_a_person_ended_by_hand_needs_no_choice(tmp_path: Path) -> None:
    """The choice of an adoption that died was wrong."""
    halted = next(halted for halted, struck in at_each_call(tmp_path, ROLLBACK, lambda _: crash()) if "(end)" in struck)
    for name, system in halted.systems.items():
        system.ended |= {f"{name}-{each}": COMMIT for each in (1, 2)}
    halted.adopt(COMMIT)
    assert {*halted.endings.values()} == {COMMIT}
    assert halted.status() == (PipelineStatus.ACTIVE, None)


def test_a_late_adoption_leaves_a_newer_halt_alone(tmp_path: Path) -> None:
    """Another one was done, and a run has halted the pipeline once more."""

    def adopt_and_halt(halted: Halted) -> None:
        halted.adopt(COMMIT)
        with closing(open_store(halted.url)) as store:
            halted.halt(store, HaltReason.TOKEN_LOST)

    found = at_each_call(tmp_path, COMMIT, adopt_and_halt)
    looks = next(at for at, (_, struck) in enumerate(found) if "db.head" in struck)  # before that it reads the new halt
    for halted, struck in found[looks:]:
        assert halted.status() == (PipelineStatus.HALTED, HaltReason.TOKEN_LOST), struck
    assert "store.resume" in struck


def test_a_person_reads_what_to_do_after_a_newer_adoption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    halted = Halted(tmp_path)

    def overtake(*_: object) -> None:
        halted.systems["log"].rank = (99, 0)

    monkeypatch.setattr(Branched, "end", overtake)
    with raises(FencedError, "fenced", head_epoch=99) as refused:
        halted.adopt(COMMIT)
    assert refused.error is not None and f"airflow ft adopt {PIPELINE}" in refused.error.remedy
