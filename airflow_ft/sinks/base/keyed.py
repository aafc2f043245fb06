"""Shared part of key-value stores: rows by key, in the order of the log, a chunk at a time.

A store has no transaction over rows and marker, so readers see some rows before the others. Two rules make every
delivery idempotent, and let no key go back to an older value:

- The head is raised durably before the first row. The store refuses chunks of an older rank (I5).
- Chunks carry their place in the checkpoint. The store counts the rows that are in, so a retry skips them.

The marker follows after the last row. A store that can apply rows and marker at once is ATOMIC.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised: nothing has happened. The sleeper finds another version of the document, and starts over.
- some rows: the successor sends the rest, or all rows again. Each store says why no key goes back.
- the marker: the successor finds that all rows are in, or sends them again, and writes the marker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, StoreBehindSinkError, together
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Promise
from airflow_ft.protocol.votes import Proof
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile, WalReader
from airflow_ft.sinks.arrow import booleans
from airflow_ft.sinks.base.changes import deletes_and_known
from airflow_ft.sinks.base.document import DocumentLedger, DocumentParticipant
from airflow_ft.sinks.base.memory import check_owner
from airflow_ft.sinks.refused import NullFound, Refused, declined

Client = TypeVar("Client")
Seen = TypeVar("Seen")
_CHUNK_ROWS = 1000
_KEY_BYTES = 60
"""Bytes of a text in a key that an error shows."""


class KeyedSpec(Protocol):
    """Specification of a sink by key, as a plan keeps it."""

    @classmethod
    def all_of(cls, plan: ParticipantPlan) -> Mapping[str, Self]:
        """The sinks of a plan, by name."""

    @property
    def key_columns(self) -> Sequence[str]:
        """Columns that make the key."""

    @property
    def change_column(self) -> str | None:
        """Column with the kind of change; None: all rows are written."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of one sink.

    Args:
        first: rows of the checkpoint before these, refused ones included. It is the same in every attempt.
        sink: the sink's name.
        rows: the rows, with all columns of the log.
        deletes: which of them delete their key.
        refused: rows that must not be sent, by their place in `rows`, with the reason.
    """

    first: int
    sink: str
    rows: pa.RecordBatch
    deletes: npt.NDArray[np.bool_]
    refused: Mapping[int, str]


def kinds_of(rows: pa.RecordBatch, column: str | None) -> tuple[npt.NDArray[np.bool_], dict[int, str]]:
    """Return which rows are deletes, and which have no known kind of change, with the reason."""
    if column is None:
        return np.zeros(rows.num_rows, np.bool_), {}
    kinds = rows.column(column)
    deletes, known = deletes_and_known(kinds)
    unknown = np.flatnonzero(~booleans(known)).tolist()
    return booleans(deletes), {row: f"{column} is {kinds[row].as_py()!r}, no kind of change" for row in unknown}


def null_keys(rows: pa.RecordBatch, columns: Sequence[str]) -> dict[int, str]:
    """Return the rows with NULL in their key, with the reason."""
    found: dict[int, str] = {}
    for name in columns:
        if rows.column(name).null_count:
            for row in pc.indices_nonzero(rows.column(name).is_null()).to_pylist():
                found[row] = NullFound(f"column {name} of the key is NULL")
    return found


def key_text(rows: pa.RecordBatch, row: int, columns: Sequence[str]) -> str:
    """Describe the texts and whole numbers in a row's key, for errors; "": all are NULL."""
    found = {}
    for name in columns:
        value = rows.column(name)[row]
        if not value.is_valid:
            found[name] = "NULL"
        elif pa.types.is_integer(value.type):
            found[name] = str(value.as_py())
        elif pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
            text = value.as_buffer().to_pybytes()[:_KEY_BYTES].decode(errors="replace")  # it may be no UTF-8
            found[name] = repr(text)
    has_value = any(text != "NULL" for text in found.values())
    return ", ".join(f"{name} {text}" for name, text in found.items()) if has_value else ""


@dataclass
class Documents(ABC, Generic[Client, Seen]):
    """The documents of a participant in a store, over one connection."""

    client: Client
    connection: ConnectionInfo
    participant: str

    @abstractmethod
    def read(self, pipeline: str, *, create: bool = False) -> tuple[DocumentLedger, Seen]:
        """Return a document, and what its replacement is compared with. `create`: make their place in the store."""


D = TypeVar("D", bound=Documents[Any, Any])


@dataclass
class Changes(ABC, Generic[D, Seen]):
    """One writing part of a step: its connection, and the document as it was read."""

    documents: D
    fence: Fence
    plan: Plan | None
    ledger: DocumentLedger
    seen: Seen

    @abstractmethod
    def replace(self) -> None:
        """Replace the document. OvertakenError: another process was faster, or may have been."""


C = TypeVar("C", bound=Changes[Any, Any])


@dataclass
class KeyedParticipant(DocumentParticipant[C]):
    """One store, and all sinks of a pipeline that write there. A system implements how chunks are judged and sent."""

    others = "other processes of the pipeline"
    spec: ClassVar[type[KeyedSpec]]
    changes: ClassVar[type[Changes[Any, Any]]]

    name: str
    sinks: Mapping[str, KeyedSpec]
    promise: Promise
    connection: ConnectionInfo
    wal: WalReader

    @classmethod
    def of(cls, plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Self:
        """The participant of a plan. ConfigurationError: its sinks cannot be read."""
        return cls(plan.name, cls.spec.all_of(plan), plan.promise, connection, wal)

    @abstractmethod
    def _opened(self, plan: Plan | None) -> AbstractContextManager[Documents[Any, Any]]:
        """Connect for the block."""

    @abstractmethod
    def _problems(self, sink: str, schema: pa.Schema) -> Iterator[AirflowFtError]:
        """Yield why rows with these columns do not fit."""

    @abstractmethod
    def _unfit(self, sink: str, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_]) -> Mapping[int, str]:
        """Rows that the store cannot hold exactly, by their place, with the reason. NULL in keys is found before."""

    @abstractmethod
    def _send(self, db: C, chunks: Iterator[Chunk]) -> None:
        """Send all chunks, in this order; a store that is ATOMIC keeps them hidden until the marker."""

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[C, DocumentLedger]]:
        with self._opened(plan) as documents:
            ledger, seen = documents.read(fence.pipeline, create=create)
            if ledger.head() is None and not create:
                check_owner(None, fence)
            changes: Any = self.changes(documents, fence, plan, ledger, seen)
            yield changes, ledger
            if keep and ledger.has_changed:
                changes.replace()

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[DocumentLedger | None]:
        with self._opened(plan) as documents:
            ledger, _ = documents.read(pipeline)
            yield ledger if ledger.head() is not None else None

    def _schema_problems(self, db: C, readers: Sequence[SegmentReader], make: bool) -> Iterator[AirflowFtError]:
        for name in self.sinks:
            for schema in dict.fromkeys(reader.schema(name) for reader in readers if name in reader.sinks()):
                if schema.names:
                    yield from self._problems(name, schema)

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        """Judge all rows: none can be refused once some are visible, or another participant has decided."""
        if plan.commit_point != self.name or self.promise is not Promise.ATOMIC:
            self._judge(readers)
        return {}

    def judge(self, pipeline: str, readers: Sequence[SegmentReader]) -> None:
        """See `airflow_ft.protocol.participant.Judging`."""
        self._persist("judging rows", lambda: self._judge(readers))

    def _judge(self, readers: Sequence[SegmentReader]) -> None:
        for _ in self._chunks(readers, None, {}):
            pass

    def _deliver(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        if self.promise is not Promise.ATOMIC:  # rows become visible before the marker
            with self._writing(fence, plan) as (db, ledger):
                self._raised(ledger, fence)
                more = {**more, **self._before_rows(db, plan)}
        return super()._deliver(plan, fence, set_aside, more)

    def _before_rows(self, db: C, plan: Plan) -> Mapping[str, Any]:
        """Note in the document what the rows need, together with the raised head. Return what the marker keeps."""
        return {}

    def _kept_by_former(self, db: C, plan: Plan) -> Mapping[str, Any]:
        """Return what the system keeps in the document of the pipeline's old name, when the new one begins; else {}."""
        former = plan.participant(self.name).former
        return {} if former is None else db.documents.read(former.pipeline)[0].others

    def _key_columns(self, sink: str) -> Sequence[str]:
        """Return the columns that make the key of a sink."""
        return self.sinks[sink].key_columns

    def _insert(
        self, db: C, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        counts: dict[str, int] = {}
        if problems := list(self._schema_problems(db, readers, make=False)):
            raise together(problems)
        self._send(db, self._chunks(readers, dead_letters, counts))
        return counts

    def _chunks(
        self, readers: Sequence[SegmentReader], dead_letters: Refused | None, counts: dict[str, int]
    ) -> Iterator[Chunk]:
        """Yield all rows in the order of the log, and count in `counts` those that are not refused.

        Raises:
            DeclinedError: a row is refused, and there are no `dead_letters` for it.
        """
        before = 0
        for name, sink in self.sinks.items():
            counts[name] = 0
            for reader in readers:
                for file, first, rows in pieces(reader, name):
                    deletes, refused = kinds_of(rows, sink.change_column)
                    refused |= null_keys(rows, self._key_columns(name))
                    refused = {**self._unfit(name, rows, deletes), **refused}
                    for row, why in sorted(refused.items()):
                        if dead_letters is None:
                            key = key_text(rows, row, self._key_columns(name))
                            raise declined(name, reader.segment, file, first + row, why, key)
                        dead_letters.add(name, reader.segment, file, first + row, rows.slice(row, 1), why)
                    yield Chunk(before, name, rows, deletes, refused)
                    before += rows.num_rows
                    counts[name] += rows.num_rows - len(refused)


def pieces(reader: SegmentReader, sink: str) -> Iterator[tuple[WalFile, int, pa.RecordBatch]]:
    """Yield the rows of a sink, at most 1,000 at a time: their file, the place of the first one in it, the rows."""
    if sink not in reader.sinks() or not reader.schema(sink).names:
        return
    for file in reader.files(sink):
        first = 0
        for batch in reader.batches(sink, file):
            for start in range(0, batch.num_rows, _CHUNK_ROWS):
                yield file, first + start, batch.slice(start, _CHUNK_ROWS)
            first += batch.num_rows


def judged(
    spec: type[KeyedSpec],
    problems: Callable[[Any, pa.Schema, str], Iterable[AirflowFtError]],
    plan: ParticipantPlan,
    _: ConnectionInfo,
    schemas: Mapping[str, pa.Schema],
) -> Sequence[AirflowFtError]:
    """Return why rows with these columns do not fit.

    `problems` judges the columns of one sink. A system registers this function with `spec` and `problems` bound.
    """
    sinks = spec.all_of(plan)
    return [each for name, schema in schemas.items() if schema.names for each in problems(sinks[name], schema, name)]


def stamps_lost(what: str, system: str, number: int) -> StoreBehindSinkError:
    """Return the error of a document that lacks the timestamps that it had given out for a checkpoint."""
    return StoreBehindSinkError(
        f"the sink has lost the {what} that it had assigned to checkpoint {number}. {system} was restored from a"
        " backup.",
        code="ledger_lost",
        remedy="Compare the rows (`airflow ft verify`), then run `airflow ft resume`.",
        number=number,
    )
