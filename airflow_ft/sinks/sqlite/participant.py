"""Marker and all rows of all tables of a file in one transaction (ATOMIC).

SQLite has one writer at a time: `BEGIN IMMEDIATE` waits for whoever holds the file. So the order of ranks is the order
of transactions. In one of them: the head must not be newer; is the number settled, does the head fit the plan? Then the
rows, the marker, the head, and COMMIT. A process that dies before leaves nothing: the next one that opens the file
rolls back what it finds. One that stands still in its transaction keeps the file, and its successor says so; when it
goes on it commits, under its own rank, before anybody newer has been there, or it finds a newer head.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from airflow_ft.core.errors import (
    AirflowFtError,
    DeclinedError,
    SinkAccessError,
    StoreBehindSinkError,
    UnfitTargetError,
    together,
)
from airflow_ft.core.model import Fence, Outcome, ParticipantPlan, Plan, Proof, SinkHead, Vote
from airflow_ft.core.ports import ConnectionInfo, Participant, SegmentReader, WalReader
from airflow_ft.core.remnants import PreparedEnding, Remnant, RemnantKind
from airflow_ft.core.set_aside import detail as set_aside_detail
from airflow_ft.sinks.base.memory import (
    Head,
    check_epoch,
    check_marker,
    check_owner,
    check_settled,
    refuse_markers_without_head,
    refuse_to_adopt,
)
from airflow_ft.sinks.refused import Refused
from airflow_ft.sinks.sqlite.columns import (
    Column,
    create_table,
    is_another_thing,
    misfits,
    quoted,
    read_columns,
    refused,
    resolves_conflicts,
    values,
)
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.ledger import Ledger
from airflow_ft.sinks.sqlite.spec import SqliteSink

_REFUSED = (sqlite3.IntegrityError, sqlite3.DataError, OverflowError)


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Participant:
    """The participant of a plan; it opens the file at the first call. ConfigurationError: there is no file's name."""
    sinks = {name: SqliteSink.from_settings(plan.name, settings) for name, settings in plan.sinks.items()}
    return SqliteParticipant(plan.name, sinks, SqliteFile.of(connection), wal)


@dataclass
class SqliteParticipant:
    """One file with all tables that a pipeline writes there. See `airflow_ft.core.ports.Participant`."""

    name: str
    sinks: Mapping[str, SqliteSink]
    file: SqliteFile
    wal: WalReader

    # --- the protocol -------------------------------------------------------------------------------------------

    def prepare(self, plan: Plan, fence: Fence) -> Mapping[str, Any]:
        """Raises the head, makes what is lacking, and judges columns; values too, where the decision falls before."""
        notes: dict[str, Any] = {"sqlite": sqlite3.sqlite_version, "file": str(self.file.path)}
        readers = [self.wal.open(segment) for segment in plan.segments]
        with self._writing(fence, plan, create=True) as (db, ledger):
            ledger.create()
            if ledger.head() is None and plan.participant(self.name).predecessor == 0:
                refuse_markers_without_head(ledger.newest(), "airflow_ft_head")
                ledger.write_head(_head(fence))
            self._raised(ledger, fence)
        # It stays raised, whatever is found now: no older attempt can write any more.
        with self._writing(fence, plan) as (db, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=False):
                return notes
            if problems := list(self._misfits(db, readers, make=head.last_delivered == 0)):
                raise together(problems)
        if plan.commit_point != self.name:  # there nobody could refuse its rows any more
            with self._writing(fence, plan, keep=False) as (db, _):
                self._insert(db, readers, None)
        return notes

    def commit(self, plan: Plan, fence: Fence, vote: Vote | None = None, *, set_aside: bool = False) -> Proof:
        """Delivers under this plan's marker, or finds that the number is settled."""
        letters = Refused(self.wal.dead_letters(plan)) if set_aside else None
        with self._writing(fence, plan) as (db, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):
                return self._standing(ledger, plan)
            counts = self._insert(db, [self.wal.open(segment) for segment in plan.segments], letters)
            detail: dict[str, Any] = {"attempt": fence.attempt, "segments": [each.number for each in plan.segments]}
            if letters is not None:  # durable before COMMIT, and named by the marker
                detail |= set_aside_detail(letters.write())
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, detail)
            ledger.write_head(replace(head, last_delivered=plan.number))
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, detail)

    def abort(self, plan: Plan, fence: Fence, detail: Mapping[str, Any]) -> Proof:
        """Writes the tombstone, or finds the marker that stands there."""
        with self._writing(fence, plan) as (_, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=False):
                return self._standing(ledger, plan)
            ledger.write_marker(plan, fence, Outcome.ABORTED, {}, detail)
        return Proof(self.name, plan.number, Outcome.ABORTED, plan.digest, fence.epoch, {}, dict(detail))

    def proof(self, plan: Plan) -> Proof | None:
        """The marker; None when there is none, which proves nothing."""
        with self._reading(plan.pipeline, plan) as ledger:
            marker = ledger.marker(plan.number) if ledger is not None else None
        if marker is None:
            return None
        check_marker(marker, plan, plan.installation)
        return marker.proof(self.name, plan.number)

    def forget(self, fence: Fence, floor: int) -> None:
        """Prunes markers at or below `floor`, in the transaction that raises the head's floor."""
        if floor <= 0:
            return
        with self._writing(fence) as (_, ledger):
            head = check_epoch(ledger.head(), fence)
            ledger.write_head(replace(head, floor=max(head.floor, floor)))
            ledger.prune(floor)

    def head(self, pipeline: str) -> SinkHead | None:
        """The head's row, whoever owns it; None where the file has never seen the pipeline."""
        with self._reading(pipeline) as ledger:
            head = ledger.head() if ledger is not None else None
        return None if head is None else head.told

    def remembers(self, pipeline: str) -> bool:
        """Whether the head's row is there."""
        return self.head(pipeline) is not None

    def seed(self, fence: Fence, number: int, *, foreign: bool = False) -> None:
        """Takes the head over from another installation. A head does not vanish by itself: nothing else is seeded."""
        if not foreign:
            raise StoreBehindSinkError("the sink has lost its head.", remedy="bring the ledger's tables back.")
        with self._writing(fence, create=True) as (_, ledger):
            ledger.create()
            head = ledger.head()
            marked = [found for found, _ in ledger.markers_of_others(number, fence.installation)]
            refuse_to_adopt(head.told if head else None, marked, fence.installation, number)
            floor = max(number, head.floor if head else 0)
            ledger.write_head(replace(_head(fence), last_delivered=number, floor=floor))

    def remnants(self, pipeline: str, installation: str) -> Sequence[Remnant]:
        """Tombstones of former owners past the last delivered number; nothing else can be left."""
        with self._reading(pipeline) as ledger:
            if ledger is None:
                return ()
            head = ledger.head()
            found = ledger.markers_of_others(head.last_delivered if head else 0, installation)
        return [
            Remnant(number, "", RemnantKind.ABORTED, marker.installation, marker.tombstone)
            for number, marker in found
            if marker.outcome is Outcome.ABORTED
        ]

    def end_remnants(self, fence: Fence, ending: PreparedEnding | None, *, make_way: bool = False) -> None:
        """Raises the head above a former owner, who stays named in it; or drops what former owners have marked."""
        if not self.file.path.exists():
            return
        with self._writing(fence) as (_, ledger):
            head = ledger.head()
            if head is None:
                return
            if head.installation != fence.installation:
                ledger.write_head(replace(head, epoch=fence.epoch, attempt=fence.attempt))
            elif make_way:
                ledger.drop_markers_of_others(head.last_delivered, fence.installation)

    def heuristic(self, plan: Plan) -> str:
        """Only what is prepared before the decision can be committed before it."""
        return ""

    def close(self) -> None:
        """Nothing is held between calls."""

    # --- what the steps share -----------------------------------------------------------------------------------

    def _misfits(
        self, db: sqlite3.Connection, readers: Sequence[SegmentReader], make: bool
    ) -> Iterator[AirflowFtError]:
        """All that speaks against staged rows. Makes tables that are lacking, where a pipeline begins."""
        for name, sink in self.sinks.items():
            for schema in dict.fromkeys(reader.schema(name) for reader in readers if name in reader.sinks()):
                columns = read_columns(db, sink.table)
                if is_another_thing(db, sink.table):
                    yield UnfitTargetError(
                        f"{sink.table!r} is a view, or a virtual table.", remedy="name a table of rows.", sink=name
                    )
                    return
                if not columns and not (make and sink.create):
                    reason = "rows were delivered into it before" if not make else "create=False"
                    yield UnfitTargetError(
                        f"{self.file.path} has no table {sink.table!r}, and it is not made: {reason}.",
                        remedy="bring it back, or create it.",
                        sink=name,
                    )
                    return
                if resolves_conflicts(db, sink.table):
                    yield UnfitTargetError(
                        f"a constraint of table {sink.table!r} says ON CONFLICT: rows would be left out, or replaced.",
                        remedy="make it one that refuses (without ON CONFLICT).",
                        sink=name,
                    )
                problems = list(misfits(sink.table, columns or None, schema, name))
                if not columns and not problems:
                    create_table(db, sink.table, schema)
                yield from problems

    def _insert(
        self, db: sqlite3.Connection, readers: Sequence[SegmentReader], letters: Refused | None
    ) -> dict[str, int]:
        """All rows; how many went into each sink's table. DeclinedError for rows that the file refuses."""
        counts = dict.fromkeys(self.sinks, 0)
        for name, sink in self.sinks.items():
            columns = read_columns(db, sink.table)
            for reader in (each for each in readers if name in each.sinks()):
                names = [field.name for field in reader.schema(name)]
                if missing := [each for each in names if each.lower() not in columns]:
                    raise UnfitTargetError(
                        f"table {sink.table!r} has no column {missing[0]!r} any more.",
                        remedy="bring it back: rows that are decided wait for it.",
                        sink=name,
                    )
                places = ", ".join(["?"] * len(names))
                sql = f"INSERT INTO {quoted(sink.table)} ({', '.join(map(quoted, names))}) VALUES ({places})"
                put = _Put(db, sql, sink.table, name, reader, columns, letters)
                counts[name] += put.all()
        return counts

    def _raised(self, ledger: Ledger, fence: Fence) -> Head:
        head = ledger.head()
        check_owner(head, fence)
        assert head is not None  # check_owner raises
        raised = replace(head, epoch=fence.epoch, attempt=fence.attempt)
        ledger.write_head(raised)
        return raised

    def _is_settled(self, ledger: Ledger, head: Head, plan: Plan, fence: Fence, *, exactly: bool) -> bool:
        marker = ledger.marker(plan.number)
        return check_settled(marker, head, plan, self.name, fence, exactly=exactly, look_again=ledger.head)

    def _standing(self, ledger: Ledger, plan: Plan) -> Proof:
        marker = ledger.marker(plan.number)
        assert marker is not None
        return marker.proof(self.name, plan.number)

    @contextmanager
    def _writing(
        self, fence: Fence, plan: Plan | None = None, *, create: bool = False, keep: bool = True
    ) -> Iterator[tuple[sqlite3.Connection, Ledger]]:
        """One transaction, which is committed when the block ends without an error, and if it is to be kept."""
        with self.file.opened(create=create, **self._where(plan)) as db:
            if db is None:
                raise SinkAccessError(f"{self.file.path} is gone.", remedy="bring it back.")
            db.execute("BEGIN IMMEDIATE")
            ledger = Ledger(db, fence.pipeline, self.name)
            if not create and not ledger.exists():
                check_owner(None, fence)
            yield db, ledger
            db.execute("COMMIT" if keep else "ROLLBACK")

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[Ledger | None]:
        """None: the file, or its ledger, is not there."""
        with self.file.opened(**self._where(plan)) as db:
            ledger = Ledger(db, pipeline, self.name) if db is not None else None
            yield ledger if ledger is not None and ledger.exists() else None

    def _where(self, plan: Plan | None) -> dict[str, Any]:
        where: dict[str, Any] = {"participant": self.name}
        return where | ({"pipeline": plan.pipeline, "checkpoint": plan.number} if plan else {})


@dataclass
class _Put:
    """Puts the rows of one sink and segment into its table."""

    db: sqlite3.Connection
    sql: str
    table: str
    sink: str
    reader: SegmentReader
    columns: dict[str, Column]
    letters: Refused | None

    def all(self) -> int:
        """How many went in."""
        taken = 0
        for file in self.reader.files(self.sink):
            first = 0
            for batch in self.reader.batches(self.sink, file):
                wrong = refused(batch, self.columns)
                rows = list(zip(*values(batch), strict=True))
                if self.letters is None:
                    if wrong:
                        row, why = next(iter(sorted(wrong.items())))
                        raise self._declined(f"row {first + row + 1} of {file.path}: {why}")
                    taken += self._together(rows, f"{file.path}, from row {first + 1} on")
                else:
                    for index, row_ in enumerate(rows):
                        why = wrong.get(index) or self._alone(row_)
                        if why:
                            self.letters.add(
                                self.sink, self.reader.segment, file, first + index, batch.slice(index, 1), why
                            )
                        else:
                            taken += 1
                first += batch.num_rows
        return taken

    def _together(self, rows: list[tuple[Any, ...]], where: str) -> int:
        try:
            count = self.db.executemany(self.sql, rows).rowcount
        except _REFUSED as error:
            raise self._declined(f"{where}: {error}") from error
        if count != len(rows):
            raise self._declined(f"{where}: {len(rows) - count} rows were left out by a trigger")
        return count

    def _alone(self, row: tuple[Any, ...]) -> str:
        """Why it is refused; "": it went in."""
        try:
            return "" if self.db.execute(self.sql, row).rowcount == 1 else "left out by a trigger"
        except _REFUSED as error:
            if not self.db.in_transaction:
                raise self._declined(f"{error}, and a trigger has rolled everything back") from error
            return str(error)

    def _declined(self, what: str) -> DeclinedError:
        return DeclinedError(
            f"table {self.table!r} refuses rows: {what}.", remedy="mend the job, or the table.", sink=self.sink
        )


def _head(fence: Fence) -> Head:
    return Head(installation=fence.installation, epoch=fence.epoch, attempt=fence.attempt, last_delivered=0, floor=0)
