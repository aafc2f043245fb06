"""Whole jobs, from the start of the first process to the end of the last: ours against Spark's own writers.

Each in eight micro-batches (Spark's JDBC writer from Parquet also in one batch), and with nothing warm; ours also in a
JVM that an earlier run has left, as second and later runs have it. What a log costs at least is told by a job of
Spark's that writes the same rows as Parquet, in as many micro-batches, and delivers nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pyarrow.dataset import dataset

from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.spark.session.session_leases import kept
from benchmarks.bench import Bench, check
from benchmarks.data import records_content, write_parquet
from benchmarks.into_kafka import PARTITIONS, IntoKafka
from benchmarks.into_mysql import FASTER, connection_to, jdbc_options
from benchmarks.measuring import Claim, Comparison, Contender, timed
from benchmarks.running import run_module

CHECKPOINTS = 8
FILES = 2  # of a micro-batch: one for each core
KEEP = 900.0  # seconds
PIPELINES = "bench-job-"


def into_tables(bench: Bench) -> list[Comparison]:
    """Parquet -> MySQL, a comparison a server."""
    whole, wanted = Jobs(bench), {"mariadb": 1.2, "mysql": 1.6}
    found = []
    for server in (bench.servers.mariadb, bench.servers.mysql):
        spark = {
            "Spark JDBC": whole.spark_jdbc(server),
            "Spark JDBC, micro-batches": whole.spark_stream("Rows", server=server),
            "Spark, Parquet alone": whole.spark_stream("Rows"),
        }
        ours = partial(whole.ours, "Rows", server=server)
        found.append(whole.compare(f"Parquet -> PySpark -> WAL -> {server.name}", ours, spark, wanted[server.name]))
    return found


def into_topics(bench: Bench) -> list[Comparison]:
    """Kafka -> Kafka."""
    whole = Jobs(bench)
    spark = {
        "Spark streaming": whole.spark_stream("Records", to_topic=True),
        "Spark, Parquet alone": whole.spark_stream("Records"),
    }
    return [
        whole.compare("Kafka -> PySpark -> WAL -> Kafka", partial(whole.ours, "Records", to_topic=True), spark, 1.3)
    ]


def into_both(bench: Bench) -> list[Comparison]:
    """Kafka -> MariaDB and Kafka."""
    whole, server = Jobs(bench), bench.servers.mariadb
    spark = {
        "Spark, both writers": whole.spark_stream("Both", server=server, to_topic=True),
        "Spark, Parquet alone": whole.spark_stream("Both"),
    }
    ours = partial(whole.ours, "Both", server=server, to_topic=True)
    return [whole.compare("Kafka -> PySpark -> WAL -> mariadb + Kafka", ours, spark, 1.4)]


def _end_sessions() -> None:
    for session in kept():
        if session.pipeline.startswith(PIPELINES):
            session.end()


class Jobs:
    """The inputs, and how a job is run over them."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._batch = -(-bench.rows // CHECKPOINTS)

    def compare(
        self,
        title: str,
        ours: Callable[..., Callable[[], float]],
        spark: Mapping[str, Callable[[], float]],
        wanted: float,
    ) -> Comparison:
        """One job: ours, with and without overlap, and Spark's: the first is to be beaten, the others explain."""
        theirs, *others = spark
        all_ours = {"ours, overlap": ours(overlap=True), "ours": ours(overlap=False)}
        contenders = [Contender(name, run, warm_up=0) for name, run in {**all_ours, **spark}.items()]
        self.bench.stack.callback(_end_sessions)
        contenders.append(Contender("ours, overlap, session kept", ours(overlap=True, keep_session=KEEP), warm_up=1))
        claims = [
            Claim(f"{title}, whole job, overlap", "ours, overlap", (theirs,), wanted),
            Claim(f"{title}, whole job", "ours", (theirs,), None),
            Claim(f"{title}, session kept", "ours, overlap, session kept", (theirs,), wanted),
            *(Claim(f"{title}: {other}", other, (theirs,), None) for other in others),
        ]
        return Comparison(f"jobs/{title}", f"{title}, cold processes", contenders, claims, rows=self.bench.rows)

    @cached_property
    def _files(self) -> Path:
        return write_parquet(self.bench.table, self.bench.folder / "files", CHECKPOINTS * FILES)

    @cached_property
    def _topic(self) -> str:
        topic = f"source-{next(self.bench.servers.numbers)}"
        IntoKafka(self.bench).fill(topic)
        return topic

    def _source(self, kind: str) -> dict[str, Any]:
        """What a job of ours reads: the rows as files, or the records."""
        if kind == "Rows":
            schema = self.bench.dataset.spark_schema
            files = FileSource(path=str(self._files), format="parquet", schema=schema, max_files_per_trigger=FILES)
            return files.to_json()
        return KafkaSource(topics=[self._topic], conn_id="broker", max_offsets_per_trigger=self._batch).to_json()

    def _spark_source(self, kind: str) -> dict[str, Any]:
        """The same for a job of Spark's own."""
        if kind == "Rows":
            return {"path": str(self._files), "files": FILES, "schema": self.bench.dataset.spark_schema}
        return {"topic": self._topic, "batch": self._batch}

    def _run(self, module: str, job: dict[str, Any], server: Any, topic: str | None) -> float:
        folder = self.bench.folder / f"{PIPELINES}{next(self.bench.servers.numbers)}"
        folder.mkdir()
        if server is not None:
            self.bench.empty_table(server)
        if topic is not None:
            self.bench.servers.kafka.create_topic(topic, PARTITIONS)
        path = folder / "job.json"
        path.touch(mode=0o600)
        if "command" not in job:  # Spark's own writers have none
            job["pipeline"] = folder.name
        if job.get("command") != "jdbc":
            job["folder"] = str(folder / "state")
            (folder / "state").mkdir()
        if "parquet" in job:
            job["parquet"] = str(folder / "parquet")
        path.write_text(json.dumps(job))
        # All in one place, as the tasks of an Airflow: a session is kept for the runs that begin where it began.
        seconds = timed(lambda: run_module(module, folder, str(path), cwd=self.bench.folder))
        if server is not None:
            self.bench.check_table(server, module)
        if topic is not None:
            self.bench.check_topic(topic, module)
            self.bench.servers.kafka.delete_topic(topic)
        if "parquet" in job:
            self._check_parquet(folder / "parquet", "topic" in job["source"])
        shutil.rmtree(folder)
        return seconds

    def _check_parquet(self, folder: Path, are_records: bool) -> None:
        found = dataset(folder, format="parquet").to_table()
        if are_records:
            check("Spark's Parquet", records_content(found), self.bench.records_content)
        else:
            check("Spark's Parquet", self.bench.dataset.content(found), self.bench.content)

    def ours(
        self,
        kind: str,
        *,
        server: Any = None,
        to_topic: bool = False,
        overlap: bool = False,
        keep_session: float = 0.0,
    ) -> Callable[[], float]:
        """A run of a new pipeline."""

        def run() -> float:
            topic = f"job-{next(self.bench.servers.numbers)}" if to_topic else None
            job: dict[str, Any] = {
                "job": f"benchmarks.job:{kind}",
                "source": self._source(kind),
                "connections": {},
                "overlap": overlap,
                "keep_session": keep_session,
            }
            if server is not None:
                job["table"] = "orders"
                job["connections"]["shop"] = connection_to(server, ssl_mode="DISABLED")
            if topic is not None:
                job["topic"] = topic
                extra = {"bootstrap.servers": self.bench.servers.kafka.bootstrap}
                job["connections"]["broker"] = {"conn_id": "broker", "conn_type": "kafka", "extra": extra}
            return self._run("benchmarks.pipeline", job, server, topic)

        return run

    def spark_jdbc(self, server: Any) -> Callable[[], float]:
        """Spark's JDBC writer over the same files, as one batch."""

        def run() -> float:
            job = {"command": "jdbc", "source": str(self._files), **jdbc_options(server, FASTER)}
            return self._run("benchmarks.sparking", job, server, None)

        return run

    def spark_stream(self, kind: str, *, server: Any = None, to_topic: bool = False) -> Callable[[], float]:
        """Spark's streaming query over the same source, in as many micro-batches; without a target, into Parquet."""

        def run() -> float:
            topic = f"job-{next(self.bench.servers.numbers)}" if to_topic else None
            job: dict[str, Any] = {"command": "stream", "source": self._spark_source(kind)}
            if kind != "Rows":
                job["bootstrap"] = self.bench.servers.kafka.bootstrap
            if server is not None:
                job["jdbc"] = jdbc_options(server, FASTER)
            if topic is not None:
                job["topic"] = topic
            if server is None and topic is None:
                job["parquet"] = ""  # where, `_run` knows
            return self._run("benchmarks.sparking", job, server, topic)

        return run
