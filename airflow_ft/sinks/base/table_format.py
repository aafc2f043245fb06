"""Shared part of sinks into tables of a table format: rows, marker and head in one commit of the table (ATOMIC).

A step reads the newest version of the table, and with it the head. It commits onto exactly that version, or starts
over. So the order of commits is the order of ranks (I5), as with a lock. A system defines what a version is, how rows
become files that no version names yet, and how a commit is made.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from airflow_ft.protocol.errors import (
    AirflowFtError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
    together,
)
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.verify import Sent, SinkReport
from airflow_ft.protocol.votes import Proof
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.base.comparison import Row, compare
from airflow_ft.sinks.base.document import DocumentLedger, DocumentParticipant, OvertakenError
from airflow_ft.sinks.base.table_columns import Column, Format, lacking, matched
from airflow_ft.sinks.refused import Refused
from airflow_ft.sinks.set_aside import DeliveredLog

if TYPE_CHECKING:
    import pyarrow as pa

V = TypeVar("V")


class Staged(Protocol):
    """Files that one step adds to a version of a table."""

    def write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        """All rows, durably; how many. Without `dead_letters` DeclinedError for rows that the table refuses."""

    def try_out(self, readers: Sequence[SegmentReader]) -> None:
        """DeclinedError for rows that `write` would refuse; writes nothing."""

    def discard(self) -> None:
        """Remove what was written: no commit names it, and none will."""


S = TypeVar("S", bound=Staged)


class TableParticipant(DocumentParticipant[tuple[V, S, str]], Generic[V, S]):
    """One table, and the one sink that writes there. See `airflow_ft.protocol.participant.Participant`.

    `V` is one version of the table, `S` the files that a step adds to it. A transaction is both, and the pipeline.
    """

    others = "other writers of the table"

    sink_name: str
    sink: Any
    """As the plan has it."""
    place: Any
    """Where the table is, as a text."""

    # --- what a system says --------------------------------------------------------------------------------------

    @abstractmethod
    def _translated_errors(self, plan: Plan | None = None) -> AbstractContextManager[None]:
        """Errors of the system as ours, with their place."""

    @abstractmethod
    def _newest(self) -> V | None:
        """The newest version; None: there is no table."""

    @abstractmethod
    def _made(self, schema: pa.Schema | None) -> V:
        """A new table; None: its columns are not known yet. OvertakenError: another process has just made one."""

    @abstractmethod
    def _ledger(self, version: V, pipeline: str) -> DocumentLedger:
        """Return what a version remembers."""

    @abstractmethod
    def _staged(self, version: V, rank: tuple[int, int]) -> S:
        """Files that a step adds to a version: none yet."""

    @abstractmethod
    def _sync(self, version: V, ledger: DocumentLedger) -> None:
        """Returns when the version survives a power cut: its writer may have died before."""

    @abstractmethod
    def _commit_onto(
        self, version: V, ledger: DocumentLedger, staged: S, says: Mapping[str, Any], pipeline: str
    ) -> None:
        """Add the files, and make the ledger count. OvertakenError: it is not the newest version any more."""

    @abstractmethod
    def _schema_problems_of(self, version: V | None, schema: pa.Schema) -> Iterator[AirflowFtError]:
        """All that speaks against such rows in a version, or in a table that is made of them."""

    def _oddities(self, version: V) -> Iterator[AirflowFtError]:
        """Yield what speaks against any rows in a version."""
        yield from ()

    @abstractmethod
    def _evolve(self, version: V, schema: pa.Schema, pipeline: str) -> bool:
        """Commit the columns that a version lacks; False: it lacks none.

        OvertakenError as above, also if another process has replaced the document of `pipeline`.
        """

    @abstractmethod
    def _lost(self) -> StoreBehindSinkError:
        """Return the error for a table that has lost the head."""

    def _require_beginning(self) -> None:
        """Raise what speaks against a first delivery here."""

    # --- the steps -----------------------------------------------------------------------------------------------

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        if plan.participant(self.name).predecessor == 0:  # prepare may have found nothing to make a table of
            with self._writing(fence, plan, create=True) as (_, ledger):
                self._begin(ledger, plan, fence)
                self._raised(ledger, fence)
        return super()._abort(plan, fence, detail)

    def _schema_problems(
        self, db: tuple[V, S, str], readers: Sequence[SegmentReader], make: bool
    ) -> Iterator[AirflowFtError]:
        """All that speaks against staged rows. Makes columns that are lacking, where that was asked for."""
        found = self._judged(db[0], readers)
        yield from found
        for schema in self._schemas(readers) if not found else ():
            try:
                evolved = self._evolve(db[0], schema, db[2])
            except AirflowFtError as error:
                raise error.located(sink=self.sink_name) from error.__cause__
            if evolved:
                raise OvertakenError  # by oneself: the rest is judged by the table as it is now

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        if plan.commit_point != self.name and (there := self._there(plan)) is not None:
            with self._translated_errors(plan):
                self._staged(there, fence.rank).try_out(readers)
        return {}

    def _insert(
        self, db: tuple[V, S, str], plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        has_rows = any(segment.rows.get(self.sink_name) for segment in plan.segments)
        if has_rows and (problems := self._judged(db[0], readers)):  # the table may have changed since the vote
            raise together(problems)
        return {self.sink_name: db[1].write(plan, readers, dead_letters)}

    # --- transactions ----------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[tuple[V, S, str], DocumentLedger]]:
        """One version of the table, onto which what was written is committed when the block ends without an error."""
        with self._translated_errors(plan):
            version = self._newest()
            begins = create and (plan is None or plan.participant(self.name).predecessor == 0)
            if version is None and begins:  # else others have dropped or renamed it
                if not self.sink.create:
                    raise lacks_table(type(self.sink), self.place).located(sink=self.sink_name)
                version = self._made(self._first_schema(plan))
            ledger = self._ledger(version, fence.pipeline) if version is not None else None
            if version is None or ledger is None or (ledger.head() is None and not begins):
                raise self._lost()
            if ledger.head() is None:
                self._require_beginning()
            staged = self._staged(version, fence.rank)
            try:
                yield (version, staged, fence.pipeline), ledger
            except BaseException:
                staged.discard()
                raise
            if not ledger.has_changed:
                self._sync(version, ledger)
            elif keep:
                try:
                    self._commit_onto(version, ledger, staged, self._says(fence, plan), fence.pipeline)
                except OvertakenError as error:
                    if error.nothing:  # else a commit that was not heard of may name the files
                        staged.discard()
                    raise

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[DocumentLedger | None]:
        """None: there is no table, or it has never seen the pipeline."""
        with self._translated_errors(plan):
            version = self._newest()
            ledger = self._ledger(version, pipeline) if version is not None else None
            if version is not None and ledger is not None:
                self._sync(version, ledger)
            yield ledger if ledger is not None and ledger.head() is not None else None

    def _place(self) -> str:
        return str(self.place)

    def _where(self, plan: Plan | None) -> dict[str, Any]:
        return {**super()._where(plan), "unconnected": True}

    # --- what the steps share ----------------------------------------------------------------------------------------

    def _there(self, plan: Plan) -> V | None:
        with self._translated_errors(plan):
            return self._newest()

    def _judged(self, version: V, readers: Sequence[SegmentReader]) -> list[AirflowFtError]:
        """All that speaks against these rows in this version of the table."""
        found = list(self._oddities(version))
        for schema in self._schemas(readers):
            found += self._schema_problems_of(version, schema)
        return [problem.located(sink=self.sink_name) for problem in found]

    def _schemas(self, readers: Sequence[SegmentReader]) -> list[pa.Schema]:
        mine = (reader.schema(self.sink_name) for reader in readers if self.sink_name in reader.sinks())
        return list(dict.fromkeys(schema for schema in mine if len(schema)))

    def _first_schema(self, plan: Plan | None) -> pa.Schema | None:
        """Return what the table is made of; None: nothing that it could hold is known."""
        readers = [self.wal.open(segment) for segment in plan.segments] if plan is not None else []
        for schema in self._schemas(readers)[:1]:
            if not list(self._schema_problems_of(None, schema)):
                return schema
        return None

    def _says(self, fence: Fence, plan: Plan | None) -> dict[str, Any]:
        """For people who look at the table's history; nothing rests on it."""
        epoch, attempt = fence.rank
        says = {"pipeline": fence.pipeline, "installation": fence.installation, "epoch": epoch, "attempt": attempt}
        return {**says, "checkpoint": plan.number, "digest": plan.digest} if plan is not None else says


def lacks_table(sink: type, place: object) -> UnfitTargetError:
    """Return the error for a table that is not there, and that the sink does not create."""
    return UnfitTargetError(
        f"there is no table {place}, and the sink does not create it: create=False.",
        code="table_missing",
        remedy=f"Create the table, or set {sink.__name__}(create=True).",
        table=str(place),
    )


def compared(
    sent: Sequence[Sent],
    report: SinkReport,
    log: DeliveredLog,
    form: Format,
    columns: Sequence[Column] | None,
    found: Callable[[Sequence[str]], Iterator[pa.RecordBatch]],
) -> SinkReport:
    """Compare a table with the log's rows, also after others have compacted its files.

    Args:
        sent: the deliveries into the table.
        report: what is known of them.
        log: their rows.
        form: the table format.
        columns: of the table; None: it is not there.
        found: returns its rows, with these columns.
    """
    readers = log.readers(sent)
    if columns is None:
        raise SinkUnavailableError(
            f"the table {report.target} does not exist.",
            code="table_missing",
            remedy=f"Restore {report.target}.",
            table=report.target,
        )
    written: set[str] = set()
    for _, name, reader in readers:
        schema = reader.schema(name)
        if what := misfit(form, schema, columns):
            return replace(report, error=what)
        written |= {column.name for column in matched(schema, columns).values()}
    names = [column.name for column in columns if column.name in written]

    def in_log(reader: SegmentReader, name: str, file: WalFile) -> Iterator[list[Row]]:
        for batch in reader.batches(name, file):
            yield rows_of(form.cast(batch, columns), names)

    return compare(report, readers, in_log, (rows_of(batch, names) for batch in (found(names) if names else ())))


def misfit(form: Format, schema: pa.Schema, columns: Sequence[Column]) -> str:
    """Return why rows of the log cannot be compared with those of a table; "": they can."""
    if gone := lacking(schema, columns).names:
        return f"the table has no column {gone[0]!r}"
    for name, column in matched(schema, columns).items():  # cast like the table's values, the log's would look the same
        if not form.holds(column, kind := schema.field(name).type):
            return f"column {column.name!r} is {column.type}, which does not hold {kind} exactly"
    return ""


def rows_of(rows: pa.RecordBatch, columns: Sequence[str]) -> list[Row]:
    """In the order of the columns; a missing one is NULL."""
    from airflow_ft.sinks.arrow import python_values

    names = rows.schema.names
    values = [python_values(rows.column(name)) if name in names else [None] * rows.num_rows for name in columns]
    return list(zip(*values, strict=True))
