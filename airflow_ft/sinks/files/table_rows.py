"""Files that one step adds to a table of a table format: what such sinks have in common.

Files of the log become files of the table by a second name if their columns fit; otherwise the rows are written again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.model import Plan
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.arrow import positions
from airflow_ft.sinks.base.table_columns import Format
from airflow_ft.sinks.files.writing import Files, large
from airflow_ft.sinks.refused import NullFound, Refused, accepted, has_rows


@dataclass
class TableRows(ABC):
    """A system says which files fit, and how rows become the table's.

    `version` is the version of the table that they are added to, with its `columns`.
    """

    form: ClassVar[Format]
    results: ClassVar[Sequence[str]] = ()
    """Names of the fields with what `_write` has written."""

    version: Any
    sink: str
    file_bytes: int
    before: Any = field(default=None, kw_only=True)
    may_be_named: bool = field(default=False, kw_only=True)
    _kept: tuple[Any, int] | None = field(default=None, kw_only=True)
    """What the files were made for, and their rows."""

    def write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        """All rows, durably; how many. Without `dead_letters` DeclinedError for rows that the table refuses."""
        mine = [reader for reader in readers if has_rows(reader, self.sink)]
        if not mine:
            return 0
        made_for = self._made_for() if dead_letters is None else None
        before: TableRows | None = self.before
        if before is not None and made_for is not None and before._kept is not None and before._kept[0] == made_for:
            for name in (*self.results, "_kept", "may_be_named", "before"):
                setattr(self, name, getattr(before, name))
            return before._kept[1]
        if before is not None:  # otherwise each overtaken try would keep its files until the last one ends
            before.discard()
            self.before = None
        try:
            rows = self._write(plan, mine, dead_letters)
        except AirflowFtError as error:
            raise error.located(sink=self.sink) from error.__cause__
        self._kept = (made_for, rows)
        return rows

    def _made_for(self) -> Any:
        """Return what files of this version depend on: another version with the same takes them. None: none does."""
        return None

    def discard(self) -> None:
        """Remove what this try and those before have written, unless it may be named."""
        if not self.may_be_named:
            self._remove()
        if self.before is not None:
            self.before.discard()

    @abstractmethod
    def _remove(self) -> None:
        """Remove what was written."""

    @abstractmethod
    def _write(self, plan: Plan, readers: Sequence[SegmentReader], dead_letters: Refused | None) -> int:
        """Write the rows of some segments; at least one has rows."""

    def _fits(self, reader: SegmentReader) -> bool:
        """Return whether its files can be the table's as they are: then no row of them is refused either."""
        try:
            same = self.form.as_it_is(reader.schema(self.sink), self.version.columns or ())
        except AirflowFtError as error:
            raise error.located(sink=self.sink) from error.__cause__
        known = reader.statistics(self.sink)
        return same and all(name in known and not known[name].nulls for name in self._required)

    @property
    def _required(self) -> list[str]:
        return [column.name for column in self.version.columns or () if column.must]

    def _empty(self, rows: pa.RecordBatch) -> dict[int, str]:
        """Return the rows that lack a value, by their place, and why."""
        found: dict[int, str] = {}
        for name in self._required:
            if name in rows.schema.names and rows.column(name).null_count:
                empty = rows.column(name).is_null()
                found |= dict.fromkeys(positions(empty), NullFound(f"column {name!r}: NULL in a NOT NULL column"))
        return found

    @abstractmethod
    def _judged(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Mapping[int, str]]:
        """Rows as the table has them, and which of them it refuses: by position, and why."""

    def try_out(self, readers: Sequence[SegmentReader]) -> None:
        """DeclinedError for rows that `write` would refuse; writes nothing."""
        for reader in readers:
            if has_rows(reader, self.sink) and not self._fits(reader):
                for file in reader.files(self.sink):
                    for _ in self._taken(reader, file, None):
                        pass

    def _taken(self, reader: SegmentReader, file: WalFile, dead_letters: Refused | None) -> Iterator[pa.RecordBatch]:
        """The rows of a file, as the table has them, without those that are set aside."""
        return accepted(reader, self.sink, file, dead_letters, self._judged)

    def _filled(
        self,
        out: Files,
        readers: Sequence[SegmentReader],
        dead_letters: Refused | None,
        put: Callable[[pa.RecordBatch], None],
    ) -> list[WalFile]:
        """Write all rows; returns the files. `put` adds rows to those that are open. An error leaves no file open."""
        try:
            for reader in readers:
                adopted = large(reader.files(self.sink), len(readers), self.file_bytes) if self._fits(reader) else []
                for file in reader.files(self.sink):
                    if file in adopted:
                        out.adopt(reader, file, self.sink)
                        continue
                    for rows in self._taken(reader, file, dead_letters):
                        if rows.num_rows:  # else all were set aside
                            put(rows)
            return out.close()
        except BaseException:
            out.abandon()
            raise
