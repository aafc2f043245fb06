"""Looks at the table of a table format: for the preflight and the doctor, for fitting columns, and for `verify`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.verify import Delivered, SinkReport, Target, targets
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile, WalReader
from airflow_ft.sinks.arrow import python_values
from airflow_ft.sinks.base.comparison import Row, compare
from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.base.places import only_sink
from airflow_ft.sinks.base.requirements import Finding, Requirement
from airflow_ft.sinks.base.table_columns import Column, Format, lacking, matched
from airflow_ft.sinks.set_aside import DeliveredLog


class Version(Protocol):
    """One version of a table."""

    @property
    def columns(self) -> Sequence[Column] | None:
        """Its columns; None: they are not known yet."""

    def oddities(self) -> Iterator[AirflowFtError]:
        """Yield what speaks against any rows in it."""


V = TypeVar("V", bound=Version)


class TableChecks(ABC, Generic[V]):
    """Looks of a system at its tables. `V` is one version of a table."""

    sink: ClassVar[Any]
    """A subclass of `airflow_ft.sinks.base.table_sink.TableSink`."""
    form: ClassVar[Format]
    version: ClassVar[Any]
    """The class of versions, whose `newest` reads a place."""

    @abstractmethod
    def at(self, sink: Any, connection: ConnectionInfo, *, quickly: bool = False) -> Any:
        """Return the table's place, whose text is its name. `quickly`: Spark waits, and nothing may be created."""

    def close(self, place: Any) -> None:
        """End the connection to a place, if it has one."""

    @abstractmethod
    def translated_errors(self, place: Any, **where: Any) -> AbstractContextManager[None]:
        """Raise errors of the system as ours, with their place: the fields `where`."""

    def newest(self, place: Any) -> V | None:
        """Return the newest version of the table; None: there is no table."""
        found: V | None = self.version.newest(place)
        return found

    @abstractmethod
    def rows(self, place: Any, version: V, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a version, with these columns."""

    @abstractmethod
    def shown(self, place: Any, version: V) -> str:
        """Describe a version, for the doctor."""

    @abstractmethod
    def problems(self, sink: Any, version: V | None, schema: pa.Schema, name: str) -> Iterable[AirflowFtError]:
        """Yield what speaks against rows with such columns in a version, or in a table that is made of them."""

    def room(self, sink: Any, place: Any, version: V | None) -> str:
        """Describe the space that is left, for the doctor. SinkAccessError: a file cannot be written there."""
        return ""

    def ask_storage(self, place: Any, version: V | None) -> None:
        """Ask the storage of the table's files, for the doctor: it may take long. Raise the client's error."""

    @contextmanager
    def looked(
        self, sink: Any, connection: ConnectionInfo, /, *, quickly: bool, **where: Any
    ) -> Iterator[tuple[Any, V | None]]:
        """Return the table's place and its newest version, while the block runs."""
        place = self.at(sink, connection, quickly=quickly)
        try:
            with self.translated_errors(place, **where):
                yield place, self.newest(place)
        finally:
            self.close(place)

    def required(self, pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
        """Yield what must be there before `prepare`: a place that can be reached, and a table that takes rows."""
        name, settings = only_sink(plan, "table")
        sink = self.sink.from_settings(plan.name, settings)
        look = partial(self._table, sink, connection)
        yield Requirement("table", look, name, partial(look, closely=True))

    def _table(self, sink: Any, connection: ConnectionInfo, *, closely: bool = False) -> Finding:
        with self.looked(sink, connection, quickly=True) as (place, there):
            if there is None and not sink.create:
                raise lacks_table(self.sink, place)
            if there is not None and (problems := list(there.oddities())):
                return Finding(problems=problems)
            room = self.room(sink, place, there)
            if closely:
                self.ask_storage(place, there)
            if there is None:
                return Finding(f"{place} will be created{room}")
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
            found += odd or (self.problems(sink, there, schema, name) if len(schema) else ())
        return found

    def verify(
        self, delivered: Sequence[Delivered], plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader
    ) -> list[SinkReport]:
        """Return one report for each table.

        SinkUnavailableError, SinkAccessError, WalCorruptError: nothing could be compared.
        """
        log = DeliveredLog.of(wal, delivered)
        found = []
        for target in targets(delivered, plan.name, lambda given: str(given["table"])):
            sink = self.sink.from_settings(plan.name, target.plan.sinks[target.name])
            with self.looked(sink, connection, quickly=False, participant=plan.name) as (place, there):
                report = replace(target.report, target=str(place))
                if there is None or there.columns is None:
                    what = f"the table {report.target} does not exist."
                    remedy = f"Restore {report.target}."
                    raise SinkUnavailableError(what, code="table_missing", remedy=remedy, table=report.target)
                found.append(self.compared(sink, place, there, replace(target, report=report), log))
        return found

    def compared(self, sink: Any, place: Any, version: V, target: Target, log: DeliveredLog) -> SinkReport:
        """Compare one table with the log's rows, also after others have compacted its files."""
        readers, columns = log.readers(target.sent), version.columns or ()
        written: set[str] = set()
        for _, name, reader in readers:
            schema = reader.schema(name)
            if what := misfit(self.form, schema, columns):
                return replace(target.report, error=what)
            written |= {column.name for column in matched(schema, columns).values()}
        names = [column.name for column in columns if column.name in written]

        def in_log(reader: SegmentReader, name: str, file: WalFile) -> Iterator[list[Row]]:
            for batch in reader.batches(name, file):
                yield rows_of(self.form.cast(batch, columns), names)

        there = self.rows(place, version, names) if names else ()
        return compare(target.report, readers, in_log, (rows_of(batch, names) for batch in there))


@dataclass
class CatalogTable(ABC):
    """A table's name in the catalog of a connection, which is opened at the first use."""

    connection: ConnectionInfo
    identifier: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.connection.conn_id, *self.identifier))

    @abstractmethod
    def close(self) -> None:
        """End the connection. The next use opens another one."""

    @abstractmethod
    def failure(self, error: Exception) -> AirflowFtError | None:
        """Return what is raised for an error of the catalog or of files; None: it is no such error."""

    @contextmanager
    def translated_errors(self, **where: Any) -> Iterator[None]:
        """Raise errors of the catalog and of files as ours, and all of ours with their place.

        Errors of the catalog and of files end the connection, and so does an interruption: the answer to another
        request may be on its way.
        """
        where = {"unconnected": True, **where}
        try:
            yield
        except OvertakenError:
            raise
        except AirflowFtError as error:
            raise error.located(**where) from error.__cause__
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception) or (ours := self.failure(error)) is None:
                raise
            raise ours.located(**where) from None


class CatalogChecks(TableChecks[V]):
    """Looks of a system at tables in a catalog."""

    def close(self, place: CatalogTable) -> None:
        place.close()

    def translated_errors(self, place: CatalogTable, **where: Any) -> AbstractContextManager[None]:
        return place.translated_errors(**where)


def lacks_table(sink: type, place: object) -> UnfitTargetError:
    """Return the error for a table that is not there, and that the sink does not create."""
    what = f"there is no table {place}, and the sink does not create it: create=False."
    remedy = f"Create the table, or set {sink.__name__}(create=True)."
    return UnfitTargetError(what, code="table_missing", remedy=remedy, table=str(place))


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
    names = rows.schema.names
    values = [python_values(rows.column(name)) if name in names else [None] * rows.num_rows for name in columns]
    return list(zip(*values, strict=True))
