"""Report the progress of a long delivery: the rows that a participant has read, of those it is to deliver.

All participants read the log through this module, so none has to report. Their work on read rows (send, encode, wait
for a server) is at most some batches behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.protocol.delivery_progress import DELIVERY_PROGRESS, Taken
from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.protocol.rate import Rate
from airflow_ft.protocol.write_ahead_log import DeadLetters, SegmentReader, WalFile, WalReader
from airflow_ft.sinks.view import SegmentView

if TYPE_CHECKING:
    import pyarrow as pa

EACH_SECONDS = 10.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TellingWal:
    """A log that says every ten seconds how many of a segment's rows `participant` has read; short ones say nothing."""

    wal: WalReader
    participant: str
    clock: Callable[[], float] = time.monotonic

    def open(self, segment: Segment) -> SegmentReader:
        return _Told(self.wal.open(segment), self)

    def dead_letters(self, plan: Plan) -> DeadLetters:
        return self.wal.dead_letters(plan)


class _Told(SegmentView):
    def __init__(self, reader: SegmentReader, wal: TellingWal) -> None:
        super().__init__(reader)
        self._wal, self._told = wal, wal.clock()
        self._read: dict[tuple[str, str], int] = {}  # of each file, since it was begun for the last time
        self._rates: dict[str, Rate] = {}

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        self._read[sink, file.path] = 0
        if sink not in self._rates:
            self._rates[sink] = Rate()
            self._rates[sink].rate(self._wal.clock(), 0)
        for batch in super().batches(sink, file):
            yield batch
            self._read[sink, file.path] += batch.num_rows
            self._tell(sink)

    def _tell(self, sink: str) -> None:
        now = self._wal.clock()
        if now - self._told < EACH_SECONDS:
            return
        self._told = now
        read = sum(rows for (name, _), rows in list(self._read.items()) if name == sink)
        segment = self.segment
        pipeline = segment.location.rsplit("/", 3)[1]  # <root>/<pipeline>/<epoch>-<attempt>/<batch> (`airflow_ft.wal`)
        rate = self._rates[sink].rate(now, read)
        taken = Taken(pipeline, segment.number, self._wal.participant, sink, read, segment.rows.get(sink, 0), rate)
        DELIVERY_PROGRESS.tell(taken)
        log.info("%s", taken)
