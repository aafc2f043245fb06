"""Sources that are added, left out, put back, moved and recreated, beside the one that tells the items.

What a run reads is a word, a letter for each source in the order of its query: see `_DECLARED`. A micro-batch reads an
item of `orders`, and all that the others have gained; they gain with each look at them. The law: what an item has read
of a topic begins where the state that it was computed on stood, also of a source that was left out meanwhile; at the
beginning of a topic that is new to its source; and, where a source begins, where others have seen it begin before. Of
a folder it has read the files that are new.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.protocol.model import Checkpoint, RunKey, canonical_json
from airflow_ft.sources import FileSource, KafkaSource, source_from_json
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.beginnings import start_of
from airflow_ft.spark.state.location_files import offsets_line, offsets_of
from airflow_ft.spark.state.locations import SparkLocation, first_offsets
from tests.simulation.kernel import Violation
from tests.simulation.source import ORDERS, SLICE, Item

if TYPE_CHECKING:
    from tests.simulation.world import World

_LATEST: Mapping[str, Any] = {"starting_offsets": "latest", "fail_on_data_loss": False}
_DECLARED: Mapping[str, tuple[str, Any]] = {
    "o": (ORDERS, KafkaSource(topics=[ORDERS], max_offsets_per_trigger=SLICE)),
    "c": ("clicks", KafkaSource(topics=["clicks"])),
    "r": ("refunds", KafkaSource(topics=["refunds"], **_LATEST)),
    "R": ("refunds", KafkaSource(topics=["returns"], **_LATEST)),  # moved, under the same name
    "f": ("lines", FileSource(path="/lines", format="text")),
    "F": ("lines", FileSource(path="/lines*", format="text")),  # the same files by another path
}
Read = Mapping[str, Mapping[str, tuple[str, int, int]]]
"""By source and topic: the topic's id, and from where to where it was read."""


@dataclass(frozen=True, slots=True)
class LocationStatus:
    """What the state behind an item has read, in which life of the pipeline: by source and topic, its id and offset."""

    incarnation: str
    read: Mapping[str, Mapping[str, tuple[str, int]]] = field(default_factory=dict)
    files: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Listed:
    """Of a folder: the files that were read, and those that were there."""

    read: frozenset[str]
    there: frozenset[str]


class SourcedLocation(SparkLocation):
    """Micro-batches are those of the model, which begins with 1."""

    __slots__ = ()

    def offsets(self, batch: int) -> list[Any]:
        return [None for _ in self.sources()] if batch == 0 else super().offsets(batch)


class Sources:
    """Those of a world in which they change."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.topics = world.wal.topics
        self._requests: dict[str, StageRequest] = {}  # by Spark's location: who has opened it last
        self._read: dict[tuple[str, int], tuple[Read, Mapping[str, Listed]]] = {}  # by Spark's location and micro-batch
        self._written = 0  # files in each folder
        self._stood: dict[tuple[int, str], LocationStatus] = {}  # by item and variant: the state behind it
        self._began: dict[tuple[str, str, str, str], tuple[str, int]] = {}
        self._looked: set[tuple[str, str, int]] = set()  # topics with their ids, and where Spark has seen them begin
        self._wrong: dict[tuple[int, str], Violation] = {}  # what must not be published
        self._seen: set[int] = set()

    def declared(self, run: RunKey) -> dict[str, Any]:
        """What a DAG declares in a run, in the order in which its job uses it; the one that heals has the last one."""
        words, letter = self._world.scenario.sources, run.run_id[-1]
        word = words[-1] if letter == "Z" else words[(ord(letter) - ord("A")) % len(words)]
        return {name: source.to_json() for name, source in (_DECLARED[each] for each in word)}

    def topics_of(self, request: StageRequest) -> Topics:
        """The product's own look at topics, over brokers in memory."""
        sources = ((name, source_from_json(expected)) for name, expected in request.sources.items())
        found = {n: (name, each) for n, (name, each) in enumerate(sources) if isinstance(each, KafkaSource)}
        return Topics(found, {n: _Admin(self, source.topics) for n, (_, source) in found.items()})

    def opened(self, location: SparkLocation, request: StageRequest) -> SourcedLocation:
        """An attempt has its location."""
        self._requests[location.uri] = request
        return SourcedLocation(location.root, location.pipeline, location.uri, location.batch, location.how)

    def recreate(self, topic: str) -> None:
        """It is another one from now on, and counts from 0."""
        found = self.topics[topic]
        found.id, found.first, found.end = f"{found.id}'", 0, 0

    def look(self, uri: str) -> None:
        """Spark looks where the sources begin of which its location tells no offsets."""

        def look() -> None:
            metadata = self._lines(uri, max(self._world.wal.states[uri], default=0))
            files = self._world.wal.files.setdefault(uri, {})
            self._grow()
            for index, source in enumerate(self._requests[uri].sources.values()):
                if "topics" not in source or (index < len(metadata) and metadata[index] is not None):
                    continue
                begins = {t: {"0": _start(source, self.topics.get(t))} for t in source["topics"]}
                if f"sources/{index}/0" not in files:
                    files[f"sources/{index}/0"] = b"\0v1\n" + json.dumps(begins).encode()
                    self._looked |= {(t, self._id(t), begin["0"]) for t, begin in begins.items()}

        self._world.spark.perform("looks where its sources begin", look)

    def plan(self, uri: str, done: int, batch: int) -> None:
        """Spark plans a micro-batch behind another one."""
        wal = self._world.wal
        planned, lines = self._lines(uri, done), []
        read: dict[str, Mapping[str, tuple[str, int, int]]] = {}
        files: dict[str, Listed] = {}
        self._grow()
        for index, (name, source) in enumerate(self._requests[uri].sources.items()):
            before = planned[index] if index < len(planned) else None
            if "topics" not in source:
                files[name], end = self._list(uri, index, source["path"], before)
                lines.append(offsets_line({"logOffset": end}))
                continue
            if before is None:
                before = first_offsets(wal.files[uri][f"sources/{index}/0"].decode())[1]
            read[name] = {t: self._range(t, before.get(t), wal.ends[uri][batch]) for t in source["topics"]}
            lines.append(offsets_line({topic: {"0": end} for topic, (_, _, end) in read[name].items()}))
        wal.lines.setdefault(uri, {})[batch] = tuple(lines)
        self._read[uri, batch] = read, files

    def _list(self, uri: str, index: int, folder: str, before: Any) -> tuple[Listed, int]:
        """Spark logs the files that it has not logged before, and reads those behind its offset, up to a new one."""
        files, logs = self._world.wal.files.setdefault(uri, {}), f"sources/{index}/"
        logged = {
            int(name.removeprefix(logs)): [json.loads(line) for line in data.decode().splitlines()[1:]]
            for name, data in files.items()
            if name.startswith(logs)
        }
        known = {each["path"] for entries in logged.values() for each in entries}
        there = frozenset(f"file://{folder.rstrip('*')}/{n}" for n in range(self._written))
        last = max(logged, default=-1)
        if new := sorted(there - known):
            last += 1
            logged[last] = [{"path": path, "timestamp": 1, "batchId": last} for path in new]
            lines = [json.dumps(each, separators=(",", ":")) for each in logged[last]]
            files[f"{logs}{last}"] = "\n".join(["v1", *lines]).encode()
        first = -1 if before is None else before["logOffset"]
        read = [each for number in range(first + 1, last + 1) for each in logged.get(number, ())]
        return Listed(frozenset(each["path"] for each in read if each["batchId"] <= last), there), last

    def _range(self, topic: str, before: Any, orders: int) -> tuple[str, int, int]:
        if topic == ORDERS:
            return "", before["0"], orders
        found = self.topics[topic]
        begin = found.first if before is None else before["0"]
        if begin < found.first:
            raise StageError(f"topic {topic} has lost what it is to be read from.")
        return found.id, begin, found.end

    def _id(self, topic: str) -> str:
        return self.topics[topic].id if topic in self.topics else ""

    def _grow(self) -> None:
        self._written += 1
        for topic in self.topics.values():
            topic.end += 1

    def _lines(self, uri: str, batch: int) -> Sequence[Any]:
        return [offsets_of(line) for line in self._world.wal.lines.get(uri, {}).get(batch, ())]

    # --- the law --------------------------------------------------------------------------------------------------

    def computes(self, uri: str, batch: int, item: Item) -> None:
        """A micro-batch is computed."""
        request = self._requests[uri]
        before = self._stood.get((item.number - 1, item.parent)) or LocationStatus(request.incarnation)
        read: dict[str, Mapping[str, tuple[str, int]]] = dict(before.read)
        kafka, folders = self._read[uri, batch]
        for name, topics in kafka.items():
            for topic, (number, begin, _) in topics.items():
                stood = before.read.get(name)
                if stood is None:
                    at = self._begins(before, request, name, topic, number, begin)
                elif topic in stood and stood[topic][0] == number:
                    at = stood[topic][1]
                else:
                    at = self.topics[topic].first
                if begin != at:
                    what = f"{item} has read {topic} ({number}) of {name} from {begin}, and it stood at {at}"
                    self._is_wrong(item, "I2" if begin < at else "I10", what)
            read[name] = {topic: (number, end) for topic, (number, _, end) in topics.items()}
        files = before.files
        for name, listed in folders.items():
            new = listed.there - before.files
            if listed.read != new:
                what = f"{item} has read {sorted(listed.read)} of {name}, and {sorted(new)} are new"
                self._is_wrong(item, "I2" if listed.read & before.files else "I10", what)
            files |= listed.read
        self._stood[item.number, item.variant] = LocationStatus(before.incarnation, read, files)

    def _is_wrong(self, item: Item, law: str, what: str) -> None:
        self._wrong.setdefault((item.number, item.variant), Violation(law, what))

    def _begins(
        self, before: LocationStatus, request: StageRequest, name: str, topic: str, number: str, begin: int
    ) -> int:
        """Where a source begins, as whoever came first has seen it."""
        if (topic, number, begin) not in self._looked:
            return self.topics[topic].first  # it was recreated since
        start = canonical_json(start_of(request.sources[name]))
        known_id, at = self._began.setdefault((before.incarnation, start, name, topic), (number, begin))
        return at if known_id == number else self.topics[topic].first

    def look_at(self, checkpoints: Sequence[Checkpoint]) -> None:
        """After a change of the decision log."""
        for row in checkpoints:
            if row.segment is not None and row.number not in self._seen:
                self._seen.add(row.number)
                item = self._world.wal.item(row.segment.digest)
                if (item.number, item.variant) in self._wrong:
                    raise self._wrong[item.number, item.variant]


class _Admin:
    """See `airflow_ft.spark.driver.kafka_admin.TopicAdmin`."""

    def __init__(self, sources: Sources, names: Sequence[str]) -> None:
        self._topics, self._names = sources.topics, names

    def topics(self, recorded: Sequence[str] = ()) -> Mapping[str, str]:
        return self.ids(self._names)

    def ids(self, names: Sequence[str]) -> Mapping[str, str]:
        return {name: self._topics[name].id if name in self._topics else "orders" for name in names}

    def latest(self, names: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
        raise NotImplementedError

    def close(self) -> None:
        pass


def _start(source: Mapping[str, Any], topic: Any) -> int:
    if topic is None:
        return 0
    return int(topic.end if source["starting_offsets"] == "latest" else topic.first)
