"""How long a record takes from its topic to a reader of committed records: a stream of ours, and Flink's."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer

from airflow_ft.protocol.model import CheckpointingMode
from benchmarks.bench import Bench, say
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from benchmarks.streams import Reader, flink_stream, running, stream_of, topics
from benchmarks.workers import Worker
from tools.stream_task import start_module

WARM_SECONDS, SECONDS = 25.0, 30.0
RATES = (100, 10_000)  # records a second
WITHIN = 1 / 1.2  # of Flink's latency
SOONER = 1.1
FASTEST_MS = 10  # Flink takes no shorter interval between checkpoints
STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.shuffle.partitions": "2",
}
_AT_LEAST = CheckpointingMode.AT_LEAST_ONCE


def latency(bench: Bench) -> list[Comparison]:
    """For each rate the median and the 95th percentile, at checkpoints of one second; and as fast as it goes.

    The same with state, as fast as it goes.
    """
    found = []
    flink = flink_stream(bench)
    for rate in RATES:
        runs = _Runs(bench, rate, flink)
        found += [runs.comparison(0.50), runs.comparison(0.95)]
    runs = _Runs(bench, RATES[0], flink)
    return [*found, runs.with_state(0.50), runs.with_state(0.95)]


def fast(bench: Bench) -> list[Comparison]:
    """Ours as fast as it goes against plain Spark with a transaction and without one. Needs no Flink."""
    runs = _Runs(bench, RATES[0], flink_stream(bench))
    return [runs.in_transactions(0.50), runs.in_transactions(0.95)]


@dataclass
class _Runs:
    """Streams at one rate. A run gives all of a contender's percentiles."""

    bench: Bench
    rate: int
    cluster: Callable[[], Worker]
    measured: dict[str, list[list[float]]] = field(default_factory=dict)
    calls: dict[tuple[str, float], int] = field(default_factory=dict)

    def comparison(self, part: float) -> Comparison:
        """Of one percentile."""
        ours, fast, theirs = "airflow-ft, 1 s", "airflow-ft, as fast as it goes", "Flink, 1 s"
        alone = "Spark's own writer, 1 s (at least once)"
        alone_fast = "Spark's own writer, as fast as it goes (at least once)"
        flink_fast = f"Flink, {FASTEST_MS} ms"
        repeating = "airflow-ft, at least once, as fast as it goes"
        contenders = [
            self._contender(ours, part, lambda: self._ours(1.0)),
            self._contender(fast, part, lambda: self._ours(0.0)),
            self._contender(repeating, part, lambda: self._ours(0.0, _AT_LEAST)),
            self._contender(alone, part, self._spark),
            self._contender(alone_fast, part, lambda: self._spark(0.0)),
            self._contender(theirs, part, lambda: self._flink(1000)),
            self._contender(flink_fast, part, lambda: self._flink(FASTEST_MS)),
        ]
        name = f"p{part:.0%}".rstrip("%")
        return Comparison(
            f"latency/{self.rate}/{name}",
            f"Kafka -> Kafka, exactly once, {self.rate:,} records a second: {name} from produced to read committed",
            contenders,
            [
                Claim(f"{name} of latency against Flink, {self.rate:,} a second, 1 s", ours, (theirs,), WITHIN),
                Claim(f"{name} of latency against Spark's own writer, {self.rate:,} a second", ours, (alone,), None),
                Claim(f"{name} of latency, as fast as Flink goes, {self.rate:,} a second", fast, (flink_fast,), None),
                Claim(f"{name} of latency, as fast as Spark goes, {self.rate:,} a second", fast, (alone_fast,), None),
                Claim(f"{name} of latency, at least once, {self.rate:,} a second", repeating, (fast,), SOONER),
            ],
            unit="ms",
        )

    def in_transactions(self, part: float) -> Comparison:
        """Of one percentile, as fast as Spark goes."""
        ours, hand = "airflow-ft, as fast as it goes", "Spark with a transaction for each micro-batch (by hand)"
        alone = "Spark's own writer, as fast as it goes (at least once)"
        contenders = [
            self._contender(ours, part, lambda: self._ours(0.0)),
            self._contender(hand, part, lambda: self._spark(0.0, by_hand=True)),
            self._contender(alone, part, lambda: self._spark(0.0)),
        ]
        name = f"p{part:.0%}".rstrip("%")
        return Comparison(
            f"latency/{self.rate}/transactions/{name}",
            f"Kafka -> Kafka, as fast as it goes, {self.rate:,} records a second: {name} until it is read committed",
            contenders,
            [
                Claim(f"{name} of latency against a transaction by hand, {self.rate:,} a second", ours, (hand,), None),
                Claim(f"{name} of latency against Spark's own writer, as fast as it goes", ours, (alone,), None),
            ],
            unit="ms",
        )

    def with_state(self, part: float) -> Comparison:
        """Of one percentile of jobs that keep each number in RocksDB."""
        ours, alone = "airflow-ft, with state, as fast as it goes", "Spark's own writer, with state, as fast as it goes"
        contenders = [
            self._contender(ours, part, lambda: self._ours(0.0, state=True)),
            self._contender(alone, part, lambda: self._spark(0.0, state=True)),
        ]
        name = f"p{part:.0%}".rstrip("%")
        return Comparison(
            f"latency/{self.rate}/state/{name}",
            f"Kafka -> dropDuplicates -> Kafka, {self.rate:,} records a second: {name} from produced to read committed",
            contenders,
            [Claim(f"{name} of latency with state, as fast as it goes, {self.rate:,} a second", ours, (alone,), None)],
            unit="ms",
        )

    def _contender(self, name: str, part: float, run: Callable[[], list[float]]) -> Contender:
        return Contender(name, lambda: self._cost(name, part, run), warm_up=0)

    def _cost(self, name: str, part: float, run: Callable[[], list[float]]) -> float:
        runs = self.measured.setdefault(name, [])
        at = self.calls[name, part] = self.calls.get((name, part), -1) + 1
        if at == len(runs):
            runs.append(run())
        found = runs[at]
        return found[min(len(found) - 1, math.floor(part * len(found)))]

    def _ours(
        self, interval: float, mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE, *, state: bool = False
    ) -> list[float]:
        settings: dict[str, Any] = {"checkpointing": {"interval": interval, "mode": mode.value}}
        if state:
            settings |= {"job": "job:Distinct", "conf": STATE}
        with topics(self.bench) as (source, target):
            with running(stream_of(self.bench, source, target, **settings)) as stream:
                found = self._measure(source, target)
            say(f"    {stream.report}")
            return found

    def _spark(self, interval: float = 1.0, *, state: bool = False, by_hand: bool = False) -> list[float]:
        """What a user has without this package: one query, no log, and a transaction only `by_hand`."""
        with topics(self.bench) as (source, target):
            folder = self.bench.folder / target
            folder.mkdir()
            given = {
                "bootstrap": self.bench.servers.kafka.bootstrap,
                "from": source,
                "to": target,
                "folder": str(folder),
                "interval": interval,
                "state": state,
                "by_hand": by_hand,
                "conf": STATE if state else {},
            }
            process = start_module("benchmarks.plain_stream", json.dumps(given), folder / "log")
            try:
                return self._measure(source, target)
            except MeasurementError as error:
                raise MeasurementError(f"{error}: {(folder / 'log').read_text()[-2000:]}") from error
            finally:
                process.kill()
                process.wait()

    def _flink(self, interval_ms: int) -> list[float]:
        bootstrap = self.bench.servers.kafka.bootstrap
        with topics(self.bench) as (source, target):
            worker = self.cluster()
            worker.ask("start", bootstrap=bootstrap, to=target, interval_ms=interval_ms, **{"from": source})
            try:
                return self._measure(source, target)
            finally:
                worker.ask("stop")

    def _measure(self, source: str, target: str) -> list[float]:
        """The latencies in ms, ascending; each record is there once, or there is no figure."""
        bootstrap = self.bench.servers.kafka.bootstrap
        warm = time.time() + WARM_SECONDS
        reader = Reader(bootstrap, target, warm)
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
