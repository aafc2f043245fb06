"""The conformance kit notices mistakes that only write timestamps can have."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from airflow_ft.sinks.cassandra import participant, rows
from airflow_ft.testing import ParticipantConformance
from tests.conformance.test_cassandra import tables
from tests.conformance.wrong import Case, each, marker_first, notices
from tools.servers import Cassandra

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.sampled(among="Cassandra"), pytest.mark.timeout(300)]
PATCHED: list[tuple[Any, str]] = [
    (rows, "_picked"),
    (participant, "inserts"),
    (participant, "deletes"),
    (participant.Changes, "look"),
    (participant.Documents, "replace"),
    (participant.CassandraParticipant, "_before_rows"),
    (participant.CassandraParticipant, "_deliver"),
]


def a_stamp_for_each_attempt() -> None:
    give = participant.CassandraParticipant._before_rows

    def forgetful(self: Any, db: Any, plan: Any) -> Any:
        db.ledger.others["plan"] = ""
        return give(self, db, plan)

    participant.CassandraParticipant._before_rows = forgetful  # type: ignore[method-assign]


def one_time_for_all_rows() -> None:
    def at_once(chunk: Any, wanted: Any, first: int) -> Any:
        found, stamps = picked(chunk, wanted, first)
        return found, [first] * len(stamps)

    picked, rows._picked = rows._picked, at_once


def the_time_of_the_write() -> None:
    """And the writer does not look whether it is still the owner."""

    def now(chunk: Any, wanted: Any, first: int) -> Any:
        return picked(chunk, wanted, time.time_ns() // 1000)

    picked, rows._picked = rows._picked, now
    participant.Changes.look = lambda self: None  # type: ignore[method-assign]


def a_document_without_a_condition() -> None:
    replace = participant.Documents.replace

    def blindly(self: Any, pipeline: str, version: int, text: str) -> None:
        replace(self, pipeline, self.read(pipeline)[1], text)

    participant.Documents.replace = blindly  # type: ignore[method-assign]


def no_deletes() -> None:
    participant.deletes = lambda *of: []  # type: ignore[attr-defined]


def marker_before_rows() -> None:
    """The rows follow the marker, so a process that dies between them loses rows."""

    deliver = marker_first(lambda one, changes, plan: one._before_rows(changes, plan))
    participant.CassandraParticipant._deliver = deliver  # type: ignore[method-assign]


class Late(ParticipantConformance):
    """Sleeps before its last requests alone."""

    places: ClassVar[tuple[int, int]] = (17, 1)


CASES: list[Case] = [
    (a_stamp_for_each_attempt, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
    (one_time_for_all_rows, "test_a_delete_deletes", {}),
    (the_time_of_the_write, "test_a_zombie_overwrites_no_row_of_a_later_checkpoint", {"at": 103}),
    (a_document_without_a_condition, "test_it_meets_later_numbers_when_it_wakes_up", {"step": "commit"}),
    (no_deletes, "test_a_delete_deletes", {}),
    (marker_before_rows, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
]


@each(CASES)
def test_the_kit_notices(cassandra_server: Cassandra, tmp_path: Path, case: Case) -> None:
    notices(lambda: tables(cassandra_server), case, tmp_path, *PATCHED, kit=Late)
