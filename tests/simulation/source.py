"""What a pipeline reads and computes: numbered items, each computed anew (with another result) by each attempt.

A segment holds one item. Its `variant` tells which attempt computed it, `parent` which variant of the item before was
in the operator state: so a sink that shows 2 computed on top of another 1 than it holds shows a broken I1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.protocol.model import Plan, Segment, SparkPosition
from airflow_ft.protocol.write_ahead_log import DeadLetters, WalFile
from airflow_ft.spark.state.locations import START_FILE

ORDERS = "orders"
PARTS = "parts"
"""The sink whose rows are in several files, for several slots."""
SLICE = 3  # as many offsets as a full slice has; what is no slice has one
CLOSED = "closed"
"""The state after a drain: every window is closed, and whatever were read from here on would be too late."""


EMPTY = "^"
"""In a state: a micro-batch has come in between that read nothing, so items are a number behind micro-batches."""
NO_WATERMARK = '{"batchWatermarkMs": 0}'
"""What Spark notes of a micro-batch, where nothing else is known of it."""


@dataclass(frozen=True, slots=True)
class Item:
    """The rows of one micro-batch: the same text goes into every sink. `part` (from 1): one of several rows.

    `drained`: it came out of a window that was still open. Number 0 is no item: nothing came out.
    """

    number: int
    variant: str
    parent: str
    part: int = 0
    drained: bool = False

    def __str__(self) -> str:
        drained = "!" if self.drained else ""
        return f"{self.number}{self.variant}{drained}" + (f"/{self.part}" if self.part else "")

    def rows(self, count: int) -> Rows:
        """The item as so many rows."""
        return Rows([self] if count == 1 else [replace(self, part=part) for part in range(1, count + 1)])


def plain(state: str) -> str:
    """The variant that stands in a state."""
    return state.replace(EMPTY, "")


def empties(state: str) -> int:
    """How many micro-batches without an item, such as that of a rescaling, are among those behind a state."""
    return state.count(EMPTY)


def once_more(state: str, before: int, end: int, watermark: int) -> str:
    """The state behind a micro-batch that is computed for its sake alone: it tells what with."""
    return state + (EMPTY if end == before else f">{end}@{watermark}")


def opened(state: Mapping[int, str], number: int) -> Item:
    """The item that a micro-batch has read, as it stands in the state."""
    return Item(number - empties(state[number]), plain(state[number]), plain(state.get(number - 1, "")))


class Rows(list["Item"]):
    """As much of a pyarrow.RecordBatch as `slices` asks for."""

    @property
    def num_rows(self) -> int:
        return len(self)

    @property
    def nbytes(self) -> int:
        return len(self)

    def slice(self, start: int, length: int | None = None) -> Rows:
        return Rows(self[start:] if length is None else self[start : start + length])

    def take(self, _: Any) -> Rows:
        """A copy of the first row."""
        return Rows(self[:1])


@dataclass
class Topic:
    """What a source reads beside the items: offsets from `first` on, up to `end`."""

    id: str
    first: int = 0
    end: int = 0


class Wal:
    """The write-ahead log and Spark's locations: what is in them, by location."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}  # by manifest digest; kept for ever, so that the laws can look
        self.segments: dict[str, str] = {}  # location -> digest
        self.states: dict[str, dict[int, str]] = {}  # Spark's location -> batch -> variant in its state
        self.ends: dict[str, dict[int, int]] = {}  # Spark's location -> batch that was begun -> where it ends
        self.computed: dict[tuple[str, int], str] = {}  # Spark's location and batch -> variant that was computed last
        self.metadata: dict[
            str, dict[int, str]
        ] = {}  # Spark's location -> batch that was begun -> the second line of it
        self.files: dict[str, dict[str, bytes]] = {}  # Spark's location -> what else lies there, by name
        self.starts: dict[str, int] = {}  # Spark's location that began without state -> the batch behind which it did
        self.frozen: dict[str, bytes] = {}  # by URI, beside Spark's locations: where the source begins
        self.lines: dict[str, dict[int, tuple[str, ...]]] = {}  # Spark's location -> batch -> where its sources end
        self.topics = {name: Topic(name) for name in ("clicks", "refunds", "returns")}  # of sources that change
        self.first = 0  # the first offset that the source has
        self.dead_letter_tables: dict[str, Rows] = {}  # dead letters, by URI: whoever has written them
        self.ask: Callable[[str, Callable[[], None]], None] = lambda _, call: call()  # a call that writes a file

    def write(self, epoch: int, attempt: int, number: int, item: Item, rows: Mapping[str, int]) -> Segment:
        """Seals a segment in the folder of this attempt."""
        digest = f"{number:08x}{item}".ljust(64, "0")
        location = f"file:///wal/orders/{epoch}-{attempt}/{number}"
        self.items[digest] = item
        self.segments[location] = digest
        return Segment(number, digest, location, dict(rows) if item.number else dict.fromkeys(rows, 0), 100)

    def begin(self, uri: str, batch: int, end: int) -> None:
        """A location without state, in which the source stands behind that batch."""
        self.starts[uri], self.states[uri], self.ends[uri] = batch, {batch: ""}, {batch: end}

    def lose_start(self) -> None:
        """What a source had of before."""
        self.first += 1
        for topic in self.topics.values():
            topic.first = topic.end

    def batch(self, position: SparkPosition) -> int:
        """The batch behind which a position stands; -1 of Spark's is the start of its location."""
        return self.starts.get(position.location, -1) if position.batch < 0 else position.batch

    def is_beginning(self, position: SparkPosition) -> bool:
        """Whether it is one from which everything is read anew."""
        return position.batch < 0 and self.files.get(position.location, {}).get(START_FILE) == b"[]"

    def item_at(self, position: SparkPosition) -> int:
        """The newest item in the state at a position."""
        if self.is_beginning(position):
            return 0
        batch = self.batch(position)
        return batch - empties(self.states[position.location][batch])

    def has(self, position: SparkPosition) -> bool:
        """Whether somebody can go on from there."""
        return self.is_beginning(position) or self.batch(position) in self.states.get(position.location, {})

    def item(self, digest: str) -> Item:
        return self.items[digest]

    # --- airflow_ft.protocol.write_ahead_log.WalReader --------------------------------------------------------------

    def dead_letters(self, plan: Plan) -> DeadLetters:
        dead_letters: Any = DeadLettersModel(self, f"file:///wal/orders/dead-letter/{plan.number}")
        return cast(DeadLetters, dead_letters)

    def open(self, segment: Segment) -> SegmentModel:
        if self.segments.get(segment.location) != segment.digest:
            # What is still to be delivered must be there (the laws see to that): only a zombie comes too late.
            raise WalCorruptError(f"the rows of segment {segment.number} are gone.")
        return SegmentModel(segment, self.items[segment.digest])

    # --- airflow_ft.protocol.write_ahead_log.Archive ----------------------------------------------------------------

    def delete(self, segment: Segment) -> None:
        self.segments.pop(segment.location, None)

    def sweep(self, pipeline: str, keep: Any, below_epoch: int, must_stop: Any) -> bool:
        for kept in (self.segments, self.states):
            own = [place for place in kept if place.startswith(f"file:///wal/{pipeline}/")]
            for location in [place for place in own if place not in keep and _epoch(place) < below_epoch]:
                del kept[location]
                self.forget(location)
        return True

    def forget(self, location: str) -> None:
        """What lies in a location of Spark beside the state goes with it."""
        for kept in (self.ends, self.metadata, self.lines, self.files):
            kept.pop(location, None)


def _epoch(location: str) -> int:
    return int(location.removeprefix("file:///wal/").partition("/")[2].removeprefix("spark/").split("-")[0])


class _Schema(tuple[()]):
    """As much of a pyarrow.Schema as is asked for: it has no columns."""

    names = ()


_SCHEMA = _Schema()


@dataclass(frozen=True, slots=True)
class DeadLettersModel:
    """See `airflow_ft.protocol.write_ahead_log.DeadLetters`: a file is named by its content."""

    wal: Wal
    folder: str

    def write(self, sink: str, label: str, rows: Rows) -> str:
        uri = f"{self.folder}/{sink}/{label}-{','.join(map(str, rows))}"
        self.wal.ask(f"writes {uri}", lambda: self.wal.dead_letter_tables.update({uri: rows}))
        return uri


@dataclass(frozen=True, slots=True)
class SegmentModel:
    """See `airflow_ft.protocol.write_ahead_log.SegmentReader`: one file a sink, but one a row of `PARTS`."""

    segment: Segment
    item: Item

    def sinks(self) -> Sequence[str]:
        return list(self.segment.rows)

    def schema(self, sink: str) -> Any:
        return _SCHEMA

    def files(self, sink: str) -> Sequence[WalFile]:
        rows = self.segment.rows[sink]
        if sink == PARTS:
            return [WalFile(str(part), 1, 100, "") for part in range(1, rows + 1)]
        return [WalFile("1", rows, 100, "")] if rows else []

    def statistics(self, sink: str) -> Mapping[str, Any]:
        return {}

    def batches(self, sink: str, file: WalFile) -> Iterator[Any]:
        if sink == PARTS:
            part = int(file.path) - 1
            yield self.item.rows(self.segment.rows[sink]).slice(part, part + 1)
        else:
            yield self.item.rows(file.rows)
