"""The conformance kit notices mistakes of a table format that are not about its commits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.sinks.delta import columns
from airflow_ft.sinks.delta.rows import Rows
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests.conformance.test_delta import Changed, partitioned
from tests.conformance.wrong import Defect, Play, each_play, is_noticed

pytestmark = pytest.mark.sampled
PROBLEMS = columns.schema_problems


def nothing_is_tried() -> None:
    """As one that follows, it votes yes, and refuses rows after the decision."""
    Rows.try_out = lambda self, readers: None  # type: ignore[method-assign]


def columns_are_always_added() -> None:
    """Also with schema_evolution=False."""

    def evolving(sink: Any, *of: Any) -> Any:
        return PROBLEMS(replace(sink, schema_evolution=True), *of)

    columns.schema_problems = evolving


def files_are_left() -> None:
    """Files that no version names stay where they are."""
    Rows.discard = lambda self: None  # type: ignore[method-assign]


def _no_row_comes_of_one_that_follows(world: World) -> None:
    KIT.test_of_refused_rows_nothing_comes(world, carries=False)


KIT = ParticipantConformance()
CASES: list[tuple[Defect, Play]] = [
    (nothing_is_tried, _no_row_comes_of_one_that_follows),
    (columns_are_always_added, KIT.test_an_unknown_column_is_named_before_any_row_is_visible),
    (files_are_left, KIT.test_a_refused_delivery_leaves_no_files),
]
PATCHED = ((Rows, "try_out"), (Rows, "discard"), (columns, "schema_problems"))


@each_play(CASES)
def test_the_kit_notices(tmp_path: Path, defect: Defect, play: Play) -> None:
    is_noticed(_world, defect, play, tmp_path, *PATCHED)


def _world(folder: Path) -> World:
    folder.mkdir()
    return World(partitioned(Changed(folder, partition_by=("text",))), folder)
