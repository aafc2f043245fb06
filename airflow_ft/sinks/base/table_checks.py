"""Looks at the table of a table format: for the preflight and the doctor, for fitting columns, and for `verify`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, Sent, SinkReport, by_target
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.base.requirements import Finding, Requirement
from airflow_ft.sinks.base.table_columns import Column, Format
from airflow_ft.sinks.base.table_format import compared, lacks_table
from airflow_ft.sinks.set_aside import DeliveredLog

if TYPE_CHECKING:
    import pyarrow as pa


class Version(Protocol):
    """One version of a table."""

    @property
    def columns(self) -> Sequence[Column] | None:
        """Its columns; None: they are not known yet."""

    def oddities(self) -> Iterator[AirflowFtError]:
        """Yield what speaks against any rows in it."""


V = TypeVar("V", bound=Version)
Rows = Callable[[Any, V, Sequence[str]], "Iterator[pa.RecordBatch]"]
"""Returns the rows of a version at a place, with these columns."""


class TableChecks(ABC, Generic[V]):
    """Base of the checks of a system's tables. `V` is one version of a table, and `sink` a class with `create`."""

    sink: ClassVar[Any]

    @abstractmethod
    def looked(
        self, sink: Any, connection: ConnectionInfo, /, *, quickly: bool, **where: Any
    ) -> AbstractContextManager[tuple[Any, V | None]]:
        """Return the table's place and its newest version (None: there is no table), while the block runs.

        Errors of the system become ours, with the fields `where`. `quickly`: Spark waits for the answer.
        """

    @abstractmethod
    def shown(self, place: Any, version: V) -> str:
        """Describe a version, for the doctor."""

    @abstractmethod
    def problems(self, sink: Any, version: V | None, schema: pa.Schema, name: str) -> Iterable[AirflowFtError]:
        """Yield what speaks against such rows in a version, or in a table that is made of them."""

    def room(self, sink: Any, place: Any) -> str:
        """Describe the space that is left, for the doctor."""
        return ""

    def required(self, pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
        """Yield what must be there before `prepare`: a place that can be reached, and a table that takes rows."""
        name, settings = only_sink(plan, "table")
        sink = self.sink.from_settings(plan.name, settings)
        yield Requirement("table", partial(self._table, sink, connection), name)

    def _table(self, sink: Any, connection: ConnectionInfo) -> Finding:
        with self.looked(sink, connection, quickly=True) as (place, there):
            room = self.room(sink, place)
            if there is None and not sink.create:
                raise lacks_table(self.sink, place)
            if there is None:
                return Finding(f"{place} will be created{room}")
            if problems := list(there.oddities()):
                return Finding(problems=problems)
            return Finding(f"{self.shown(place, there)}{room}")

    def schema_problems(
        self, plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
    ) -> Sequence[AirflowFtError]:
        """Return what speaks against the sink's schema; see `airflow_ft.sinks.fitting`."""
        found: list[AirflowFtError] = []
        for name, schema in schemas.items():
            sink = self.sink.from_settings(plan.name, plan.sinks[name])
            try:
                with self.looked(sink, connection, quickly=True, participant=plan.name, sink=name) as (_, version):
                    there = version
            except UnfitTargetError as error:  # it was asked, and what it is does not fit
                found.append(error)
                continue
            odd = [problem.located(sink=name) for problem in there.oddities()] if there is not None else []
            found += odd or self.problems(sink, there, schema, name)
        return found

    def verify(
        self,
        delivered: Sequence[Delivered],
        plan: ParticipantPlan,
        connection: ConnectionInfo,
        wal: WalReader,
        form: Format,
        rows: Rows[V],
    ) -> list[SinkReport]:
        """One report a table. SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared."""
        log = DeliveredLog.of(wal, delivered)
        found = []
        for sent in by_target(delivered, plan.name, lambda given: str(given["table"])).values():
            newest, name = sent[-1]
            sink = self.sink.from_settings(plan.name, newest.plan.participant(plan.name).sinks[name])
            with self.looked(sink, connection, quickly=False, participant=plan.name) as (place, there):
                into = list({each.plan.number: each for each, _ in sent}.values())
                report = SinkReport.begun(plan.name, (name for _, name in sent), str(place), into)
                found.append(self.compared(sink, place, there, sent, report, log, form, rows))
        return found

    def compared(
        self,
        sink: Any,
        place: Any,
        version: V | None,
        sent: Sequence[Sent],
        report: SinkReport,
        log: DeliveredLog,
        form: Format,
        rows: Rows[V],
    ) -> SinkReport:
        """Compare one table with the log's rows."""
        columns = version.columns if version is not None else None

        def found(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            assert version is not None
            return rows(place, version, names)

        return compared(sent, report, log, form, columns, found)
