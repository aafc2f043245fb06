"""Sends rows by COPY, a batch of the log at a time; the next one is encoded meanwhile.

They go in its binary format where each of their types has one (`binary`), else as CSV (`encoding`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg2
import pyarrow as pa

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.base.slices import SlicedSegment
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres import binary
from airflow_ft.sinks.postgres.catalog import Column, Table
from airflow_ft.sinks.postgres.encoding import changed, encode
from airflow_ft.sinks.postgres.failures import Meaning, code_of_refusal, describe, meaning, refusal
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.refused import Refused, path_of


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
    """A batch of a file, whose first row is row `first` of it (from 0).

    `wrong` are rows that would be changed, or of an unknown kind of change, if in `unknown`.
    """

    file: WalFile
    first: int
    rows: pa.RecordBatch
    wrong: dict[int, str]
    unknown: Container[int]
    data: Encoded


@dataclass(frozen=True, slots=True)
class Load:
    """Puts the rows of one sink and segment into its table, in the transaction of `session`.

    With `dead_letters` rows that are refused by themselves go there, and all others into the table.
    """

    session: Session
    sink: str
    table: Table
    reader: SegmentReader
    dead_letters: Refused | None
    table_label: str = ""
    """Name of the table in errors, if it is not the target itself."""
    judge: Callable[[pa.RecordBatch], Mapping[int, str]] | None = None
    """Find rows of a batch of an unknown kind of change, and say why."""

    def all(self) -> int:
        """Return how many went in. DeclinedError: rows are refused; psycopg2.Error: something else is."""
        taken = 0
        columns = self.table.columns_of(self.reader.schema(self.sink).names, self.sink)
        with closing(self.session.awaiting(self._parts(columns))) as parts:
            for part in parts:
                if self.dead_letters is not None:
                    segment, refused = self.reader.segment, partial(self._refused, columns)
                    taken += self.dead_letters.around(
                        self.sink, segment, part.file, part.first, part.rows, part.wrong, refused
                    )
                else:
                    self._together(part, columns)
                    taken += part.rows.num_rows
        return taken

    def _parts(self, columns: Sequence[Column]) -> Iterator[_Part]:
        for file in self.reader.files(self.sink):
            first = self.reader.first_row(self.sink, file) if isinstance(self.reader, SlicedSegment) else 0
            for batch in self.reader.batches(self.sink, file):
                unknown = self.judge(batch) if self.judge is not None else {}
                wrong = {**changed(batch, columns), **unknown}
                yield _Part(file, first, batch, wrong, unknown, Encoded.of(batch, columns))
                first += batch.num_rows

    def _copy(self, columns: Sequence[Column], rows: Encoded) -> int:
        names = ", ".join(quoted(column.name) for column in columns)
        statement = f"COPY {self.table.name.sql} ({names}) FROM STDIN WITH (FORMAT {rows.format})"
        return self.session.copy(statement, rows.data)

    def _together(self, part: _Part, columns: Sequence[Column]) -> None:
        path = path_of(self.reader.segment, part.file)
        if part.wrong:
            row, why = min(part.wrong.items())
            number = part.first + row + 1
            where = f"row {number} of {path}"
            code = "change_kind_unknown" if row in part.unknown else "value_unfit"
            raise self._declined(where, why, code, part, row_number=number)
        try:
            count = self._copy(columns, part.data)
        except psycopg2.Error as error:
            if meaning(error) is not Meaning.ROWS:
                raise
            place = _row_of(error, self.table.name.name, part, columns)
            where = f"row {part.first + place + 1}" if place is not None else f"a row after row {part.first}"
            known: dict[str, Any] = {"sqlstate": error.pgcode}
            if place is not None:
                known["row_number"] = part.first + place + 1
            where, code = f"{where} of {path}", code_of_refusal(error)
            raise self._declined(where, describe(error), code, part, **known) from None  # the cause quotes the row
        if lacking := part.rows.num_rows - count:
            where = f"{count_text(lacking, 'row')} of {path}, from row {part.first + 1} on"
            raise self._declined(where, _LEFT_OUT, "row_refused", part)

    def _refused(self, columns: Sequence[Column], rows: pa.RecordBatch) -> str:
        """Why they are refused, so that none of them went in; "": all did."""

        def put() -> str:
            count = self._copy(columns, Encoded.of(rows, columns))
            return "" if count == len(rows) else _LEFT_OUT

        return tried(self.session, "airflow_ft_rows", put)

    def _declined(self, rows: str, why: str, code: str, part: _Part, **fields: Any) -> DeclinedError:
        table = self.table_label or str(self.table.name)
        return DeclinedError(
            f"table {table} refuses {rows}: {why.rstrip('.')}.",
            code=code,
            remedy="Correct the rows in the job, or change the table so that it takes them.",
            sink=self.sink,
            table=table,
            path=path_of(self.reader.segment, part.file),
            **fields,
        )


def tried(session: Session, savepoint: str, put: Callable[[], str]) -> str:
    """Write rows by `put`, which returns why it refuses them, or "". Return that, or the server's reason.

    Nothing of refused rows stays.
    """
    session.run(f"SAVEPOINT {savepoint}")
    try:
        why = put()
    except psycopg2.Error as error:
        found = refusal(error)
        if found is None:
            raise
        why = found
    if why:
        session.run(f"ROLLBACK TO SAVEPOINT {savepoint}")
    session.run(f"RELEASE SAVEPOINT {savepoint}")
    return why


@contextmanager
def declining(sink: str) -> Iterator[None]:
    """DeclinedError for what the server refuses of rows by a statement, or COMMIT, that does not say which one."""
    try:
        yield
    except psycopg2.Error as error:
        if meaning(error) is not Meaning.ROWS:
            raise
        raise DeclinedError(
            f"the server refuses rows: {describe(error)}",
            code=code_of_refusal(error),
            remedy="Correct the rows in the job, or change the table so that it takes them.",
            sink=sink,
            sqlstate=error.pgcode,
        ) from None  # it quotes the row


_LEFT_OUT = "a trigger left the row out"


def _row_of(error: psycopg2.Error, table: str, part: _Part, columns: Sequence[Column]) -> int | None:
    """The row of which the server speaks. Of CSV it counts lines: there are more of them where texts have several."""
    # The words between are the server's language.
    match = re.search(rf"^COPY {re.escape(table)}\D*(\d+)", error.diag.context or "", re.MULTILINE)
    if match is None:
        return None
    line, rows = int(match[1]), part.rows
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
