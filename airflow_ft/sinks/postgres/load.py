"""Sends rows by COPY, a batch of the log at a time; the next one is encoded meanwhile.

They go in its binary format where each of their types has one (`binary`), else as CSV (`encoding`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg2
import pyarrow as pa

from airflow_ft.core.errors import DeclinedError
from airflow_ft.core.ports import SegmentReader, WalFile
from airflow_ft.sinks.ahead import Ahead
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres import binary
from airflow_ft.sinks.postgres.catalog import Column, Table
from airflow_ft.sinks.postgres.encoding import changed, encode
from airflow_ft.sinks.postgres.failures import Meaning, describe, meaning, refusal
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.refused import Refused


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as COPY reads them, and how."""

    format: str
    data: bytes | memoryview

    @classmethod
    def of(cls, rows: pa.RecordBatch, columns: Sequence[Column]) -> Encoded:
        """In the form that costs the server less, if there is one."""
        data = binary.encode(rows, columns)
        return cls("csv", encode(rows, columns)) if data is None else cls("binary", data)


@dataclass(frozen=True, slots=True)
class _Part:
    """A batch of a file, whose first row is row `first` of it (from 0). `wrong` are rows that would be changed."""

    file: WalFile
    first: int
    rows: pa.RecordBatch
    wrong: dict[int, str]
    data: Encoded


@dataclass(frozen=True, slots=True)
class Load:
    """Puts the rows of one sink and segment into its table, in the transaction of `session`.

    With `letters` rows that are refused by themselves go there, and all others into the table.
    """

    session: Session
    sink: str
    table: Table
    reader: SegmentReader
    letters: Refused | None
    told: str = ""
    """What errors call the table, where it is not the target itself."""
    judge: Callable[[pa.RecordBatch], Mapping[int, str]] | None = None
    """Find rows of a batch that are refused for another reason than their types, and say why."""

    def all(self) -> int:
        """Return how many went in. DeclinedError: rows are refused; psycopg2.Error: something else is."""
        taken = 0
        columns = self.table.columns_of(self.reader.schema(self.sink).names, self.sink)
        with closing(Ahead(self._parts(columns))) as parts:
            for part in parts:
                if self.letters is not None:
                    segment, refused = self.reader.segment, partial(self._refused, columns)
                    taken += self.letters.around(
                        self.sink, segment, part.file, part.first, part.rows, part.wrong, refused
                    )
                else:
                    self._together(part, columns)
                    taken += part.rows.num_rows
        return taken

    def _parts(self, columns: Sequence[Column]) -> Iterator[_Part]:
        for file in self.reader.files(self.sink):
            first = 0
            for batch in self.reader.batches(self.sink, file):
                wrong = changed(batch, columns)
                if self.judge is not None:
                    wrong = {**self.judge(batch), **wrong}
                yield _Part(file, first, batch, wrong, Encoded.of(batch, columns))
                first += batch.num_rows

    def _copy(self, columns: Sequence[Column], rows: Encoded) -> int:
        names = ", ".join(quoted(column.name) for column in columns)
        statement = f"COPY {self.table.name.sql} ({names}) FROM STDIN WITH (FORMAT {rows.format})"
        return self.session.copy(statement, rows.data)

    def _together(self, part: _Part, columns: Sequence[Column]) -> None:
        if part.wrong:
            row, why = min(part.wrong.items())
            raise self._declined(f"row {part.first + row + 1} of {part.file.path}: {why}")
        try:
            count = self._copy(columns, part.data)
        except psycopg2.Error as error:
            if meaning(error) is not Meaning.ROWS:
                raise
            place = _row_of(error, self.table.name.name, part, columns)
            where = f"row {part.first + place + 1}" if place is not None else f"a row behind row {part.first}"
            raise self._declined(f"{where} of {part.file.path}: {describe(error)}") from None  # it quotes the row
        if lacking := part.rows.num_rows - count:
            raise self._declined(f"{part.file.path}, from row {part.first + 1} on: {lacking} rows were {_LEFT_OUT}")

    def _refused(self, columns: Sequence[Column], rows: pa.RecordBatch) -> str:
        """Why they are refused, so that none of them went in; "": all did."""
        self.session.run("SAVEPOINT airflow_ft_rows")
        try:
            count = self._copy(columns, Encoded.of(rows, columns))
            why = "" if count == len(rows) else _LEFT_OUT
        except psycopg2.Error as error:
            found = refusal(error)
            if found is None:
                raise
            why = found
        if why:
            self.session.run("ROLLBACK TO SAVEPOINT airflow_ft_rows")
        self.session.run("RELEASE SAVEPOINT airflow_ft_rows")
        return why

    def _declined(self, what: str) -> DeclinedError:
        return DeclinedError(
            f"table {self.told or self.table.name} refuses rows: {what}",
            remedy="mend the job, or the table.",
            sink=self.sink,
        )


@contextmanager
def declining(sink: str) -> Iterator[None]:
    """DeclinedError for what the server refuses of rows by a statement, or COMMIT, that does not say which one."""
    try:
        yield
    except psycopg2.Error as error:
        if meaning(error) is not Meaning.ROWS:
            raise
        raise DeclinedError(
            f"rows are refused: {describe(error)}", remedy="mend the job, or the table.", sink=sink
        ) from None  # it quotes the row


_LEFT_OUT = "left out by a trigger."


def _row_of(error: psycopg2.Error, table: str, part: _Part, columns: Sequence[Column]) -> int | None:
    """The row of which the server speaks. Of CSV it counts lines: there are more of them where texts have several."""
    # The words between are the server's language.
    told = re.search(rf"^COPY {re.escape(table)}\D*(\d+)", error.diag.context or "", re.MULTILINE)
    if told is None:
        return None
    line, rows = int(told[1]), part.rows
    if part.data.format == "binary":
        return line - 1
    low, high = 0, rows.num_rows - 1
    while low < high:
        middle = (low + high) // 2
        if bytes(encode(rows.slice(0, middle + 1), columns)).count(b"\n") >= line:
            high = middle
        else:
            low = middle + 1
    return low
