"""`Durable`: the files of Spark's location that must be on disk before a publication names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.decision_log import HistoryLog
from airflow_ft.sources import KafkaSource, Source
from airflow_ft.spark.driver.passing import delivered_positions, refuse_passing_over
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.files import has_state
from airflow_ft.spark.state.locations import SparkLocation, begins_at
from airflow_ft.spark.state.sealing import Lacking, seal
from airflow_ft.wal.local import Synced
from airflow_ft.wal.roots import require


class Durable:
    """Work that must be on disk before a publication: the starting positions (once) and Spark's location."""

    def __init__(
        self,
        store: HistoryLog,
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
        """Compare Spark's start with the delivered positions when everything is read again (`passing`)."""
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
