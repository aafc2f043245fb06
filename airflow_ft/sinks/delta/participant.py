"""Rows, marker and head in one commit of the table's log (ATOMIC).

A step reads the newest version of the table, and with it the head. It commits onto exactly that version, or starts
over (`airflow_ft.sinks.delta.table`). So the order of commits is the order of ranks (I5), as with a lock.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised (prepare): a new table may be left, without rows. The next process finds it. The sleeper commits
  onto an outdated version, is refused, reads the head, and finds that it is newer.
- files are complete (commit): a folder that no commit names; VACUUM removes it. The next process writes its own.
- the ledger's file is written: the same, and a file without readers.
- the commit: the same again. Any commit since makes the sleeper's commit fail.
- the commit is synced: it is visible and marked, but a power cut may undo it. No process has reported it yet; the next
  one syncs what it finds before it reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, StoreBehindSinkError, together
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Proof
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.document import DocumentParticipant, OvertakenError
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.delta.columns import is_placeholder, lacking, schema_problems
from airflow_ft.sinks.delta.ledger import Ledger
from airflow_ft.sinks.delta.place import OURS, Place
from airflow_ft.sinks.delta.rows import Rows
from airflow_ft.sinks.delta.spec import DeltaSink
from airflow_ft.sinks.delta.table import Snapshot, translated_delta_errors
from airflow_ft.sinks.refused import Refused


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan: one table. ConfigurationError when it has several."""
    name, settings = only_sink(plan, "table")
    sink = DeltaSink.from_settings(plan.name, settings)
    return DeltaParticipant(plan.name, name, sink, Place.of(sink, connection), wal)


@dataclass
class DeltaParticipant(DocumentParticipant[Rows]):
    """One table, and the one sink that writes there. See `airflow_ft.protocol.participant.Participant`."""

    others = "other writers of the table"

    name: str
    sink_name: str
    sink: DeltaSink
    place: Place
    wal: WalReader
    _seen: Snapshot | None = None

    def _preflight(self) -> dict[str, Any]:
        return {"table": str(self.place)}

    def _prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        if not self.sink.create and self._there(plan) is None:
            raise self.place.lacks_its_table(sink=self.sink_name).located(**self._where(plan))
        return super()._prepare(plan, fence)

    def _abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        if plan.participant(self.name).predecessor == 0:  # prepare may have found nothing to make a table of
            with self._writing(fence, plan, create=True) as (_, ledger):
                self._begin(ledger, plan, fence)
                self._raised(ledger, fence)
        return super()._abort(plan, fence, detail)

    def _schema_problems(self, db: Rows, readers: Sequence[SegmentReader], make: bool) -> Iterator[AirflowFtError]:
        """All that speaks against staged rows. Makes columns that are lacking, where that was asked for."""
        found = self._judged(db.snapshot, readers)
        yield from found
        for schema in self._schemas(readers) if not found else ():
            if is_placeholder(db.snapshot.columns):
                db.snapshot.define(schema, self.sink.partition_by)
            elif new := lacking(schema, db.snapshot.columns):
                db.snapshot.add_columns(new)
            else:
                continue
            raise OvertakenError  # by oneself: the rest is judged by the table as it is now

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        if plan.commit_point != self.name and (there := self._there(plan)) is not None:
            with translated_delta_errors(self.place, **self._where(plan)):
                Rows(there, self.sink_name, self.sink.file_bytes).try_out(readers)
        return {}

    def _insert(
        self, db: Rows, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None
    ) -> dict[str, int]:
        has_rows = any(segment.rows.get(self.sink_name) for segment in plan.segments)
        if has_rows and (problems := self._judged(db.snapshot, readers)):  # the table may have changed since the vote
            raise together(problems)
        return {self.sink_name: db.write(plan, readers, dead_letters)}

    # --- transactions ----------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[Rows, Ledger]]:
        """One version of the table, onto which what was written is committed when the block ends without an error."""
        with translated_delta_errors(self.place, **self._where(plan)):
            snapshot = self._newest()
            if snapshot is None and create:
                snapshot = Snapshot.made(self.place, self._first_schema(plan), self.sink.partition_by)
            ledger = snapshot.ledger(self._app(fence.pipeline)) if snapshot is not None else None
            if snapshot is None or ledger is None or (ledger.head() is None and not create):
                raise self._lost()
            if ledger.head() is None:
                self.place.require_conditions()
            rows = Rows(snapshot, self.sink_name, self.sink.file_bytes, fence.rank)
            try:
                yield rows, ledger
            except BaseException:
                rows.discard()
                raise
            if not ledger.has_changed:
                snapshot.sync(ledger)  # its writer may have died before the sync
            elif keep:
                try:
                    app = self._app(fence.pipeline)
                    self._seen = snapshot.commit(app, ledger, rows.adds, self._says(fence, plan))
                except OvertakenError as error:
                    if error.nothing:  # else a commit that was not heard of may name the files
                        rows.discard()
                    raise

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[Ledger | None]:
        """None: there is no table, or it has never seen the pipeline."""
        with translated_delta_errors(self.place, **self._where(plan)):
            snapshot = self._newest()
            ledger = snapshot.ledger(self._app(pipeline)) if snapshot is not None else None
            if snapshot is not None and ledger is not None:
                snapshot.sync(ledger)
            yield ledger if ledger is not None and ledger.head() is not None else None

    def _place(self) -> str:
        return str(self.place)

    def _where(self, plan: Plan | None) -> dict[str, Any]:
        return {**super()._where(plan), "unconnected": True}

    # --- what the steps share ----------------------------------------------------------------------------------------

    def _app(self, pipeline: str) -> str:
        return f"airflow_ft/{pipeline}/{self.name}"

    def _there(self, plan: Plan) -> Snapshot | None:
        with translated_delta_errors(self.place, **self._where(plan)):
            return self._newest()

    def _newest(self) -> Snapshot | None:
        self._seen = Snapshot.newest(self.place, self._seen)
        return self._seen

    def _judged(self, snapshot: Snapshot, readers: Sequence[SegmentReader]) -> list[AirflowFtError]:
        """All that speaks against these rows in this version of the table."""
        found: list[AirflowFtError] = list(snapshot.oddities())
        for schema in self._schemas(readers):
            columns = None if is_placeholder(snapshot.columns) else snapshot.columns
            found += schema_problems(self.sink, schema, columns, snapshot.partition_by, self.sink_name)
        return [problem.located(sink=self.sink_name) for problem in found]

    def _schemas(self, readers: Sequence[SegmentReader]) -> list[Any]:
        mine = (reader.schema(self.sink_name) for reader in readers if self.sink_name in reader.sinks())
        return list(dict.fromkeys(schema for schema in mine if len(schema)))

    def _first_schema(self, plan: Plan | None) -> Any:
        """Return what the table is made of; None: nothing that it could hold is known."""
        readers = [self.wal.open(segment) for segment in plan.segments] if plan is not None else []
        for schema in self._schemas(readers)[:1]:
            if not list(schema_problems(self.sink, schema, None, (), self.sink_name)):
                return schema
        return None

    def _says(self, fence: Fence, plan: Plan | None) -> dict[str, Any]:
        """For people who look at the table's history; nothing rests on it."""
        epoch, attempt = fence.rank
        says = {"pipeline": fence.pipeline, "installation": fence.installation, "epoch": epoch, "attempt": attempt}
        return {**says, "checkpoint": plan.number, "digest": plan.digest} if plan is not None else says

    def _lost(self) -> StoreBehindSinkError:
        return StoreBehindSinkError(
            f"the sink has lost its head: {self.place} is gone or was created again, or its app transaction is lost.",
            code="ledger_lost",
            remedy=f"Restore the table, with {OURS} in it. Compare table and decision log before you resume.",
            path=str(self.place),
        )
