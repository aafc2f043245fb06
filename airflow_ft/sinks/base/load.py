"""Rows of the log on their way into a table, in the transaction that is open: what such sinks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.refused import Refused, code_of, path_of

if TYPE_CHECKING:
    import pyarrow as pa


def load_all(
    sinks: Iterable[str], readers: Sequence[SegmentReader], load: Callable[[str, SegmentReader], Load]
) -> dict[str, int]:
    """All rows of these segments; how many went into each sink. `load` is asked for each sink that a segment has."""
    return {sink: sum(load(sink, reader).all() for reader in readers if sink in reader.sinks()) for sink in sinks}


@dataclass
class Load(ABC):
    """Puts the rows of one sink and segment into its table, a batch of the log at a time.

    With `dead_letters` rows that are refused by themselves go there, and all others into the table. A system says how a
    batch enters, and which rows it would change without a word.
    """

    sink: str
    table: str
    reader: SegmentReader
    dead_letters: Refused | None

    @abstractmethod
    def insert(self, rows: pa.RecordBatch) -> str:
        """Puts all of them in, and returns ""; or none of them, and returns why they are refused."""

    def unfit(self, rows: pa.RecordBatch) -> Mapping[int, str]:
        """Rows that the table would take and change, by their place in the batch (from 0), and why."""
        return {}

    def all(self) -> int:
        """Return how many rows went in. DeclinedError: some are refused, or too many to be set aside."""
        return sum(
            self._put(file, first, batch)
            for file in self.reader.files(self.sink)
            for first, batch in self._batches(file)
        )

    def _batches(self, file: WalFile) -> Iterator[tuple[int, pa.RecordBatch]]:
        first = 0
        for batch in self.reader.batches(self.sink, file):
            yield first, batch
            first += batch.num_rows

    def _put(self, file: WalFile, first: int, rows: pa.RecordBatch) -> int:
        wrong = self.unfit(rows)
        if self.dead_letters is not None:
            return self.dead_letters.around(self.sink, self.reader.segment, file, first, rows, wrong, self.insert)
        if wrong:
            row, why = min(wrong.items())
            path = path_of(self.reader.segment, file)
            raise self.declined(f"row {first + row + 1} of {path}: {why}", path, code_of(why))
        if why := self.insert(rows):
            path = path_of(self.reader.segment, file)
            raise self.declined(f"{path}, from row {first + 1} on: {why}", path, code_of(why))
        return int(rows.num_rows)

    def declined(self, what: str, path: str = "", code: str = "row_refused") -> DeclinedError:
        """Return the error for rows that the table refuses; `path` is their file in the log."""
        return DeclinedError(
            f"the table {self.table!r} refuses rows: {what.rstrip('.')}.",
            code=code,
            remedy=f"Correct the rows in the job, or change the table {self.table}.",
            sink=self.sink,
            table=self.table,
            path=path,
        )
