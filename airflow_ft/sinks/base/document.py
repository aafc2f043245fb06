"""Shared part of sinks whose memory of a pipeline is one document: a JSON text with the head and all markers.

A system needs no transactions for it, only a compare-and-set: it replaces the document unless another process has
replaced it since it was read. Each step reads the document, changes it in memory, and replaces it at the end. A step
that was overtaken starts over, so the order of replacements is the order of ranks (I5), as with a lock.

A table format replaces the document in the commit that makes the rows visible (ATOMIC). A key-value store raises the
head first, sends the rows, and replaces the document with the marker last (IDEMPOTENT).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar, TypeVar

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan, canonical_json
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import Head, Marker, damaged
from airflow_ft.sinks.base.one_transaction import Db, OneTransactionParticipant

T = TypeVar("T")
_TRIES = 30
_LONGEST_PAUSE = 0.5  # seconds


class OvertakenError(Exception):
    """Another process has replaced the document since it was read, so the step starts over.

    `nothing`: the replacement certainly had no effect.
    """

    def __init__(self, *, nothing: bool = True) -> None:
        self.nothing = nothing


class DocumentLedger:
    """A document in memory; see `airflow_ft.sinks.base.one_transaction.TransactionLedger`.

    Args:
        text: the document as it was read. None: the system has none of this pipeline.
        where: names the document in an error about damage.
        others: values that the system itself keeps in the document, with the values of a new one.

    Raises:
        StoreBehindSinkError: the text cannot be read.
    """

    def __init__(self, text: str | bytes | None, where: str, **others: Any) -> None:
        self._head: Head | None = None
        self._markers: dict[int, Marker] = {}
        self.others: dict[str, Any] = dict(others)
        if text is not None:
            with damaged(where):
                found = json.loads(text)
                self._head = Head(**found["head"]) if found["head"] else None
                self._markers = {
                    int(number): Marker(**{**marker, "outcome": Outcome(marker["outcome"])})
                    for number, marker in found["markers"].items()
                }
                self.others |= {name: found[name] for name in others}
        self._before = self.text

    @property
    def text(self) -> str:
        """Return the document as JSON; equal contents have equal texts."""
        markers = {str(number): asdict(marker) for number, marker in sorted(self._markers.items())}
        return canonical_json({"head": asdict(self._head) if self._head else None, "markers": markers, **self.others})

    @property
    def has_changed(self) -> bool:
        """Return whether the document has to be replaced."""
        return self.text != self._before

    def head(self) -> Head | None:
        return self._head

    def create_head(self, head: Head) -> None:
        self._head = head

    def write_head(self, head: Head) -> None:
        self._head = head

    def raise_head(self, fence: Fence) -> None:
        self._head = replace(self._the_head, epoch=fence.epoch, attempt=fence.attempt)

    def deliver_head(self, number: int) -> None:
        self._head = replace(self._the_head, last_delivered=number)

    def raise_floor(self, floor: int) -> None:
        self._head = replace(self._the_head, floor=max(floor, self._the_head.floor))

    @property
    def _the_head(self) -> Head:
        assert self._head is not None  # every change reads it first
        return self._head

    def marker(self, number: int) -> Marker | None:
        return self._markers.get(number)

    def newest(self) -> int:
        return max(self._markers, default=0)

    def markers(self) -> list[tuple[int, Marker]]:
        return sorted(self._markers.items())

    def write_marker(
        self, plan: Plan, fence: Fence, outcome: Outcome, counts: Mapping[str, int], detail: Mapping[str, Any]
    ) -> None:
        assert plan.number not in self._markers
        self._markers[plan.number] = Marker(
            fence.installation, outcome, *fence.rank, plan.digest, dict(counts), dict(detail)
        )

    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, str, Marker]]:
        return [
            (number, "", marker)
            for number, marker in sorted(self._markers.items())
            if number > above and marker.installation != installation
        ]

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        for number, _, _ in self.markers_of_others(above, installation):
            del self._markers[number]

    def prune(self, floor: int) -> None:
        self._markers = {number: marker for number, marker in self._markers.items() if number > floor}


class DocumentParticipant(OneTransactionParticipant[Db]):
    """Repeats each step until no other process has replaced the document meanwhile.

    A system implements `_writing` and `_reading` over a `DocumentLedger`. Its `_writing` raises OvertakenError where
    the compare-and-set fails.
    """

    others: ClassVar[str] = "other writers"
    """Who else replaces what this sink replaces, in the error of a step that was overtaken too often."""

    def _place(self) -> str:
        """Return the name of what is replaced, for errors."""
        return self.name

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        cause: BaseException | None = None
        for tried in range(_TRIES):
            try:
                return step()
            except OvertakenError as error:
                cause = error.__cause__
                time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.005 * 2**tried)))
        raise SinkUnavailableError(
            f"{doing}: {self.others} changed {self._place()} during each of {_TRIES} tries"
            f"{f' ({cause})' if cause is not None else ''}.",
            code="commit_conflict",
            remedy=f"Pause {self.others}.",
            path=self._place(),
        ).located(**self._where(plan))
