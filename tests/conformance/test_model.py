"""The simulator's model passes the kit: what it plays is a participant.

In one process: what happens to processes and requests is played there (tests/simulation/databases.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.testing import ParticipantConformance, Target
from airflow_ft.testing.world import SINK
from tests.simulation.model import ModelParticipant, ModelSink, ModelSystem


@dataclass
class Shelf(Target):
    system: ModelSystem = field(default_factory=lambda: ModelSystem("shelf"))
    sink: SinkSpec = field(default_factory=lambda: ModelSink("shelf"))
    connection: ConnectionInfo = field(default_factory=lambda: ConnectionInfo("shelf", "model"))

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.system.state.rows.get(SINK, ()))


def _opened(system: ModelSystem, plan: ParticipantPlan, _: Any, wal: Any) -> Participant:
    return ModelParticipant(plan, system, wal)


class TestModel(ParticipantConformance):
    @pytest.fixture
    def target(self, monkeypatch: pytest.MonkeyPatch) -> Target:
        shelf = Shelf()
        monkeypatch.setattr("airflow_ft.testing.world.open_participant", partial(_opened, shelf.system))
        return shelf


NOT_OF_A_MODEL = (
    "test_a_killed_delivery_is_finished_by_the_next_process",
    "test_a_zombie_that_wakes_beside_its_successor_adds_no_rows",
    "test_a_step_killed_at_any_call_is_settled_by_another_process",
    "test_several_that_commit_at_once_deliver_once",
    "test_of_several_that_begin_at_once_the_newest_delivers",
    "test_one_that_looks_before_others_begin_lowers_none_of_them",
    "test_whatever_is_lost_on_the_way_the_next_one_finishes",
    "test_values_to_the_ends_of_their_ranges_arrive_as_they_are",  # it keeps Python's
    "test_unsupported_values_are_refused_before_the_decision",
    "test_an_unknown_column_is_named_before_any_row_is_visible",  # it has none
    "test_verify_finds_what_somebody_else_has_done",
    "test_the_doctor_finds_nothing_wrong_where_nothing_is",
    "test_doctor_and_prepare_both_report_a_misconfigured_sink",
    "test_many_rows_come_all_or_none",
    "test_memory_does_not_grow_with_rows",
    "test_the_system_lists_the_strategy_of_the_sink",  # the registry does not know it
    "test_an_unknown_setting_is_refused",
    "test_setup_can_be_repeated_and_prepare_finds_it",
    "test_a_proposed_table_has_the_columns",
    "test_each_target_has_a_name_of_its_own_in_lineage",
    "test_unknown_columns_are_named_before_rows_are_computed",
)
for name in NOT_OF_A_MODEL:
    assert hasattr(TestModel, name)
    setattr(TestModel, name, None)
