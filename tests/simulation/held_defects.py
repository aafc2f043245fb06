"""Mistakes in Kafka's strategy `held`, as in `defects`: each must be found."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.kafka import held, token
from airflow_ft.sinks.kafka.held import HeldParticipant
from airflow_ft.sinks.kafka.transaction import Transaction
from tests.simulation.defect import NAMED, Change, defect, everywhere
from tests.simulation.defects import invented

HELD = NAMED["held alone"]


@defect(HELD, "I3")
def held_transaction_committed_by_prepare(change: Change) -> None:
    prepare = HeldParticipant.prepare

    def and_commit(self: HeldParticipant, plan: Any, fence: Fence) -> Any:
        notes = prepare(self, plan, fence)
        for group, note in notes.get("held", {}).items():
            self._coordinator.end(group, held.identity_of(note), commit=True)
        return notes

    change(HeldParticipant, "prepare", and_commit)


@defect(HELD, "I2 I9")
def lost_transaction_taken_for_committed(change: Change) -> None:
    """'Gone' was committed before, or timed out, or was fenced: only the token tells."""
    commit = HeldParticipant.commit

    def end_alone(self: HeldParticipant, plan: Any, fence: Fence, vote: Any = None, **rest: Any) -> Any:
        if vote is None or "held" not in vote.notes:
            return commit(self, plan, fence, vote, **rest)
        for group, note in vote.notes["held"].items():
            self._coordinator.end(group, held.identity_of(note), commit=True)
        return invented(self, plan)

    change(HeldParticipant, "commit", end_alone)
    change(HeldParticipant, "proof", lambda self, plan: invented(self, plan))


@defect(HELD, "I2 I6")
def held_rows_without_their_token(change: Change) -> None:
    """The transaction that is left open holds the rows alone."""
    hold = HeldParticipant._hold

    def without(self: HeldParticipant, *args: Any) -> None:
        with patch.object(Transaction, "write", lambda *_: None):
            hold(self, *args)

    change(HeldParticipant, "_hold", without)


@defect(HELD, "I2 I3", at=279)
def lost_transaction_sent_again_without_asking_the_token(change: Change) -> None:
    judge = token.judge

    def again(found: Any, expected: Any, fence: Fence, *, may_wait: bool) -> Any:
        status = judge(found, expected, fence, may_wait=may_wait)
        return token.TokenStatus.READY if status is token.TokenStatus.DONE and not may_wait else status

    everywhere(change, judge, again)
