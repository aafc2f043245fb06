"""The conformance kit, and tests beside it, notice mistakes that only the Paimon sink can have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.paimon import memory, table
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from airflow_ft.wal.local import local_path
from tests.conformance.test_paimon import Changed
from tests.conformance.wrong import Defect, Play, each_play, is_noticed
from tests.sinks.paimon.servers.test_others import (
    a_death_before_the_snapshot_delivers_nothing,
    a_death_behind_the_snapshot_delivers_once,
    a_raised_fence_refuses_what_is_on_its_way,
    a_replaced_snapshot_halts,
    rows_of_others_stay,
)
from tools.paimon import Paimon

pytestmark = pytest.mark.sampled
Chain: Any = memory.Chain
Place: Any = table.Place
Version: Any = table.Version
COMMIT = Version.commit


def _replacing(self: Any, folder: str, record: Mapping[str, Any]) -> None:
    path = local_path(self.uri(folder, f"{folder}-{record['id']}"))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))


def snapshot_replaced() -> None:
    """A snapshot takes its name whether it is given or not, as a rename does it."""
    Place.create = _replacing


def awaited_snapshot_not_settled() -> None:
    """The fence is raised beside a snapshot that may still come."""
    Version.settle = lambda self, ledger: None


def awaited_snapshot_taken_for_there() -> None:
    """Rows count as delivered as soon as their document is written."""
    Version.holds = lambda self, awaited: True


def awaited_snapshot_not_looked_for() -> None:
    """A process that dies behind its snapshot has delivered nothing, for its successor."""

    def ledger(self: Any, group: str) -> Any:
        chain = Chain(self.place.files, self.place.root, group)
        found = chain.newest()
        return memory.Ledger(chain, found, found.awaited.without if found.awaited else found.memory, pending=False)

    Version.ledger = ledger


def chain_not_compared() -> None:
    """A document takes its name whether it is given or not."""

    def append(self: Any, document: Any) -> None:
        path = local_path(self.uri(document.number))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.data)

    Chain.append = append


def conflict_repeated() -> None:
    """A refused commit is tried again behind the newest document and snapshot."""

    def commit(self: Any, ledger: Any, *rest: Any) -> None:
        try:
            COMMIT(self, ledger, *rest)
        except OvertakenError:
            newest = Version.newest(self.place)
            ledger.found = newest.ledger(ledger.chain.group).found
            COMMIT(newest, ledger, *rest)

    Version.commit = commit


def nothing_remembered() -> None:
    """The rows are added without their marker."""

    def commit(self: Any, ledger: Any, entries: Any, says: Any) -> None:
        if entries:
            ledger = self.ledger(ledger.chain.group)
        COMMIT(self, ledger, entries, says)

    Version.commit = commit


def replaced_snapshot_not_looked_for() -> None:
    """Nobody looks whether the newest snapshot is still the one that the sink wrote."""
    Version.check_newest = lambda self, ledger: None


KIT = ParticipantConformance()
CASES: list[tuple[Defect, Play]] = [
    (snapshot_replaced, rows_of_others_stay),
    (awaited_snapshot_not_settled, a_raised_fence_refuses_what_is_on_its_way),
    (awaited_snapshot_taken_for_there, a_death_before_the_snapshot_delivers_nothing),
    (awaited_snapshot_not_looked_for, a_death_behind_the_snapshot_delivers_once),
    (chain_not_compared, a_raised_fence_refuses_what_is_on_its_way),
    (conflict_repeated, a_raised_fence_refuses_what_is_on_its_way),
    (replaced_snapshot_not_looked_for, a_replaced_snapshot_halts),
    (nothing_remembered, KIT.test_to_commit_again_changes_nothing),
]
PATCHED = (
    (Place, "create"),
    (Chain, "append"),
    (Version, "commit"),
    (Version, "ledger"),
    (Version, "settle"),
    (Version, "holds"),
    (Version, "check_newest"),
)


@each_play(CASES)
def test_the_kit_notices(paimon: Paimon, tmp_path: Path, defect: Defect, play: Play) -> None:
    def world(folder: Path) -> World:
        folder.mkdir()
        target = Changed(folder, paimon)
        target.flaw = f"{defect.__module__}:{defect.__name__}" if folder.name == "wrong" else ""
        return World(target, folder)

    is_noticed(world, defect, play, tmp_path, *PATCHED)
