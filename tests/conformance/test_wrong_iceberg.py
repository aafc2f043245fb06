"""The conformance kit, and tests beside it, notice mistakes that only a table format can have."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate
from pyiceberg.types import LongType, NestedField, StringType

from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.iceberg import table
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests.conformance.test_iceberg import Changed
from tests.conformance.wrong import Defect, Play, each_play, is_noticed
from tests.sinks.iceberg.test_table import a_raised_fence_refuses_what_is_on_its_way, rows_of_others_stay
from tests.sinks.iceberg.world import in_file

DEMANDS = table.Version._commit


def own_branch_not_compared() -> None:
    """A commit demands only that main has not moved. The fence is raised without moving it."""

    def commit(self: Any, demands: Sequence[Any], updates: Sequence[Any]) -> Any:
        return DEMANDS(self, [each for each in demands if _is_of(each, "main")], _without_removal(updates))

    table.Version._commit = commit  # type: ignore[method-assign]


def main_not_compared() -> None:
    """A commit hides what others have added since the table was read."""

    def commit(self: Any, demands: Sequence[Any], updates: Sequence[Any]) -> Any:
        return DEMANDS(self, [each for each in demands if not _is_of(each, "main")], updates)

    table.Version._commit = commit  # type: ignore[method-assign]


def conflict_repeated() -> None:
    """A refused commit is tried again onto the new head, as pyiceberg does it by itself."""

    def commit(self: Any, demands: Sequence[Any], updates: Sequence[Any]) -> Any:
        try:
            return DEMANDS(self, demands, updates)
        except OvertakenError:
            return DEMANDS(self, [], _without_removal(updates))

    table.Version._commit = commit  # type: ignore[method-assign]


def _is_of(demand: Any, branch: str) -> bool:
    return isinstance(demand, AssertRefSnapshotId) and demand.ref == branch


def _without_removal(updates: Sequence[Any]) -> list[Any]:
    """It would fail for a memory that is gone, and so cover for the missing demand."""
    return [each for each in updates if not isinstance(each, RemoveSnapshotsUpdate)]


def nothing_remembered() -> None:
    """The rows are added without their marker."""
    commit = table.Version.commit

    def without(self: Any, branch: str, ledger: Any, files: Any, says: Any) -> None:
        if files:
            ledger = self.ledger(branch)
        commit(self, branch, ledger, files, says)

    table.Version.commit = without  # type: ignore[method-assign]


def _abort_meets_later_numbers(world: World) -> None:
    ParticipantConformance().test_it_meets_later_numbers_when_it_wakes_up(world, "abort")


CASES: list[tuple[Defect, Play]] = [
    (own_branch_not_compared, a_raised_fence_refuses_what_is_on_its_way),
    (own_branch_not_compared, _abort_meets_later_numbers),
    (main_not_compared, rows_of_others_stay),
    (conflict_repeated, a_raised_fence_refuses_what_is_on_its_way),
    (nothing_remembered, ParticipantConformance().test_to_commit_again_changes_nothing),
]


@each_play(CASES)
def test_the_kit_notices(tmp_path: Path, defect: Defect, play: Play) -> None:
    is_noticed(_world, defect, play, tmp_path, (table.Version, "_commit"), (table.Version, "commit"))


def _world(folder: Path) -> World:
    """Into a table of version 1: later ones number their snapshots, which covers for a missing demand."""
    folder.mkdir()
    target = Changed(in_file(folder))
    with closing(target.catalog()) as catalog:
        catalog.create_namespace("shop")
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
        catalog.create_table("shop.orders", schema, properties={"format-version": "1"})
    return World(target, folder)
