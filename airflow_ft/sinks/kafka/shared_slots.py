"""Slots of an announced attempt, filled by several processes (docs/adr/0038-mapped-delivery.md).

The token's head names the attempt. When every record and the token are acknowledged, the process that fills a slot
leaves a note: the transaction's identity, (producer id, epoch). It is the offset of one more group, outside of the
transaction. Another process counts a transaction only if the note and its coordinator name the same one, and if it is
open. A transaction without such a note may lack rows, so it is initialised and filled again. A note alone proves
nothing, and is never taken back.

Initialising ends what another process has open. So a process that is fenced while it fills a slot leaves it to the
other one. After the vote, a late process can end a transaction that the vote names. Then `commit` sends the rows from
the log, as after a time-out.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from airflow_ft.protocol.errors import FencedError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka.cluster import BALLOT, PRODUCER, KafkaParticipant
from airflow_ft.sinks.kafka.held import HELD, Announced, HeldParticipant, holding, identity_of
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.token import METADATA_LIMIT, check_owner

log = logging.getLogger(__name__)


class SharedHeldParticipant(HeldParticipant):
    """A cluster whose slots other processes may fill. See `airflow_ft.protocol.participant.Branching`."""

    def branches(self, plan: Plan) -> Sequence[str]:
        """Return the slots that get rows, as text; not several if there are few rows."""
        rows = [sum(file.rows for _, file in self._content.loads(plan, slot)) for slot in range(self._tokens.count)]
        found = [str(slot) for slot, count in enumerate(rows) if count]
        return found if sum(rows) >= 2 * slices.MIN_ROWS else found[:1]

    def announce(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raise every head, which ends what older attempts hold, and judge the rows."""
        holding(self._clients, self._coordinator, self._sinks.values())
        if self._waits(plan, fence):
            return {}
        notes = dict(KafkaParticipant.prepare(self, plan, fence))
        del notes[PRODUCER]
        slots = self._tokens.slots(plan.pipeline)
        if any(slot.group not in notes[BALLOT]["births"] for slot in slots):
            return {}  # it is delivered already
        for slot in slots:
            if not self._names(slot, fence):  # the token of an attempt before this one was kept
                self._tokens.take_over(slot, plan, fence)
        return notes

    def load(self, plan: Plan, fence: Fence, notes: Mapping[str, Any], branch: str) -> bool:
        """Fill the slot's transaction and leave it open, or find that this is done."""
        slot = self._tokens.slots(plan.pipeline)[int(branch)]
        if not self._names(slot, fence):
            return False
        if self._found(slot, plan, fence) is not None:
            return True
        held: dict[str, Any] = {}
        self._fill(slot, plan, fence, held, yields=True)
        return slot.group in held

    def conclude(self, plan: Plan, fence: Fence, notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Fill the slots that are not held, and return what names all transactions."""
        held: dict[str, Any] = {}

        def join(slot: Slot) -> None:
            found = self._found(slot, plan, fence)
            if found is not None:
                held[slot.group] = found
            else:
                self._fill(slot, plan, fence, held, yields=False)

        try:
            if not all(self._names(slot, fence) for slot in self._tokens.slots(plan.pipeline)):
                return None
            self._in_each_slot(plan, join)
        except FencedError as error:  # by a newer attempt or another `prepare`: a newer attempt of ours ends that
            log.info("%s: attempt %s at checkpoint %d: %s", self._plan.name, fence.rank, plan.number, error.what)
            return None
        if len(held) < self._tokens.count:
            return None
        return {**notes, HELD: held}

    def _names(self, slot: Slot, fence: Fence) -> bool:
        """Return whether the slot's head names just this attempt."""
        token = slot.last_committed()
        if token is None:
            return False
        if token.installation != fence.installation or token.rank < fence.rank:
            check_owner(token, fence, self._plan.name, slot.group)
        return token.rank == fence.rank

    def _fill(self, slot: Slot, plan: Plan, fence: Fence, held: dict[str, Any], *, yields: bool) -> None:
        hold = holding(self._clients, self._coordinator, self._sinks.values())
        leave = partial(self._leave, slot, plan, fence)
        self._hold(slot, plan, fence, hold, held, Announced(leave, yields))

    def _found(self, slot: Slot, plan: Plan, fence: Fence) -> Mapping[str, Any] | None:
        """Return the note of a transaction that is complete, and still open."""
        try:
            found = json.loads(self._coordinator.note(_group(slot)) or "{}")
        except ValueError:
            found = {}
        note = found.get("held") if isinstance(found, dict) and found.get("of") == _of(plan, fence) else None
        if not isinstance(note, dict):
            return None
        open_one = self._coordinator.describe(slot.group)
        if open_one is None or not open_one.is_open or open_one.producer != identity_of(note):
            return None
        return note

    def _leave(self, slot: Slot, plan: Plan, fence: Fence, note: Mapping[str, Any]) -> None:
        for each in (note, {**note, "records": {}}):
            text = json.dumps({"of": _of(plan, fence), "held": each}, separators=(",", ":"))
            if len(text) <= METADATA_LIMIT:
                self._coordinator.leave_note(_group(slot), plan.number, text)
                return
        log.warning("%s: the note of slot %d is too long: `prepare` fills it again", self._plan.name, slot.index)


def _group(slot: Slot) -> str:
    return f"{slot.group}.held"


def _of(plan: Plan, fence: Fence) -> list[Any]:
    """Return what a note must name, besides its transaction."""
    return [fence.installation, plan.number, plan.digest, *fence.rank]
