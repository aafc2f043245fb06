"""The sources of a job inside the driver: `sources["orders"]` is a DataFrame that is ready to use."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, JobError, StageError
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.sources import FileSource, Source, source_from_json
from airflow_ft.sources.kafka import GROUP_OFFSETS, KafkaSource
from airflow_ft.sources.modes import not_replayable, read_again
from airflow_ft.spark.driver.file_types import check_file_types
from airflow_ft.spark.driver.folders import check_folder
from airflow_ft.spark.driver.kafka_admin import EARLIEST, TopicAdmin
from airflow_ft.spark.driver.listing import Listing, static_listings
from airflow_ft.spark.driver.plan_facts import items, kind
from airflow_ft.spark.driver.planned import refuse_left_out
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.source_changes import SourceChange, known_sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("airflow_ft.spark")

_TAG = "airflowftsource"


class Sources(Mapping[str, "DataFrame"]):
    """The argument `sources` of `transform`.

    `sources["orders"]` is a streaming DataFrame of the source (always the same object), and `sources.static("orders")`
    a plain one of its current contents: for joins, and for jobs that do not stream. A static read is not part of a
    checkpoint: its positions are not kept. `begins`: sources whose start no attempt has frozen yet (None: all), so it
    is looked up.
    """

    def __init__(
        self,
        spark: SparkSession,
        specs: Mapping[str, Mapping[str, Any]],
        connections: Mapping[str, ConnectionInfo],
        *,
        begins: Collection[str] | None = None,
    ) -> None:
        self._begins = specs.keys() if begins is None else begins
        self.started: dict[str, Mapping[str, str]] = {}
        """By source: the ids of topics of which a starting position was looked up, around that."""
        self._spark = spark
        self._specs: dict[str, Source] = {name: source_from_json(spec) for name, spec in specs.items()}
        self._connections = connections
        self._streams: dict[str, DataFrame] = {}
        self._static: list[tuple[str, Any]] = []  # what Spark reads them by
        self.listings: list[Listing] = []  # of what was read by `static`

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._streams:
            self._streams[name] = self._read(name, streaming=True)
        return self._streams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def static(self, name: str) -> DataFrame:
        """A static DataFrame of what the source has now. Files have to stay as they are while it is used."""
        frame = self._read(name, streaming=False)
        plan = frame._jdf.queryExecution().analyzed()
        check_file_types(self._spark, plan)
        listings = static_listings(frame)
        refuse_left_out(listings)
        self.listings += listings
        self._static += [(name, _reader(leaf)) for leaf in items(plan.collectLeaves())]
        return frame

    def source_of(self, leaf: Any) -> str | None:
        """The declared source that a leaf of a plan reads; None: it reads something else."""
        if (name := _name(leaf)) is not None:
            return name
        reader = _reader(leaf)
        return next((name for name, of in self._static if of == reader), None) if reader is not None else None

    def _read(self, name: str, *, streaming: bool) -> DataFrame:
        if name not in self._specs:
            declared = ", ".join(sorted(self._specs)) or "none"
            raise JobError(
                f"the job asks for source {name!r}, which the pipeline does not declare. Declared: {declared}.",
                code="source_unknown",
                remedy=f"Correct the name in the job, or add {name!r} to sources={{...}}.",
                source=name,
                declared=sorted(self._specs),
            )
        spec = self._specs[name]
        connection = self._connections.get(spec.conn_id) if spec.conn_id else None
        tags = {_TAG: name} if streaming else None
        if isinstance(spec, FileSource):
            check_folder(self._spark, name, spec)
        if connection is not None and isinstance(spec, KafkaSource):
            if streaming and name in self._begins and spec.starting_offsets == GROUP_OFFSETS:
                spec, self.started[name] = _at_group(self._spark, name, spec, connection)
            elif isinstance(spec.starting_offsets, Mapping) and (name in self._begins or not streaming):
                spec = _at_offsets(self._spark, name, spec, connection)
        return spec.read(self._spark, connection, streaming=streaming, tags=tags)


def _at_offsets(spark: SparkSession, name: str, spec: KafkaSource, connection: ConnectionInfo) -> KafkaSource:
    """A source that starts at the offsets that are given, and at the earliest of other partitions: Spark would fail.

    ConfigurationError for partitions that are not there.
    """
    given = spec.starting_offsets
    assert isinstance(given, Mapping)
    with closing(TopicAdmin(spark, name, spec, connection)) as admin:
        there = admin.partitions()
    for topic, offsets in given.items():
        if gone := sorted(partition for partition in offsets if not 0 <= partition < there[topic]):
            raise ConfigurationError(
                f"starting_offsets of source {name!r} names partitions that topic {topic!r} does not have:"
                f" {', '.join(map(str, gone))}. It has {there[topic]}, numbered from 0.",
                code="partition_missing",
                participant=spec.conn_id,
                remedy=f"Remove {', '.join(map(str, gone))} from starting_offsets. A partition without an offset is"
                " read from its beginning.",
                source=name,
                topic=topic,
                partitions=gone,
            )
    filled = {t: {p: given[t].get(p, EARLIEST) for p in range(partitions)} for t, partitions in there.items()}
    return replace(spec, starting_offsets=filled)


def _at_group(
    spark: SparkSession, name: str, spec: KafkaSource, connection: ConnectionInfo
) -> tuple[KafkaSource, Mapping[str, str]]:
    """Return a source that starts at the committed offsets of its group, with its topics' ids. Spark has no such
    start.
    """
    with closing(TopicAdmin(spark, name, spec, connection)) as admin:
        before = admin.ids(spec.topics)
        offsets = admin.group_offsets()
        ids = admin.ids(spec.topics)
    if ids != before:
        raise StageError(
            f"topics of source {name!r} were created while the position of group {spec.group_id} was looked up.",
            code="topic_recreated",
            participant=spec.conn_id,
            remedy="Do nothing: the next attempt looks again.",
            source=name,
            group=spec.group_id,
        )
    log.info(
        "source %s: starts at the offsets of group %s: %s (-2: none, so the earliest)", name, spec.group_id, offsets
    )
    return replace(spec, starting_offsets=offsets), ids


def source_order(frame: DataFrame) -> list[str]:
    """Return the names of a query's sources in Spark's order; "source-2" for one that the job opened itself."""
    return [name for name, _ in _relations(frame)]


def source_places(frame: DataFrame) -> list[int]:
    """For each use of a source in a streaming query, in the order of Spark's offsets: which of `source_order` it is."""
    known = [relation for _, relation in _relations(frame)]
    return [next(i for i, other in enumerate(known) if leaf.equals(other)) for leaf in _leaves(frame)]


def refuse_unfit(frame: DataFrame, mode: CheckpointingMode) -> None:
    """Raise ConfigurationError if a source of the query, also one that the job opened, does not support the mode.

    Spark and its Kafka connector do not know whether other sources are replayable, or where they begin. For those the
    job itself must promise it.
    """
    for name, relation in _relations(frame):
        read = kind(relation)
        if read == "StreamingRelationV2":
            read = kind(relation.table())
        if mode is not CheckpointingMode.AT_MOST_ONCE:
            if read == "TextSocketTable":
                raise not_replayable(name, mode)
        elif read in ("StreamingRelation", "RatePerMicroBatchTable"):  # the first is what Spark has for files
            raise read_again(name, "its beginning")
        elif read == "KafkaTable" and not _is_at_the_end(relation.extraOptions()):
            raise read_again(name, "its starting offsets")


def _is_at_the_end(options: Any) -> bool:
    """Return whether a reader of Kafka begins at the end of its topics, as it does unless its options say otherwise."""
    others = ("startingTimestamp", "startingOffsetsByTimestamp")
    return options.getOrDefault("startingOffsets", "latest").lower() == "latest" and not any(
        options.containsKey(name) for name in others
    )


def _relations(frame: DataFrame) -> list[tuple[str, Any]]:
    """Return the sources of a streaming query in Spark's order: their names and their leaves in the plan."""
    found: list[tuple[str, Any]] = []
    for leaf in _leaves(frame):
        if not any(leaf.equals(other) for _, other in found):
            found.append((_name(leaf) or f"source-{len(found)}", leaf))
    return found


def _leaves(frame: DataFrame) -> list[Any]:
    """Return what reads a stream in a query's plan."""
    return [leaf for leaf in items(frame._jdf.queryExecution().analyzed().collectLeaves()) if leaf.isStreaming()]


def _name(leaf: Any) -> str | None:
    found = None
    if kind(leaf) == "StreamingRelationV2":
        found = leaf.extraOptions().get(_TAG)
    elif kind(leaf) == "StreamingRelation":
        option = leaf.dataSource().options().get(_TAG)
        found = option.get() if option.isDefined() else None
    return None if found is None else str(found)


def _reader(leaf: Any) -> Any:
    """Return the relation that a static leaf reads, which is stable when its columns get new ids; None: it reads
    nothing.
    """
    read = kind(leaf)
    if read == "LogicalRelation":
        return leaf.relation()
    return leaf.table() if read == "DataSourceV2Relation" else None


def distinct_names(names: Sequence[str]) -> list[str]:
    """Sources by the names of `source_order`, each under another one: a job may read one twice, joined with itself."""
    found: list[str] = []
    for index, name in enumerate(names):
        found.append(name if name not in found else f"{name}-{index}")
    return found


def named_positions(
    names: Sequence[str],
    start: Sequence[Any],
    end: Sequence[Any],
    topic_ids: Mapping[int, Mapping[str, str]] | None = None,
) -> dict[str, Any]:
    """Positions for the manifest and the store: source name -> {"start", "end"} in the source's own terms.

    Those of Kafka have "topic_ids" too, by topic: offsets count the records of that very topic.
    """
    positions: dict[str, Any] = {}
    names = distinct_names([*names, *(f"source-{index}" for index in range(len(names), len(end)))])
    for index, value in enumerate(end):
        name = names[index]
        positions[name] = {"start": start[index] if index < len(start) else None, "end": value}
        if topic_ids and index in topic_ids:
            positions[name]["topic_ids"] = dict(topic_ids[index])
    return positions


def declared_source(request: StageRequest, name: str) -> Source | None:
    """Return the source of that name; None: the job has opened it by itself."""
    declared = request.sources.get(name)
    return None if declared is None else source_from_json(declared)


def sources_by_place(request: StageRequest, names: Sequence[str]) -> dict[str, Source | None]:
    """Return the sources in Spark's order, under distinct names. None: the job opened it itself."""
    return {shown: declared_source(request, name) for shown, name in zip(distinct_names(names), names, strict=True)}


def unfrozen_sources(request: StageRequest) -> set[str]:
    """The names of declared sources of which no attempt has kept yet where they begin."""
    frozen, new = Beginnings.of(request), request.sources.keys() - known_sources(request.base)
    return {name for name in new if request.starts_from_scratch or not frozen.has(name)}


def sources_to_freeze(request: StageRequest, names: Sequence[str], change: SourceChange | None) -> dict[int, str]:
    """Return the declared Kafka sources without a position, by their places. Their start offsets must be frozen."""
    if request.starts_from_scratch:
        return {}
    added = {} if change is None else change.added
    new = dict(enumerate(names)) if request.base is None else added
    return {index: name for index, name in new.items() if isinstance(declared_source(request, name), KafkaSource)}
