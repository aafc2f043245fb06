"""`Durable`: the files of Spark's location that must be on disk before a publication names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.errors import DataLossError
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.retention import POSITIONS_KEPT
from airflow_ft.sources import KafkaSource, Source
from airflow_ft.spark.driver.topics import Topics, is_other
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.files import has_state
from airflow_ft.spark.state.locations import SparkLocation, begins_at, is_kafka
from airflow_ft.spark.state.sealing import Lacking, seal
from airflow_ft.wal.local import Synced
from airflow_ft.wal.roots import require

if TYPE_CHECKING:
    from airflow_ft.protocol.decision_log import QueryLog


class Durable:
    """Work that must be on disk before a publication: the starting positions (once) and Spark's location."""

    def __init__(
        self,
        store: QueryLog,
        location: SparkLocation,
        request: StageRequest,
        sources: Mapping[str, Source | None],
        topics: Topics,
        freeze: Callable[[], None] | None,
        unsealed: Lacking = Lacking(),  # noqa: B008
    ) -> None:
        self._store, self._location, self._request, self._topics = store, location, request, topics
        self._unsealed = unsealed
        self._sources = sources
        self._freeze = freeze
        self._synced: Synced = {}

    def freeze(self) -> None:
        """Freezes where sources begin of which nothing was published yet: "latest" is one moment."""
        if self._freeze is not None:
            if self._request.incarnation:
                self._refuse_passing_over()
            self._freeze()
            self._freeze = None

    def _refuse_passing_over(self) -> None:
        """Compare Spark's start with the delivered positions when everything is read again: it must skip no
        unread records (I10).
        """
        pipeline, location = self._request.pipeline, self._location
        delivered = delivered_positions(self._store, pipeline)
        for index, (name, source) in enumerate(self._sources.items()):
            declared = name if name in self._request.sources else name.rpartition("-")[0]  # read once more
            before = delivered.get(name, delivered.get(declared))
            if before is not None and isinstance(source, KafkaSource):
                first, ids = begins_at(location.uri, index), self._topics.known[index]
                refuse_passing_over(pipeline, name, source, first, ids, before)

    def ahead(self) -> None:
        """Sync what Spark has logged of the batch under way on a local path, so that only the batch's end is left.

        Not with the first batch, whose publication seals what an attempt writes once. Nor with state, which is still
        being written.
        """
        if self._synced and not has_state(self._location.uri):
            self()

    def __call__(self) -> None:
        self.freeze()
        if not is_bucket(self._location.uri):  # for that the publication looks (`proof`)
            require(self._location.uri)
        seal(self._location.uri, self._unsealed, first=not self._synced)
        self._location.sync(self._synced)


def delivered_positions(store: QueryLog, pipeline: str) -> dict[str, Any]:
    """By source: its newest position of which the rows are in the sinks.

    Several numbers are read, since those that deliver what an aborted one has left have no positions.
    """
    found = _delivered(store, pipeline)
    former = store.pipeline(pipeline).former
    if not found and former is not None:
        found = _delivered(store, former.pipeline)
    positions: dict[str, Any] = {}
    for checkpoint in found:
        for name, position in checkpoint.positions.items():
            positions.setdefault(name, position)
    return positions


def _delivered(store: QueryLog, pipeline: str) -> Sequence[Checkpoint]:
    newest = store.latest_confirmed(pipeline)
    if newest is None:
        return ()
    return [each for each in store.checkpoints(pipeline, POSITIONS_KEPT, newest.number + 1) if each.is_confirmed]


def refuse_passing_over(
    pipeline: str,
    name: str,
    source: KafkaSource,
    first: Mapping[str, Any],
    ids: Mapping[str, str],
    delivered: Mapping[str, Any],
) -> None:
    """DataLossError where a source would begin behind what was `delivered` of it, unless it lets records go.

    A time, offsets or "latest" may be after its last delivered position. A folder is read as a whole, and the distance
    between two offsets of other sources is unknown. `first`: its first offsets; `ids`: of its topics. A topic that
    was created again is not compared: nothing of it was read. "earliest" leaves out nothing that is there.
    """
    before, known = delivered.get("end") or {}, delivered.get("topic_ids", {})
    if not is_kafka(before) or source.starting_offsets == "earliest" or not source.fail_on_data_loss:
        return
    problems, skipped = [], []
    for topic, partitions in sorted(first.items()):
        new = topic not in before and source.pattern is None
        if new or is_other(known.get(topic, ""), ids.get(topic, "")):
            continue
        for partition, begin in sorted(partitions.items(), key=lambda each: int(each[0])):
            end = before.get(topic, {}).get(partition, 0)  # one that came since would have been read from there
            if begin > end:
                problems.append(
                    f"partition {partition} of topic {topic!r} was read up to {end} but would begin at {begin}"
                )
                skipped.append((topic, int(partition), end, begin))
    if problems:
        records = sum(begin - end for _, _, end, begin in skipped)
        raise DataLossError(
            f"a full refresh of source {name!r} would begin after its delivered position and skip up to {records}"
            f" records: {'; '.join(problems)}. Nothing was read or published.",
            code="records_skipped",
            pipeline=pipeline,
            participant=source.conn_id,
            remedy='Let the source begin earlier: starting_offsets="earliest", an earlier time, or offsets up to these.'
            " To skip the records, set fail_on_data_loss=False of the source for one run. Then set it back.",
            source=name,
            records=records,
            skipped=skipped,  # topic, partition, delivered end, first offset
        )
