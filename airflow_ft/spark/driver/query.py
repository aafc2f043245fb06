"""The job as a streaming query whose micro-batches become checkpoints, in the location of one attempt.

A scheduled stage reads all available input (`drain`). A stream first reads the backlog, then follows its sources:
Spark starts a micro-batch every interval. While a limited source has more than one slice, the stream uses `drain`
again. It also does so from time to time if limits are unknown, because a finished drain proves that all input is read.

Progress: a micro-batch contains everything that its sources held before Spark asked for their newest positions. So it
contains everything that existed when the previous batch ended, unless it is a slice. When Spark finds nothing new in
an interval, everything from before that interval is published.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import AirflowFtError, StoreUnavailableError
from airflow_ft.protocol.memory import give_back
from airflow_ft.sources import CustomSource, FileSource, KafkaSource, Source
from airflow_ft.spark.driver.capacity import Capacity
from airflow_ft.spark.driver.columns import SinkColumns
from airflow_ft.spark.driver.file_types import check_file_types
from airflow_ft.spark.driver.inputs import Sources, named_positions
from airflow_ft.spark.driver.job import Job
from airflow_ft.spark.driver.listing import Listing, check_listings
from airflow_ft.spark.driver.local_files import lacking
from airflow_ft.spark.driver.passing import delivered_positions, refuse_passing_over
from airflow_ft.spark.driver.planned import batch_listings
from airflow_ft.spark.driver.publisher import Publisher, Tally
from airflow_ft.spark.driver.sockets import Sockets
from airflow_ft.spark.driver.staging import is_small, materialised, write_batch
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.state.draining import drain_of, marked, terminal_copy
from airflow_ft.spark.state.files import has_state, sizes, upload
from airflow_ft.spark.state.locations import SparkLocation, begins_at
from airflow_ft.spark.state.schemas import refuse_lost, states
from airflow_ft.spark.state.sealing import Lacking, seal
from airflow_ft.spark.state.status import Offsets, record_ids, recorded_ids
from airflow_ft.spark.state.timers import Timers, may_be_silent
from airflow_ft.wal.filesystem import Synced, filesystem, is_hdfs
from airflow_ft.wal.roots import require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_ft.protocol.decision_log import HistoryLog, QueryLog
    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.store.reports import ReportOperations

# How long a query may take to stop before the process ends without it, in seconds: a job may hang in its own code.
STOP_SECONDS = 15.0
_LOOK_SECONDS = 0.1
_IDLE_SECONDS = 1.0
_TOLD_SECONDS = 5.0
_STATE_EACH = 60.0
_UNKNOWN_SECONDS = 30.0  # so long gates may wait for a stream of which nobody knows whether it has read all of a folder
_CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
_MARKS = 30  # Spark tells of an interval some time after it

_OnBatch = Callable[[int, "DataFrame", int], None]

log = logging.getLogger("airflow_ft.spark")


class _Ended(Exception):
    """Raised in a micro-batch that is no longer computed, because the query was ended before."""


class Query:
    """Runs the job's query; `publisher` has what came of it."""

    def __init__(
        self,
        store: DecisionLog,
        request: StageRequest,
        job: Job,
        frame: DataFrame,
        location: SparkLocation,
        sources: Mapping[str, Source | None],
        inputs: Sources,
        topics: Topics,
        *,
        tally: Tally,
        failed: Callable[[BaseException], None],
        stop: Stopper,
        expects_few: bool = False,
        freeze: Callable[[], None] | None = None,
    ) -> None:
        """`sources`: by unique names (`told_apart`) in Spark's order; None: the job opened it itself. `failed`
        receives the error that ends a micro-batch, before Spark wraps it. `expects_few`: small micro-batches follow
        each other. `freeze` stores where sources begin, before the first publication; None: no source begins here.
        """
        self._store, self._request, self._job, self._frame = store, request, job, frame
        self._location, self._sources, self._inputs, self._topics = location, sources, inputs, topics
        self._made_of = SinkColumns(frame, inputs.source_of)
        self._failed, self._stopper, self._expects_few = failed, stop, expects_few
        unsealed = lacking(frame.sparkSession, location.uri)
        self._durable = _Durable(store, location, request, sources, topics, freeze, unsealed)
        self._capacity = Capacity(store, request)
        self._one_query = request.begins_anew and not all(isinstance(each, KafkaSource) for each in sources.values())
        self._sockets = Sockets(frame.sparkSession, sources)
        self._state = _State(store, request, location)
        self._timers = Timers(frame, location, request)
        self._idle = _Idle(store)
        self._held = states(location)
        self._terminal: SparkLocation | None = None  # where it drains
        self._busy = threading.Lock()
        self._ending = self._has_more = self._looked_at_state = False
        self._queries = 0  # of this attempt, one after the other
        self._cut: datetime | None = None  # all that was there then is in the next micro-batch, or published
        self._knew = time.monotonic()  # when it was known last that nothing of before is left
        self.publisher = Publisher(
            store,
            request,
            committed=lambda batch: (self._terminal or location).is_committed(batch),
            durable=self._publishable,
            position=lambda batch: None if self._terminal else location.position(batch),
            stop=stop,
            tally=tally,
            application=frame.sparkSession.sparkContext.applicationId,
            remote=is_hdfs(location.uri),
        )

    def drain(self, is_over: Callable[[], bool]) -> None:
        """Reads what there is now, to its end, or until `is_over`.

        Not of sources that cannot be replayed: Spark would ask them in the query after this one for what it has read.
        """
        if self._one_query:
            return
        began = self._store.now() if self._request.streaming else None
        self._cut = None
        with self._timers.ending(), self._running(self._on_batch, self._location, availableNow=True) as query:
            while not _has_ended(query):
                if is_over():
                    return self._end(query)
        self.publisher.settle()
        self._durable()
        if not self._request.streaming:
            self._fire()
        if began is not None:
            self._tell_read(began)

    def _fire(self) -> None:
        """Run the timers that are due now, in a scheduled run, and emit what the new watermark closes."""
        for _ in range(2):  # no more: timers that are set anew each time, and move the watermark, would go on for ever
            if not self._timers.begin():
                return
            with self._running(self._on_batch, self._location, once=True) as query:
                while not _has_ended(query):
                    pass
            self.publisher.settle()
            self._durable()
            if not self._timers.has_more():
                return

    def follow(self, is_over: Callable[[], bool]) -> None:
        """Cuts a micro-batch each interval, until `is_over` or there is more than a slice to read, which is drained."""
        spark = self._frame.sparkSession
        interval = self._request.checkpointing.interval.total_seconds()
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", str(int(1000 * _IDLE_SECONDS)))
        self._has_more = False
        self._cut = self._store.now()
        self._timers.begin()
        self._idle = idle = _Idle(self._store)
        looked = 0.0
        every = f"{int(1000 * interval)} milliseconds"
        with idle.listening(spark), self._running(self._on_batch, self._location, processingTime=every) as query:
            while not _has_ended(query):
                if self._has_more or is_over():
                    return self._end(query)
                if time.monotonic() - looked > _IDLE_SECONDS:
                    looked = time.monotonic()
                    self._look(idle, query)
        raise RuntimeError("the streaming query ended without a request to stop")

    def finish(self) -> None:
        """When the query has ended, and nothing is to be read any more: the location is left as quick to load."""
        if self.publisher.last_batch is None or not has_state(self._location.uri):
            return
        upload(self._frame.sparkSession)
        self._durable()
        self._state.tell(self.publisher.last_batch, self.publisher.last_number)

    def emit_open(self) -> None:
        """Publishes a checkpoint of what is open at the end (`spark.state.draining`), unless nothing can be."""
        store, pipeline, published = self._store, self._request.pipeline, self.publisher.last_batch
        last = self._location.batch if published is None else published
        if last < 0 or not has_state(self._location.uri) or self._job.output_mode == "complete":
            log.info("nothing to drain: the job has no state, or the last checkpoint has all of it (complete)")
        elif self._one_query:
            log.warning("nothing is drained: a drain needs a second query, and a source cannot be read twice")
        elif drain := drain_of(store, pipeline):
            log.info("nothing to drain: checkpoint %d has already drained this state", drain.number)
        else:
            self._terminal = terminal_copy(replace(self._location, batch=last), self._request)
            log.info("draining: a last checkpoint delivers the state that is open after batch %d", last)
            with self._running(self._on_last_batch, self._terminal, once=True) as query:
                while not _has_ended(query):
                    pass
            self.publisher.settle()

    def result(self, *, complete: bool) -> StageResult:
        """Return what came of it, when the query has ended."""
        publisher, location = self.publisher, self._location
        last = location.batch if publisher.last_batch is None else publisher.last_batch
        clean = complete or location.ends_at(last)
        position = location.position(last) if last >= 0 and clean else None
        return publisher.tally.result(position, complete=complete)

    @contextmanager
    def _running(self, on_batch: _OnBatch, location: SparkLocation, **trigger: Any) -> Iterator[StreamingQuery]:
        self._queries += 1
        self._ending, self._stopper.query = False, None
        query = (
            self._frame.writeStream.foreachBatch(partial(on_batch, self._queries))
            .outputMode(self._job.output_mode)
            .queryName(self._request.pipeline)
            .option("checkpointLocation", filesystem(location.uri).hadoop_path(location.uri))
            .trigger(**trigger)
            .start()
        )
        self._stopper.query = query
        try:
            yield query
        except BaseException:
            with suppress(Exception):  # unless it has ended by that error
                query.stop()
            raise

    def _end(self, query: StreamingQuery) -> None:
        """Ends the query after the micro-batch under way, which is published."""
        self._ending = True
        with self._busy:
            pass
        self._settle(query)
        with suppress(Exception):  # a micro-batch that began meanwhile has ended by `_Ended`
            query.stop()

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until everything that the query has begun is published; raises its error if it failed.

        For a moment after the end of a micro-batch a failed query shows no error yet.
        """
        while not self.publisher.settled(_LOOK_SECONDS):
            _has_ended(query)

    def _on_batch(self, of_query: int, batch: DataFrame, batch_id: int) -> None:
        try:
            with self._busy:
                self.publisher.settle()
                self._state.tell_now_and_then(self.publisher.last_batch, self.publisher.last_number)
                self._capacity.take(lambda: self._ending, self.publisher.carry)
                if self._ending or of_query != self._queries:  # a call that comes late, when its query has ended
                    raise _Ended
                self._compute(batch, batch_id)
        except _Ended:
            raise
        except BaseException as error:
            self._failed(error)
            raise

    def _on_last_batch(self, _: int, batch: DataFrame, batch_id: int) -> None:
        try:
            assert self._terminal is not None
            number = self.publisher.begin(batch_id)
            end = self._terminal.offsets(batch_id)
            ids = recorded_ids(self._terminal)
            # As the decision log knows it: the base itself may be a copy, which no checkpoint names (`drain_of`).
            drained = self._store.position_before(self._request.pipeline, number)
            assert drained is not None
            positions = marked(named_positions(list(self._sources), end, end, ids), drained)
            written = write_batch(self._request, self._job, batch, batch_id, number, positions, made_of=self._made_of)
            check_listings(self._inputs.listings, self._request.pipeline)
            self.publisher.written(written.seal, positions)
        except BaseException as error:
            self._failed(error)
            raise

    def _compute(self, batch: DataFrame, batch_id: int) -> None:
        self._durable.freeze()
        location = self._location
        if not self._looked_at_state:
            refuse_lost(self._held, replace(location, batch=batch_id))
            self._looked_at_state = True
        start, end = location.offsets(batch_id - 1), location.offsets(batch_id)
        asked = self._timers.forced != batch_id  # else Spark has not looked for anything new
        as_of = self._cut if asked else None
        if self._timers.any and start == end:
            with materialised(batch) as fired:
                published = self.publisher.last_batch
                since = batch_id - (location.batch if published is None else published)
                if may_be_silent(since, self._store.undelivered(self._request.pipeline)) and fired.isEmpty():
                    self._pass_by(as_of)
                else:
                    self._stage(fired, batch_id, start, end, as_of)
        else:
            self._stage(batch, batch_id, start, end, as_of)
        if self._cut is not None:
            self._cut = self._store.now()

    def _stage(self, batch: DataFrame, batch_id: int, start: list[Any], end: list[Any], as_of: datetime | None) -> None:
        spark, request, location = self._frame.sparkSession, self._request, self._location
        query = self._stopper.query or next(each for each in spark.streams.active if each.name == request.pipeline)
        declared = list(self._sources.values())
        read = [*batch_listings(spark, location, batch_id, query, declared), *self._inputs.listings]
        number = self.publisher.begin(batch_id)
        ids = self._topics.reading(by_topic(end))
        if ids != recorded_ids(replace(location, batch=batch_id)):
            record_ids(location, batch_id, ids)
        positions = named_positions(list(self._sources), start, end, ids)
        few = self._expects_few and is_small(self.publisher.last_segment)
        if read:  # files
            check_file_types(spark, query._jsq.streamingQuery().lastExecution().logical(), request.pipeline)
        written = write_batch(request, self._job, batch, batch_id, number, positions, few=few, made_of=self._made_of)
        check_listings(read, request.pipeline)
        if as_of is not None:
            is_slice = self._is_slice(start, end, read)
            may_be_slice = is_slice or self._is_bounded_in_bytes(read)
            is_overdue = may_be_slice and time.monotonic() - self._knew > _UNKNOWN_SECONDS
            self._has_more = (is_slice or is_overdue) and not self._one_query
            if may_be_slice or not self._bounds_are_known:
                as_of = None
            else:
                self._knew = time.monotonic()
        self.publisher.written(written.seal, positions, as_of)

    def _pass_by(self, as_of: datetime | None) -> None:
        """Nothing was read, and nothing has come of it: all of before is published."""
        if as_of is not None and self._bounds_are_known and self._idle.is_to_be_told():
            self._tell_read(as_of)

    @property
    def _bounds_are_known(self) -> bool:
        """Return whether every source has a known limit. Sources that the job opened, and custom classes, have none."""
        return not any(source is None or isinstance(source, CustomSource) for source in self._sources.values())

    def _is_slice(self, start: Sequence[Any], end: Sequence[Any], read: Sequence[Listing]) -> bool:
        """Return whether a source was bounded in this micro-batch, and may have more."""
        sizes = [size for listing in read for size, _ in listing.files.values()]
        for index, source in enumerate(self._sources.values()):
            is_full = False
            if isinstance(source, KafkaSource):
                limit = source.max_offsets_per_trigger
                is_full = isinstance(limit, int) and not _is_below(limit, _at(start, index), _at(end, index))
            elif isinstance(source, FileSource):
                files, most = source.max_files_per_trigger, source.max_bytes_per_trigger
                is_full = isinstance(files, int) and len(sizes) >= files
                if isinstance(most, int) and sizes:  # one more like the largest would not have gone in
                    is_full = sum(sizes) + max(sizes) > most
            if is_full:
                return True
        return False

    def _is_bounded_in_bytes(self, read: Sequence[Listing]) -> bool:
        """Return whether a source with a limit in bytes gave files, so that the batch may be a slice.

        Spark stops before the first file that does not fit, even if later ones would. A source that gave no file has
        none left, since its first file always fits.
        """
        bounded = any(
            isinstance(source, FileSource) and source.max_bytes_per_trigger is not None
            for source in self._sources.values()
        )
        return bounded and any(listing.files for listing in read)

    def _look(self, idle: _Idle, query: StreamingQuery) -> None:
        """Between micro-batches: what an aborted checkpoint has left, and how far the stream has come."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._settle(query)
            self.publisher.carry()
            if self.publisher.last_batch is not None:
                self._sockets.look(self._store.now())
            as_of = idle.read_as_of()
            if as_of is None:
                return
            self._sockets.require_open(as_of)
            if self._cut is not None:
                self._cut = max(self._cut, as_of)
            if idle.is_to_be_told():
                self._tell_read(as_of)
        finally:
            self._busy.release()

    def _tell_read(self, as_of: datetime) -> None:
        self._knew = time.monotonic()
        self._store.read_all(self._request.pipeline, self._request.epoch, self._request.run, as_of)

    def _publishable(self) -> None:
        self._durable()
        self._topics.check()


def compute_planned(frame: DataFrame, output_mode: str, location: SparkLocation, *, whole: bool = False) -> None:
    """Has Spark compute the micro-batch that lies planned in a location, and nothing after it; its rows are dropped.

    `whole`: its state is written whole, not as changes.
    """
    conf = frame.sparkSession.conf
    before = conf.get(_CHANGELOG)
    if whole:
        conf.set(_CHANGELOG, "false")
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: batch.write.format("noop").mode("overwrite").save())
        .outputMode(output_mode)
        .option("checkpointLocation", filesystem(location.uri).hadoop_path(location.uri))
        .trigger(once=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        conf.set(_CHANGELOG, str(before))


class _Durable:
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

    def __call__(self) -> None:
        self.freeze()
        require(self._location.uri)
        seal(self._location.uri, self._unsealed, first=not self._synced)
        self._location.sync(self._synced)


class _State:
    """Reports the size of the state to the decision log, and in lines that `airflow_ft.spark.task.launcher` reads."""

    def __init__(self, store: ReportOperations, request: StageRequest, location: SparkLocation) -> None:
        self._store, self._request, self._location = store, request, location
        self._told = time.monotonic()

    def tell_now_and_then(self, batch: int | None, number: int) -> None:
        """As often as Spark's maintenance makes a difference; memory is given back as often."""
        if batch is not None and time.monotonic() - self._told > _STATE_EACH:
            self.tell(batch, number)
            give_back()

    def tell(self, batch: int, number: int) -> None:
        """Report the state of a published batch under this number. An unavailable folder or log does not end the
        stream.
        """
        self._told = time.monotonic()
        try:
            found = sizes(self._location.uri, batch)
        except (AirflowFtError, OSError) as error:
            log.warning("the size of the state after batch %d is unknown: %s", batch, error)
            return
        if found:
            log.info("state after batch %d: %s", batch, found)
            with suppress(StoreUnavailableError):
                self._store.record_state_sizes(self._request.pipeline, self._request.epoch, number, found)


class Stopper:
    """Stops the query when a publication failed; ends the process when the query does not stop."""

    def __init__(self, failed: Callable[[BaseException], None], report: Callable[[BaseException], None]) -> None:
        """`failed` gets what went wrong, `report` what is left for the launcher before the process ends."""
        self._failed, self._report = failed, report
        self._ended = threading.Event()
        self.query: Any = None

    def __call__(self, error: BaseException) -> None:
        self._failed(error)
        threading.Thread(target=self._stop, name="stopper", daemon=True).start()

    def ended(self) -> None:
        """The attempt has ended: there is nothing to stop any more."""
        self._ended.set()

    def _stop(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        try:
            if self.query is not None:
                self.query.stop()
        except Exception as error:
            log.warning("the query did not stop: %s", error)
        if self._ended.wait(max(0.0, deadline - time.monotonic())):
            return
        # Still here: the job hangs in its own code. Nothing can be published any more, so nothing is lost.
        try:
            self._report(TimeoutError("the job did not stop"))
        except Exception as error:  # the disk is full, or the JVM has gone: then the launcher says how it has ended
            log.warning("the driver could not report why it ends: %s", error)
        finally:
            os._exit(1)


class _Idle:
    """Intervals in which Spark found nothing new; `listening` hears of them.

    Their times are of the JVM's clock, which is this machine's. What the decision log's clock said before one of them
    began was before it.
    """

    def __init__(self, store: QueryLog) -> None:
        self._store = store
        self._told = 0.0
        self._seen = 0.0
        self._marks: deque[tuple[float, datetime]] = deque(maxlen=_MARKS)

    @contextmanager
    def listening(self, spark: SparkSession) -> Iterator[None]:
        """For the duration of the block. Not by pyspark's own listener, which copies each event by dozens of calls."""
        from pyspark.java_gateway import ensure_callback_server_started

        jvm: Any = spark._jvm
        ensure_callback_server_started(spark.sparkContext._gateway)  # type: ignore[no-untyped-call]
        listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(_Listener(self._heard))
        streams = spark._jsparkSession.streams()
        streams.addListener(listener)
        try:
            yield
        finally:
            with suppress(Exception):  # the JVM may have gone
                streams.removeListener(listener)

    def _heard(self, timestamp: str) -> None:
        self._seen = datetime.fromisoformat(timestamp).timestamp()

    def read_as_of(self) -> datetime | None:
        """All that was there at this time has been read, by the decision log's clock; None: nothing new is known.

        To be called again and again: it notes the time, to be compared with an interval that begins later.
        """
        before = [at for wall, at in self._marks if wall < self._seen]
        while self._marks and self._marks[0][0] < self._seen:
            self._marks.popleft()
        at = self._store.now()
        self._marks.append((time.time(), at))
        return before[-1] if before else None

    def is_to_be_told(self) -> bool:
        """Not each time: a stream that waits need not write."""
        if time.monotonic() - self._told < _TOLD_SECONDS:
            return False
        self._told = time.monotonic()
        return True


class _Listener:
    """Listener that the JVM calls; the method names are Spark's."""

    def __init__(self, idle: Callable[[str], None]) -> None:
        self._idle = idle

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        pass

    def onQueryIdle(self, event: Any) -> None:
        self._idle(event.timestamp())

    def onQueryTerminated(self, event: Any) -> None:
        pass

    class Java:
        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


def _has_ended(query: StreamingQuery) -> bool:
    """Waits for a moment; raises what the query has failed by."""
    if not query.awaitTermination(_LOOK_SECONDS):  # type: ignore[arg-type]
        return False
    query.awaitTermination()  # with a time-out Spark says so a moment before it lets go of the query's name
    return True


def by_topic(offsets: list[Any]) -> Offsets:
    """Return those offsets that have topics, by the place of their source."""
    return {index: found for index, found in enumerate(offsets) if isinstance(found, dict)}


def _at(offsets: Sequence[Any], index: int) -> Mapping[str, Mapping[str, int]]:
    found = offsets[index] if index < len(offsets) else None
    return found if isinstance(found, dict) else {}


def _is_below(limit: int, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]) -> bool:
    """Spark divides the limit among the partitions, and may round each part down."""
    counts = [
        offset - start.get(topic, {}).get(partition, 0)
        for topic, partitions in end.items()
        for partition, offset in partitions.items()
    ]
    return sum(counts) < limit - len(counts)
