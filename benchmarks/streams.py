"""A stream against one batch of the same rows, and against Flink; and how soon it is back when it has failed."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.session.submit import READY
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from benchmarks.bench import Bench, say
from benchmarks.flink import program
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from benchmarks.workers import Worker
from tools.stream_task import Stream, newest_driver, start_module

PARTITIONS = 2
KEEP = 900.0  # seconds
SLICES = 1.0  # seconds that a slice takes, by the speed of one batch
AS_ONE_BATCH = 0.9
AFTER_AN_EXCEPTION, AFTER_A_KILL = 1.0, 10.0  # seconds
WITH_A_STANDBY = 2.5
_PATIENCE = 300.0
_AFTER_A_KILL = "from kill -9 of the driver to the next confirmed checkpoint"


def streams(bench: Bench) -> Iterator[Comparison]:
    """Throughput first; then recovery."""
    yield _throughput(bench)
    yield from _recovery(bench)


@contextmanager
def topics(bench: Bench) -> Iterator[tuple[str, str]]:
    """One to read from, and one to write into."""
    number = next(bench.servers.numbers)
    names = f"in-{number}", f"out-{number}"
    for name in names:
        bench.servers.kafka.create_topic(name, PARTITIONS)
    yield names


def flink_stream(bench: Bench) -> Callable[[], Worker]:
    """Flink's embedded cluster, when it is first asked for."""
    return cache(lambda: bench.servers.worker("flink-stream", program=program(bench, "FlinkStream")))


def stream_of(bench: Bench, source: str, target: str, **settings: Any) -> Stream:
    """A stream from topic to topic; `source_settings`: of its KafkaSource."""
    folder = bench.folder / target
    folder.mkdir(exist_ok=True)
    given = {"starting_offsets": "earliest", **settings.pop("source_settings", {})}
    return Stream(
        folder=str(folder),
        pipeline=target,
        jobs=str(Path(__file__).parent),
        sources={"rows": KafkaSource(topics=[source], conn_id="kafka", **given).to_json()},
        topics={"copies": target},
        kafka=bench.servers.kafka.bootstrap,
        **{"job": "job:Passing", "lease_seconds": 30.0, **settings},
    )


@contextmanager
def running(stream: Stream) -> Iterator[Running]:
    """The stream's task for the duration of the block; then it is asked to stop, and must succeed."""
    found = Running(stream)
    try:
        yield found
        found.stop()
    except MeasurementError as error:
        raise MeasurementError(f"{error}\n{found.log.read_text()[-3000:]}") from error
    finally:
        found.process.kill()
        found.process.wait()
        found.store.close()


class Running:
    """The process of a stream, and what its decision log says."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.report = ""
        """Where a checkpoint's time went, in the median; when it has stopped."""
        self.log = Path(stream.folder) / "log"
        self.store: DecisionLog = open_store(stream.store_url)
        self.store.register(stream.pipeline)
        self.process: subprocess.Popen[str] = stream.start(self.log)

    def stop(self) -> None:
        """As `airflow ft stop` does."""
        self.store.ask(self.stream.pipeline, RequestKind.STOP, {}, "the benchmark")
        if code := self.process.wait(60):
            raise MeasurementError(f"the stream's task ended with {code}")
        self.report = self._parts()

    def until(self, condition: Callable[[], Any]) -> Any:
        """Waits for it; what it gives."""
        deadline = time.monotonic() + _PATIENCE
        while not (found := condition()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise MeasurementError(f"the stream's task did not get there (its status: {self.process.poll()})")
            time.sleep(0.01)
        return found

    def confirmed(self) -> int:
        """The newest confirmed number."""
        latest = self.store.latest_confirmed(self.stream.pipeline)
        return latest.number if latest else 0

    def until_confirmed(self, more: int) -> None:
        """So many more numbers are confirmed."""
        before = self.confirmed()
        self.until(lambda: self.confirmed() >= before + more)

    def driver(self) -> int:
        """The newest driver's process."""
        return newest_driver(self.log)

    def _parts(self) -> str:
        """Where a checkpoint's time went, in the median."""
        found = [c for c in self.store.checkpoints(self.stream.pipeline, 1000) if c.completed_at and c.decided_at]
        parts = [("staged", "triggered_at", "staged_at"), ("decided", "staged_at", "decided_at")]
        parts += [("completed", "decided_at", "completed_at")]
        texts = []
        for name, begin, end in parts:
            seconds = sorted((getattr(c, end) - getattr(c, begin)).total_seconds() for c in found)
            texts.append(f"{name} {1000 * seconds[len(seconds) // 2]:.0f} ms" if seconds else name)
        return f"{len(found)} checkpoints: {', '.join(texts)}"


class Reader:
    """Reads committed records, and notes how old each is when it is seen."""

    def __init__(self, bootstrap: str, topic: str, since: float = math.inf) -> None:
        """`since`: only of later ones (time.time()) it is noted how old they are."""
        settings = {"bootstrap.servers": bootstrap, "group.id": f"reader-{topic}", "auto.offset.reset": "earliest"}
        settings |= {"isolation.level": "read_committed", "fetch.wait.max.ms": "10"}
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])
        self._since = since
        self.numbers: list[int] = []
        self.latencies: list[float] = []
        self.seen_at = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(10_000, 0.02)
            now = time.time()
            if messages:
                self.seen_at = time.monotonic()
            for message in messages:
                if not message.error():
                    record = json.loads(message.value() or b"")
                    self.numbers.append(record["n"])
                    if record["at"] > self._since:
                        self.latencies.append(1000 * (now - record["at"]))
        self._consumer.close()

    def seconds_until(self, count: int, began: float) -> float:
        """From `began` (time.monotonic()) until so many were seen."""
        self.wait_for(count)
        if len(self.numbers) != count:
            raise MeasurementError(f"{len(self.numbers)} records of {count} are there")
        return self.seen_at - began

    def wait_for(self, count: int) -> None:
        """And a moment more, for what should not come."""
        deadline = time.monotonic() + 60
        while len(self.numbers) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        self._stop.set()
        self._thread.join()


# --- throughput --------------------------------------------------------------------------------------------------


def _throughput(bench: Bench) -> Comparison:
    """Each reads a full topic in a warm JVM; from the first checkpoint, or the start, to the last row."""
    one, slices, theirs = "ours, one batch", "ours, a checkpoint a second", "Flink, a checkpoint a second"
    plain, sliced = "Spark's own writer, one batch", "Spark's own writer, slices of a second"
    flink, seconds = flink_stream(bench), dict[str, float]()

    def run(name: str, drain: Callable[[Bench, int | None], float], slices_of: str = "") -> Callable[[], float]:
        def of_a_second() -> int | None:
            return max(1, int(SLICES * bench.rows / seconds[slices_of])) if slices_of else None

        def measured() -> float:
            seconds[name] = drain(bench, of_a_second())
            return seconds[name]

        return measured

    contenders = [
        Contender(one, run(one, _drained), warm_up=1),
        Contender(slices, run(slices, _drained, one), warm_up=0),
        Contender(plain, run(plain, _plain_drains), warm_up=1),
        Contender(sliced, run(sliced, _plain_drains, plain), warm_up=0),
        Contender(theirs, lambda: _flink_drains(bench, flink()), warm_up=1),
    ]
    claims = [
        Claim("a stream, a checkpoint a second, against one batch", slices, (one,), AS_ONE_BATCH),
        Claim("Spark's own writer, slices of a second, against one batch", sliced, (plain,), None),
        Claim("a stream, a checkpoint a second, against Flink", slices, (theirs,), 1.0),
    ]
    title = "Kafka -> Kafka, exactly once, a topic that is full"
    return Comparison("streams/throughput", title, contenders, claims, rows=bench.rows)


def _fill(bench: Bench, topic: str, rows: int) -> None:
    producer = Producer({"bootstrap.servers": bench.servers.kafka.bootstrap, "linger.ms": 50, "log_level": 0})
    for number in range(rows):
        while True:
            try:
                producer.produce(topic, b'{"n": %d, "at": 1.5}' % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise MeasurementError(f"{topic} could not be filled")


def _drained(bench: Bench, per_slice: int | None) -> float:
    """Seconds from the first trigger to the last confirmation, in a session that a short run has left."""
    with topics(bench) as (source, target):
        _fill(bench, source, 1000)
        limits = {} if per_slice is None else {"max_offsets_per_trigger": per_slice}
        settings = {"checkpointing": {"interval": 1}, "keep_session": KEEP}
        with running(stream_of(bench, source, target, source_settings=limits, **settings)) as before:
            before.until_confirmed(1)
        _fill(bench, source, bench.rows)
        stream = stream_of(bench, source, target, source_settings=limits, run="run-2", **settings)
        with running(stream) as now:
            first = now.confirmed()
            now.until(lambda: _rows_after(now.store, target, first) >= bench.rows)
            found = [c for c in now.store.checkpoints(target, 1000) if c.number > first and c.is_confirmed]
        say(f"    {now.report}")
        begin, end = min(c.triggered_at for c in found), max(c.completed_at for c in found if c.completed_at)
        return (end - begin).total_seconds()


def _plain_drains(bench: Bench, per_slice: int | None) -> float:
    """The same by Spark's own writer, at least once: what slices alone cost."""
    bootstrap = bench.servers.kafka.bootstrap
    with topics(bench) as (source, target):
        folder = bench.folder / target
        folder.mkdir()
        _fill(bench, source, 1000)
        given = {"bootstrap": bootstrap, "from": source, "to": target, "folder": str(folder), "per_slice": per_slice}
        process = start_module("benchmarks.plain_stream", json.dumps(given), folder / "log")
        try:
            _until(process, folder, "warm")
            _fill(bench, source, bench.rows)
            (folder / "filled").touch()
            _until(process, folder, "seconds")
            Reader(bootstrap, target).seconds_until(1000 + bench.rows, 0.0)
            return float((folder / "seconds").read_text())
        finally:
            process.kill()
            process.wait()


def _until(process: subprocess.Popen[str], folder: Path, name: str) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not (folder / name).exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise MeasurementError((folder / "log").read_text()[-3000:])
        time.sleep(0.05)


def _rows_after(store: DecisionLog, pipeline: str, number: int) -> int:
    newer = [c for c in store.checkpoints(pipeline, 1000) if c.number > number and c.is_confirmed]
    return sum(c.segment.total_rows for c in newer if c.segment)


def _flink_drains(bench: Bench, cluster: Worker) -> float:
    """Seconds from its start until a reader of committed records has them all."""
    bootstrap = bench.servers.kafka.bootstrap
    with topics(bench) as (source, target):
        _fill(bench, source, bench.rows)
        reader = Reader(bootstrap, target)
        began = time.monotonic()
        cluster.ask("start", bootstrap=bootstrap, to=target, interval_ms=1000, **{"from": source})
        try:
            return reader.seconds_until(bench.rows, began)
        finally:
            cluster.ask("stop")


# --- recovery ----------------------------------------------------------------------------------------------------


def _recovery(bench: Bench) -> Iterator[Comparison]:
    title = "from a job's exception to its next micro-batch"
    yield _within("exception", title, lambda: _after_an_exception(bench), AFTER_AN_EXCEPTION)
    yield _within("kill", _AFTER_A_KILL, lambda: _after_a_kill(bench), AFTER_A_KILL)


def _within(name: str, title: str, ours: Callable[[], float], limit: float) -> Comparison:
    contenders = [Contender("ours", ours, warm_up=0), Contender("the limit", lambda: limit, warm_up=0)]
    claims = [Claim(f"{title}, ours: {limit:g} s, against", "ours", ("the limit",), 1.0)]
    return Comparison(f"streams/{name}", f"A stream with a checkpoint a second, {title}", contenders, claims)


def standby(bench: Bench) -> Iterator[Comparison]:
    """Recovery of a stream with state after kill -9 of its driver: with and without a standby driver."""
    ours, without = "ours, a standby driver", "ours"

    def run(standby: bool) -> Callable[[], float]:
        return lambda: _after_a_kill(bench, job="job:Distinct", standby=standby)

    contenders = [Contender(ours, run(True), warm_up=0), Contender(without, run(False), warm_up=0)]
    claims = [Claim(f"{_AFTER_A_KILL}, with a standby driver, against without", ours, (without,), WITH_A_STANDBY)]
    title = f"A stream with state and a checkpoint a second, {_AFTER_A_KILL}"
    yield Comparison("standby", title, contenders, claims)


@contextmanager
def _fed(bench: Bench, **settings: Any) -> Iterator[Running]:
    """A warm stream with a checkpoint a second, into whose topic a hundred records a second go."""
    with topics(bench) as (source, target):
        checkpointing = {"interval": 1}
        with running(stream_of(bench, source, target, checkpointing=checkpointing, **settings)) as found:
            stop = _feed(bench.servers.kafka.bootstrap, source)
            try:
                found.until_confirmed(10)
                yield found
            finally:
                stop()


def _feed(bootstrap: str, topic: str) -> Callable[[], None]:
    done = threading.Event()

    def send() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        number = 0
        while not done.wait(0.1):
            for _ in range(10):
                producer.produce(topic, json.dumps({"n": number, "at": time.time()}).encode())
                number += 1
            producer.flush(10)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()

    def stop() -> None:
        done.set()
        thread.join()

    return stop


def _after_an_exception(bench: Bench) -> float:
    """The job notes when it has raised, and when it is called again."""
    marks = bench.folder / f"marks-{next(bench.servers.numbers)}"
    marks.mkdir()
    restart: Mapping[str, Any] = {"type": "fixed-delay", "attempts": 100, "delay": 0}
    with _fed(bench, job="job:FailingOnce", job_args={"marks": str(marks)}, restart=restart) as found:
        (marks / "fail").touch()
        found.until((marks / "again").exists)
        raised, again = (float((marks / name).read_text()) for name in ("raised", "again"))
        return again - raised


def _after_a_kill(bench: Bench, **settings: Any) -> float:
    restart: Mapping[str, Any] = {"type": "fixed-delay", "attempts": 100, "delay": 0}
    with _fed(bench, restart=restart, **settings) as found:
        if settings.get("standby"):
            found.until(lambda: READY in found.log.read_text())
        found.until_confirmed(5)
        at, before = found.store.now(), found.driver()
        os.kill(before, signal.SIGKILL)

        def later() -> Any:
            newest = found.store.latest_confirmed(found.stream.pipeline)
            return newest if newest is not None and newest.triggered_at > at else None

        newest = found.until(later)
        return float((newest.completed_at - at).total_seconds())
