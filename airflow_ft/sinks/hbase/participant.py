"""Deliver rows by key into HBase.

The memory of a pipeline and a participant is one cell of the sink's own table, row `PIPELINE:PARTICIPANT`. It is a
document with head and markers. `checkAndPut` replaces it if its text is still the one that was read.

HBase refuses no row of a stale process. Cell timestamps take the place of that: a cell with a higher one hides all
others, whenever they are written. `airflow_ft.sinks.hbase.stamps` gives them out, once for each number.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised: nothing has happened. The sleeper finds another document, and starts over.
- the stamps are given out: the successor gives them out.
- some rows: the successor finds the stamps in the document, and writes the same cells. Cells that are there already
  stay as they are. The sleeper reads the document before each request, and stops. A request that was on its way
  writes cells that later ones hide.
- the marker: the successor writes all cells again, and the marker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from thriftpy2.thrift import TClient

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Promise, Proof
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.keyed import Chunk, KeyedParticipant
from airflow_ft.sinks.base.memory import check_owner
from airflow_ft.sinks.hbase.rows import encoded, row_keys, row_size, schema_problems, unfit
from airflow_ft.sinks.hbase.server import (
    FAMILY,
    BatchMutation,
    HBaseError,
    Mutation,
    address,
    create_ledger,
    is_framed,
    is_no_table,
    ledger_table,
    opened,
    require_ledger,
    require_table,
)
from airflow_ft.sinks.hbase.spec import HBaseSink
from airflow_ft.sinks.hbase.stamps import NONE_GIVEN, batches, give, given

_COLUMN = f"{FAMILY}:document".encode()
_REQUEST_BYTES = 1_000_000
"""A request is ended before the row that exceeds this: a framed gateway takes 2 MB at once."""


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan; it connects at the first call."""
    return HBaseParticipant(plan.name, HBaseSink.all_of(plan), plan.promise, connection, wal)


def read_document(
    client: TClient, table: str, pipeline: str, participant: str
) -> tuple[DocumentLedger, bytes | None, int]:
    """Return the document of a participant, its text, and the time of HBase at which it was written.

    Milliseconds since 1970; 0: there is none.
    """
    row = memory_row(pipeline, participant)
    try:
        found = client.get(table.encode(), row, _COLUMN, {})
    except HBaseError as error:
        if not is_no_table(error):
            raise
        found = []
    text, at = (found[0].value, found[0].timestamp) if found else (None, 0)
    return DocumentLedger(text, f"row {row.decode()!r} of table {table}", stamps=dict(NONE_GIVEN)), text, at


def memory_row(pipeline: str, participant: str) -> bytes:
    """Return the row of a participant's memory of a pipeline."""
    return f"{pipeline}:{participant}".encode()


@dataclass
class Changes:
    """One step's connection, and what it has read: the document, its text, and HBase's time when it was written."""

    client: TClient
    table: str
    participant: str
    fence: Fence
    seen: bytes | None
    at: int
    ledger: DocumentLedger
    plan: Plan | None

    def replace(self) -> None:
        """Replace the document. OvertakenError: another process was faster."""
        document = Mutation(column=_COLUMN, value=self.ledger.text.encode())
        row = memory_row(self.fence.pipeline, self.participant)
        if not self.client.checkAndPut(self.table.encode(), row, _COLUMN, self.seen, document, {}):
            raise OvertakenError()  # or the gateway has repeated a request that had succeeded: the step finds out

    def send(self, table: str, rows: Mapping[bytes, list[Mutation]], stamp: int) -> None:
        """Write rows, each as a whole, in requests of some size."""
        part: list[BatchMutation] = []
        size = 0
        for key, cells in rows.items():
            more = row_size(len(key), (len(cell.column) + len(cell.value or b"") for cell in cells))
            if part and size + more > _REQUEST_BYTES:
                self._mutate(table, part, stamp)
                part, size = [], 0
            part.append(BatchMutation(row=key, mutations=cells))
            size += more
        if part:
            self._mutate(table, part, stamp)

    def _mutate(self, table: str, rows: list[BatchMutation], stamp: int) -> None:
        """Write rows, if this process still owns the head."""
        ledger, text, _ = read_document(self.client, self.table, self.fence.pipeline, self.participant)
        if text != self.seen:
            check_owner(ledger.head(), self.fence)
        self.client.mutateRowsTs(table.encode(), rows, stamp, {})


@dataclass
class HBaseParticipant(KeyedParticipant[Changes]):
    """One gateway, and all sinks of a pipeline there. See `airflow_ft.protocol.participant.Participant`."""

    others = "other processes of the pipeline"

    name: str
    sinks: Mapping[str, HBaseSink]
    promise: Promise
    connection: ConnectionInfo
    wal: WalReader

    def _place(self) -> str:
        return f"HBase at {address(self.connection)}"

    @property
    def _ledger(self) -> str:
        return ledger_table(self.connection)

    def _preflight(self) -> dict[str, Any]:
        server = address(self.connection)
        expiring: dict[str, int] = {}
        with opened(self.connection, participant=self.name) as client:
            if not require_ledger(client, server, self._ledger):
                create_ledger(client, self._ledger)
            for name, sink in self.sinks.items():
                try:
                    found = require_table(client, server, sink.table, sink.families)
                except UnfitTargetError as error:
                    raise error.located(sink=name) from None
                expiring |= {f"{sink.table}/{family}": seconds for family, seconds in found.items()}
        return {"expiring": expiring} if expiring else {}

    # --- the document ------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[Changes, DocumentLedger]]:
        with opened(self.connection, **self._where(plan)) as client:
            if create and not require_ledger(client, address(self.connection), self._ledger):
                create_ledger(client, self._ledger)
            ledger, seen, at = read_document(client, self._ledger, fence.pipeline, self.name)
            if ledger.head() is None and not create:
                check_owner(None, fence)
            changes = Changes(client, self._ledger, self.name, fence, seen, at, ledger, plan)
            yield changes, ledger
            if keep and ledger.has_changed:
                changes.replace()

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[DocumentLedger | None]:
        with opened(self.connection, **self._where(plan)) as client:
            ledger, _, _ = read_document(client, self._ledger, pipeline, self.name)
            yield ledger if ledger.head() is not None else None

    def _deliver(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        """Give out stamps, durable before the first row: the raised head has the time of HBase."""
        with self._writing(fence, plan) as (_, ledger):
            self._raised(ledger, fence)
        with self._writing(fence, plan) as (changes, ledger):
            self._raised(ledger, fence)
            stamps = {} if ledger.marker(plan.number) else give(ledger, plan, changes.at)
        return super()._deliver(plan, fence, set_aside, {**more, **stamps})

    # --- rows --------------------------------------------------------------------------------------------------------

    def _problems(self, sink: str, schema: pa.Schema) -> Iterator[AirflowFtError]:
        return schema_problems(self.sinks[sink], schema, sink)

    def _unfit(self, sink: str, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_]) -> Mapping[int, str]:
        return unfit(self.sinks[sink], rows, deletes, is_framed(self.connection))

    def _send(self, db: Changes, chunks: Iterator[Chunk]) -> None:
        assert db.plan is not None
        first = given(db.ledger, db.plan)
        for offset, name, some in batches(chunks):
            sink = self.sinks[name]
            rows: dict[bytes, list[Mutation]] = {}
            for chunk in some:
                rows |= mutations(sink, chunk)  # of a key, the last change counts
            db.send(sink.table, deleted_before(sink, some, rows), first + offset - 1)
            db.send(sink.table, rows, first + offset)


def mutations(sink: HBaseSink, chunk: Chunk) -> dict[bytes, list[Mutation]]:
    """Return the last change of each key: cells to put and, of NULL, to delete; or families to delete."""
    found = encoded(sink, chunk)
    gone = _gone(sink)
    null = [Mutation(isDelete=True, column=name) for name in found.names]
    rows: dict[bytes, list[Mutation]] = {}
    for row, key in enumerate(found.keys):
        if row in chunk.refused:
            continue
        if chunk.deletes[row]:
            rows[key] = gone
        else:
            rows[key] = [
                null[at] if (value := column[row]) is None else Mutation(column=found.names[at], value=value)
                for at, column in enumerate(found.columns)
            ]
    return rows


def deleted_before(
    sink: HBaseSink, chunks: Sequence[Chunk], last: Mapping[bytes, list[Mutation]]
) -> dict[bytes, list[Mutation]]:
    """Return deletes of families for the keys that a batch deletes and writes again; `last` has their last changes.

    Cells that the last change does not write would stay else: of dropped columns, or of another sink.
    """
    gone = _gone(sink)
    rows: dict[bytes, list[Mutation]] = {}
    for chunk in chunks:
        if chunk.deletes.any():
            for row, key in enumerate(row_keys(sink, chunk.rows)):
                if chunk.deletes[row] and row not in chunk.refused and last.get(key, gone) != gone:
                    rows[key] = gone
    return rows


def _gone(sink: HBaseSink) -> list[Mutation]:
    return [Mutation(isDelete=True, column=family.encode()) for family in sink.families]
