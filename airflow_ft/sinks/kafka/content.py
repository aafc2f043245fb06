"""The rows of a plan: which files of the log a slot sends, and sending them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import NoReturn

from airflow_ft.protocol.errors import AirflowFtError, SinkUnavailableError, WalCorruptError
from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.write_ahead_log import WalFile, WalReader
from airflow_ft.sinks.ahead import Ahead
from airflow_ft.sinks.kafka.records import RecordColumns, RecordEncoder
from airflow_ft.sinks.kafka.sending import AckCounter, Sender
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.vote import SegmentRows, replaced_times

SLICES_AHEAD = 4  # as many as a batch of the log has, or 32 MB


SlotRecords = tuple[str, RecordColumns]  # the sink's name, and rows of it


class Reading:
    """Records of a slot, read ahead from the start, and again for every producer after the first."""

    def __init__(self, records: Callable[[], Iterator[SlotRecords]]) -> None:
        self._records = records
        self._begun: Ahead[SlotRecords] | None = self._ahead()

    def begin(self) -> Ahead[SlotRecords]:
        """All records, in order; to be closed."""
        begun, self._begun = self._begun, None
        return begun or self._ahead()

    def close(self) -> None:
        """Close the read-ahead that no producer used."""
        if self._begun is not None:
            self._begun.close()

    def _ahead(self) -> Ahead[SlotRecords]:
        return Ahead(self._records(), SLICES_AHEAD)


class PlanContent:
    """Rows that a participant's sinks receive from a plan's segments."""

    def __init__(self, participant: str, sinks: Mapping[str, KafkaSink], wal: WalReader) -> None:
        self._participant = participant
        self._sinks = sinks
        self._wal = wal

    def rows(self, plan: Plan) -> Iterator[tuple[SegmentRows, Segment]]:
        """Every sink's part of every segment, in the order of delivery."""
        for segment in plan.segments:
            reader = self._wal.open(segment)
            for name, sink in self._sinks.items():
                if name in reader.sinks():
                    yield SegmentRows(name, sink, reader), segment
                elif segment.rows.get(name, 0):
                    _missing(plan, segment, name)

    def loads(self, plan: Plan, slot: int) -> Iterator[tuple[SegmentRows, WalFile]]:
        """The files that a slot sends: fixed by the plan, so that a redo sends the same (R17)."""
        position = dict.fromkeys(self._sinks, 0)
        for rows, segment in self.rows(plan):
            found = 0
            for file in rows.reader.files(rows.name):
                found += file.rows
                if position[rows.name] % rows.sink.slots == slot:
                    yield rows, file
                position[rows.name] += 1
            if found != rows.reader.segment.rows.get(rows.name, 0):
                _missing(plan, segment, rows.name)

    def read(self, plan: Plan, slot: int) -> Reading:
        """The slot's rows, of which the first are read beside what else is done; to be closed."""
        return Reading(lambda: self._records(plan, slot))

    def send(self, plan: Plan, slot: int, reading: Reading, sender: Sender) -> Mapping[str, AckCounter]:
        """Sends the slot's files and waits for their acknowledgements, which must be as many as the manifest's rows.

        Raises:
            UnfitTargetError: the brokers have replaced timestamps that a sink maps: the topic was altered since the
                vote. Only their answer shows it without a gap.
        """
        counters = {name: AckCounter(sink.topic, sink.timestamp is not None) for name, sink in self._sinks.items()}
        expected = dict.fromkeys(counters, 0)
        for rows, file in self.loads(plan, slot):
            expected[rows.name] += file.rows
        with closing(reading.begin()) as ahead:
            for name, records in ahead:
                sender.send(counters[name].topic, records, counters[name])
        sender.flush(counters.values())
        for name, counter in counters.items():
            if counter.replaced:
                raise replaced_times(self._sinks[name], name).located(pipeline=plan.pipeline, checkpoint=plan.number)
            if counter.total != expected[name]:  # I2: never commit what was not acknowledged to the last row
                raise SinkUnavailableError(
                    f"the brokers acknowledged {count_text(counter.total, 'record')}, but the log has"
                    f" {count_text(expected[name], 'row')}.",
                    code="records_unacknowledged",
                    remedy="Retry. Nothing was committed.",
                    pipeline=plan.pipeline,
                    checkpoint=plan.number,
                    participant=self._participant,
                    sink=name,
                    acknowledged=counter.total,
                    rows=expected[name],
                )
        return counters

    def _records(self, plan: Plan, slot: int) -> Iterator[SlotRecords]:
        """Yield what a slot sends, in order."""
        for rows, file in self.loads(plan, slot):
            encoder = RecordEncoder(rows.sink, rows.reader.schema(rows.name))
            try:
                for batch in rows.reader.batches(rows.name, file):
                    for records in encoder.columns(batch):
                        yield rows.name, records
            except AirflowFtError as error:
                error.located(sink=rows.name, pipeline=plan.pipeline, checkpoint=plan.number)
                raise


def _missing(plan: Plan, segment: Segment, sink: str) -> NoReturn:
    raise WalCorruptError(
        f"checkpoint {segment.number} should have {count_text(segment.rows.get(sink, 0), 'row')} for the sink, but its"
        " files do not have them.",
        remedy="Restore the write-ahead log from a backup. These files are not delivered.",
        pipeline=plan.pipeline,
        checkpoint=plan.number,
        sink=sink,
        segment=segment.number,
    )
