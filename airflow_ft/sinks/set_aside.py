"""The log as it was delivered: without the rows that a person has set aside. For comparing it with the sinks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.protocol.set_aside import SetAside, of_proof
from airflow_ft.protocol.verify import Delivered, Sent
from airflow_ft.protocol.write_ahead_log import DeadLetters, SegmentReader, WalFile, WalReader
from airflow_ft.sinks.view import SegmentView

Places = Mapping[tuple[str, str], Sequence[tuple[int, int]]]  # by sink and file: first row, the one after the last


@dataclass(frozen=True, slots=True)
class DeliveredLog:
    """A `WalReader` that leaves out what the proofs of these deliveries say was set aside."""

    wal: WalReader
    places: Mapping[int, Places]  # by segment

    @classmethod
    def of(cls, wal: WalReader, delivered: Iterable[Delivered]) -> DeliveredLog:
        """The log of these deliveries; a segment is delivered once."""
        return cls.without(wal, [of_proof(each.proof) for each in delivered])

    @classmethod
    def without(cls, wal: WalReader, set_aside: Iterable[Mapping[str, SetAside]]) -> DeliveredLog:
        """The log without these rows, by sink."""
        found: dict[int, dict[tuple[str, str], list[tuple[int, int]]]] = {}
        for each in set_aside:
            for sink, aside in each.items():
                for number, file, start, stop in aside.places:
                    found.setdefault(number, {}).setdefault((sink, file), []).append((start, stop))
        return cls(wal, found)

    def open(self, segment: Segment) -> SegmentReader:
        """The segment, without those rows."""
        reader = self.wal.open(segment)
        places = self.places.get(segment.number)
        return _Without(reader, places) if places else reader

    def readers(self, sent: Iterable[Sent]) -> list[tuple[int, str, SegmentReader]]:
        """Number, sink and segment of each of these deliveries."""
        return [
            (each.plan.number, sink, reader)
            for each, sink in sent
            for reader in map(self.open, each.plan.segments)
            if sink in reader.sinks()
        ]

    def dead_letters(self, plan: Plan) -> DeadLetters:
        """Those of the log itself."""
        return self.wal.dead_letters(plan)


class _Without(SegmentView):
    """Rows are left out; the files have that many rows less."""

    def __init__(self, reader: SegmentReader, places: Places) -> None:
        super().__init__(reader)
        self._places = places

    @property
    def segment(self) -> Segment:
        segment = self._reader.segment
        rows = {sink: sum(file.rows for file in self.files(sink)) for sink in segment.rows if sink in self.sinks()}
        return replace(segment, rows={**segment.rows, **rows})

    def files(self, sink: str) -> Sequence[WalFile]:
        return [self._without(sink, file) for file in self._reader.files(sink)]

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        whole = next(each for each in self._reader.files(sink) if each.path == file.path)
        places = sorted(self._places.get((sink, file.path), ()))
        first = 0
        for batch in self._reader.batches(sink, whole):
            kept = 0  # rows of this batch that are handed out, or left out
            for start, stop in places:
                start, stop = max(0, start - first), min(batch.num_rows, stop - first)
                if kept < start and kept < batch.num_rows:
                    yield batch.slice(kept, min(start, batch.num_rows) - kept)
                kept = max(kept, min(start, batch.num_rows), stop)
            if kept < batch.num_rows:
                yield batch.slice(kept)
            first += batch.num_rows

    def _without(self, sink: str, file: WalFile) -> WalFile:
        left_out = sum(stop - start for start, stop in self._places.get((sink, file.path), ()))
        return replace(file, rows=file.rows - left_out)
