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
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.sources import KafkaSource, Source
from airflow_ft.spark.attribution import bound, current
from airflow_ft.spark.driver.capacity import Capacity
from airflow_ft.spark.driver.columns import SinkColumns
from airflow_ft.spark.driver.durable import Durable
from airflow_ft.spark.driver.ending import Ended
from airflow_ft.spark.driver.file_types import check_file_types
from airflow_ft.spark.driver.idle import Idle
from airflow_ft.spark.driver.inputs import named_positions
from airflow_ft.spark.driver.listing import check_listings
from airflow_ft.spark.driver.local_files import lacking
from airflow_ft.spark.driver.moments import Moment
from airflow_ft.spark.driver.own_queries import refusing_stops, stop
from airflow_ft.spark.driver.plan_facts import never_adds_rows
from airflow_ft.spark.driver.planned import batch_listings
from airflow_ft.spark.driver.publisher import Publisher
from airflow_ft.spark.driver.slices import has_known_bounds, is_at_most, is_bounded_in_bytes, is_slice
from airflow_ft.spark.driver.sockets import Sockets
from airflow_ft.spark.driver.staging import FEW_ROWS, is_small, materialised, write_batch
from airflow_ft.spark.driver.state_ids import keep_last_ids
from airflow_ft.spark.driver.state_reports import StateReports
from airflow_ft.spark.driver.stopper import Stopper, await_query_end
from airflow_ft.spark.driver.topics import Topics, by_topic
from airflow_ft.spark.request import StageResult
from airflow_ft.spark.state.draining import drain_of, marked, terminal_copy, undrainable
from airflow_ft.spark.state.files import has_state, upload, upload_own
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.spark.state.schemas import refuse_lost, states
from airflow_ft.spark.state.status import record_ids, recorded_ids
from airflow_ft.spark.state.timers import Timers, may_be_silent
from airflow_ft.wal.filesystem import filesystem, is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_ft.spark.driver.job_run import JobRun

_LOOK_SECONDS, _GROUP_LOOK_SECONDS = 0.1, 0.5
_IDLE_SECONDS = 1.0
_UNKNOWN_SECONDS = 30.0  # longest wait of gates for a stream that may not have read all of a folder

_OnBatch = Callable[[int, "DataFrame", int], None]

log = logging.getLogger("airflow_ft.spark")


class Query:
    """Runs the job's query; `publisher` has what came of it."""

    def __init__(
        self,
        run: JobRun,
        location: SparkLocation,
        sources: Mapping[str, Source | None],
        topics: Topics,
        *,
        stop: Stopper,
        freeze: Callable[[], None] | None = None,
    ) -> None:
        """`sources`: by unique names (`distinct_names`) in Spark's order; None: the job opened it itself. `freeze`
        stores where sources begin, before the first publication; None: no source begins here.
        """
        store, request, job, frame = run.store, run.request, run.job, run.frame
        self._store, self._request, self._job, self._frame = store, request, job, frame
        location = replace(location, memory={})
        self._location, self._sources, self._inputs, self._topics = location, sources, run.sources, topics
        self._ids: object = None  # of topics: the newest recorded ones
        self._made_of = SinkColumns(frame, run.sources.source_of)
        self._why, self._stopper, self._expects_few = run.ending, stop, run.expects_few
        unsealed = lacking(frame.sparkSession, location.uri)
        self._durable = Durable(store, location, request, sources, topics, freeze, unsealed)
        self._capacity = Capacity(store, request)
        self._never_adds = run.expects_few and not job.has_split and never_adds_rows(frame)
        self._one_query = request.starts_from_scratch and not all(
            isinstance(each, KafkaSource) for each in sources.values()
        )
        self._sockets = Sockets(frame.sparkSession, sources)
        self._state = StateReports(store, request, location)
        self._timers = Timers(frame, location, request)
        self._idle = Idle(store)
        self._held = states(location)
        self._terminal: SparkLocation | None = None  # where it drains
        self._busy = threading.Lock()
        self._ending = self._refused = self._has_more = self._was_slice = self._looked_at_state = False
        self._is_left = True  # nothing of this JVM writes to the location any more, once the query has ended
        self._queries, self._undrained = 0, ""  # queries of this attempt, one after the other
        self._cut: Moment | None = None  # all that was there then is in the next micro-batch, or published
        self._knew = time.monotonic()  # when it was known last that nothing of before is left
        self.publisher = Publisher(
            store,
            request,
            committed=lambda batch: (self._terminal or location).is_committed(batch),
            durable=self._durable,
            ahead=None if is_remote(location.uri) else self._durable.ahead,
            check=topics.check,
            position=lambda batch: None if self._terminal else location.position(batch),
            stop=stop,
            counts=run.counts,
            application=frame.sparkSession.sparkContext.applicationId,
            remote=is_remote(location.uri),
        )

    def drain(self, is_over: Callable[[], bool]) -> None:
        """Reads what there is now, to its end, or until `is_over`.

        Not of sources that cannot be replayed: Spark would ask them in the query after this one for what it has read.
        """
        if self._one_query:
            return
        began = Moment.now(self._store) if self._request.streaming else None
        self._cut = None
        with self._timers.ending(), self._running(self._on_batch, self._location, availableNow=True) as query:
            while not self._has_ended(query):
                if is_over():
                    return self._end(query)
        self.publisher.settle()
        self._durable()
        if not self._request.streaming:
            self._fire()
        if began is not None:
            self._record_read(began)

    def _fire(self) -> None:
        """Run the timers that are due now, in a scheduled run, and emit what the new watermark closes."""
        for _ in range(2):  # bounded, since timers that are set again each time, and move the watermark, never end
            if not self._timers.begin():
                return
            self._run_once(self._on_batch, self._location)
            self._durable()
            if not self._timers.has_more():
                return

    def follow(self, is_over: Callable[[], bool]) -> None:
        """Cuts a micro-batch each interval, until `is_over` or there is more than a slice to read, which is drained."""
        spark = self._frame.sparkSession
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", str(int(1000 * _IDLE_SECONDS)))
        self._has_more = self._was_slice = False
        self._cut = Moment.now(self._store)
        self._timers.begin()
        self._idle = idle = Idle(self._store)
        looked = 0.0
        every = f"{int(1000 * self._request.checkpointing.interval.total_seconds())} milliseconds"
        with idle.listening(spark), self._running(self._on_batch, self._location, processingTime=every) as query:
            while not self._has_ended(query):
                if self._has_more or is_over():
                    return self._end(query)
                if time.monotonic() - looked > _IDLE_SECONDS:
                    looked = time.monotonic()
                    self._look(idle, query)
        raise RuntimeError("the streaming query ended without a request to stop")

    def finish(self) -> None:
        """Leave the location quick to load, after the query has ended and has read everything."""
        if self.publisher.last_batch is None or not has_state(self._location.uri):
            return
        if current():  # other streams use the JVM's state stores
            path = filesystem(self._location.uri).hadoop_path(self._location.uri)
            self._is_left = upload_own(self._frame.sparkSession, path)
        else:
            upload(self._frame.sparkSession)
        self._durable()
        self._state.report(self.publisher.last_batch, self.publisher.last_number)

    def emit_open(self) -> None:
        """Publishes a checkpoint of what is open at the end (`spark.state.draining`), unless nothing can be."""
        store, pipeline, published = self._store, self._request.pipeline, self.publisher.last_batch
        last = self._location.batch if published is None else published
        state = last >= 0 and has_state(self._location.uri)
        if reason := undrainable(self._job.output_mode, has_state=state, one_query=self._one_query):
            self._undrained = reason
            (log.warning if self._one_query else log.info)("nothing is drained: %s", reason)
        elif drain := drain_of(store, pipeline):
            log.info("nothing to drain: checkpoint %d has already drained this state", drain.number)
        else:
            self._terminal = terminal_copy(replace(self._location, batch=last), self._request)
            log.info("draining: a last checkpoint delivers the state that is open after batch %d", last)
            self._run_once(self._on_last_batch, self._terminal)

    def _run_once(self, on_batch: _OnBatch, location: SparkLocation) -> None:
        with self._running(on_batch, location, once=True) as query:
            while not self._has_ended(query):
                pass
        self.publisher.settle()

    def result(self, *, complete: bool) -> StageResult:
        """Return what came of it, when the query has ended."""
        publisher, location = self.publisher, self._location
        last = location.batch if publisher.last_batch is None else publisher.last_batch
        clean = self._is_left and (complete or location.ends_at(last))
        position = location.position(last) if last >= 0 and clean else None
        return replace(publisher.counts.result(position, complete=complete), undrained=self._undrained)

    @contextmanager
    def _running(self, on_batch: _OnBatch, location: SparkLocation, **trigger: Any) -> Iterator[StreamingQuery]:
        await_query_end(self._frame.sparkSession, self._request.pipeline)
        self._queries += 1
        self._ending, self._refused, self._stopper.query = False, False, None
        start = (
            self._frame.writeStream.foreachBatch(bound(partial(on_batch, self._queries)))
            .outputMode(self._job.output_mode)
            .queryName(self._request.pipeline)
            .option("checkpointLocation", filesystem(location.uri).hadoop_path(location.uri))
            .trigger(**trigger)
            .start
        )
        with refusing_stops(self._request.pipeline):
            query = self._stopper.query = start()
            try:
                yield query
            except BaseException:
                with suppress(Exception):  # unless it has ended by that error
                    stop(query)
                raise

    def _end(self, query: StreamingQuery) -> None:
        """Ends the query after the micro-batch under way, which is published."""
        self._ending = True
        with self._busy:
            pass
        self._settle(query)
        with suppress(Exception):  # a micro-batch that began meanwhile has ended by `Ended`
            stop(query)

    def _has_ended(self, query: StreamingQuery) -> bool:
        """Wait for a moment. Raise why the query failed, or was stopped, which Spark takes for a good end."""
        if not query.awaitTermination(_GROUP_LOOK_SECONDS if current() else _LOOK_SECONDS):  # type: ignore[arg-type]
            return False
        query.awaitTermination()  # with a time-out Spark says so a moment before it lets go of the query's name
        if self._why.first is not None:
            raise self._why.first
        return True

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until everything that the query has begun is published; raises its error if it failed.

        A failed query shows its error a moment later. `Ended` is no error: Spark has committed what was before.
        """
        while not self.publisher.settled(_LOOK_SECONDS):
            try:
                self._has_ended(query)
            except Exception:
                if not self._refused:
                    raise

    def _on_batch(self, of_query: int, batch: DataFrame, batch_id: int) -> None:
        with self._why.remembering(), self._busy:
            self.publisher.settle()
            self._state.report_if_due(self.publisher.last_batch, self.publisher.last_number)
            self._capacity.take(lambda: self._ending, self.publisher.carry)
            if of_query != self._queries:  # a call that comes late, when its query has ended
                raise Ended
            if self._ending:
                self._refused = True
                raise Ended
            self._compute(batch, batch_id)

    def _on_last_batch(self, _: int, batch: DataFrame, batch_id: int) -> None:
        with self._why.remembering():
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
            keep_last_ids(self._frame.sparkSession, self._spark_query())
            self.publisher.written(written.seal, positions)

    def _compute(self, batch: DataFrame, batch_id: int) -> None:
        self._durable.freeze()
        location = self._location
        if not self._looked_at_state:
            refuse_lost(self._held, replace(location, batch=batch_id))
            self._looked_at_state = True
        start, end = location.offsets(batch_id - 1), location.offsets(batch_id)
        asked = self._timers.forced != batch_id  # else Spark has not looked for anything new
        # A batch after a slice proves nothing about newer files: Spark may have it from an earlier listing.
        as_of = self._cut if asked and not self._was_slice else None
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
            self._cut = Moment.now(self._store)

    def _stage(self, batch: DataFrame, batch_id: int, start: list[Any], end: list[Any], as_of: Moment | None) -> None:
        spark, request, location = self._frame.sparkSession, self._request, self._location
        query = self._spark_query()
        declared = list(self._sources.values())
        read = [*batch_listings(spark, location, batch_id, query, declared), *self._inputs.listings]
        number = self.publisher.begin(batch_id)
        ids = self._topics.reading(by_topic(end))
        if self._ids is None:
            self._ids = recorded_ids(replace(location, batch=batch_id))
        if ids != self._ids:
            record_ids(location, batch_id, ids)
            self._ids = ids
        positions = named_positions(list(self._sources), start, end, ids)
        few = self._expects_few and is_small(self.publisher.last_segment)
        if read:  # files
            check_file_types(spark, query._jsq.streamingQuery().lastExecution().logical(), request.pipeline)
        bounded = few and self._never_adds and is_at_most(FEW_ROWS, self._sources, start, end)
        written = write_batch(
            request, self._job, batch, batch_id, number, positions, few=few, bounded=bounded, made_of=self._made_of
        )
        check_listings(read, request.pipeline)
        keep_last_ids(spark, query)
        self._was_slice = is_part = is_slice(self._sources, start, end, read)
        if as_of is not None:
            may_be_part = is_part or is_bounded_in_bytes(self._sources, read)
            is_overdue = may_be_part and time.monotonic() - self._knew > _UNKNOWN_SECONDS
            self._has_more = (is_part or is_overdue) and not self._one_query
            if may_be_part or not has_known_bounds(self._sources):
                as_of = None
            else:
                self._knew = time.monotonic()
        self.publisher.written(written.seal, positions, as_of)

    def _spark_query(self) -> Any:
        """Return the query under way, which may compute a micro-batch before `start` has returned it."""
        if self._stopper.query is not None:
            return self._stopper.query
        active = self._frame.sparkSession.streams.active
        return next(each for each in active if each.name == self._request.pipeline)

    def _pass_by(self, as_of: Moment | None) -> None:
        """Nothing was read, and nothing has come of it: all of before is published."""
        keep_last_ids(self._frame.sparkSession, self._spark_query())
        if as_of is not None and has_known_bounds(self._sources) and self._idle.is_due():
            self._record_read(as_of)

    def _look(self, idle: Idle, query: StreamingQuery) -> None:
        """Between micro-batches: what an aborted checkpoint has left, and how far the stream has come."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._settle(query)
            self.publisher.carry()
            if self.publisher.last_batch is not None:
                self._sockets.look(time.monotonic())
            if (as_of := idle.read_as_of()) is None:
                return
            self._sockets.require_open(as_of.read)
            if self._cut is not None:
                self._cut = max(self._cut, as_of, key=lambda each: each.read)
            if idle.is_due():
                self._record_read(as_of)
        except AirflowFtError as error:
            self._why.failed(error)
            self._ending = True  # a micro-batch that waits would fail because the query is stopped
            raise
        finally:
            self._busy.release()

    def _record_read(self, as_of: Moment) -> None:
        self._knew = time.monotonic()
        read = as_of.earliest(Moment.now(self._store))
        self._store.read_all(self._request.pipeline, self._request.epoch, self._request.run, read)
