"""A segment of the log as something else sees it: some of its rows, or its values in another form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.write_ahead_log import ColumnStatistics, SegmentReader, WalFile

if TYPE_CHECKING:
    import pyarrow as pa


class SegmentView:
    """A `SegmentReader` that shows what another one shows; a class that builds on it says what is different."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader

    @property
    def segment(self) -> Segment:
        return self._reader.segment

    def sinks(self) -> Sequence[str]:
        return self._reader.sinks()

    def schema(self, sink: str) -> pa.Schema:
        return self._reader.schema(sink)

    def files(self, sink: str) -> Sequence[WalFile]:
        return self._reader.files(sink)

    def statistics(self, sink: str) -> Mapping[str, ColumnStatistics]:
        return self._reader.statistics(sink)

    def batches(self, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        return self._reader.batches(sink, file)


class OneFile(SegmentView):
    """A segment of which one file is shown."""

    def __init__(self, reader: SegmentReader, file: WalFile) -> None:
        super().__init__(reader)
        self.file = file

    def files(self, sink: str) -> Sequence[WalFile]:
        return [self.file]
