"""Sending a segment's rows in the open transaction, and making sure that each of them arrived unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pymysql

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import DeadLetters, SegmentReader, WalFile
from airflow_ft.sinks.ahead import Ahead
from airflow_ft.sinks.base.slices import SlicedSegment
from airflow_ft.sinks.mysql.encoding import TargetColumn, load_lines, load_statement, slices
from airflow_ft.sinks.mysql.failures import (
    Meaning,
    code_for_rows,
    declined,
    describe,
    is_certain,
    is_lacking,
    meaning_of_rows,
    refuses_rows,
)
from airflow_ft.sinks.mysql.limits import Limits, packet_remedy
from airflow_ft.sinks.mysql.parameters import insert_statement, parameter_types, parameters
from airflow_ft.sinks.mysql.requirements import check_privileges
from airflow_ft.sinks.mysql.session import Insert, Load, Request, Session, Statement
from airflow_ft.sinks.mysql.vote import Target, unfit_rows
from airflow_ft.sinks.refused import OfTarget, Refused, path_of

T = TypeVar("T")
Encoder = Callable[[pa.RecordBatch], Sequence[T]]
_Encoded = tuple[int, Sequence[T]]  # of how many rows, and what was made of them
_Steps = tuple[Encoder[Any], Callable[..., int]]  # what encodes rows, and what sends them

# MySQL writes column 'c', MariaDB in some messages column `schema`.`table`.`c`.
_COLUMN = re.compile(r"[Cc]olumn (?:'(?P<column>.+?)'|(?:`[^`]*`\.)*`(?P<quoted>[^`]*)`)")
_ROW = re.compile(r" at row (?P<row>\d+)")


@contextmanager
def refusals(
    target: Target, file: WalFile, before: int, is_accessible: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Around one statement, behind `before` rows of the file: rows that are refused raise DeclinedError.

    `is_accessible` returns whether the server takes a statement without rows. If it does, an apparently missing
    privilege or table comes of the rows, by way of a trigger. If it does not (the connection was ended, the server
    goes offline), an error of any other number is no fault of the rows.
    """
    try:
        yield
    except pymysql.err.MySQLError as error:
        found = meaning_of_rows(error)
        certain = found is Meaning.ROWS and is_certain(error)
        if not certain and not (found in (Meaning.ROWS, Meaning.ACCESS) and is_accessible()):
            raise
        # No statement for the rows writes a marker, so a duplicate key is one of the user's own.
        column, row = place(describe(error))
        column = column.removeprefix(f"{target.table.name.name}.")  # MySQL writes 'orders.c' where it refuses JSON
        where = f"{before + row} of {file.path}" if row else ""
        refused = declined(error, f"the table {target.table.name} refuses a row")
        raise refused.located(sink=target.sink, column=column, row=where) from error


def place(message: str) -> tuple[str, int]:
    """Column ("" when not named) and row (0 when not named) in a message of the server, which counts rows from 1."""
    column, row = _COLUMN.search(message), _ROW.search(message)
    name = (column.group("column") or column.group("quoted")) if column else ""
    return name, (int(row.group("row")) if row else 0)


@dataclass(frozen=True, slots=True)
class Way:
    """Allowed ways to send rows: LOAD DATA LOCAL, and sending an INSERT before the previous one is answered.

    Starts with both; a way that a server refuses, or cannot explain, is dropped when the rows are sent again. With
    `dead_letters` (at a person's request) refused rows go there, and only the others are delivered.
    """

    load: bool = True
    ahead: bool = True
    dead_letters: DeadLetters | None = None

    def refused(self, label: str = "") -> Refused | None:
        """Return what collects the refused rows of a transaction; None: they end it."""
        return Refused(self.dead_letters, label) if self.dead_letters is not None else None


OR_LOAD = ", or SET GLOBAL local_infile = ON"
HEADROOM = 1024
"""Bytes of a packet that are left to the protocol."""

ONE_BY_ONE = Way(ahead=False)
"""For uses in which no later try would send the rows again."""


class AnotherWay(Exception):
    """The transaction must be rolled back, and its rows sent again in this way."""

    def __init__(self, way: Way, reason: str) -> None:
        super().__init__(reason)
        self.way = way


def path(session: Session, way: Way) -> str:
    """Return the way of the rows: "load" (LOAD DATA LOCAL, which may be refused) if it costs the server less, else
    "insert".

    Raises:
        SinkAccessError: the server allows neither.
    """
    can_load = session.can_load_local and way.load
    if can_load and not (session.is_mariadb and session.can_prepare):
        return "load"
    if not session.can_prepare:
        may_load = _may_load(session, way)
        what = "the server allows no prepared statements (max_prepared_stmt_count is 0)"
        raise SinkAccessError(
            f"{what}, and no LOAD DATA LOCAL." if may_load else f"{what}.",
            code="limit_reached",
            remedy=f"Run SET GLOBAL max_prepared_stmt_count = 16382{OR_LOAD if may_load else ''}.",
            setting="max_prepared_stmt_count",
        )
    return "insert"


def _may_load(session: Session, way: Way) -> bool:
    """Return whether rows would go by LOAD DATA LOCAL if the server allowed it."""
    return way.load and session.local_infile_allowed


class Loader:
    """Sends rows on the session's `path`. Memory: a few slices."""

    def __init__(self, session: Session, limits: Limits, way: Way) -> None:
        self._session = session
        self._limits = limits
        self._way = way
        self._path = path(session, way)
        self._first_row = 0  # of the file, where the branch's rows of it begin
        self._before = 0  # rows from there on that went before the present statement

    def send(self, reader: SegmentReader, target: Target) -> int:
        """Sends all rows of one sink in one segment; returns the rows that the server counted.

        Raises:
            AnotherWay: the rows have to be sent again.
            DeclinedError: the server refused, changed, dropped or questioned a row (LOAD DATA LOCAL makes warnings of
                errors, even in strict mode).
            pymysql.err.MySQLError: what the server answered. The transaction must be rolled back.
        """
        files = [file for file in reader.files(target.sink) if file.rows]
        if not files:  # the job returned nothing for it, perhaps not even columns
            return 0
        columns = target.written(reader.schema(target.sink))
        encode, send = self._way_of(reader, target, columns)
        pieces = (piece for file in files for piece in self._pieces(reader, target, file))
        encoded: Ahead[_Encoded[Any]] = Ahead((piece.num_rows, encode(piece)) for piece in pieces)
        sent = 0
        with closing(encoded):
            for file in files:
                self._first_row = _first_row(reader, target.sink, file)
                self._session.run("SAVEPOINT airflow_ft_file")
                try:
                    whole = replace(file, path=path_of(reader.segment, file))  # for errors
                    sent += send(encoded, target, columns, whole)
                except DeclinedError as error:
                    if not error.row and self._session.is_open:
                        error.located(row=self._place(reader, target, columns, file))
                    # The encoder does not know for whom it works.
                    raise error.located(sink=target.sink) from error.__cause__
            if next(encoded, None) is not None:  # it is at its end that a file's rows are counted
                raise AssertionError(f"{target.sink}: more rows than its files should have")
        return sent

    def _place(self, reader: SegmentReader, target: Target, columns: Sequence[TargetColumn], file: WalFile) -> str:
        """Find the row of a refused statement by halving its rows; "" if it cannot be found.

        Works in the transaction that will be rolled back.
        """
        put = partial(self._put, self._way_of(reader, target, columns), target, columns, file)
        self._way = replace(self._way, ahead=False)
        before = self._before

        def first_refused(rows: pa.RecordBatch) -> int | None:
            if not rows.num_rows or not put(rows):
                return None
            if rows.num_rows == 1:
                return 0
            middle = rows.num_rows // 2
            if (found := first_refused(rows.slice(0, middle))) is not None:
                return found
            return None if (found := first_refused(rows.slice(middle))) is None else middle + found

        first = 0
        with (
            suppress(pymysql.err.MySQLError, AirflowFtError),
            closing(self._session.awaiting(self._pieces(reader, target, file))) as pieces,
        ):
            self._session.run("ROLLBACK TO SAVEPOINT airflow_ft_file")
            for piece in pieces:
                start = min(piece.num_rows, max(0, before - first))
                if start and put(piece.slice(0, start)):
                    return ""
                if start < piece.num_rows and (found := first_refused(piece.slice(start))) is not None:
                    return f"{self._first_row + first + start + found + 1} of {path_of(reader.segment, file)}"
                first += piece.num_rows
        return ""

    def send_around(self, reader: SegmentReader, target: Target, refused: Refused) -> int:
        """As `send`, but single rows that the server refuses go into `refused`. Returns the rows that it took.

        They keep their order. Raises as `send` does; DeclinedError for a refusal that single rows do not cause.
        """
        taken = 0
        files = [file for file in reader.files(target.sink) if file.rows]
        columns = target.written(reader.schema(target.sink)) if files else []
        for file in files:
            first = _first_row(reader, target.sink, file)
            put = partial(self._put, self._way_of(reader, target, columns), target, columns, file)
            with closing(self._session.awaiting(self._pieces(reader, target, file))) as pieces:
                for piece in pieces:
                    wrong = self._unfit(target, piece) if target.judged_when_sent else {}
                    taken += refused.around(target.sink, reader.segment, file, first, piece, wrong, put)
                    first += piece.num_rows
        return taken

    def _unfit(self, target: Target, rows: pa.RecordBatch) -> dict[int, str]:
        """Rows that the table would take and change, by their place (from 0), and why."""
        return unfit_rows(target, rows)

    def _put(
        self, way: _Steps, target: Target, columns: Sequence[TargetColumn], file: WalFile, rows: pa.RecordBatch
    ) -> str:
        """All of these rows, and ""; or none of them, and why they are refused."""
        encode, send = way
        try:  # what the encoder refuses must not cut off a LOAD DATA, and the connection with it
            made = encode(rows)
        except (DeclinedError, SinkAccessError) as error:  # the latter: a row that is too large
            return error.what
        self._session.run("SAVEPOINT airflow_ft_part")
        try:
            with closing(Ahead(iter([(rows.num_rows, made)]))) as encoded:
                send(encoded, target, columns, replace(file, rows=rows.num_rows))
        except DeclinedError as error:
            self._session.run("ROLLBACK TO SAVEPOINT airflow_ft_part")
            return OfTarget(error.what) if is_lacking(error.__cause__) else error.what
        self._session.run("RELEASE SAVEPOINT airflow_ft_part")
        return ""

    def _way_of(self, reader: SegmentReader, target: Target, columns: Sequence[TargetColumn]) -> _Steps:
        """Return what encodes rows, and what sends them."""
        if self._path == "load":
            return lambda piece: [load_lines(piece, columns)], self._send_load
        return self._encoder(reader.schema(target.sink), target, columns), self._send_inserts

    def _send_load(
        self, encoded: Ahead[_Encoded[memoryview]], target: Target, columns: Sequence[TargetColumn], file: WalFile
    ) -> int:
        self._await_first(encoded)
        self._before = 0
        with refusals(target, file, self._first_row, partial(self._is_accessible, target, columns)):
            statement = self._session.load(load_statement(target.table.name.sql, columns), _of(file, encoded))
        self._check(statement, file.rows, target, file, self._first_row)
        return statement.affected

    def _send_inserts(
        self, encoded: Ahead[_Encoded[Request]], target: Target, columns: Sequence[TargetColumn], file: WalFile
    ) -> int:
        sent = 0
        self._await_first(encoded)
        answers = self._session.send(_of(file, encoded), ahead=self._way.ahead)
        while True:
            self._before = sent
            with refusals(target, file, self._first_row + sent, partial(self._is_accessible, target, columns)):
                answer = next(answers, None)
            if answer is None:
                return sent
            request, statement = answer
            counted = replace(statement, affected=self._counted(request, statement))
            self._check(counted, request.rows, target, file, self._first_row + sent)
            sent += request.rows

    def _is_accessible(self, target: Target, columns: Sequence[TargetColumn]) -> bool:
        """Return whether the server takes the same statements without rows, now."""
        try:
            self._require_access(target, columns)
        except (pymysql.err.MySQLError, SinkAccessError):
            return False
        return True

    def _require_access(self, target: Target, columns: Sequence[TargetColumn]) -> None:
        check_privileges(self._session, target, columns)

    def _encoder(self, schema: pa.Schema, target: Target, columns: Sequence[TargetColumn]) -> Encoder[Request]:
        """Return what makes statements of rows."""
        types = parameter_types(schema, columns)
        return lambda piece: list(self._inserts(piece, target, columns, types))

    def _counted(self, request: Request, statement: Statement) -> int:
        """The rows that the server has taken."""
        return statement.affected

    def _inserts(
        self, batch: pa.RecordBatch, target: Target, columns: Sequence[TargetColumn], types: bytes, suffix: str = ""
    ) -> Iterator[Request]:
        """INSERTs of all rows; SinkAccessError when a row is larger than the server takes."""
        names = tuple(column.name for column in columns)
        # Types and nulls come on top of the values.
        for given in parameters(batch, columns, min(self._limits.insert_bytes, self._room // 2)):
            rows = given.rows.num_rows
            size = given.size + len(types) * rows
            if size <= self._room:
                yield Insert(insert_statement(target.table.name.sql, names, rows, suffix), types, given)
            elif not suffix and self._way.load and self._session.can_load_local:
                # One row that fits no packet; in the text of LOAD DATA only its values must.
                yield Load(load_statement(target.table.name.sql, columns), [load_lines(given.rows, columns)], rows)
            else:
                raise SinkAccessError(
                    f"an INSERT of one row takes {size:,} bytes, more than max_allowed_packet allows"
                    f" ({self._session.max_allowed_packet:,}).",
                    code="limit_reached",
                    remedy=packet_remedy(size + HEADROOM, OR_LOAD if _may_load(self._session, self._way) else ""),
                    sink=target.sink,
                    setting="max_allowed_packet",
                    bytes=size,
                )

    @property
    def _room(self) -> int:
        """Bytes that the server takes at a time."""
        return self._session.max_allowed_packet - HEADROOM

    def _await_first(self, encoded: Ahead[Any]) -> None:
        """A large file is checked before its first row comes: keep the server, which waits only shortly, awake."""
        while not encoded.ready(self._limits.idle / 4):
            self._session.row("SELECT 1")

    def _pieces(self, reader: SegmentReader, target: Target, file: WalFile) -> Iterator[pa.RecordBatch]:
        for batch in reader.batches(target.sink, file):
            yield from slices(batch, self._limits.slice_bytes)

    def _check(self, statement: Statement, expected: int, target: Target, file: WalFile, before: int) -> None:
        """Affected rows as expected and no warnings at all, else nothing of this may be committed."""
        if statement.warnings == 0 and statement.affected == expected:
            return
        if statement.warnings and self._session.is_ahead:
            raise AnotherWay(
                replace(self._way, ahead=False),
                "the server warned after the next rows were sent; sending them again, one statement at a time",
            )
        if not statement.warnings:
            raise SinkUnavailableError(
                f"the server counted {statement.affected} of {count_text(expected, 'row')} of {file.path}, and gave no"
                " warning. Nothing was committed.",
                code="row_count_mismatch",
                remedy=f"Look for triggers on {target.table.name}, or a proxy, that change statements.",
                sink=target.sink,
                found=statement.affected,
                expected=expected,
            )
        unsaid = ("Warning", 0, "the server does not say why, because its max_error_count is 0")
        warnings = self._session.rows("SHOW WARNINGS") or [unsaid]
        warnings.sort(key=lambda warning: not refuses_rows(int(warning[1])))
        _, code, message = warnings[0]
        column, row = place(str(message))
        raise DeclinedError(
            f"the server changed or skipped rows: {str(message).rstrip('.')} (warning {code},"
            f" {statement.warnings} in all). {statement.affected} of {count_text(expected, 'row')} entered.",
            code=code_for_rows(int(code)),
            remedy=f"Correct the values in the job, or the columns and unique keys of {target.table.name}.",
            sink=target.sink,
            column=column,
            row=f"{before + row} of {file.path}" if row else "",
            errno=int(code),
            warnings=statement.warnings,
            found=statement.affected,
            expected=expected,
        )


def _first_row(reader: SegmentReader, sink: str, file: WalFile) -> int:
    """Return which row of the file (from 0) is the first one that the reader shows."""
    return reader.first_row(sink, file) if isinstance(reader, SlicedSegment) else 0


def _of(file: WalFile, encoded: Iterator[_Encoded[T]]) -> Iterator[T]:
    """Yield what was made of the rows of one file; the files must be asked for in order."""
    rows = 0
    while rows < file.rows and (found := next(encoded, None)) is not None:
        rows += found[0]
        yield from found[1]
