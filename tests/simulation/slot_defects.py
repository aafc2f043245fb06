"""Mistakes in slots of `held` that other processes fill (mapped tasks), as in `defects`: each must be found."""

from __future__ import annotations

from typing import Any

from airflow_ft.protocol.model import Fence
from airflow_ft.sinks.kafka import held
from airflow_ft.sinks.kafka.content import PlanContent
from airflow_ft.sinks.kafka.held import HeldParticipant
from airflow_ft.sinks.kafka.shared_slots import SharedHeldParticipant
from airflow_ft.sinks.kafka.transaction import Transaction
from tests.simulation.defect import NAMED, Change, defect

HELD, QUIET = NAMED["mapped held"], NAMED["mapped held, no server fails"]
AGAIN = NAMED["mapped held, rows are computed again"]


@defect(QUIET, "I2 I6")
def open_transaction_counted_without_its_note(change: Change) -> None:
    """It is open, under the right head. But the process that filled it may have died before its last row."""

    def open_one(self: SharedHeldParticipant, slot: Any, plan: Any, fence: Fence) -> Any:
        found = self._coordinator.describe(slot.group)
        if found is None or not found.is_open:
            return None
        topics = {topic: "" for topic, _ in found.partitions}
        return {"producer_id": found.producer.producer_id, "epoch": found.producer.epoch, "topics": topics}

    change(SharedHeldParticipant, "_found", open_one)


@defect(QUIET, "I2 I6")
def note_left_before_the_token(change: Change) -> None:
    """The note is there as soon as the rows are: who dies in between leaves rows without their token."""
    write, leave = Transaction.write, SharedHeldParticipant._leave

    def early(
        self: SharedHeldParticipant, slot: Any, plan: Any, fence: Fence, hold: Any, into: Any, *rest: Any
    ) -> None:
        def writing(transaction: Transaction, token: Any) -> None:
            identity = transaction.identity()
            note = {"producer_id": identity.producer_id, "epoch": identity.epoch, "topics": dict(token.topics)}
            leave(self, slot, plan, fence, note)
            write(transaction, token)

        Transaction.write = writing  # type: ignore[method-assign]
        try:
            hold_slot(self, slot, plan, fence, hold, into, *rest)
        finally:
            Transaction.write = write  # type: ignore[method-assign]

    hold_slot = HeldParticipant._hold
    change(HeldParticipant, "_hold", early)


@defect(QUIET, "I2 I6")
def slots_filled_otherwise_by_a_load(change: Change) -> None:
    """R17: the number of a slot says which rows it has, in every process."""
    load, loads = SharedHeldParticipant.load, PlanContent.loads

    def turned(self: SharedHeldParticipant, plan: Any, fence: Fence, notes: Any, branch: str) -> bool:
        self._content.loads = lambda plan, slot: loads(self._content, plan, 1 - slot)  # type: ignore[method-assign]
        return load(self, plan, fence, notes, branch)

    change(SharedHeldParticipant, "load", turned)


@defect(HELD, "I3")
def slot_committed_by_its_load(change: Change) -> None:
    fill = SharedHeldParticipant._fill

    def and_commit(self: Any, slot: Any, plan: Any, fence: Fence, found: Any, *, yields: bool) -> None:
        fill(self, slot, plan, fence, found, yields=yields)
        for group, note in found.items():
            self._coordinator.end(group, held.identity_of(note), commit=True)

    change(SharedHeldParticipant, "_fill", and_commit)
