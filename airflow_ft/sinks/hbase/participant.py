"""Deliver rows by key into HBase.

The memory of a pipeline and a participant is one cell of the sink's own table, row `PIPELINE:PARTICIPANT`. It is a
document with head and markers. `checkAndPut` replaces it if its text is still the one that was read.

HBase refuses no row of a stale process. Cell timestamps take the place of that: a cell with a higher one hides all
others, whenever they are written. `airflow_ft.sinks.hbase.stamps` gives them out, once for each number.

If a process dies among the rows, the successor finds the stamps in the document, and writes the same cells. Existing
cells stay as they are. A sleeper reads the document before each request, and stops. Requests that were on their
way write cells that later ones hide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Proof
from airflow_ft.sinks.ahead import Ahead
from airflow_ft.sinks.base import keyed
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.keyed import Chunk, KeyedParticipant
from airflow_ft.sinks.base.memory import check_owner
from airflow_ft.sinks.hbase.packed import PackedRows
from airflow_ft.sinks.hbase.requests import Requests
from airflow_ft.sinks.hbase.rows import encoded, row_keys, schema_problems, unfit
from airflow_ft.sinks.hbase.server import (
    FAMILY,
    Client,
    HBaseError,
    Mutation,
    address,
    is_framed,
    is_no_table,
    ledger_table,
    make_ledger,
    opened,
    require_table,
    translated,
    wire,
)
from airflow_ft.sinks.hbase.spec import HBaseSink
from airflow_ft.sinks.hbase.stamps import NONE_GIVEN, batches, give, given
from airflow_ft.sinks.hbase.wire import Wire

_COLUMN = f"{FAMILY}:document".encode()
_REQUEST_BYTES = 1_000_000
"""A request is ended before the row that exceeds this: a framed gateway takes 2 MB at once."""


class Seen(NamedTuple):
    """Text of a document, and the time of HBase at which it was written (milliseconds since 1970; 0: there is none)."""

    text: bytes | None
    at: int


class Documents(keyed.Documents[Client, Seen]):
    """Documents in the sink's own table, each in a row of its pipeline."""

    @property
    def table(self) -> bytes:
        """Return the table's name."""
        return ledger_table(self.connection).encode()

    def row(self, pipeline: str) -> bytes:
        """Return the row of a document."""
        return f"{pipeline}:{self.participant}".encode()

    def read(self, pipeline: str, *, create: bool = False) -> tuple[DocumentLedger, Seen]:
        if create:
            make_ledger(self.client, self.connection)
        row = self.row(pipeline)
        try:
            found = self.client.get(self.table, row, _COLUMN, {})
        except HBaseError as error:
            if not is_no_table(error):
                raise
            found = []
        seen = Seen(found[0].value, found[0].timestamp) if found else Seen(None, 0)
        where = f"row {row.decode()!r} of table {self.table.decode()}"
        return DocumentLedger(seen.text, where, stamps=dict(NONE_GIVEN)), seen


class Changes(keyed.Changes[Documents, Seen]):
    """With requests for rows, which several threads may send."""

    def replace(self) -> None:
        document = Mutation(column=_COLUMN, value=self.ledger.text.encode())
        documents, row = self.documents, self.documents.row(self.fence.pipeline)
        if not documents.client.checkAndPut(documents.table, row, _COLUMN, self.seen.text, document, {}):
            raise OvertakenError()  # or the gateway has repeated a request that had succeeded: the step finds out

    def mutate(self, client: Client, table: str, rows: Sequence[bytes], stamp: int) -> None:
        """Write rows, each as a whole, if this process still owns the head."""
        documents = Documents(client, self.documents.connection, self.documents.participant)
        ledger, seen = documents.read(self.fence.pipeline)
        if seen.text != self.seen.text:
            check_owner(ledger.head(), self.fence)
        assert self.plan is not None
        where = {"pipeline": self.plan.pipeline, "checkpoint": self.plan.number, "participant": documents.participant}
        with translated(self.documents.connection, table, **where):
            client.mutate_rows(wire(self.documents.connection).request(table, rows, stamp))


@dataclass
class HBaseParticipant(KeyedParticipant[Changes]):
    """One gateway, and all sinks of a pipeline there. See `airflow_ft.protocol.participant.Participant`."""

    spec = HBaseSink
    changes = Changes
    sinks: Mapping[str, HBaseSink]

    def _place(self) -> str:
        return f"HBase at {address(self.connection)}"

    def _preflight(self) -> dict[str, Any]:
        server = address(self.connection)
        expiring: dict[str, int] = {}
        with opened(self.connection, participant=self.name) as client:
            make_ledger(client, self.connection)
            for name, sink in self.sinks.items():
                try:
                    found = require_table(client, server, sink.table, sink.families)
                except UnfitTargetError as error:
                    raise error.located(sink=name) from None
                expiring |= {f"{sink.table}/{family}": seconds for family, seconds in found.items()}
        return {"expiring": expiring} if expiring else {}

    @contextmanager
    def _opened(self, plan: Plan | None) -> Iterator[Documents]:
        with opened(self.connection, **self._where(plan)) as client:
            yield Documents(client, self.connection, self.name)

    def _deliver(self, plan: Plan, fence: Fence, set_aside: bool, more: Mapping[str, Any]) -> Proof:
        """Raise the head before stamps are given out: it is written with the time of HBase, which they follow."""
        with self._writing(fence, plan) as (_, ledger):
            self._raised(ledger, fence)
        return super()._deliver(plan, fence, set_aside, more)

    def _before_rows(self, db: Changes, plan: Plan) -> Mapping[str, Any]:
        """Give out the plan's stamps, once."""
        if db.ledger.marker(plan.number):
            return {}
        last = self._kept_by_former(db, plan).get("stamps", NONE_GIVEN)["last"]
        return give(db.ledger, plan, max(db.seen.at, last + 1))

    # --- rows --------------------------------------------------------------------------------------------------------

    def _problems(self, sink: str, schema: pa.Schema) -> Iterator[AirflowFtError]:
        return schema_problems(self.sinks[sink], schema, sink)

    def _unfit(self, sink: str, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_]) -> Mapping[int, str]:
        return unfit(self.sinks[sink], rows, deletes, is_framed(self.connection))

    def _send(self, db: Changes, chunks: Iterator[Chunk]) -> None:
        assert db.plan is not None
        first = given(db.ledger, db.plan)
        more = partial(opened, self.connection, **self._where(db.plan))
        with closing(Ahead(self._packed(chunks))) as made, Requests(db.documents.client, more) as requests:
            for offset, table, deleted, rows in made:
                for at, changes in ((first + offset - 1, deleted.items()), (first + offset, rows.items())):
                    for part in parts(changes):
                        write = partial(db.mutate, table=table, rows=list(part.values()), stamp=at)
                        requests.call(write, part.keys())

    def _packed(self, chunks: Iterator[Chunk]) -> Iterator[tuple[int, str, dict[bytes, bytes], PackedRows]]:
        """Yield each batch as what is sent: its stamp, its table, the deletes before its last changes, and these."""
        form = wire(self.connection)
        for offset, name, some in batches(chunks):
            sink = self.sinks[name]
            rows, deleted = PackedRows(), dict[bytes, bytes]()
            for chunk in some:
                rows.add(mutations(sink, chunk, form))  # of a key, the last change counts
                deleted |= deletes(sink, chunk, form)
            yield offset, sink.table, deleted_before(deleted, rows), rows


open_participant = HBaseParticipant.of


def parts(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[dict[bytes, bytes]]:
    """Divide rows, each with its key, into requests of some size."""
    part: dict[bytes, bytes] = {}
    size = 0
    for key, row in rows:
        if part and size + len(row) > _REQUEST_BYTES:
            yield part
            part, size = {}, 0
        part[key] = row
        size += len(row)
    if part:
        yield part


def mutations(sink: HBaseSink, chunk: Chunk, form: Wire) -> dict[bytes, bytes]:
    """Return the last change of each key: cells to put and, of NULL, to delete; or families to delete."""
    found = encoded(sink, chunk)
    rows = zip(found.keys, form.rows(found.keys, found.columns), strict=True)
    if not chunk.refused and not chunk.deletes.any():
        return dict(rows)
    gone = form.deletes((key for key, delete in zip(found.keys, chunk.deletes, strict=True) if delete), sink.families)
    kept: dict[bytes, bytes] = {}
    for at, (key, row) in enumerate(rows):
        if at not in chunk.refused:
            kept[key] = gone[key] if chunk.deletes[at] else row
    return kept


def deletes(sink: HBaseSink, chunk: Chunk, form: Wire) -> dict[bytes, bytes]:
    """Return deletes of families for the keys that a chunk deletes."""
    found = [row for row in np.flatnonzero(chunk.deletes).tolist() if row not in chunk.refused]
    return form.deletes(row_keys(sink, chunk.rows.take(found)), sink.families) if found else {}


def deleted_before(deleted: Mapping[bytes, bytes], last: PackedRows) -> dict[bytes, bytes]:
    """Return the deletes of those keys that a batch deletes and writes again; `last` has their last changes.

    Otherwise cells would stay that the last change does not write: those of dropped columns, or of another sink.
    """
    return {key: row for key, row in deleted.items() if last.get(key) not in (None, row)}
