"""WAL -> Kafka: our transaction against Spark's Kafka writer, warm and cold, and against Kafka's own load generator.

Records have a key of 16 bytes and a value of about 110, the same bytes for all; acks=all, four partitions, one broker.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.bench import Bench
from benchmarks.data import segment
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError, timed
from benchmarks.running import run_module
from benchmarks.workers import ROOT, Worker

INSTALLATION = "0" * 36
PARTITIONS = 4
_RATE = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
TUNED = {"linger.ms": "20", "batch.size": "262144", "compression.type": "lz4", "buffer.memory": "67108864"}


def kafka(bench: Bench) -> list[Comparison]:
    """One comparison, with everything that fills a topic."""
    into = IntoKafka(bench)
    contenders = [
        into.ours("transaction"),
        into.ours("transaction, 2 slots", slots=2),
        into.ours("held", strategy="held"),
        into.ours_cold(),
        into.spark("Spark, default", {}),
        into.spark("Spark, tuned", TUNED),
        into.spark_cold(),
        into.perf("producer-perf", transactional=False),
        into.perf("producer-perf, transactional", transactional=True),
    ]
    spark = ("Spark, default", "Spark, tuned")
    of = bench.of
    claims = [
        Claim(f"WAL -> Kafka, default, against Spark's writer, warm{of}", "transaction", spark, 1.15),
        Claim(f"WAL -> Kafka, default, as one cold job{of}", "cold", ("Spark, cold",), 2.5),
        Claim(
            f"WAL -> Kafka, against producer-perf transactional{of}",
            "transaction",
            ("producer-perf, transactional",),
            1.2,
        ),
        Claim(f"WAL -> Kafka, against producer-perf{of}", "transaction", ("producer-perf",), None),
        Claim(f"WAL -> Kafka, 2 slots against Spark's writer, warm{of}", "transaction, 2 slots", spark, None),
        Claim(f"WAL -> Kafka, `held` against Spark's writer, warm{of}", "held", spark, None),
    ]
    title = "WAL -> Kafka, committed (prepare and commit), against writers from Parquet"
    return [Comparison(f"kafka{of}", f"{title}{of}", contenders, claims, rows=bench.rows)]


class IntoKafka:
    """The broker and its contenders. Each run fills a new topic, which goes when its records were checked."""

    def __init__(self, bench: Bench, tree: Path | None = None) -> None:
        self.bench = bench
        self.bootstrap = bench.servers.kafka.bootstrap
        self._segment = segment(bench.folder / "wal", f"kafka-{next(bench.servers.numbers)}", {"orders": bench.records})
        self.worker = bench.servers.worker("benchmarks.delivering", tree)
        self.watching: Callable[[], AbstractContextManager[None]] = nullcontext  # around the work itself

    def _into_topic(self, name: str, work: Callable[[str], float]) -> Callable[[], float]:
        def run() -> float:
            topic = f"bench-{next(self.bench.servers.numbers)}"
            self.bench.servers.kafka.create_topic(topic, PARTITIONS)
            try:
                cost = work(topic)
                self.bench.check_topic(topic, name)
            finally:
                self.bench.servers.kafka.delete_topic(topic)
            return cost

        return run

    def fill(self, topic: str) -> None:
        """A new topic with the records, for a job to read."""
        self.bench.servers.kafka.create_topic(topic, PARTITIONS)
        self.worker.ask("deliver", **kafka_job(self.bench, self._segment, topic))
        self.bench.check_topic(topic, "the source")

    def ours(self, name: str, *, strategy: str = "transaction", slots: int = 1, command: str = "deliver") -> Contender:
        """Prepare and commit of a checkpoint of a new pipeline, in a process that stays warm."""

        def work(topic: str) -> float:
            job = kafka_job(self.bench, self._segment, topic, strategy, slots)
            with self.watching():
                seconds: float = self.worker.ask(command, **job)["seconds"]
            return seconds

        return Contender(name, self._into_topic(name, work))

    def ours_cold(self) -> Contender:
        """The same as a process of its own, from its start to its end."""

        def work(topic: str) -> float:
            def all_of_it() -> None:
                with Worker("benchmarks.delivering", self.bench.folder / "workers") as worker:
                    worker.ask("deliver", **kafka_job(self.bench, self._segment, topic))

            return timed(all_of_it)

        return Contender("cold", self._into_topic("cold", work), warm_up=0)

    def spark(self, name: str, settings: Mapping[str, str]) -> Contender:
        """Spark's Kafka writer in a session that stays warm."""

        def work(topic: str) -> float:
            spark, job = self.bench.servers.spark, self._spark_job(topic)
            with self.watching():
                seconds: float = spark.ask("kafka", **job, **settings)["seconds"]
            return seconds

        return Contender(name, self._into_topic(name, work))

    def spark_cold(self) -> Contender:
        """Spark's Kafka writer as one job, from the start of its process to its end."""

        def work(topic: str) -> float:
            folder = self.bench.folder / "workers" / f"cold-{topic}"
            folder.mkdir(parents=True)
            job = folder / "job.json"
            job.write_text(json.dumps({"command": "kafka", **self._spark_job(topic)}))
            seconds = timed(lambda: run_module("benchmarks.sparking", folder, str(job)))
            shutil.rmtree(folder)
            return seconds

        return Contender("Spark, cold", self._into_topic("Spark, cold", work), warm_up=0)

    def _spark_job(self, topic: str) -> dict[str, str]:
        return {
            "source": str(self.bench.records_source),
            "topic": topic,
            "bootstrap.servers": self.bootstrap,
            "acks": "all",
        }

    def perf(self, name: str, *, transactional: bool) -> Contender:
        """Kafka's own load generator with the same values (and no keys), by the rate that it reports.

        It chooses its values at random from those of a file, so that only their number can be checked.
        """
        values = self._values()

        def work(topic: str) -> float:
            jars, rows = ROOT / ".local" / "jars" / "kafka", self.bench.rows
            command = ["java", "-Xmx1g", "-cp", f"{jars}/*", "org.apache.kafka.tools.ProducerPerformance"]
            command += ["--topic", topic, "--num-records", str(rows), "--throughput", "-1"]
            command += ["--payload-file", str(values), "--payload-delimiter", "\\n"]
            command += ["--producer-props", f"bootstrap.servers={self.bootstrap}", "acks=all"]
            command += [f"{key}={value}" for key, value in TUNED.items()]
            if transactional:
                command += [f"transactional.id={topic}"]
                command += ["--transaction-duration-ms", "600000"]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            found = _RATE.findall(done.stdout)
            if not found or int(found[-1][0]) != rows:
                raise MeasurementError(f"{name}: {done.stdout[-2000:]}")
            return rows / float(found[-1][1])

        def run() -> float:
            topic = f"bench-{next(self.bench.servers.numbers)}"
            self.bench.servers.kafka.create_topic(topic, PARTITIONS)
            cost = work(topic)
            self.bench.servers.kafka.delete_topic(topic)
            return cost

        return Contender(name, run, warm_up=0)

    def _values(self) -> Path:
        path = self.bench.folder / "values.txt"
        if not path.exists():
            some = self.bench.records.column("value").slice(0, 100_000).to_pylist()
            path.write_text("\n".join(some))
        return path


def kafka_job(bench: Bench, rows: Any, topic: str, strategy: str = "transaction", slots: int = 1) -> dict[str, Any]:
    """What `benchmarks.delivering` needs for a new pipeline's first checkpoint into a topic."""
    from airflow_ft.protocol.model import ParticipantPlan, Plan
    from airflow_ft.sinks.kafka import KafkaSink

    number = next(bench.servers.numbers)
    sink = KafkaSink(topic=topic, conn_id="broker", key="key", value="value", strategy=strategy, slots=slots)
    chosen = ParticipantPlan("broker", "kafka", strategy, sink.promise, 0, {"orders": sink.settings()})
    plan = Plan(f"records-{number}", INSTALLATION, 1, (rows,), (chosen,), None)
    connection = {
        "conn_id": "broker",
        "conn_type": "kafka",
        "extra": {"bootstrap.servers": bench.servers.kafka.bootstrap},
    }
    return {"plan": plan.to_json(), "connection": connection}
