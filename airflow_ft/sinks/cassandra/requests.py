"""Send rows to Cassandra in small batches, side by side."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from cassandra import Unavailable, WriteTimeout
from cassandra.cluster import Session
from cassandra.protocol import OverloadedErrorMessage
from cassandra.query import BatchStatement, BatchType, PreparedStatement, Statement

from airflow_ft.sinks.base.in_flight import InFlight

_IN_FLIGHT = 64  # requests
_TRIES = 6
_BATCH_ROWS, _BATCH_BYTES = 10, 4_000
"""Of a batch, at most: from 10 partitions and 5 KiB on, Cassandra warns of each by default."""
_VALUE_BYTES = 16
_REPEATED = WriteTimeout, Unavailable, OverloadedErrorMessage


class Requests(InFlight):
    """Requests in flight, at most `_IN_FLIGHT`: the next rows are read while the server works.

    Writes without an answer are repeated, as each has its own timestamp. Other errors of the server are raised by a
    later call, or at the end.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(_IN_FLIGHT)
        self._session = session
        self._failed: deque[tuple[Exception, Statement, int]] = deque()

    def write(self, statement: PreparedStatement, rows: Sequence[Sequence[Any]]) -> None:
        """Send rows; returns when all are on their way."""
        for batch in _batches(statement, rows):
            self._repeat()
            self._send(batch, 1)

    def _send(self, statement: Statement, tried: int) -> None:
        self._begin(lambda: self._start(statement, tried))

    def _start(self, statement: Statement, tried: int) -> None:
        future = self._session.execute_async(statement)
        future.add_callbacks(self._answered, self._refused, errback_args=(statement, tried))

    def _answered(self, _: Any) -> None:
        self._done()

    def _refused(self, error: Exception, statement: Statement, tried: int) -> None:
        self._failed.append((error, statement, tried))
        self._done()

    def _repeat(self) -> None:
        """Send again what was not answered. Raises errors that a repetition does not help."""
        if not self._failed:
            return
        failed = [self._failed.popleft() for _ in range(len(self._failed))]
        for error, _, tried in failed:
            if tried == _TRIES or not isinstance(error, _REPEATED):
                raise error
        time.sleep(random.uniform(0, 0.05 * 2 ** max(tried for _, _, tried in failed)))
        for _, statement, tried in failed:
            self._send(statement, tried + 1)

    def _end(self, *, in_error: bool) -> None:
        while self._failed and not in_error:
            self._repeat()
            self._wait()


def _batches(statement: PreparedStatement, rows: Sequence[Sequence[Any]]) -> Iterator[Statement]:
    """Yield small batches, as few requests cost less; they promise nothing. A large row goes alone."""
    batch, size = BatchStatement(BatchType.UNLOGGED, consistency_level=statement.consistency_level), 0
    for row in rows:
        bytes_ = sum(len(value) if isinstance(value, str | bytes) else _VALUE_BYTES for value in row)
        if bytes_ > _BATCH_BYTES:
            yield statement.bind(row)
            continue
        if len(batch) == _BATCH_ROWS or size + bytes_ > _BATCH_BYTES:
            yield batch
            batch, size = BatchStatement(BatchType.UNLOGGED, consistency_level=statement.consistency_level), 0
        batch.add(statement, row)
        size += bytes_
    if len(batch):
        yield batch
