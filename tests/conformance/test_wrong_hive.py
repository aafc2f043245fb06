"""The conformance kit notices mistakes that only a sink with a chain of partitions can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.hive import table
from airflow_ft.sinks.hive.memory import packed, value_of_memory, value_of_rows
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests.conformance.test_hive import Changed
from tests.conformance.wrong import Defect, Play, each_play, is_noticed
from tests.sinks.hive.servers.test_hive import a_raised_fence_refuses_what_is_on_its_way
from tools.servers import Hive

pytestmark = [pytest.mark.server, pytest.mark.sampled(among="Hive")]
Version: Any = table.Version
COMMIT = Version.commit


def conflict_repeated() -> None:
    """A refused request is tried again with the next number."""

    def commit(self: Any, group: str, ledger: Any, *rest: Any) -> None:
        try:
            COMMIT(self, group, ledger, *rest)
        except OvertakenError:
            ledger.number = self.ledger(group).number
            COMMIT(self, group, ledger, *rest)

    Version.commit = commit


def nothing_remembered() -> None:
    """The rows are added without their marker."""

    def commit(self: Any, group: str, ledger: Any, number: int, parts: Any, says: Any) -> None:
        if parts:
            ledger = self.ledger(group)
        COMMIT(self, group, ledger, number, parts, says)

    Version.commit = commit


def no_number_of_its_own() -> None:
    """The document is written over the newest one, as a parameter of a table would be in Hive 3."""

    def commit(self: Any, group: str, ledger: Any, number: int, parts: Any, says: Any) -> None:
        rows = [self._partition(part.values, value_of_rows(group, number), part.folder, {}) for part in parts]
        memory = self._partition({}, value_of_memory(group, 1), self._memory_folder(), packed(ledger.text))
        if ledger.number == 0:
            self.place.client.add_partitions([*rows, memory])
            return
        if rows:
            self.place.client.add_partitions(rows)
        self.place.client.alter_partitions(*self.place.identifier, [memory])

    Version.commit = commit


CASES: list[tuple[Defect, Play]] = [
    (conflict_repeated, a_raised_fence_refuses_what_is_on_its_way),
    (no_number_of_its_own, a_raised_fence_refuses_what_is_on_its_way),
    (nothing_remembered, ParticipantConformance().test_to_commit_again_changes_nothing),
]


@each_play(CASES)
def test_the_kit_notices(hive: Hive, tmp_path: Path, defect: Defect, play: Play) -> None:
    is_noticed(lambda folder: World(Changed(hive), folder), defect, play, tmp_path, (Version, "commit"))
