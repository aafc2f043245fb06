"""Shared part of sinks into tables of a table format: rows, marker and head in one commit of the table (ATOMIC).

A step reads the newest version of the table, and with it the head. It commits onto exactly that version, or starts
over. So the order of commits is the order of ranks (I5), as with a lock. A system defines what a version is, how rows
become files that no version names yet, and how a commit is made.

What if the process dies, or sleeps and wakes up beside its successor, before ...

- the head is raised (prepare): a new table may be left, without rows. The next process finds it. The sleeper commits
  onto an outdated version, is refused, reads the head, and finds that it is newer.
- files are complete (commit): files are left that no version names. The next process writes its own. The same process
  keeps its files while others overtake it: otherwise a writer of small commits could overtake it every time.
- the commit: the same. Any later change of the head makes the sleeper's commit fail.
- the answer: the next process reads the marker. Nothing is removed after a commit whose outcome is not known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, StoreBehindSinkError, together
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan
from airflow_ft.protocol.votes import Proof
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalReader
from airflow_ft.sinks.base.document import DocumentLedger, DocumentParticipant, OvertakenError
from airflow_ft.sinks.base.memory import AS_IT_IS
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.base.table_checks import TableChecks, Version, lacks_table
from airflow_ft.sinks.base.table_columns import lacking
from airflow_ft.sinks.refused import Refused

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
V = TypeVar("V", bound="Committed")


class Committed(Version, Protocol):
    """One version of a table that this sink commits to."""

    def ledger(self, group: str) -> DocumentLedger:
        """Return what it remembers of a pipeline and participant. OvertakenError: it is too old for that."""

    def sync(self, ledger: Any) -> None:
        """Returns when it survives a power cut: its writer may have died before. `ledger` is its own."""


class Staged(Protocol):
    """Files that one try of a step adds to a version of a table."""

    before: Any
    """The try before, whose files `write` takes over if they are right for this version, too."""
    may_be_named: bool
    """Whether a commit names the files, or one may whose outcome is not known."""

    def write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        """All rows, durably; how many. Without `dead_letters` DeclinedError for rows that the table refuses."""

    def try_out(self, readers: Sequence[SegmentReader]) -> None:
        """DeclinedError for rows that `write` would refuse; writes nothing."""

    def discard(self) -> None:
        """Remove what this try and those before have written, unless it may be named."""


S = TypeVar("S", bound=Staged)


@dataclass
class TableParticipant(DocumentParticipant[tuple[V, S, str]], Generic[V, S]):
    """One table, and the one sink that writes there. See `airflow_ft.protocol.participant.Participant`.

    `V` is one version of the table, `S` the files that a step adds to it. A transaction is both, and the memory's name.
    """

    others = "other writers of the table"
    checks: ClassVar[TableChecks[Any]]
    kept: ClassVar[str]
    """What of a table holds the sink's memory, for people."""
    prefix: ClassVar[str] = ""
    """How the names of memories begin in a table."""

    name: str
    sink_name: str
    sink: Any
    place: Any
    wal: WalReader
    _tried: S | None = None
    """The step's try before, which was overtaken."""

    @classmethod
    def of(cls, plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> Self:
        """The participant of a plan: one table. ConfigurationError when it has several."""
        name, settings = only_sink(plan, "table")
        sink = cls.checks.sink.from_settings(plan.name, settings)
        return cls(plan.name, name, sink, cls.checks.at(sink, connection), wal)

    # --- what a system says --------------------------------------------------------------------------------------

    def _newest(self) -> V | None:
        """The newest version; None: there is no table."""
        found: V | None = self.checks.newest(self.place)
        return found

    @abstractmethod
    def _made(self, schema: pa.Schema | None) -> V:
        """A new table; None: its columns are not known yet. OvertakenError: another process has just made one."""

    def _ledger(self, version: V, group: str) -> DocumentLedger:
        """Return what a version remembers of a pipeline; see `_group`."""
        return version.ledger(group)

    @abstractmethod
    def _staged(self, version: V, group: str, rank: tuple[int, int]) -> S:
        """Files that a step adds to a version: none yet."""

    @abstractmethod
    def _commit_onto(self, version: V, group: str, ledger: Any, staged: S, says: Mapping[str, Any]) -> None:
        """Add the files, and make the ledger count. OvertakenError: it is not the newest version any more."""

    @abstractmethod
    def _evolve(self, version: V, group: str, schema: pa.Schema) -> bool:
        """Commit the columns that a version lacks; False: it lacks none.

        OvertakenError as above, also if another process has replaced the document of `group`.
        """

    def _written(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of such rows that the table gets."""
        return schema

    def _require_beginning(self) -> None:
        """Raise what speaks against a first delivery here."""

    # --- the steps -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection to the place."""
        self.checks.close(self.place)

    def _persist(self, doing: str, step: Callable[[], T], fence: Fence | None = None, plan: Plan | None = None) -> T:
        try:
            return super()._persist(doing, step, fence, plan)
        finally:
            tried, self._tried = self._tried, None
            if tried is not None:
                with self._translated_errors(plan):
                    tried.discard()

    def _preflight(self) -> dict[str, Any]:
        return {"table": str(self.place)}

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
                evolved = self._evolve(db[0], db[2], schema)
            except AirflowFtError as error:
                raise error.located(sink=self.sink_name) from error.__cause__
            if evolved:
                raise OvertakenError  # by oneself: the rest is judged by the table as it is now

    def _vote(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        if plan.commit_point != self.name:
            with self._translated_errors(plan):
                if (there := self._newest()) is not None:
                    self._staged(there, self._group(plan.pipeline), fence.rank).try_out(readers)
        return {}

    def judge(self, pipeline: str, readers: Sequence[SegmentReader]) -> None:
        """See `airflow_ft.protocol.participant.Judging`. Judges no rows with columns that `prepare` is to add."""
        with self._translated_errors():
            there = self._newest()
            schemas = map(self._written, self._schemas(readers))
            if there is not None and not any(lacking(each, there.columns or ()) for each in schemas):
                self._staged(there, self._group(pipeline), (0, 0)).try_out(readers)

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
            version, group = self._newest(), self._group(fence.pipeline)
            begins = create and (plan is None or plan.participant(self.name).predecessor == 0)
            if version is None and begins:  # else others have dropped or renamed it
                if not self.sink.create:
                    raise lacks_table(type(self.sink), self.place).located(sink=self.sink_name)
                version = self._made(self._first_schema(plan))
            ledger = self._ledger(version, group) if version is not None else None
            if version is None or ledger is None or (ledger.head() is None and not begins):
                what = f"the sink has lost its fence: {self.place} is gone or was created again, or lacks {self.kept}."
                remedy = f"Restore the table, with {self.kept}, then run `airflow ft resume`. {AS_IT_IS}"
                raise StoreBehindSinkError(what, code="ledger_lost", remedy=remedy, table=str(self.place))
            if ledger.head() is None:
                self._require_beginning()
            staged = self._staged(version, group, fence.rank)
            staged.before, self._tried = self._tried, None
            try:
                yield (version, staged, group), ledger
            except BaseException:
                staged.discard()
                raise
            if not ledger.has_changed:
                version.sync(ledger)
            elif keep:
                try:
                    self._commit_onto(version, group, ledger, staged, self._says(fence, plan))
                except OvertakenError as error:
                    staged.may_be_named |= not error.nothing
                    self._tried = staged
                    raise
                staged.may_be_named = True
            staged.discard()

    @contextmanager
    def _reading(self, pipeline: str, plan: Plan | None = None) -> Iterator[DocumentLedger | None]:
        """None: there is no table, or it has never seen the pipeline."""
        with self._translated_errors(plan):
            version = self._newest()
            ledger = self._ledger(version, self._group(pipeline)) if version is not None else None
            if version is not None and ledger is not None:
                version.sync(ledger)
            yield ledger if ledger is not None and ledger.head() is not None else None

    def _place(self) -> str:
        return str(self.place)

    def _where(self, plan: Plan | None) -> dict[str, Any]:
        return {**super()._where(plan), "unconnected": True}

    def _translated_errors(self, plan: Plan | None = None) -> AbstractContextManager[None]:
        return self.checks.translated_errors(self.place, **self._where(plan))

    # --- what the steps share ----------------------------------------------------------------------------------------

    def _group(self, pipeline: str) -> str:
        """Return the name of the memory of a pipeline in the table."""
        return f"{self.prefix}{pipeline}/{self.name}"

    def _judged(self, version: V, readers: Sequence[SegmentReader]) -> list[AirflowFtError]:
        """All that speaks against these rows in this version of the table."""
        found: list[AirflowFtError] = list(version.oddities())
        for schema in self._schemas(readers):
            found += self.checks.problems(self.sink, version, schema, self.sink_name)
        return [problem.located(sink=self.sink_name) for problem in found]

    def _schemas(self, readers: Sequence[SegmentReader]) -> list[pa.Schema]:
        mine = (reader.schema(self.sink_name) for reader in readers if self.sink_name in reader.sinks())
        return list(dict.fromkeys(schema for schema in mine if len(schema)))

    def _first_schema(self, plan: Plan | None) -> pa.Schema | None:
        """Return what the table is made of; None: nothing that it could hold is known."""
        readers = [self.wal.open(segment) for segment in plan.segments] if plan is not None else []
        for schema in self._schemas(readers)[:1]:
            if not list(self.checks.problems(self.sink, None, schema, self.sink_name)):
                return schema
        return None

    def _says(self, fence: Fence, plan: Plan | None) -> dict[str, Any]:
        """For people who look at the table's history; nothing rests on it."""
        epoch, attempt = fence.rank
        says = {"pipeline": fence.pipeline, "installation": fence.installation, "epoch": epoch, "attempt": attempt}
        return {**says, "checkpoint": plan.number, "digest": plan.digest} if plan is not None else says
