"""Sending a segment's rows in the open transaction, and making sure that each of them arrived unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from typing import Any, Generic, TypeVar

import pyarrow as pa
import pymysql

from airflow_ft.core.errors import DeclinedError, SinkAccessError, SinkUnavailableError
from airflow_ft.core.ports import SegmentReader, WalFile
from airflow_ft.sinks.mysql.bulk import bulk_rows, bulk_statement, bulk_types
from airflow_ft.sinks.mysql.encoding import (
    TargetColumn,
    insert_statements,
    load_lines,
    load_statement,
    slices,
)
from airflow_ft.sinks.mysql.failures import Meaning, describe, failure, meaning, refuses_rows
from airflow_ft.sinks.mysql.session import Limits, Session, Statement
from airflow_ft.sinks.mysql.validation import Target

T = TypeVar("T")

# MySQL writes column 'c', MariaDB in some messages column `schema`.`table`.`c`.
_COLUMN = re.compile(r"[Cc]olumn (?:'(?P<column>.+?)'|(?:`[^`]*`\.)*`(?P<quoted>[^`]*)`)")
_ROW = re.compile(r" at row (?P<row>\d+)")


@contextmanager
def refusals(target: Target, file: WalFile, before: int) -> Iterator[None]:
    """Around one statement, behind `before` rows of the file: rows that are refused raise DeclinedError."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        if meaning(error) is not Meaning.ROWS:
            raise
        # The marker is in already, so a duplicate key is one of the user's own.
        column, row = place(describe(error))
        declined = failure(error, f"table {target.table.name}", rows=True)
        where = f"{before + row} of {file.path}" if row else ""
        raise declined.located(sink=target.sink, column=column, row=where) from error


def place(message: str) -> tuple[str, int]:
    """Column ("" when not named) and row (0 when not named) in a message of the server, which counts rows from 1."""
    column, row = _COLUMN.search(message), _ROW.search(message)
    name = (column.group("column") or column.group("quoted")) if column else ""
    return name, (int(row.group("row")) if row else 0)


def path(session: Session, *, use_insert: bool = False) -> str:
    """How rows go: by "bulk" where the server knows it, else by "load" or "insert" (LOAD DATA LOCAL may be refused)."""
    if session.can_bulk:
        return "bulk"
    return "insert" if use_insert or not session.can_load_local else "load"


class Loader:
    """Sends rows on the session's `path`. Memory: a few slices."""

    def __init__(self, session: Session, limits: Limits, *, use_insert: bool) -> None:
        self._session = session
        self._limits = limits
        self._use_insert = use_insert
        self._path = path(session, use_insert=use_insert)

    def send(self, reader: SegmentReader, target: Target) -> int:
        """Sends all rows of one sink in one segment; returns the rows that the server counted.

        Raises:
            DeclinedError: the server refused, changed, dropped or questioned a row (LOAD DATA LOCAL makes warnings of
                errors, even in strict mode).
            pymysql.err.MySQLError: what the server answered; the transaction must be rolled back.
        """
        if not reader.files(target.sink):  # the job returned nothing for it, perhaps not even columns
            return 0
        columns = target.written(reader.schema(target.sink))
        return sum(self._send_file(reader, target, columns, file) for file in reader.files(target.sink))

    def _send_file(self, reader: SegmentReader, target: Target, columns: Sequence[TargetColumn], file: WalFile) -> int:
        if file.rows == 0:
            return 0
        ways = {"bulk": self._send_bulk, "load": self._send_load, "insert": self._send_inserts}
        affected = ways[self._path](reader, target, columns, file)
        if affected != file.rows:
            raise self._lost(affected, file.rows, target, file)
        return affected

    def _send_bulk(self, reader: SegmentReader, target: Target, columns: Sequence[TargetColumn], file: WalFile) -> int:
        sql = bulk_statement(target.table.name.sql, columns)
        types = bulk_types(reader.schema(target.sink), columns)
        size = min(self._limits.insert_bytes, self._room) - len(types)
        pieces = self._pieces(reader, target, file)
        affected = 0
        with closing(_Ahead(each for piece in pieces for each in bulk_rows(piece, columns, size))) as packets:
            self._await_first(packets)
            for packet, rows in packets:
                with refusals(target, file, affected):
                    if len(types) + len(packet) > self._room and not self._use_insert and self._session.can_load_local:
                        # One row that fits no packet; in the text of LOAD DATA only its values must.
                        load = load_statement(target.table.name.sql, columns)
                        statement = self._session.load(load, [load_lines(rows, columns)])
                    else:
                        self._check_packet(len(types) + len(packet), target)
                        statement = self._session.bulk(sql, types, packet)
                self._check(statement, rows.num_rows, target, file, affected)
                affected += statement.affected
        return affected

    def _send_load(self, reader: SegmentReader, target: Target, columns: Sequence[TargetColumn], file: WalFile) -> int:
        pieces = self._pieces(reader, target, file)
        with closing(_Ahead(load_lines(piece, columns) for piece in pieces)) as lines:
            self._await_first(lines)
            with refusals(target, file, 0):
                statement = self._session.load(load_statement(target.table.name.sql, columns), lines)
        self._check(statement, file.rows, target, file, 0)
        return statement.affected

    def _send_inserts(
        self, reader: SegmentReader, target: Target, columns: Sequence[TargetColumn], file: WalFile
    ) -> int:
        affected = 0
        with closing(_Ahead(self._inserts(reader, target, columns, file))) as statements:
            self._await_first(statements)
            for sql, rows in statements:
                self._check_packet(len(sql), target)
                with refusals(target, file, affected):
                    statement = self._session.run_bytes(sql)
                self._check(statement, rows, target, file, affected)
                affected += statement.affected
        return affected

    @property
    def _room(self) -> int:
        """Bytes of parameters or text that the server takes at a time."""
        return self._session.max_allowed_packet - 1024

    def _ahead(self, items: Iterator[T]) -> _Ahead[T]:
        return _Ahead(items)

    def _await_first(self, pieces: _Ahead[Any]) -> None:
        """A large file is checked before its first row comes: keep the server, which waits only shortly, awake."""
        while not pieces.ready(self._limits.idle / 4):
            self._session.row("SELECT 1")

    def _pieces(self, reader: SegmentReader, target: Target, file: WalFile) -> Iterator[pa.RecordBatch]:
        for batch in reader.batches(target.sink, file):
            yield from slices(batch, self._limits.slice_bytes)

    def _inserts(
        self, reader: SegmentReader, target: Target, columns: Sequence[TargetColumn], file: WalFile
    ) -> Iterator[tuple[bytes, int]]:
        size = min(self._limits.insert_bytes, self._room)
        for piece in self._pieces(reader, target, file):
            yield from insert_statements(target.table.name.sql, piece, columns, size)

    def _check_packet(self, size: int, target: Target) -> None:
        """A larger statement would only cut the connection; one row alone may be that large."""
        if size > self._room:
            raise SinkAccessError(
                f"an INSERT of one row takes {size:,} bytes, more than max_allowed_packet allows"
                f" ({self._session.max_allowed_packet:,}).",
                remedy="raise max_allowed_packet of the server, or switch local_infile on.",
                sink=target.sink,
            )

    def _check(self, statement: Statement, expected: int, target: Target, file: WalFile, before: int) -> None:
        """Affected rows as expected and no warnings at all, else nothing of this may be committed."""
        if statement.warnings == 0 and statement.affected == expected:
            return
        warnings = self._session.rows("SHOW WARNINGS") if statement.warnings else []
        if not statement.warnings:
            raise self._lost(statement.affected, expected, target, file)
        if not warnings:
            warnings = [("Warning", 0, "the server does not say why, since its max_error_count is 0")]
        warnings.sort(key=lambda warning: not refuses_rows(int(warning[1])))
        _, code, message = warnings[0]
        column, row = place(str(message))
        raise DeclinedError(
            f"the server did not take the rows as they are: {message} (warning {code},"
            f" {statement.warnings} in all; {statement.affected} of {expected} rows entered).",
            remedy="mend the values or the table; ask for the columns' types and the unique keys.",
            sink=target.sink,
            column=column,
            row=f"{before + row} of {file.path}" if row else "",
        )

    def _lost(self, affected: int, expected: int, target: Target, file: WalFile) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"the server counted {affected} rows of {expected} in {file.path}, without a warning.",
            remedy="nothing was committed; look for triggers or proxies on this table that change statements.",
            sink=target.sink,
        )


class _Ahead(Generic[T]):
    """The same items, the next one being made in a thread while the caller is busy with this one."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items: Iterator[T] = items
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="airflow-ft-mysql")
        self._next: Future[T | None] = self._pool.submit(next, self._items, None)

    def ready(self, seconds: float) -> bool:
        """Waits up to `seconds` for the next item; whether it is there."""
        return bool(wait([self._next], seconds).done)

    def __iter__(self) -> Iterator[T]:
        while (item := self._next.result()) is not None:
            self._next = self._pool.submit(next, self._items, None)
            yield item

    def close(self) -> None:
        """Waits for the item being made, and makes no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
