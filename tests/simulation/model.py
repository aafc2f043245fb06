"""A model of a transactional system: it keeps its data in memory, and uses the participant that all systems share.

`ModelParticipant` adds to `airflow_ft.sinks.base.one_transaction` only how to open a transaction and how to write
rows. Each request goes through `ModelSystem.ask`, where a scheduler may lose or delay it, or drop its answer. So a
simulation covers the steps of every sink that is built on that module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Promise
from airflow_ft.protocol.votes import Outcome
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.memory import Head, Marker, check_owner
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant
from airflow_ft.sinks.refused import Refused

T = TypeVar("T")
Owner = tuple[str, str]  # a pipeline, and the participant's name there
_TRIES = 5


class Conflict(Exception):
    """Another transaction has committed since this one began."""


@dataclass(frozen=True)
class State:
    """All that a system keeps; never changed, but replaced."""

    version: int = 0
    heads: Mapping[Owner, Head] = field(default_factory=dict)
    markers: Mapping[Owner, Mapping[int, Marker]] = field(default_factory=dict)
    rows: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


class ModelSystem:
    """A system of that name. A transaction sees what was there when it began; of two that cross, the second fails."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = State()

    def ask(self, what: str, call: Callable[[], T], *, writes: bool = True) -> T:
        """Send a request: `call` is the system's action. Simulations override it."""
        return call()

    def commit(self, before: State, after: State) -> None:
        """All that a transaction has changed, at once; Conflict: nothing."""
        if before.version != self.state.version:
            raise Conflict
        self.state = replace(after, version=before.version + 1)

    def take(self, sink: str, batch: Any) -> Sequence[Any]:
        """The rows of a batch as they are kept. DeclinedError: they are refused."""
        taken: Sequence[Any] = batch.to_pylist()
        return taken


@dataclass
class Transaction:
    """An open transaction: what the system would keep."""

    state: State

    def change(self, **parts: Any) -> None:
        self.state = replace(self.state, **parts)


@dataclass
class ModelLedger:
    """See `airflow_ft.sinks.base.one_transaction.TransactionLedger`."""

    transaction: Transaction
    owner: Owner

    def head(self) -> Head | None:
        return self.transaction.state.heads.get(self.owner)

    def create_head(self, head: Head) -> None:
        if self.head() is None:
            self.write_head(head)

    def write_head(self, head: Head) -> None:
        self.transaction.change(heads={**self.transaction.state.heads, self.owner: head})

    def raise_head(self, fence: Fence) -> None:
        self._change_head(epoch=fence.epoch, attempt=fence.attempt)

    def deliver_head(self, number: int) -> None:
        self._change_head(last_delivered=number)

    def raise_floor(self, floor: int) -> None:
        head = self.head()
        if head is not None and head.floor < floor:
            self._change_head(floor=floor)

    def marker(self, number: int) -> Marker | None:
        return self._markers.get(number)

    def newest(self) -> int:
        return max(self._markers, default=0)

    def write_marker(
        self, plan: Plan, fence: Fence, outcome: Outcome, counts: Mapping[str, int], detail: Mapping[str, Any]
    ) -> None:
        marker = Marker(fence.installation, outcome, *fence.rank, plan.digest, dict(counts), dict(detail))
        self._keep({**self._markers, plan.number: marker})

    def markers_of_others(self, above: int, installation: str) -> list[tuple[int, str, Marker]]:
        return [
            (number, "", marker)
            for number, marker in sorted(self._markers.items(), key=lambda item: item[0])
            if number > above and marker.installation != installation
        ]

    def drop_markers_of_others(self, above: int, installation: str) -> None:
        dropped = {number for number, _, _ in self.markers_of_others(above, installation)}
        self._keep({number: marker for number, marker in self._markers.items() if number not in dropped})

    def prune(self, floor: int) -> None:
        self._keep({number: marker for number, marker in self._markers.items() if number > floor})

    @property
    def _markers(self) -> Mapping[int, Marker]:
        return self.transaction.state.markers.get(self.owner, {})

    def _keep(self, markers: Mapping[int, Marker]) -> None:
        self.transaction.change(markers={**self.transaction.state.markers, self.owner: markers})

    def _change_head(self, **parts: Any) -> None:
        head = self.head()
        if head is not None:
            self.write_head(replace(head, **parts))


class ModelParticipant(OneTransactionParticipant[Transaction]):
    """All sinks of a pipeline in a `ModelSystem`. See `airflow_ft.protocol.participant.Participant`."""

    def __init__(self, plan: ParticipantPlan, system: ModelSystem, wal: WalReader) -> None:
        self.name, self.wal = plan.name, wal
        self._sinks = tuple(plan.sinks)
        self._system = system

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[Transaction, ModelLedger]]:
        system = self._system
        before = system.ask("BEGIN", lambda: system.state, writes=False)
        transaction = Transaction(before)
        ledger = ModelLedger(transaction, (fence.pipeline, self.name))
        if not create and ledger.head() is None:
            check_owner(None, fence)
        yield transaction, ledger
        if keep and transaction.state is not before:
            system.ask("COMMIT", lambda: system.commit(before, transaction.state))

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[ModelLedger | None]:
        state = self._system.ask("SELECT", lambda: self._system.state, writes=False)
        yield ModelLedger(Transaction(state), (pipeline, self.name))

    def _preflight(self) -> dict[str, Any]:
        return {}

    def _schema_problems(
        self, db: Transaction, readers: Sequence[SegmentReader], make: bool
    ) -> Iterator[AirflowFtError]:
        yield from ()

    def _insert(
        self, db: Transaction, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        if dead_letters is not None:
            raise DeclinedError(
                "the model system cannot set single rows aside.", code="row_refused", remedy="Correct the job."
            )
        counts = dict.fromkeys(self._sinks, 0)
        for name in self._sinks:
            for reader in (each for each in readers if name in each.sinks()):
                for file in reader.files(name):
                    for batch in reader.batches(name, file):
                        rows = self._system.take(name, batch)
                        db.change(rows={**db.state.rows, name: (*db.state.rows.get(name, ()), *rows)})
                        counts[name] += len(rows)
        return counts

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        for _ in range(_TRIES):
            try:
                return step()
            except Conflict:
                continue
        what = f"{doing}: other sessions committed first, {_TRIES} times."
        raise SinkUnavailableError(what, code="lock_timeout", remedy="Wait for the retry.", **self._where(plan))


@dataclass(frozen=True)
class ModelSink:
    """A sink specification; the system is found by the connection's name."""

    conn_id: str
    promise: Promise = Promise.ATOMIC
    kind: str = "model"
    strategy: str = "transaction"

    def at_least_once(self) -> Promise:
        """The same: its rows come once all the same."""
        return self.promise

    def settings(self) -> Mapping[str, Any]:
        """None."""
        return {}
