"""Run the job in the driver as a streaming query, and stage and publish each micro-batch.

What if the driver dies ...
- while a batch is computed, written or sealed: its number is never published, its folder is waste, the batch is
  computed again from the last published state;
- after Spark's commit, before publication: the same, since the next attempt cuts its copy of Spark's location back
  to the last published batch (a segment is sealed while Spark commits, so either may come first);
- during the publication's write: published or not, as the store says when the next owner reads it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_ft.jobs.uids import Identity, plan_of
from airflow_ft.protocol.errors import (
    AirflowFtError,
    CheckpointExpiredError,
    ConfigurationError,
    JobError,
    StageError,
    WalCorruptError,
)
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.protocol.reasons import WaitReason
from airflow_ft.protocol.restart import Restarts, RestartStrategy, given_up, is_tolerated, wait_after
from airflow_ft.protocol.warning import PipelineWarning, warn
from airflow_ft.sources import KafkaSource, Source, source_from_json
from airflow_ft.spark.driver.capacity import QueueIsFull
from airflow_ft.spark.driver.columns import SinkColumns
from airflow_ft.spark.driver.executors import MOST_LOSSES, ExecutorLostError
from airflow_ft.spark.driver.failures import as_error, reason
from airflow_ft.spark.driver.gauges import gauges_of
from airflow_ft.spark.driver.inputs import Sources, refuse_unfit, source_order, source_places, told_apart
from airflow_ft.spark.driver.job import Job
from airflow_ft.spark.driver.kafka_admin import topic_admins
from airflow_ft.spark.driver.lag import LagWatch, RecordsRead
from airflow_ft.spark.driver.listing import check_listings, static_listings
from airflow_ft.spark.driver.local_files import spare_processes
from airflow_ft.spark.driver.plan_meaning import memory_of
from airflow_ft.spark.driver.publisher import Publisher, Tally
from airflow_ft.spark.driver.query import Query, Stopper, by_topic, compute_planned
from airflow_ft.spark.driver.staging import ManyRowsError, fix_conf, write_batch
from airflow_ft.spark.driver.topics import Topics
from airflow_ft.spark.driver.types import check_types
from airflow_ft.spark.fitting import ask
from airflow_ft.spark.private import PROPERTIES, write
from airflow_ft.spark.process import die_with_parent
from airflow_ft.spark.reports import describe_error
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.session.session_leases import attach, await_end, detach
from airflow_ft.spark.session.submit import DRAIN, END, REQUEST, RESULT
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.catching_up import catch_up, is_planned
from airflow_ft.spark.state.draining import drain_of
from airflow_ft.spark.state.evolution import carry_out, evolution, is_known
from airflow_ft.spark.state.locations import (
    SparkLocation,
    behind_the_beginning,
    check_sources,
    has_places,
    incarnation_of,
    location_root,
    open_location,
    remember_incarnation,
    set_places,
)
from airflow_ft.spark.state.meaning import Memory, remember_meaning
from airflow_ft.spark.state.operators import remember, remember_code
from airflow_ft.spark.state.schemas import refuse_lost, states
from airflow_ft.spark.state.settings import remember_given, tell_changed
from airflow_ft.spark.state.source_changes import (
    SourceChange,
    change_sources,
    known_sources,
    source_change,
)
from airflow_ft.spark.state.status import LocationStatus, leave_out, record_ids, standing
from airflow_ft.store import open_store
from airflow_ft.wal import owners
from airflow_ft.wal.retention import sweep_attempts
from airflow_ft.wal.roots import away, claim, require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.protocol.decision_log import HistoryLog
    from airflow_ft.store.decision_log import DecisionLog

log = logging.getLogger("airflow_ft.spark")

_MAY_BE_AWAY = ConfigurationError, JobError, StageError, WalCorruptError
"""Errors that files which are away may cause."""
_PAUSE = 1.0, 60.0
"""Seconds between tries of a checkpoint whose failure is tolerated: its interval, but no less and no more."""


def main(folder: str, session: int | None = None) -> int:
    """Runs the request that lies in `folder` and leaves a report there; the exit code of the process.

    `session`: the open file that leads to a JVM which is kept; None: spark-submit has started one for this process.
    """
    die_with_parent()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    private = Path(folder)
    request = StageRequest.from_json(json.loads((private / REQUEST).read_text()))
    for name in (REQUEST, PROPERTIES):  # they hold credentials, and have been read
        (private / name).unlink(missing_ok=True)
    attempt = Attempt(request, private / RESULT, session)
    try:
        result = attempt.run()
    except BaseException as error:
        if session is not None:
            await_end()
        attempt.report(error)
        attempt.leave(failed=True)
        return 1
    _tell(result)
    write(private / RESULT, json.dumps({"result": result.to_json()}))
    return 0 if attempt.leave() else 1


def _tell(result: StageResult) -> None:
    if count := result.published.count:
        log.info("staged %s checkpoints with %s rows", f"{count:,}", f"{sum(result.rows.values()):,}")
    else:
        log.info("nothing new to stage")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Parts of the job's query, in Spark's order: sources by name, their uses, stateful operators."""

    sources: list[str]
    places: list[int]
    operators: tuple[Identity, ...]
    memory: Memory | None
    """The meaning of the operators' state; None: unknown."""


def _living(request: StageRequest, base: SparkPosition | None) -> StageRequest:
    """Return a request that continues from a base, or without one reads everything again."""
    return replace(request, base=behind_the_beginning(base), incarnation=incarnation_of(base))


class Attempt:
    """One attempt, in this process."""

    def __init__(self, request: StageRequest, report: Path, session: int | None) -> None:
        self._request = _living(request, request.base)
        self._report, self._kept = report, session
        self._failed: BaseException | None = None
        self._began = False  # whether the job has computed anything
        self._requests = Requests(report.parent)
        self._tally = Tally()
        # See `staging.write_batch`: what is computed again then, though nothing has died, would be lost without a base.
        self._expects_few = request.streaming and not request.begins_anew
        self._spark: SparkSession | None = None
        self._losses = 0, 0  # numbers that were published before executors were lost, and how often that was
        self._reported = threading.Lock()

    def run(self) -> StageResult:
        """Stage until nothing is left to read, a stream until it is stopped; raises the error that ended it."""
        with closing(open_store(self._request.store_url)) as store:
            spark = self._spark = self._session()
            given = self._request.restart
            restarts = None if given is None else RestartStrategy.from_json(given).begin(time.monotonic())
            while True:
                try:
                    return self._stage(store, spark)
                except Exception as error:
                    if self._is_over_after(store, spark, error, restarts):
                        return self._tally.result(None, complete=False)
                self._tidy_up(store, spark)

    def leave(self, *, failed: bool = False) -> bool:
        """End Spark. Returns whether it was left as the next run needs it.

        Call it when the end is reported: it may hang, and the launcher waits only a limited time after the report.
        """
        if self._spark is None:
            return True
        try:
            if self._kept is None:
                self._spark.stop()
            elif not failed:  # otherwise the JVM is not used again, and holds the reason
                detach(self._spark)
        except Exception as error:  # the JVM may be gone already: what is published is in the store
            log.warning("Spark did not stop cleanly: %s", error)
            return self._kept is None
        return True

    def _stage(self, store: DecisionLog, spark: SparkSession) -> StageResult:
        request = self._request
        claim(store, request.wal_root)
        tell = partial(warn, store, request.pipeline)
        if told := owners.register(store, request.wal_root, request.pipeline):
            tell(PipelineWarning("FOLDER_SHARED", "", told, owners.REMEDY))
        if request.base is not None:  # it may lie where the log was before
            claim(store, location_root(request.base.location))
        job = Job(request.job, request.job_arguments, request.dead_letters.sink if request.dead_letters else "")
        sources = Sources(spark, request.sources, request.connections, begins=self._beginning())
        frame = job.transform(spark, sources)
        await_answer = ask(self._report.parent, request, job, spark, frame, tell)
        fix_conf(spark, "spark.sql.")
        spare_processes(frame.sparkSession, request.wal_root)
        if frame.isStreaming:
            return self._run_stream(store, job, frame, sources, await_answer)
        if request.streaming:
            raise JobError(
                f"job {request.job_name} returns a DataFrame that does not stream, but the pipeline has"
                " streaming=True.",
                code="job_result_invalid",
                remedy='Begin `transform` with a source (sources["orders"]), or remove streaming=True.',
                job=request.job_name,
            )
        return self._run_static(store, job, frame, sources, await_answer)

    def _is_over_after(
        self, store: DecisionLog, spark: SparkSession, error: Exception, restarts: Restarts | None
    ) -> bool:
        """Handle an error of a stream. Returns False to continue in a new attempt, True if it was stopped meanwhile.

        Raises the error if the strategy is exhausted or a restart cannot help. A restart cannot solve an error in the
        job itself, an unavailable decision log or a dead JVM.
        """
        request = self._request
        cause = self._cause(error)
        if self._began and isinstance(cause, ExecutorLostError) and self._may_compute_again() and _is_alive(spark):
            _warn(cause)
            log.warning("Spark computes the micro-batch again at once")
            return self._begin_again(store, 0.0)
        if restarts is None or not self._began or not isinstance(cause, (JobError, StageError, CheckpointExpiredError)):
            raise error
        if not _is_alive(spark):
            raise error
        tolerable = request.checkpointing.tolerable_failures
        wait: float | None
        if isinstance(cause, ManyRowsError):
            wait, self._expects_few = 0.0, False  # such a job would meet it again and again
            log.info("%s Spark computes it again at once, and writes all micro-batches itself from now on", cause.what)
        elif is_tolerated(cause, store, request.pipeline, tolerable):
            least, most = _PAUSE
            wait = max(least, min(most, request.checkpointing.interval.total_seconds()))
            if isinstance(cause, CheckpointExpiredError):  # the next one is overdue
                wait = 0.0
            _warn(cause)
            log.warning("the job restarts in %.0f s: tolerable_failures is %d", wait, tolerable)
        else:
            wait = wait_after(cause, restarts, "the job")
            if wait is None:
                self._failed = given_up(cause, restarts.strategy)
                raise error
        return self._begin_again(store, wait)

    def _may_compute_again(self) -> bool:
        """Return whether executors may be lost once more; each publication begins the count again."""
        published, losses = self._losses
        now = self._tally.numbers.count
        self._losses = now, losses + 1 if published == now else 1
        return self._losses[1] <= MOST_LOSSES

    def _begin_again(self, store: DecisionLog, wait: float) -> bool:
        """Wait some seconds, then make a new attempt in this process; True: it was asked to end meanwhile."""
        if self._requests.is_to_drain():
            time.sleep(wait)
        elif self._requests.is_to_end(within=wait) and not self._requests.is_to_drain():
            return True
        request = self._request
        self._failed, self._began = None, False  # what fails from here on is not the job
        drain = drain_of(store, request.pipeline) if self._requests.is_to_drain() else None
        if drain is not None and drain.epoch == request.epoch:  # Spark has failed behind the last checkpoint
            log.info("checkpoint %d has drained the state, so the job does not restart", drain.number)
            return True
        attempt = store.begin_again(request.pipeline, request.epoch, request.run)
        now = store.pipeline(request.pipeline)  # read after it (I10): a rewind before it has set another base
        self._request = replace(
            _living(request, now.base),
            attempt=attempt,
            base_is_clean=False,
            last_published=now.last_published,
            ask_sinks=False,
        )
        return False

    def _tidy_up(self, store: HistoryLog, spark: SparkSession) -> None:
        """Delete files of this epoch's earlier attempts, which would fill the disk of a stream in some days.

        They can publish nothing any more (`begin_again`), so only the locations referenced now are needed. The
        base that was read earlier is kept too, in case of a rewind in between. Does nothing while a query still
        writes.
        """
        request = self._request
        try:
            if spark.streams.active:
                return
            kept = {*store.referenced_locations(request.pipeline), *([request.base.location] if request.base else ())}
            sweep_attempts(request.wal_root, request.pipeline, kept, request.epoch, request.attempt)
        except (AirflowFtError, OSError) as error:  # the next restart, or the next epoch, does it
            log.warning("files of earlier attempts were not deleted: %s", error)

    def report(self, error: BaseException) -> None:
        """Leaves the reason of the end for the launcher; the first one counts."""
        if not self._reported.acquire(blocking=False):
            return
        cause = self._failed or error
        if not isinstance(cause, AirflowFtError):
            log.error("the job failed", exc_info=cause)
        write(self._report, json.dumps({"error": describe_error(self._cause(error))}))

    def _cause(self, error: BaseException) -> AirflowFtError:
        """Return the cause for the end of the attempt: StorageUnavailableError while the log's disk is away."""
        request = self._request
        cause = as_error(self._failed or error, request.pipeline, request.job_name, request.base)
        if isinstance(cause, _MAY_BE_AWAY) and (gone := away(request.wal_root)):
            _warn(cause)
            return gone.located(pipeline=request.pipeline)
        return cause

    def failed(self, error: BaseException) -> None:
        """Remembers what went wrong first: Spark wraps it beyond recognition."""
        self._failed = self._failed or error

    def _session(self) -> SparkSession:
        began = time.monotonic()
        spark = self._started() if self._kept is None else attach(self._kept)
        log.info("Spark %s started in %.1f s", spark.version, time.monotonic() - began)
        return spark

    def _started(self) -> SparkSession:
        from pyspark.sql import SparkSession

        try:
            return SparkSession.builder.getOrCreate()
        except Exception as error:  # in words of the JVM, which has told the reason in the log by then
            raise StageError(
                f"Spark did not start with the master {self._request.master!r}: {reason(error).rstrip('.')}.",
                code="spark_not_started",
                remedy="Read Spark's lines above in the task's log. Check that the master (spark_master) is reachable"
                " and accepts the settings in spark_conf.",
                master=self._request.master,
            ) from error

    def _run_stream(
        self, store: DecisionLog, job: Job, frame: DataFrame, sources: Sources, await_answer: Callable[[], None]
    ) -> StageResult:
        if not job.has_split:
            check_types(frame.schema, self._request.sinks[0])  # before anything is read
        refuse_unfit(frame, self._request.checkpointing.mode)
        memory = memory_of(frame, sources.source_of, self._request.job_arguments)
        plan = _Plan(source_order(frame), source_places(frame), plan_of(frame), memory)
        kafka = {
            i: (n, source) for i, n in enumerate(plan.sources) if isinstance(source := self._source(n), KafkaSource)
        }
        admins = topic_admins(frame.sparkSession, kafka, self._request.connections)
        with closing(Topics(self._request.pipeline, kafka, admins, sources.started)) as topics:
            return self._run_query(store, job, frame, plan, topics, sources, await_answer)

    def _beginning(self) -> set[str]:
        """The names of declared sources of which no attempt has kept yet where they begin."""
        request = self._request
        frozen, new = Beginnings.of(request), request.sources.keys() - known_sources(request.base)
        return {name for name in new if request.begins_anew or not frozen.has(name)}

    def _begins(self, plan: _Plan, change: SourceChange | None) -> dict[int, str]:
        """The declared Kafka sources that have no position yet, by their places; where they begin is to be frozen."""
        if self._request.begins_anew:
            return {}
        added = {} if change is None else change.added
        new = dict(enumerate(plan.sources)) if self._request.base is None else added
        return {index: name for index, name in new.items() if isinstance(self._source(name), KafkaSource)}

    def _by_place(self, names: Sequence[str]) -> dict[str, Source | None]:
        """The sources in Spark's order, told apart. None: the job has opened it by itself."""
        return {told: self._source(name) for told, name in zip(told_apart(names), names, strict=True)}

    def _source(self, name: str) -> Source | None:
        """None: the job has opened it by itself."""
        declared = self._request.sources.get(name)
        return None if declared is None else source_from_json(declared)

    def _open_location(
        self,
        plan: _Plan,
        change: SourceChange | None,
        frozen: Beginnings,
        begins: Mapping[int, str],
        topics: Topics,
        bear: Callable[..., None],
    ) -> SparkLocation:
        """Return where this attempt works, without the positions of topics that are no longer what they were."""
        request = self._request
        begun = frozen.read(begins)
        before = LocationStatus() if request.base is None else standing(request.base)
        if change is not None:
            before = change.standing(before)
        before = before.beside(frozen.standing(begun))
        void = topics.begin(before)
        step = None if request.begins_anew else evolution(request.pipeline, request.base, plan.operators, plan.memory)
        # What others may have to go back to is changed in a copy only.
        behind = is_planned(request.base)
        fits = step is None and change is None and has_places(request.base, plan.places)
        fits = fits and is_known(request.base, plan.memory)
        in_place = request.base_is_clean and fits and not void and not behind
        location = open_location(
            request.wal_root, request.pipeline, request.epoch, request.attempt, request.base, in_place
        )
        log.info("Spark's checkpoint location: %s (%s)", location.uri, location.how)
        if request.begins_anew:
            remember_incarnation(location, f"{request.pipeline}/{location.uri.rsplit('/', 1)[1]}")
            log.info("mode AT_MOST_ONCE: reading from the sources' present end; rows that are not published are lost")
            check_sources(location, plan.sources)
            set_places(location, plan.places)
            return location
        if behind and (void or change is not None):
            raise ConfigurationError(
                f"{'topics were recreated' if void else 'the sources of the job changed'} after the savepoint, so the"
                " checkpoints delivered after it cannot be computed again.",
                code="rebuild_impossible",
                pipeline=request.pipeline,
                remedy="Restore the savepoint again with `--later write-again`, or choose another savepoint.",
            )
        if request.base is None:
            remember_incarnation(location, request.incarnation)
        if change is not None:
            change_sources(change, location, plan.places)
        frozen.restore(location, begun, topics.known, void)
        check_sources(location, plan.sources)
        set_places(location, plan.places)
        if request.base is None:
            remember(location, plan.operators)
            remember_meaning(location, plan.memory)
            return location
        if void:
            leave_out(location, void)
        if step is not None:
            carry_out(step, location, plan.operators, partial(bear, whole=True))
        remember(location, plan.operators)
        remember_meaning(location, plan.memory)
        if behind:
            self._began = True  # the job computes from here on
            held = states(location)
            location = catch_up(location, bear)
            refuse_lost(held, location)
        ids = topics.ids_of(by_topic(location.offsets(location.batch)), before.ids)
        if ids != before.ids:
            record_ids(location, location.batch, ids)
        return location

    def _run_query(
        self,
        store: DecisionLog,
        job: Job,
        frame: DataFrame,
        plan: _Plan,
        topics: Topics,
        sources: Sources,
        await_answer: Callable[[], None],
    ) -> StageResult:
        request = self._request
        change = None if request.begins_anew else source_change(request.pipeline, request.base, plan.sources)
        begins = self._begins(plan, change)
        frozen, bear = Beginnings.of(request), partial(compute_planned, frame, job.output_mode)
        location = self._open_location(plan, change, frozen, begins, topics, bear)
        require(request.wal_root)  # what was read of the base, or not found there, was read from the right disk
        remember_given(location.uri, request.conf)
        remember_code(location, job.code)
        tell_changed(request.base, frame.sparkSession.conf.get)
        declared = self._by_place(plan.sources)
        with self._stopping() as stop:
            query = Query(
                store,
                request,
                job,
                frame,
                location,
                declared,
                sources,
                topics,
                tally=self._tally,
                failed=self.failed,
                stop=stop,
                expects_few=self._expects_few,
                freeze=partial(frozen.freeze, location, begins, topics.check_start) if begins else None,
            )
            publisher = query.publisher
            spark = frame.sparkSession
            lag = LagWatch(
                store,
                request,
                lambda: gauges_of(spark, location, declared, topics, partial(warn, store, request.pipeline)),
                lambda: publisher.last_read,
                RecordsRead(spark),
            )
            try:
                await_answer()
                self._began = True
                with lag.watching():
                    query.drain(self._requests.is_to_end)
                    while request.streaming and not self._requests.is_to_end():
                        query.follow(self._requests.is_to_end)
                        if not self._requests.is_to_end():
                            query.drain(self._requests.is_to_end)
                    query.finish()
                    if self._requests.is_to_drain() or (request.checkpointing.drain and not request.streaming):
                        query.emit_open()
            except BaseException as error:
                if self._failed is None and (reason := topics.explain()) is not None:
                    self.failed(reason)  # Spark has met the new topic before we have
                publisher.close(self._cause(error))
                if isinstance(self._failed, QueueIsFull) and publisher.failure is None:
                    log.warning(
                        "%d checkpoints wait for delivery (%s), so this run ends; the next run reads the rest",
                        self._failed.waiting,
                        WaitReason.TOO_MANY_QUEUED,
                    )
                    # The batch under way makes this end an unclean one, and its input waits for the next run.
                    return query.result(complete=False)
                raise
            publisher.close()
            if publisher.failure is not None:
                raise publisher.failure
            return query.result(complete=not request.streaming)

    @contextmanager
    def _stopping(self) -> Iterator[Stopper]:
        stop = Stopper(self.failed, self.report)
        try:
            yield stop
        finally:
            stop.ended()

    def _run_static(
        self, store: DecisionLog, job: Job, frame: DataFrame, sources: Sources, await_answer: Callable[[], None]
    ) -> StageResult:
        """A plain batch job: one checkpoint a run, and none when this run has published it before."""
        request = self._request
        if published := store.last_published(request.pipeline, request.run):
            log.info("checkpoint %d already has the rows of this run: nothing to compute", published)
            return StageResult((), {}, None, already_staged=True, complete=False)  # read when that began
        with self._stopping() as stop:
            publisher = Publisher(
                store,
                request,
                committed=lambda _: True,
                durable=lambda: None,
                position=lambda _: None,
                stop=stop,
                tally=self._tally,
                application=frame.sparkSession.sparkContext.applicationId,
            )
            try:
                await_answer()
                self._began = True
                number = publisher.begin(0)
                made_of = SinkColumns(frame, sources.source_of)
                written = write_batch(request, job, frame, 0, number, {}, made_of=made_of)
                check_listings([*static_listings(frame), *sources.listings], request.pipeline)
                publisher.written(written.seal, {})
                publisher.settle()
            except BaseException as error:
                publisher.close(self._cause(error))
                raise
            publisher.close()
        return self._tally.result(None)


class Requests:
    """Requests of the task to the driver: files in the attempt's private folder."""

    def __init__(self, folder: Path) -> None:
        self._end = folder / END

    def is_to_end(self, within: float = 0.0) -> bool:
        """Wait up to these seconds, and return whether the stream is to end after its current checkpoint."""
        deadline = time.monotonic() + within
        while not self._end.exists():
            if (left := deadline - time.monotonic()) <= 0:
                return False
            time.sleep(min(0.1, left))
        return True

    def is_to_drain(self) -> bool:
        """Return whether it is to end with a checkpoint of what is open."""
        return self._end.exists() and self._end.read_text() == DRAIN


def _warn(error: AirflowFtError) -> None:
    """Log an error after which the driver continues."""
    for line in error.log_lines:
        log.warning("%s", line)


def _is_alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False
