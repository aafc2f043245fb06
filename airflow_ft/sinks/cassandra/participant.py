"""Deliver rows by primary key into Cassandra.

The memory of a pipeline and a participant is one row of the table `airflow_ft`: a JSON document and its version. A
step replaces the document by a lightweight transaction, on condition that the version is as it was read.

The document gives out a stamp (microseconds) for each checkpoint, once, before its first row. A row is written with the
stamp plus its place in the checkpoint as write timestamp. So the last change of a key counts in any order of arrival. A
delete never has the timestamp of an insert, and plain writes of other programs compare rightly.

If a process dies among the rows, the successor has the same stamp, and writes all rows again. No key goes back: a
change that was there already has the same timestamp. A sleeper looks at the version each second, and its late rows
change nothing.

WriteTimeout is no answer. Rows are written again with the same timestamp; a step whose document was not acknowledged
starts over, and reads the document at SERIAL, which settles it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cassandra import ConsistencyLevel, WriteTimeout
from cassandra.cluster import Session
from cassandra.query import PreparedStatement, SimpleStatement

from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base import keyed
from airflow_ft.sinks.base.document import DocumentLedger, OvertakenError
from airflow_ft.sinks.base.keyed import Chunk, KeyedParticipant, stamps_lost
from airflow_ft.sinks.cassandra.privileges import lacking
from airflow_ft.sinks.cassandra.replicas import shortages
from airflow_ft.sinks.cassandra.requests import Requests
from airflow_ft.sinks.cassandra.rows import deletes, inserts, unfit
from airflow_ft.sinks.cassandra.server import (
    address,
    check_nodes,
    create_documents,
    documents_exist,
    keyspace_of,
    opened,
    time_of,
)
from airflow_ft.sinks.cassandra.spec import DOCUMENTS, CassandraSink
from airflow_ft.sinks.cassandra.table import Table, read_table, schema_problems

T = TypeVar("T")
_CAS_UNKNOWN = 0x1700
"""Code of an error that the driver has no class for: the outcome of a lightweight transaction is not known."""
_LOOK_SECONDS = 1.0
_AHEAD = 60_000_000
"""Microseconds by which the last stamp may be ahead of a node's clock, at most."""


class Documents(keyed.Documents[Session, int]):
    """Documents in a table of the connection's keyspace, each with the version by which its replacement is compared."""

    @property
    def keyspace(self) -> str:
        """Return the keyspace of the table."""
        return keyspace_of(self.connection)

    def read(self, pipeline: str, *, create: bool = False) -> tuple[DocumentLedger, int]:
        row = None
        if documents_exist(self.client, self.keyspace):
            query = self._statement("SELECT version, document FROM {} WHERE pipeline = %s AND participant = %s")
            query.consistency_level = ConsistencyLevel.SERIAL
            row = self.client.execute(query, (pipeline, self.participant)).one()
        elif create:
            create_documents(self.client, self.keyspace)
        where = f"the document of {pipeline}, {self.participant} in {self.keyspace}.{DOCUMENTS}"
        return DocumentLedger(row and row.document, where, plan="", stamp=0, free=0), row.version if row else 0

    def replace(self, pipeline: str, version: int, text: str) -> None:
        """Replace the document. OvertakenError: another process was faster, or may have been."""
        if version:
            query = "UPDATE {} SET version = %s, document = %s WHERE pipeline = %s AND participant = %s IF version = %s"
            given: tuple[Any, ...] = (version + 1, text, pipeline, self.participant, version)
        else:
            query = "INSERT INTO {} (version, document, pipeline, participant) VALUES (%s, %s, %s, %s) IF NOT EXISTS"
            given = (1, text, pipeline, self.participant)
        try:
            applied = self.client.execute(self._statement(query), given).was_applied
        except Exception as error:
            if isinstance(error, WriteTimeout) or getattr(error, "code", None) == _CAS_UNKNOWN:
                raise OvertakenError(nothing=False) from error
            raise
        if not applied:
            raise OvertakenError()

    def _statement(self, query: str) -> SimpleStatement:
        return SimpleStatement(query.format(f'"{self.keyspace}".{DOCUMENTS}'))


@dataclass
class Changes(keyed.Changes[Documents, int]):
    """With statements for rows."""

    prepared: dict[tuple[str, str], PreparedStatement] = field(default_factory=dict)
    looked: float = field(default_factory=time.monotonic)

    def replace(self) -> None:
        self.documents.replace(self.fence.pipeline, self.seen, self.ledger.text)

    def look(self) -> None:
        """OvertakenError: another process has replaced the document since it was read. Looks once a second."""
        if time.monotonic() - self.looked >= _LOOK_SECONDS:
            _, version = self.documents.read(self.fence.pipeline)
            if version != self.seen:
                raise OvertakenError()
            self.looked = time.monotonic()

    def statement(self, query: str, consistency: str) -> PreparedStatement:
        """Return a statement, prepared once."""
        if (query, consistency) not in self.prepared:
            statement = self.documents.client.prepare(query)
            statement.consistency_level = ConsistencyLevel.name_to_value[consistency]
            self.prepared[query, consistency] = statement
        return self.prepared[query, consistency]


@dataclass
class CassandraParticipant(KeyedParticipant[Changes]):
    """One cluster, and all sinks of a pipeline there. See `airflow_ft.protocol.participant.Participant`."""

    spec = CassandraSink
    changes = Changes
    sinks: Mapping[str, CassandraSink]

    def __post_init__(self) -> None:
        self._tables: dict[str, Table] = {}

    def _place(self) -> str:
        return f"Cassandra at {address(self.connection)}"

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        """Connect once for a step, which reads the tables' schemas itself."""
        with opened(self.connection, **self._where(plan)) as self._session:
            self._tables.clear()
            return super()._persist(doing, step, fence, plan)

    def _preflight(self) -> dict[str, Any]:
        own = keyspace_of(self.connection)
        unsafe = any(sink.allow_unsafe_durability for sink in self.sinks.values())
        keyspaces = [own, *(sink.place(own)[0] for sink in self.sinks.values())]
        return check_nodes(self._session, address(self.connection), keyspaces, unsafe=unsafe)

    def _opened(self, plan: Plan | None) -> AbstractContextManager[Documents]:
        return nullcontext(Documents(self._session, self.connection, self.name))

    def _before_rows(self, db: Changes, plan: Plan) -> Mapping[str, Any]:
        """Give out the plan's stamp, once: later than all before, and no earlier than the time of Cassandra.

        SinkUnavailableError: the last stamp is in the future. Writes of other programs would count only after it.
        """
        kept = db.ledger.others
        if db.ledger.marker(plan.number) is None and kept["plan"] != plan.digest:
            rows = sum(segment.rows.get(name, 0) for segment in plan.segments for name in self.sinks)
            former, now = self._kept_by_former(db, plan), time_of(self._session)
            last = max(kept["stamp"], former.get("stamp", 0))
            if last > now + _AHEAD:
                raise _clock_behind(last - now).located(**self._where(plan))
            stamp = max(kept["free"], former.get("free", 0), now)
            kept.update(plan=plan.digest, stamp=stamp, free=stamp + rows)
        return {"stamp": kept["stamp"]}

    # --- rows --------------------------------------------------------------------------------------------------------

    def _table(self, sink: str) -> Table:
        if sink not in self._tables:
            self._tables[sink] = read_table(self._session, *self.sinks[sink].place(keyspace_of(self.connection)))
        return self._tables[sink]

    def _key_columns(self, sink: str) -> Sequence[str]:
        return self._table(sink).key

    def _problems(self, sink: str, schema: pa.Schema) -> Iterator[AirflowFtError]:
        return schema_problems(self.sinks[sink], self._table(sink), schema, sink)

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        for name, table in self._tables.items():  # those that get rows
            for _, error in lacking(self._session, self.connection, table, ["MODIFY"]):
                raise error.located(sink=name)
        wanted = [(table, self.sinks[name].consistency) for name, table in self._tables.items()]
        for shortage, confirmed in shortages(self._session, address(self.connection), wanted):
            if confirmed:
                raise shortage
        return super()._vote(plan, fence, readers)

    def _unfit(self, sink: str, rows: pa.RecordBatch, deletes: npt.NDArray[np.bool_]) -> Mapping[int, str]:
        return unfit(self.sinks[sink], self._table(sink), rows, deletes)

    def _send(self, db: Changes, chunks: Iterator[Chunk]) -> None:
        assert db.plan is not None
        first = given(db.ledger, db.plan)
        with Requests(db.documents.client) as requests:
            for chunk in chunks:
                db.look()
                sink, table = self.sinks[chunk.sink], self._table(chunk.sink)
                seconds = table.seconds_to_live(sink)
                if seconds:  # from the stamp on, so that a retry prolongs no life
                    seconds = max(1, seconds - max(0, time_of(db.documents.client) - first) // 1_000_000)
                names, rows = inserts(sink, table, chunk, first, seconds)
                if rows:
                    requests.write(db.statement(table.insert(names, expires=seconds > 0), sink.consistency), rows)
                if rows := deletes(table, chunk, first):
                    requests.write(db.statement(table.delete(), sink.consistency), rows)


open_participant = CassandraParticipant.of


def given(ledger: DocumentLedger, plan: Plan) -> int:
    """Return the plan's stamp. StoreBehindSinkError: it has none, though it was given out before."""
    if ledger.others["plan"] != plan.digest:
        raise stamps_lost("stamp", "Cassandra", plan.number)
    return int(ledger.others["stamp"])


def _clock_behind(microseconds: int) -> SinkUnavailableError:
    seconds = microseconds // 1_000_000
    what = f"the clock of a Cassandra node is {seconds} s behind the pipeline's last write timestamp."
    remedy = "Let all nodes follow NTP."
    return SinkUnavailableError(what, code="clock_behind", remedy=remedy, seconds=seconds)
