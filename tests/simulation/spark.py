"""The Spark driver of a stream, without Spark: what the product's own query, publisher and attempt speak to.

A micro-batch is one item. Each driver is a process with three threads at least: the one that watches the query, Spark's
own, in which micro-batches run, and the publisher's. It dies with the task that has started it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol import backpressure
from airflow_ft.protocol.errors import ConfigurationError, JobError, StageError, WalCorruptError
from airflow_ft.protocol.model import RunKey, Segment, SparkPosition
from airflow_ft.protocol.pipelines import Pipeline
from airflow_ft.protocol.reasons import WaitReason
from airflow_ft.protocol.restart import ExponentialDelay
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.driver.ending import Ending
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.job_run import JobRun
from airflow_ft.spark.driver.query_run import QueryRun
from airflow_ft.spark.driver.runner import Attempt
from airflow_ft.spark.reports import describe_error, rebuild_error
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.savepoints.converting import Backend
from airflow_ft.spark.state import beginnings
from airflow_ft.spark.state.settings import PARTITIONS, PROVIDER
from airflow_ft.spark.state.status import record_ids, recorded_ids
from airflow_ft.spark.task import launcher
from tests.simulation.beginnings import Beginnings
from tests.simulation.files import STATE
from tests.simulation.kernel import Process
from tests.simulation.laws import PIPELINE
from tests.simulation.operators import BORN, has_no_operator
from tests.simulation.source import CLOSED, EMPTY, NO_WATERMARK, ORDERS, SLICE, Item, Wal, empties, once_more
from tests.simulation.sources import Sources
from tests.simulation.threads import ModelThread

if TYPE_CHECKING:
    from tests.simulation.world import World

SOURCES = {ORDERS: KafkaSource(topics=[ORDERS], max_offsets_per_trigger=SLICE).to_json()}
JOB = "jobs.orders"
OPERATOR = "state/0/_metadata/metadata"
OPERATOR_METADATA = b"""v1
{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},"stateStoreInfo":[{"storeName":"default","numPartitions":2}]}
"""
RESTART = ExponentialDelay()
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 10.0
_TOPICS = SimpleNamespace(
    known={},
    reading=lambda _: {},
    check=lambda: None,
    check_start=lambda _: {},
    explain=lambda: None,
    begin=lambda _: {},
    ids_of=lambda *_: {},
)


@dataclass(frozen=True, slots=True)
class Location:
    """See `airflow_ft.spark.state.locations.SparkLocation`; `batch` -1: from the beginning."""

    wal: Wal
    uri: str
    batch: int
    root: str = "file:///wal"
    pipeline: str = PIPELINE
    how: str = "model"
    memory: Any = None

    def is_committed(self, batch: int) -> bool:
        return batch in self.wal.states.get(self.uri, {})

    sees_commit = is_committed

    def position(self, batch: int) -> SparkPosition:
        return SparkPosition(self.uri, batch)

    def ends_at(self, batch: int) -> bool:
        last = self.wal.batch(self.position(batch))
        return max(self.wal.ends.get(self.uri, {}), default=0) <= last == max(self.wal.states[self.uri], default=-1)

    def sync(self, synced: Any) -> None:
        pass

    def offsets(self, batch: int) -> list[Any]:
        return [{"orders": {"0": self.wal.ends.get(self.uri, {}).get(batch, 0)}}]


class Driver:
    """See `airflow_ft.spark.process.Driver`."""

    def __init__(self, world: World, request: StageRequest) -> None:
        self.world, self.request, self.began = world, request, world.log.now()
        self.killed = self._to_end = self._to_drain = False
        self.result: Mapping[str, Any] | None = None
        self.error: Mapping[str, Any] | None = None
        self.attempt: ModelAttempt | None = None
        kernel = world.kernel
        task = kernel.owner
        assert task is not None
        kernel.names[task.name, "d"] += 1
        number = kernel.names[task.name, "d"]
        name = f"{task.name}d{number if number > 1 else ''}"
        self.process: Process = kernel.start(name, self._main, child_of=task)

    def end(self, *, drain: bool = False) -> None:
        self._to_end, self._to_drain = True, drain

    def is_to_drain(self) -> bool:
        """See `airflow_ft.spark.driver.requests.Requests`."""
        return self._to_drain

    def kill(self, grace: float = 0.0) -> None:
        self.killed = True
        self.world.kernel.kill(self.process)

    def is_to_end(self, within: float = 0.0) -> bool:
        """See `airflow_ft.spark.driver.requests.Requests`."""
        while not self._to_end and within > 0:
            self.world.kernel.wait(min(1.0, within), ends=True)
            within -= 1.0
        return self._to_end

    def is_killed(self) -> bool:
        """See `airflow_ft.spark.driver.requests.Requests`: here a stream has a driver of its own."""
        return False

    def _main(self) -> None:
        self.attempt = ModelAttempt(self)
        try:
            self.result = self.attempt.run().to_json()
        except Exception as error:
            self.attempt.report(error)


class Spark:
    """What the world has in place of Spark: it starts drivers, and holds what the source has."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.drivers: list[Driver] = []
        self.failures = 0  # so many micro-batches are still to fail
        self.retained = world.scenario.retained
        self.beginnings = Beginnings(world, SOURCES)
        self.sources = Sources(world) if world.scenario.sources else None
        self._conf = {PARTITIONS: "2", PROVIDER: Backend.ROCKSDB.provider}

    def make_request(self, run: RunKey) -> Callable[[Pipeline, int, int], StageRequest]:
        """See `airflow_ft.spark.task.stage.MakeRequest`."""
        world = self._world

        def make(before: Pipeline, epoch: int, attempt: int) -> StageRequest:
            return StageRequest(
                pipeline=PIPELINE,
                run=run,
                epoch=epoch,
                attempt=attempt,
                store_url="model:",
                wal_root="file:///wal",
                job=JOB,
                sinks=tuple(world.scenario.sinks),
                sources=SOURCES if self.sources is None else self.sources.declared(run),
                base=before.base,
                base_is_clean=before.base_is_clean,
                last_published=before.last_published,
                checkpointing=world.config_of(run),
                streaming=world.streams is not None,
                restart=RESTART.to_json() if world.streams is not None else None,
                retained_batches=self.retained,
            )

        return make

    def run_stage(
        self,
        request: StageRequest,
        store: Any,
        *,
        log: Any,
        on_start: Callable[[Any], None],
        judge: Any = None,
        on_publish: Callable[[], None],
        standby: object = None,
        shared: object = None,
    ) -> StageResult:
        """See `airflow_ft.spark.task.launcher.run_stage`."""
        driver = Driver(self._world, request)
        self.drivers.append(driver)
        on_start(driver)
        published = 0
        while not driver.process.ended:
            count = driver.attempt._counts.numbers.count if driver.attempt else 0
            if count > published:
                on_publish()
                published = count
            self._world.kernel.wait(_LOOK_SECONDS)
        if driver.result is not None:
            return StageResult.from_json(dict(driver.result))
        message = driver.error or describe_error(StageError("the Spark driver was killed."))
        error = rebuild_error(message)
        launcher.raise_if_fenced(store, request, error)
        raise error

    def stage(self, request: StageRequest) -> StageResult:
        """Of a run that is no stream, whose driver reads what there is."""
        return self.run_stage(request, self._world.store, log=None, on_start=lambda _: None, on_publish=lambda: None)

    def pauses(self) -> bool:
        """Whether a driver that waits for room waits for the time alone, which comes by itself."""
        found = backpressure.capacity(self._world.log, PIPELINE, self._world.config, self.retained)
        return isinstance(found, backpressure.Wait) and found.reason is WaitReason.MIN_PAUSE

    def perform(self, what: str, call: Callable[[], Any], *, routine: bool = False) -> Any:
        """Something that Spark does, where the driver may die, or Spark fail."""

        def failed(_: bool) -> Exception:
            return StageError(f"Spark failed where it {what}.")

        return self._world.kernel.call(f"spark {what}", call, failed, local=True, routine=routine)

    def write_batch(
        self, request: StageRequest, job: Any, batch: Location, batch_id: int, number: int, positions: Any
    ) -> SimpleNamespace:
        """See `airflow_ft.spark.driver.staging.write_batch`."""
        world = self._world

        def compute() -> Item:
            if world.laws.streams is not None:
                world.laws.streams.computes(number)
            if self.failures:
                self.failures -= 1
                if world.laws.streams is not None:
                    world.laws.streams.job_raised(number)
                raise JobError("the job raised.")
            state = batch.wal.states[batch.uri]
            if batch_id > 1 and batch_id - 1 not in state:
                if world.log.pipeline(PIPELINE).epoch > request.epoch:
                    raise StageError("Spark does not find its state: a newer owner has swept it.")
                world.kernel.violate("I10", f"the state before batch {batch_id} is needed and gone")
            shifted = EMPTY * empties(state.get(batch_id - 1, ""))
            variant = CLOSED if batch.uri.endswith("-drain") else f"v{request.epoch}.{request.attempt}{shifted}"
            batch.wal.computed[batch.uri, batch_id] = variant
            item = world.windows.emitted(batch, batch_id, {**state, batch_id: variant})
            if self.sources is not None:
                self.sources.computes(batch.uri, batch_id, item)
            return item

        item = self.perform(f"computes item {batch_id}", compute)

        def seal() -> Segment:
            return batch.wal.write(request.epoch, request.attempt, number, item, world.scenario.rows)

        return SimpleNamespace(seal=lambda: self.perform(f"seals item {batch_id}", seal), item=item)

    def continues(self, base: SparkPosition | None, uri: str) -> None:
        """A run that is no stream works in a copy of its base: what lies there beside the state comes along."""
        wal = self._world.wal
        if self._world.savepoints is not None and base is not None and not wal.ends.get(uri):
            for kept in (wal.ends, wal.metadata):
                found: dict[int, Any] = kept.get(base.location, {})
                kept[uri] = {batch: each for batch, each in found.items() if batch <= base.batch}  # type: ignore[assignment]
            wal.files[uri] = dict(wal.files.get(base.location, {}))

    def begins(self, uri: str, batch: int) -> None:
        """A run that is no stream has begun a micro-batch, which ends an offset further."""
        if self._world.savepoints is None:
            return
        wal, ends = self._world.wal, self._world.wal.ends.setdefault(uri, {})
        ends[batch] = ends.get(batch - 1, 0) + 1
        self.record_batch(uri, batch)
        if self._world.scenario.stateful:
            wal.files.setdefault(uri, {})[OPERATOR] = OPERATOR_METADATA

    def record_batch(self, uri: str, batch: int) -> None:
        """What Spark notes of a micro-batch that it begins: a watermark like no other, and the settings it keeps."""
        metadata = self._world.wal.metadata.setdefault(uri, {})
        conf = json.loads(metadata.get(batch - 1, NO_WATERMARK)).get("conf", self._conf)
        metadata[batch] = json.dumps(
            {"batchWatermarkMs": self._world.kernel.steps, "conf": conf}, separators=(",", ":")
        )

    def drive(self, main: str, arguments: tuple[Any, ...], what: str, *_: Any) -> None:
        """See `airflow_ft.spark.savepoints.offline.drive`: what Spark does to the copy of a savepoint, file by file."""
        files = self._world.files
        self.perform(f"starts, to {what}", lambda: None)
        if main.startswith("airflow_ft.spark.savepoints.rescaling"):
            copy, partitions = arguments
            batch = max(int(name) for name in files.names(f"{copy}/commits"))
            version, metadata, end = files.read(f"{copy}/offsets/{batch}").decode().splitlines()
            conf = {**json.loads(metadata)["conf"], PARTITIONS: str(partitions)}
            again = json.dumps({**json.loads(metadata), "conf": conf}, separators=(",", ":"))
            files.write(f"{copy}/offsets/{batch + 1}", f"{version}\n{again}\n{end}".encode())
            state = files.read(f"{copy}/{STATE}/{batch + 1}.delta")
            files.write(f"{copy}/{STATE}/{batch + 2}.delta", state + EMPTY.encode())
            files.write(f"{copy}/commits/{batch + 1}", b"v1\n{}")
        else:
            old, copy, batch = arguments
            files.write(f"{copy}/{STATE}/{batch + 1}.delta", files.read(f"{old}/{STATE}/{batch + 1}.delta"))

    def compute_planned(self, location: Any, job: str = "") -> None:
        """See `driver.query_run.compute_planned`: what comes of it is named after what it was computed with."""
        wal, uri = self._world.wal, location.uri

        def compute() -> None:
            if uri.endswith(BORN) and uri in wal.states:
                return self._world.operators.bear(uri, job)
            if not wal.states.get(uri) or not wal.ends.get(uri):
                raise StageError("Spark does not find its location: a newer owner has swept it.")
            batch, done = max(wal.ends[uri]), max(wal.states[uri])
            if self.failures:
                self.failures -= 1
                raise JobError("the job raised.")
            if batch != done + 1:
                self._world.kernel.violate("I10", f"micro-batch {batch} is planned in {uri}, which stands at {done}")
            data = [json.loads(wal.metadata.get(uri, {}).get(each, NO_WATERMARK)) for each in (done, batch)]
            if data[0].get("conf") != data[1].get("conf"):
                self._world.kernel.violate("I10", f"micro-batch {batch} of {uri} looks for state of another kind")
            wal.states[uri][batch] = once_more(
                wal.states[uri][done],
                wal.ends[uri].get(done, done),
                wal.ends[uri][batch],
                data[1]["batchWatermarkMs"],
            )
            self._world.operators.advance(uri, batch, job)
            self.retain(uri)

        self.perform("computes a micro-batch once more", compute)

    def frozen(self, request: StageRequest) -> Any:
        """In place of `airflow_ft.spark.state.beginnings.Beginnings.of`."""
        found = beginnings.Beginnings.of(request)
        if self.sources is not None:
            return found
        played = {name: getattr(found, name) for name in ("read", "location_status", "restore")}
        return SimpleNamespace(freeze=lambda at, *_: self.beginnings.freeze(at.uri, request.incarnation), **played)

    def record_ids(self, *of: Any) -> None:
        """In place of `airflow_ft.spark.state.status.record_ids`, as the next one."""
        if self.sources is not None:
            record_ids(*of)

    def recorded_ids(self, location: Any) -> Any:
        return recorded_ids(location) if self.sources is not None else {}

    def retain(self, uri: str) -> None:
        """Only so many micro-batches are kept."""
        wal = self._world.wal
        for kept in (wal.states[uri], wal.ends.get(uri, {}), wal.metadata.get(uri, {}), wal.lines.get(uri, {})):
            for old in sorted(kept)[: -self.retained]:
                del kept[old]

    def begin(self, request: StageRequest) -> dict[int, str]:
        """The state of a new location: none; behind the last item where an attempt begins at the source's end."""
        held = self._world.held
        return {held: ""} if request.starts_from_scratch and held else {}

    def begin_copy(self, old: str, uri: str) -> None:
        """Let a copy of a location without state begin after the same item."""
        wal = self._world.wal
        if uri != old:
            start = wal.starts[old]
            if start not in wal.ends.get(old, {}):
                raise StageError("Spark does not find its location: a newer owner has swept it.")
            wal.begin(uri, start, wal.ends[old][start])

    def open_location(self, request: StageRequest) -> Location:
        """See `airflow_ft.spark.state.locations.open_location`."""
        world, wal, base = self._world, self._world.wal, request.base
        uri = f"file:///wal/{PIPELINE}/spark/{request.epoch}-{request.attempt}"
        if base is None:
            wal.states.setdefault(uri, self.begin(request))
            wal.ends.setdefault(uri, {})
            return Location(wal, uri, -1 if request.starts_from_scratch else max(wal.states[uri], default=-1))
        found, last = wal.states.get(base.location), wal.batch(base)
        if found is None or last not in found:
            if world.laws.restored:
                raise StageError("the state of the base is gone: the decision log is older than the files.")
            if world.log.pipeline(PIPELINE).epoch > request.epoch:  # whoever came after it needs it no more
                raise WalCorruptError(f"{base.location} is missing")
            world.kernel.violate("I10", f"the state at {base} is needed and gone")
        old = Location(wal, base.location, base.batch)
        if base.batch < 0 and not (request.base_is_clean and old.ends_at(base.batch)):
            wal.begin(uri, last, wal.ends[base.location].get(last, 0))
            return Location(wal, uri, base.batch)
        if request.base_is_clean and old.ends_at(base.batch):
            return old
        if uri not in wal.states:  # else a defect has made it go on in its own folder, as it is
            kept = {batch: variant for batch, variant in found.items() if batch <= last or not world.cut_back}
            wal.states[uri] = kept
            wal.ends[uri] = {batch: end for batch, end in wal.ends.get(base.location, {}).items() if batch in kept}
        return Location(wal, uri, max(wal.states[uri]))


class ModelAttempt(Attempt):
    """The product's attempt, with a model in place of Spark and of the files between the task and the driver."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.request, Path("/nonexistent/result"), None)
        self._driver = driver
        self._ending = ModelEnding(driver, self._request)
        self._requests: Any = driver

    def _session(self) -> Any:
        return Session(self._driver.world)

    def _stage(self, store: Any, spark: Any, *, expects_few: bool) -> StageResult:
        world, request = self._driver.world, self._request
        sources = world.spark.sources
        topics: Any = _TOPICS if sources is None else sources.topics_of(request)
        operators, computes = world.operators, world.operators.of(request.run)
        job: Any = SimpleNamespace(output_mode="append", has_split=True, code={})
        inputs: Any = SimpleNamespace(listings=[], source_of=lambda _: None)
        frame: Any = SimpleNamespace(sparkSession=spark, writeStream=Writer(spark, computes), job=computes)
        names, kinds = list(request.sources), operators.plan(computes)
        plan: Any = SimpleNamespace(sources=names, places=list(range(len(names))), operators=kinds, memory=None)
        run = JobRun(
            store=store,
            request=request,
            job=job,
            frame=frame,
            sources=inputs,
            await_answer=lambda: None,
            ending=self._ending,
            requests=self._requests,
            counts=self._counts,
            expects_few=expects_few,
        )
        return ModelQueryRun(run, world, computes).compute(plan, topics)


class ModelEnding(Ending):
    """See `Ending`: the report goes to the model of the driver."""

    def __init__(self, driver: Driver, request: StageRequest) -> None:
        super().__init__(request, Path("/nonexistent/result"))
        self._driver = driver

    def report(self, error: BaseException) -> None:
        if self._driver.error is None:
            self._driver.error = describe_error(as_error(self.first or error, PIPELINE, JOB))


class ModelQueryRun(QueryRun):
    """See `QueryRun`, which works in a location of the model."""

    def __init__(self, run: JobRun, world: World, computes: str) -> None:
        super().__init__(run)
        self._world, self._computes = world, computes

    def open_location(self, *of: Any) -> Any:
        world, request = self._world, self._run.request
        if world.spark.sources is not None:
            location = super().open_location(*of)
            world.wal.states.setdefault(location.uri, {})
            return world.spark.sources.opened(location, request)
        if world.savepoints is None:
            return world.spark.open_location(request)
        base = request.base
        try:
            found = super().open_location(*of)
        except ConfigurationError as error:
            if has_no_operator(error):
                world.operators.refused(base, self._computes)
            raise
        world.operators.opened(base, found.uri, found.batch, self._computes)
        if base is not None and base.batch < 0 and base.location in world.wal.starts:
            world.spark.begin_copy(base.location, found.uri)
        world.wal.states.setdefault(found.uri, {})
        return Location(world.wal, found.uri, found.batch)


class Session:
    """As much of a SparkSession as a query needs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.conf = SimpleNamespace(set=lambda *_: None, get=lambda *_: None)
        self.streams = Streams()
        self.sparkContext = SimpleNamespace(applicationId="")
        self.idle: Any = None  # who hears of intervals without anything new


class Streams:
    """As much of a StreamingQueryManager."""

    def __init__(self) -> None:
        self.started: list[RunningQuery] = []

    @property
    def active(self) -> list[RunningQuery]:
        return [each for each in self.started if each.isActive]


class Writer:
    """As much of a DataStreamWriter: the query's settings, one after the other."""

    def __init__(self, session: Session, job: str) -> None:
        self._session, self._job = session, job
        self._on_batch: Callable[[Any, int], None] = lambda *_: None
        self._uri = self._name = ""
        self._ends = self._once = False

    def foreachBatch(self, function: Callable[[Any, int], None]) -> Writer:
        self._on_batch = function
        return self

    def outputMode(self, _: str) -> Writer:
        return self

    def queryName(self, name: str) -> Writer:
        self._name = name
        return self

    def option(self, _: str, uri: str) -> Writer:
        self._uri = uri
        return self

    def trigger(self, *, availableNow: bool = False, processingTime: str = "", once: bool = False) -> Writer:
        self._ends, self._once = availableNow, once
        return self

    def start(self) -> RunningQuery:
        kind = LastQuery if self._once else RunningQuery
        return kind(self._session, self._name, self._uri, self._on_batch, job=self._job, ends=self._ends)


class RunningQuery:
    """A streaming query, in a thread of its own: plans, runs and commits micro-batches of one item each."""

    def __init__(
        self,
        session: Session,
        name: str,
        uri: str,
        on_batch: Callable[[Any, int], None],
        *,
        job: str,
        ends: bool,
    ) -> None:
        self.name, self._job = name, job
        self._session, self._world, self._on_batch, self._ends = session, session.world, on_batch, ends
        self._location = Location(session.world.wal, uri, 0)
        self._stopped = self._in_python = False
        self._error: Exception | None = None
        self._thread = ModelThread(lambda: session.world.kernel, self._run, "spark")
        session.streams.started.append(self)
        self._thread.start()

    def awaitTermination(self, seconds: float | None = None) -> bool:
        while self.isActive:
            self._world.kernel.wait(_LOOK_SECONDS if seconds is None else seconds)
            if seconds is not None:
                break
        if self.isActive:
            return False
        if self._error is not None:
            raise self._error
        return True

    @property
    def isActive(self) -> bool:
        """A query that was stopped has ended in the JVM, though Python may still be in its micro-batch."""
        return self._thread.is_alive() and not (self._stopped and self._in_python)

    def stop(self) -> None:
        self._stopped = True
        left = _STOP_SECONDS
        while self.isActive and left > 0:
            self._world.kernel.wait(_LOOK_SECONDS)
            left -= _LOOK_SECONDS
        if self.isActive:
            raise TimeoutError("the query has not stopped")

    def _run(self) -> None:
        try:
            self._run_batches()
        except Exception as error:
            self._world.kernel.wait(_LOOK_SECONDS)  # a micro-batch has failed a while before its query
            self._error = error
        finally:
            self._session.streams.started.remove(self)

    def _run_batches(self) -> None:
        kernel, wal, uri = self._world.kernel, self._location.wal, self._location.uri
        interval = self._world.config.interval.total_seconds()
        sources = self._world.spark.sources
        (sources or self._world.spark.beginnings).look(uri)
        last = self._latest() if self._ends else 0
        while not self._stopped:
            began = kernel.wall_clock()
            done = max(wal.states[uri], default=0)
            held = last if self._ends else self._latest()
            item = done + 1 - empties(wal.states[uri].get(done, ""))
            if item <= held:
                batch = done + 1
                ends = wal.ends.setdefault(uri, {})
                ends[batch] = ends.get(done, 0) + (SLICE if held > item else 1)
                self._world.spark.record_batch(uri, batch)
                if sources is not None:
                    sources.plan(uri, done, batch)
                if not self._runs(batch):
                    return
                self._world.spark.perform(f"commits item {batch}", partial(self._commit, batch))
            elif self._ends:
                return
            elif self._session.idle is not None:
                self._session.idle._on_event(datetime.fromtimestamp(began, UTC).isoformat())
            if not self._ends:
                kernel.wait(interval)

    def _runs(self, batch: int) -> bool:
        """Runs a micro-batch; whether the query still goes on then."""
        self._in_python = True
        self._on_batch(self._location, batch)
        self._in_python = False
        return not self._stopped

    def _latest(self) -> int:
        return int(self._world.spark.perform("asks where the source ends", lambda: self._world.held, routine=True))

    def _commit(self, batch: int) -> None:
        """The state is of the attempt that has computed the batch; only so many are kept."""
        state = self._location.wal.states[self._location.uri]
        state[batch] = self._location.wal.computed[self._location.uri, batch]
        if self._job:
            self._world.operators.begin(self._location.uri)
            self._world.operators.advance(self._location.uri, batch, self._job)
        if self._world.scenario.stateful:
            self._location.wal.files.setdefault(self._location.uri, {}).setdefault(OPERATOR, OPERATOR_METADATA)
        self._world.spark.retain(self._location.uri)


class LastQuery(RunningQuery):
    """Computes the micro-batch that was begun in a copy, and reads nothing: see `airflow_ft.spark.state.draining`."""

    def _run_batches(self) -> None:
        wal, uri = self._location.wal, self._location.uri
        last = max(wal.states[uri])
        wal.ends[uri][last + 1] = wal.ends[uri].get(last, 0)
        if self._runs(last + 1):
            self._world.spark.perform(f"commits the drain of item {last}", partial(self._commit, last + 1))


@contextmanager
def listening(idle: Any, session: Session) -> Iterator[None]:
    """In place of `airflow_ft.spark.driver.idle.Idle.listening`."""
    session.idle = idle
    try:
        yield
    finally:
        session.idle = None
