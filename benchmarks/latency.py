"""How long a record takes from its topic to a reader of committed records: a stream of ours, and Flink's."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from airflow_ft.core.model import CheckpointingMode, RequestKind
from airflow_ft.sources import KafkaSource
from airflow_ft.store import open_store
from benchmarks.bench import Bench, say
from benchmarks.flink import program
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from benchmarks.workers import Worker
from tools.stream_task import Stream

WARM_SECONDS, SECONDS = 25.0, 30.0
RATES = (100, 10_000)  # records a second
WITHIN = 1 / 1.2  # of Flink's latency
SOONER = 1.1
_AT_LEAST = CheckpointingMode.AT_LEAST_ONCE


def latency(bench: Bench) -> list[Comparison]:
    """For each rate the median and the 95th percentile, at checkpoints of one second; and as fast as it goes."""
    found = []
    flink = cache(lambda: bench.servers.worker("flink-stream", program=program(bench, "FlinkStream")))
    for rate in RATES:
        runs = _Runs(bench, rate, flink)
        found += [runs.comparison(0.50), runs.comparison(0.95)]
    return found


@dataclass
class _Runs:
    """Streams at one rate. A run gives all of a contender's percentiles."""

    bench: Bench
    rate: int
    cluster: Callable[[], Worker]
    measured: dict[str, list[list[float]]] = field(default_factory=dict)
    told: dict[tuple[str, float], int] = field(default_factory=dict)

    def comparison(self, part: float) -> Comparison:
        """Of one percentile."""
        ours, fast, theirs = "airflow-ft, 1 s", "airflow-ft, as fast as it goes", "Flink, 1 s"
        repeating = "airflow-ft, at least once, as fast as it goes"
        contenders = [
            Contender(ours, lambda: self._cost(ours, part, lambda: self._ours(1.0)), warm_up=0),
            Contender(fast, lambda: self._cost(fast, part, lambda: self._ours(0.0)), warm_up=0),
            Contender(repeating, lambda: self._cost(repeating, part, lambda: self._ours(0.0, _AT_LEAST)), warm_up=0),
            Contender(theirs, lambda: self._cost(theirs, part, self._flink), warm_up=0),
        ]
        name = f"p{part:.0%}".rstrip("%")
        return Comparison(
            f"latency/{self.rate}/{name}",
            f"Kafka -> Kafka, exactly once, {self.rate:,} records a second: {name} from produced to read committed",
            contenders,
            [
                Claim(f"{name} of latency against Flink, {self.rate:,} a second, 1 s", ours, (theirs,), WITHIN),
                Claim(f"{name} of latency, as fast as it goes, {self.rate:,} a second", fast, (theirs,), None),
                Claim(f"{name} of latency, at least once, {self.rate:,} a second", repeating, (fast,), SOONER),
            ],
            unit="ms",
        )

    def _cost(self, name: str, part: float, run: Callable[[], list[float]]) -> float:
        runs = self.measured.setdefault(name, [])
        at = self.told[name, part] = self.told.get((name, part), -1) + 1
        if at == len(runs):
            runs.append(run())
        found = runs[at]
        return found[min(len(found) - 1, math.floor(part * len(found)))]

    def _ours(self, interval: float, mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE) -> list[float]:
        settings = {"interval": interval, "mode": mode.value}
        with self._topics() as (source, target), _stream(self.bench, source, target, settings):
            return self._measure(source, target)

    def _flink(self) -> list[float]:
        bootstrap = self.bench.servers.kafka.bootstrap
        with self._topics() as (source, target):
            worker = self.cluster()
            worker.ask("start", bootstrap=bootstrap, to=target, interval_ms=1000, **{"from": source})
            try:
                return self._measure(source, target)
            finally:
                worker.ask("stop")

    @contextmanager
    def _topics(self) -> Iterator[tuple[str, str]]:
        number = next(self.bench.servers.numbers)
        names = f"in-{number}", f"out-{number}"
        for name in names:
            self.bench.servers.kafka.create_topic(name, 2)
        yield names

    def _measure(self, source: str, target: str) -> list[float]:
        """The latencies in ms, ascending; each record is there once, or there is no figure."""
        bootstrap = self.bench.servers.kafka.bootstrap
        warm = time.time() + WARM_SECONDS
        reader = _Reader(bootstrap, target, warm)
        sent = _send(bootstrap, source, self.rate, WARM_SECONDS + SECONDS)
        reader.wait_for(sent)
        if sorted(reader.numbers) != list(range(sent)):
            raise MeasurementError(f"{target}: {len(reader.numbers)} records of {sent} are there")
        return sorted(reader.latencies)


def _send(bootstrap: str, topic: str, rate: int, seconds: float) -> int:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    began, sent = time.time(), 0
    while (now := time.time()) < began + seconds:
        while sent < (now - began) * rate:
            producer.produce(topic, json.dumps({"n": sent, "at": time.time()}).encode(), partition=sent % 2)
            sent += 1
            if sent % 1000 == 0:
                producer.poll(0)
        producer.poll(0)
        time.sleep(0.002)
    producer.flush(60)
    return sent


class _Reader:
    """Reads committed records, and notes how old each is when it is seen."""

    def __init__(self, bootstrap: str, topic: str, since: float) -> None:
        settings = {"bootstrap.servers": bootstrap, "group.id": f"reader-{topic}", "auto.offset.reset": "earliest"}
        settings |= {"isolation.level": "read_committed", "fetch.wait.max.ms": "10"}
        self._consumer = Consumer(settings)
        self._consumer.subscribe([topic])
        self._since = since
        self.numbers: list[int] = []
        self.latencies: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(1000, 0.02)
            now = time.time()
            for message in messages:
                if not message.error():
                    record = json.loads(message.value() or b"")
                    self.numbers.append(record["n"])
                    if record["at"] > self._since:
                        self.latencies.append(1000 * (now - record["at"]))
        self._consumer.close()

    def wait_for(self, count: int) -> None:
        """And a moment more, for what should not come."""
        deadline = time.monotonic() + 60
        while len(self.numbers) < count and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        self._stop.set()
        self._thread.join()


@contextmanager
def _stream(bench: Bench, source: str, target: str, settings: Mapping[str, Any]) -> Iterator[None]:
    """A stream of ours, as its task runs it."""
    folder = bench.folder / target
    folder.mkdir()
    stream = Stream(
        folder=str(folder),
        pipeline=target,
        job="job:Passing",
        jobs=str(Path(__file__).parent),
        sources={
            "rows": KafkaSource(topics=[source], conn_id="kafka", starting_offsets="earliest").to_json(),
        },
        topics={"copies": target},
        kafka=bench.servers.kafka.bootstrap,
        checkpointing=settings,
        lease_seconds=30.0,
    )
    process = stream.start(folder / "log")
    try:
        yield
        with closing(open_store(stream.store_url)) as store:
            store.ask(target, RequestKind.STOP, {}, "the benchmark")
        if process.wait(60):
            raise MeasurementError((folder / "log").read_text()[-3000:])
        say(f"    {_parts(stream)}")
    finally:
        process.kill()
        process.wait()


def _parts(stream: Stream) -> str:
    """Where a checkpoint's time went, in the median."""
    with closing(open_store(stream.store_url)) as store:
        found = [c for c in store.checkpoints(stream.pipeline, 1000) if c.completed_at and c.decided_at]
    parts = [("staged", "triggered_at", "staged_at"), ("decided", "staged_at", "decided_at")]
    parts += [("completed", "decided_at", "completed_at")]
    texts = []
    for name, begin, end in parts:
        seconds = sorted((getattr(c, end) - getattr(c, begin)).total_seconds() for c in found)
        texts.append(f"{name} {1000 * seconds[len(seconds) // 2]:.0f} ms" if seconds else name)
    return f"{len(found)} checkpoints: {', '.join(texts)}"
