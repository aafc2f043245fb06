"""The kit's model of a system with transactions, each of whose requests can be lost, be answered to nobody, or be late.

Its participant is that of all sinks with transactions (`airflow_ft.sinks.base.one_transaction`), whose steps are played
here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from airflow_ft.protocol.errors import DeclinedError, SinkUnavailableError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.load import Load, load_all
from airflow_ft.sinks.base.memory import Head, Marker
from airflow_ft.sinks.refused import Refused
from tests.simulation.kernel import Kernel
from tests.simulation.model import ModelParticipant, ModelSystem, Owner, State, Transaction
from tests.simulation.mysql_state import Commit, Row
from tests.simulation.source import Item

T = TypeVar("T")


class ModelServer(ModelSystem):
    """What it keeps, what of it readers see, and what each transaction has changed."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(name)
        self._kernel = kernel
        self.refuses: dict[int, int] = {}  # item -> how often its rows are still refused
        self.forbids: set[int] = set()  # items of which it refuses the last of several rows, by a constraint
        self.forbade: set[int] = set()  # and at any time
        self.commits: list[Commit] = []

    @property
    def visible(self) -> Mapping[str, Sequence[Item]]:
        """By sink, what readers see."""
        return self.state.rows

    def ask(self, what: str, call: Callable[[], T], *, writes: bool = True) -> T:
        return self._kernel.call(f"{self.name} {what}", call, _lost, writes=writes)

    def take(self, sink: str, batch: Any) -> Sequence[Any]:
        items: Sequence[Item] = list(batch)
        for item in items:
            if item.number in self.forbids and item.part > 1:
                raise DeclinedError(f"{item} breaks a new constraint.", remedy="mend the table.")
            if self.refuses.get(item.number, 0) > 0:
                self.refuses[item.number] -= 1
                raise DeclinedError(f"item {item.number} breaks a constraint.", remedy="mend the job.")
        return items

    def commit(self, before: State, after: State) -> None:
        super().commit(before, after)
        added = tuple(
            (sink, item) for sink, rows in after.rows.items() for item in rows[len(before.rows.get(sink, ())) :]
        )
        old, new = _markers(before), _markers(after)
        written = tuple(_row(marker, number) for (owner, number), marker in new.items()
                        if old.get((owner, number)) is not marker)  # fmt: skip
        pruned = tuple(number for owner, number in old if (owner, number) not in new)
        self.commits.append(Commit(self.name, added, written, pruned, _head(before), _head(after)))


class Participant(ModelParticipant):
    """The kit's, which sets nothing aside, with the way in which sinks with transactions do that."""

    def _insert(
        self, db: Transaction, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        if dead_letters is None:
            return super()._insert(db, plan, readers, None)
        return load_all(
            self._sinks, readers, lambda sink, reader: _Around(sink, sink, reader, dead_letters, self._system, db)
        )


@dataclass
class _Around(Load):
    """Rows into an open transaction of the model, but those that it refuses."""

    system: ModelSystem
    db: Transaction

    def insert(self, rows: Any) -> str:
        try:
            taken = self.system.take(self.sink, rows)
        except DeclinedError as error:
            return error.what
        self.db.change(rows={**self.db.state.rows, self.sink: (*self.db.state.rows.get(self.sink, ()), *taken)})
        return ""


def _markers(state: State) -> Mapping[tuple[Owner, int], Marker]:
    return {(owner, number): marker for owner, mine in state.markers.items() for number, marker in mine.items()}


def _head(state: State) -> Row | None:
    heads: list[Head] = list(state.heads.values())
    return asdict(heads[0]) if heads else None


def _row(marker: Marker, number: int) -> Row:
    kind = marker.outcome.value.lower()
    data = json.dumps(dict(marker.detail), default=str)
    return {"number": number, "kind": kind, "epoch": marker.epoch, "attempt": marker.attempt, "detail": data}


def _lost(sent: bool) -> Exception:
    return SinkUnavailableError("the connection was lost.", remedy="it is tried again.")
