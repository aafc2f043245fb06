"""The kit's model of a system with transactions, each of whose requests can be lost, be answered to nobody, or be late.

Its participant is that of all sinks with transactions (`airflow_ft.sinks.base.one_transaction`), whose steps are played
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from airflow_ft.core.errors import DeclinedError, SinkUnavailableError
from airflow_ft.sinks.base.memory import Head, Marker
from airflow_ft.testing.model import ModelSystem, Owner, State
from tests.simulation.kernel import Kernel
from tests.simulation.mysql_state import Commit, Row
from tests.simulation.source import Item

T = TypeVar("T")


class ModelServer(ModelSystem):
    """What it keeps, what of it readers see, and what each transaction has changed."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        super().__init__(name)
        self._kernel = kernel
        self.refuses: dict[int, int] = {}  # item -> how often its rows are still refused
        self.commits: list[Commit] = []

    @property
    def visible(self) -> Mapping[str, Sequence[Item]]:
        """By sink, what readers see."""
        return self.state.rows

    def ask(self, what: str, act: Callable[[], T], *, writes: bool = True) -> T:
        return self._kernel.call(f"{self.name} {what}", act, _lost, writes=writes)

    def take(self, sink: str, batch: Any) -> Sequence[Any]:
        items: Sequence[Item] = list(batch)
        for item in items:
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


def _markers(state: State) -> Mapping[tuple[Owner, int], Marker]:
    return {(owner, number): marker for owner, mine in state.markers.items() for number, marker in mine.items()}


def _head(state: State) -> Row | None:
    heads: list[Head] = list(state.heads.values())
    return asdict(heads[0]) if heads else None


def _row(marker: Marker, number: int) -> Row:
    kind = marker.outcome.value.lower()
    return {"number": number, "kind": kind, "epoch": marker.epoch, "attempt": marker.attempt}


def _lost(sent: bool) -> Exception:
    return SinkUnavailableError("the connection was lost.", remedy="it is tried again.")
