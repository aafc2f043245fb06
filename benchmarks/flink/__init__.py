"""Against Flink's exactly-once sinks: the same rows, in an embedded cluster of two slots (`FlinkWriter.java`)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.bench import Bench, say
from benchmarks.into_kafka import PARTITIONS, TUNED, IntoKafka
from benchmarks.into_mysql import DRIVERS, IntoMySql, jdbc_options
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from benchmarks.workers import ROOT, Worker


def flink(bench: Bench) -> list[Comparison]:
    """One comparison a system, ours warm and Flink's warm."""
    cluster = Cluster(bench)
    return [
        _kafka(bench, cluster),
        *(_mysql(bench, cluster, server) for server in (bench.servers.mariadb, bench.servers.mysql)),
    ]


def _kafka(bench: Bench, cluster: Cluster) -> Comparison:
    into = IntoKafka(bench)
    theirs = [cluster.kafka("Flink, default", {}), cluster.kafka("Flink, tuned", TUNED)]
    names = tuple(contender.name for contender in theirs)
    return Comparison(
        "flink/kafka",
        "WAL -> Kafka, committed, against Flink's exactly-once KafkaSink",
        [into.ours("transaction"), into.ours("rows in memory", command="deliver_from_memory"), *theirs],
        [
            Claim("WAL -> Kafka against Flink, exactly-once", "transaction", names, 1.0),
            # As Flink's are: what librdkafka, the two steps and the broker cost without the log.
            Claim("rows in memory -> Kafka against Flink, exactly-once", "rows in memory", names, None),
        ],
        rows=bench.rows,
    )


def _mysql(bench: Bench, cluster: Cluster, server: Any) -> Comparison:
    into = IntoMySql(bench, server)
    # Without fractions of seconds Connector/J is not exact on MariaDB (see `DRIVERS`).
    theirs = [cluster.jdbc(server, driver) for driver in DRIVERS if (server.name, driver) != ("mariadb", "Connector/J")]
    names = tuple(contender.name for contender in theirs)
    ours = [into.ours(strategy, strategy) for strategy in ("local", "xa")]
    return Comparison(
        f"flink/{server.name}",
        f"WAL -> {server.name}, committed, against Flink's exactly-once JDBC sink (XA)",
        [*ours, *theirs],
        [
            Claim(f"WAL -> {server.name}, `{each.name}` against Flink's JDBC XA sink", each.name, names, 1.0)
            for each in ours
        ],
        rows=bench.rows,
    )


def program(bench: Bench, name: str) -> list[str]:
    """The command line of one of the Java programs here, compiled."""
    say(f"compiling and starting Flink ({name})")
    jars = ROOT / ".local" / "jars"
    classes = bench.folder / "flink"
    path = f"{jars / 'flink'}/*:{jars / 'jdbc'}/*"
    if (javac := shutil.which("javac")) is None:
        raise MeasurementError(
            "there is no javac: the comparison with Flink needs a JDK (Debian: default-jdk-headless)"
        )
    source = Path(__file__).with_name(f"{name}.java")
    subprocess.run([javac, "-cp", path, "-d", str(classes), str(source)], check=True)
    options = ["-Xmx3g", "-Duser.timezone=UTC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    # Flink 2.0 on Java 17 serialises by reflection.
    options += [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util", "time")]
    return ["java", *options, "-cp", f"{classes}:{path}", name]


class Cluster:
    """The embedded cluster's process, compiled and started when it is first needed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    @cached_property
    def _worker(self) -> Worker:
        return self.bench.servers.worker("flink", program=program(self.bench, "FlinkWriter"))

    @cached_property
    def _with_records(self) -> Worker:
        path = self.bench.folder / "flink-records"
        table = self.bench.records
        with path.open("wb") as file:
            for batch in table.to_batches(max_chunksize=100_000):
                keys, values = (batch.column(name).cast("binary").to_pylist() for name in ("key", "value"))
                for part in (part for record in zip(keys, values, strict=True) for part in record):
                    file.write(len(part).to_bytes(4, "big") + part)
        self._worker.ask("load_records", path=str(path), count=table.num_rows)
        return self._worker

    @cached_property
    def _with_rows(self) -> Worker:
        path = self.bench.folder / "flink-rows"
        table = self.bench.table
        columns = {name: table.column(name) for name in table.column_names}
        columns["score"] = pc.multiply(columns["score"], 2.0**20).cast("int64")
        columns["at"] = columns["at"].cast("int64")
        texts = [pc.fill_null(column.cast("string"), "-") for column in columns.values()]
        lines = pc.binary_join_element_wise(*texts, "\t")
        path.write_text("\n".join(lines.to_pylist()) + "\n")
        self._worker.ask("load_rows", path=str(path), count=table.num_rows)
        return self._worker

    def kafka(self, name: str, settings: Mapping[str, str]) -> Contender:
        """Its KafkaSink, into a new topic."""

        def run() -> float:
            topic = f"flink-{next(self.bench.servers.numbers)}"
            self.bench.servers.kafka.create_topic(topic, PARTITIONS)
            try:
                bootstrap = self.bench.servers.kafka.bootstrap
                answer = self._with_records.ask("kafka", topic=topic, bootstrap=bootstrap, settings=dict(settings))
                self.bench.check_topic(topic, name)
            finally:
                self.bench.servers.kafka.delete_topic(topic)
            seconds: float = answer["seconds"]
            return seconds

        return Contender(name, run)

    def jdbc(self, server: Any, driver: str) -> Contender:
        """Its JDBC XA sink with that driver, into an empty table."""
        options = jdbc_options(server, driver)
        given = {name: options[name] for name in ("url", "user", "password", "driver")}

        def run() -> float:
            self.bench.empty_table(server)
            answer = self._with_rows.ask("jdbc", batch=int(options["batchsize"]), **given)
            self.bench.check_table(server, f"Flink, {driver}")
            seconds: float = answer["seconds"]
            return seconds

        return Contender(f"Flink, {driver}", run)
