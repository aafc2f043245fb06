"""Mistakes in what all sinks with transactions share, one at a time (see `tests.simulation.defects`)."""

from __future__ import annotations

from typing import Any

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.sinks.base import one_transaction
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.model import ModelLedger, ModelSystem, State

ALONE = NAMED["one transaction"]


@defect(ALONE, "I5 I2 I3 I6 I10")
def head_of_a_transaction_not_compared(change: Change) -> None:
    change(one_transaction, "check_owner", lambda *_: None)


@defect(ALONE, "I6 I2 I10")
def settled_numbers_delivered_again(change: Change) -> None:
    change(OneTransactionParticipant, "_is_settled", lambda *_, **__: False)


@defect(ALONE, "I6")
def rows_in_a_transaction_without_their_marker(change: Change) -> None:
    change(ModelLedger, "write_marker", lambda *_: None)


@defect(NAMED["one transaction, a person aborts what is prepared"], "I3")
def abort_without_a_tombstone_in_the_transaction(change: Change) -> None:
    def aborted(self: Any, plan: Plan, fence: Fence, detail: Any) -> Proof:
        return Proof(self.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, dict(detail))

    change(OneTransactionParticipant, "_abort", aborted)


@defect(ALONE, "I6")
def markers_pruned_below_no_floor(change: Change) -> None:
    change(ModelLedger, "raise_floor", lambda *_: None)


@defect(ALONE, "I2 I5 I6 I9 I10")
def transactions_that_cross(change: Change) -> None:
    """What the base demands of a system: an order of all transactions."""
    commit = ModelSystem.commit

    def whatever(self: Any, before: State, after: State) -> None:
        commit(self, self.state, after)

    change(ModelSystem, "commit", whatever)
