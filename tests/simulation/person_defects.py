"""Mistakes in what a person may do to a checkpoint in doubt, or does to a sink, as in `defects`: each must be found."""

from __future__ import annotations

from typing import Any

from airflow_ft.protocol import coordinator, settling
from airflow_ft.protocol.set_aside import SetAside
from airflow_ft.sinks.mysql import branches
from airflow_ft.sinks.mysql.xa import XaParticipant
from airflow_ft.sinks.refused import Refused
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.source import DeadLettersModel

ASIDE = NAMED["rows that are set aside"]
LOST = NAMED["rows that are set aside, branches that were lost"]
TRANSACTION = NAMED["rows that are set aside, one transaction"]
BY_HAND = NAMED["a commit by hand"]


# --- rows that are set aside -------------------------------------------------------------------------------------


@defect(ASIDE, "I2")
def refused_rows_set_aside_without_a_persons_word(change: Change) -> None:
    deliver = coordinator.Coordinator.deliver
    change(coordinator.Coordinator, "deliver", lambda self, number, **_: deliver(self, number, set_aside=True))


@defect(TRANSACTION, "I2")
def a_refused_piece_set_aside_as_a_whole(change: Change) -> None:
    """It is not sent again in halves, down to the row."""

    def around(self: Refused, sink: str, segment: Any, file: Any, first: int, rows: Any, _: Any, put: Any) -> int:
        if not (why := put(rows)):
            return len(rows)
        for place in range(len(rows)):
            self.add(sink, segment, file, first + place, rows.slice(place, 1), why)
        return 0

    change(Refused, "around", around)


@defect(TRANSACTION, "I2")
def dead_letters_that_are_not_written(change: Change) -> None:
    """They are durable before the COMMIT that names them."""
    change(DeadLettersModel, "write", lambda self, sink, label, rows: f"{self.folder}/{sink}/{label}-later")


@defect(TRANSACTION, "I2 I7")
def rows_set_aside_that_no_proof_names(change: Change) -> None:
    """Both have to be switched off: what is counted has to add up to the plan."""
    change(Refused, "write", lambda self: {})
    change(coordinator.Coordinator, "_check_counts", lambda *_: None)


@defect(LOST, "I2 I7")
def what_branches_have_set_aside_forgotten_by_the_whole(change: Change) -> None:
    change(branches, "together", lambda _: {})


@defect(ASIDE, "I7")
def rows_set_aside_not_counted(change: Change) -> None:
    """What is delivered never adds up to the plan, and nothing is COMPLETED."""
    change(settling, "of_proof", lambda _: dict[str, SetAside]())


# --- branches that somebody has committed ------------------------------------------------------------------------


@defect(BY_HAND, "I2 I3 I7")
def an_abort_that_does_not_look_for_commits_by_hand(change: Change) -> None:
    """Neither before it, nor when it is rolled back."""
    change(coordinator.Coordinator, "_refuse_heuristic", lambda *_: None)
    change(XaParticipant, "_heuristic_text", lambda *_: "")


@defect(BY_HAND, "I7")
def a_commit_by_hand_prepared_again(change: Change) -> None:
    change(XaParticipant, "_there_already", lambda *_: [])
