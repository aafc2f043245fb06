"""A stateful stream from Kafka into MariaDB and Kafka, the records that come in meanwhile, and an outside judge."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import psutil  # type: ignore[import-untyped]
import pymysql
from confluent_kafka import Producer

from airflow_ft.clients.buckets import resolve_with
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.sources import KafkaSource
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.integration.holding import ON_YARN
from tests.integration.kafka_world import read, value
from tools.servers import Hdfs, Kafka, MariaDb, Postgres, VersityGw, Yarn
from tools.servers.processes import tree
from tools.stream_task import Stream, newest_driver

PROJECT = Path(__file__).resolve().parents[3]
PIPELINE = "chaos"
PARTITIONS = 2
Row = tuple[Any, ...]
TABLE = "CREATE TABLE totals (n BIGINT, k BIGINT, place BIGINT, random DOUBLE) ENGINE=InnoDB"


class Servers:
    """A MariaDB and a Kafka of this run alone; and the decision log, in SQLite or in a PostgreSQL.

    The write-ahead log lies in a folder, in a bucket of an S3 server, or on HDFS. Spark works beside the task, or on a
    YARN of two machines.
    """

    def __init__(
        self,
        folder: Path,
        table: str = TABLE,
        store: str = "sqlite",
        inputs: Sequence[str] = ("numbers",),
        wal: str = "local",
        master: str = "local",
    ) -> None:
        """`inputs`: the topics that may be read. `wal`: "local", "s3" or "hdfs". `master`: "local" or "yarn"."""
        self._folder, self._table, self.inputs = folder, table, inputs
        self.mariadb, self.kafka = MariaDb(folder / "mariadb"), Kafka(folder / "kafka")
        self.postgres = Postgres(folder / "postgres") if store == "postgres" else None
        self.versitygw = VersityGw(folder / "versitygw") if wal == "s3" else None
        self._wal = wal
        self.hdfs = Hdfs(folder / "hdfs") if wal == "hdfs" or master == "yarn" else None
        self.yarn = Yarn(folder / "yarn", hdfs=self.hdfs) if self.hdfs is not None and master == "yarn" else None

    def __enter__(self) -> Self:
        if self.versitygw is not None:
            self.versitygw.start()
            resolve_with(self.stream().connection)
        if self.hdfs is not None:
            os.environ["HADOOP_USER_NAME"] = self.hdfs.start().user
        if self.yarn is not None:
            os.environ["HADOOP_CONF_DIR"] = str(self.yarn.start().configuration)
        self.mariadb.start()
        self.kafka.start()
        if self.postgres is not None:
            self.postgres.start()
            self.postgres.sql("CREATE DATABASE log")
        self.mariadb.sql("CREATE DATABASE chaos")
        self.mariadb.sql(self._table, "chaos")
        for topic in (*self.inputs, "totals"):
            self.kafka.create_topic(topic, partitions=PARTITIONS)
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.stop()
        self.mariadb.stop()
        if self.postgres is not None:
            self.postgres.stop()
        if self.versitygw is not None:
            self.versitygw.stop()
        if self.yarn is not None:
            self.yarn.stop_all()
        if self.hdfs is not None:
            self.hdfs.stop_all()

    @property
    def savepoints(self) -> str:
        """Return where savepoints go: to where the write-ahead log is."""
        return f"{self._folder}/savepoints" if (server := self.versitygw) is None else server.place("savepoints")

    @property
    def store_url(self) -> str:
        """Where the decision log is."""
        if (server := self.postgres) is None:
            return f"sqlite:///{self._folder / 'ft.db'}"
        place = f"{server.host}:{server.port}/log?sslmode=disable&connect_timeout=5"
        return f"postgresql://{server.user}:{server.password}@{place}"

    def open_store(self) -> DecisionLog:
        """The decision log."""
        return open_store(self.store_url)

    def mysql(self) -> dict[str, Any]:
        """How the pipeline reaches MariaDB."""
        server = self.mariadb
        return {
            "host": server.host,
            "port": server.port,
            "login": server.user,
            "password": server.password,
            "schema": "chaos",
        }

    def stream(self, **more: Any) -> Stream:
        """The pipeline; `more`: what it has otherwise."""
        source = KafkaSource(topics=["numbers"], conn_id="kafka", starting_offsets="earliest")
        usual: dict[str, Any] = {
            "folder": str(self._folder),
            "pipeline": PIPELINE,
            "job": "stream_jobs:Totals",
            "sources": {"numbers": source.to_json()},
            "topics": {"copies": "totals"},
            "tables": {"totals": "totals"},
            "store": self.store_url,
            "kafka": self.kafka.bootstrap,
            "mysql": self.mysql(),
            "checkpointing": {"interval": 0.5},
            "restart": {"type": "exponential-delay", "initial_backoff": 0.2, "max_backoff": 5},
        }
        if (server := self.versitygw) is not None:
            usual |= {"lake": server.connection(), "wal_root": server.place("wal")}
        elif self.hdfs is not None and self._wal == "hdfs":
            usual["wal_root"] = f"{self.hdfs.url}/wal"
        if self.yarn is not None:
            usual |= {"master": "yarn", "conf": ON_YARN}
        return Stream(**usual | more)


class Feeder:
    """Produces numbers from a thread, also over a broker that is restarted; into several topics in turns."""

    def __init__(self, kafka: Kafka, at_a_time: int = 10, topics: Sequence[str] = ("numbers",)) -> None:
        self._at_a_time, self._topics = at_a_time, topics
        settings = {"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer(settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)
        self.sent = 0
        self.lost = 0

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for _ in range(self._at_a_time):
                text = json.dumps({"n": self.sent}).encode()
                topic = self._topics[self.sent // PARTITIONS % len(self._topics)]
                self._producer.produce(topic, text, partition=self.sent % PARTITIONS, on_delivery=self._on_delivery)
                self.sent += 1
            self._producer.poll(0)

    def _on_delivery(self, error: Any, _: Any) -> None:
        self.lost += error is not None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        """All that was sent is in the topic."""
        self._stop.set()
        self._thread.join()
        if self._producer.flush(120) or self.lost:
            raise RuntimeError(f"the broker did not take {self.lost} of {self.sent} numbers")

    def __exit__(self, *_: object) -> None:
        self._stop.set()


class Task:
    """One try of the stream's task, in a process of its own."""

    def __init__(self, folder: Path, stream: Stream, number: int) -> None:
        self.number = number
        self.log = folder / f"task-{number}.log"
        self.process = replace(stream, try_number=number).start(self.log)

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self.process.poll() is not None

    def driver(self) -> int:
        """The newest driver's JVM; 0: none."""
        pid = newest_driver(self.log)
        return pid if pid and psutil.pid_exists(pid) else 0

    def python(self) -> int:
        """The newest driver's Python; 0: none."""
        for pid in tree(self.driver()) if self.driver() else ():
            try:
                if runs_the_job(psutil.Process(pid).cmdline()):
                    return pid
            except psutil.Error:
                continue
        return 0


def runs_the_job(words: Sequence[str]) -> bool:
    """Whether this is the command of a driver's Python. Its JVM, spark-submit, is told the program, too."""
    return len(words) > 1 and words[-1].endswith("main.py") and not words[0].endswith("java")


def is_locked(folder: Path) -> bool:
    """Whether somebody stands still within a write to the decision log, when that is in SQLite."""
    with closing(sqlite3.connect(folder / "ft.db", timeout=3, isolation_level=None)) as log:
        try:
            log.execute("BEGIN IMMEDIATE")
            log.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
    return False


@contextmanager
def _cursor(servers: Servers) -> Iterator[Any]:
    server = servers.mariadb
    given = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    with closing(pymysql.connect(**given, database="chaos")) as connection, connection.cursor() as cursor:
        yield cursor


def writers(servers: Servers) -> dict[int, int]:
    """{number: epoch} of the checkpoints whose markers are in the table's ledger: the newest twenty or so."""
    with _cursor(servers) as cursor:
        cursor.execute("SELECT number, epoch FROM airflow_ft_ledger WHERE pipeline = %s", (PIPELINE,))
        return {int(number): int(epoch) for number, epoch in cursor.fetchall()}


def judge(servers: Servers, sent: int, seen: Mapping[int, int] = MappingProxyType({})) -> list[str]:
    """What is wrong in the sinks, read by own SQL and an own consumer; [] when all is exact.

    `seen`: what `writers` has said before, of checkpoints whose markers may be pruned by now.
    """
    rows, records, problems = in_sinks(servers)
    return problems + judge_rows(rows, records, in_order(seen, servers), sent)


def in_sinks(servers: Servers) -> tuple[list[Row], list[Row], list[str]]:
    """The table's rows, the topic's records, and what is wrong beside them."""
    with _cursor(servers) as cursor:
        cursor.execute("SELECT n, k, place, random FROM totals")
        rows: list[Row] = list(cursor.fetchall())
        cursor.execute("XA RECOVER")
        prepared = list(cursor.fetchall())
    records = [
        tuple(value(each)[name] for name in ("n", "k", "place", "random"))
        for each in read(servers.kafka.bootstrap, "totals")
    ]
    return rows, records, [f"MariaDB still holds {prepared}"] if prepared else []


def in_order(seen: Mapping[int, int], servers: Servers) -> list[int]:
    """The epochs of who wrote each checkpoint."""
    wrote = {**seen, **writers(servers)}
    return [wrote[number] for number in sorted(wrote)]


def judge_rows(rows: list[Row], records: list[Row], epochs: list[int], sent: int) -> list[str]:
    """What is wrong in the table's rows and the topic's records: (number, key, place within the key, random value).

    Each number once in each; the numbers of a key have the places 1 to N, so state was neither lost nor counted twice;
    and both sinks have the same rows, so they were computed once. `epochs`: of who wrote each checkpoint, in order. No
    one is older than the one before: no second copy was at work.
    """
    problems = judge_epochs(epochs)
    for name, found in (("MariaDB", rows), ("Kafka", records)):
        problems += judge_numbers(name, [row[0] for row in found], sent)
        places: dict[int, list[int]] = defaultdict(list)
        for _, key, place, _ in found:
            places[key].append(place)
        wrong = [key for key, of_key in places.items() if sorted(of_key) != list(range(1, len(of_key) + 1))]
        if wrong:
            problems.append(f"{name}: the places of {len(wrong)} keys are not 1 to N: state was lost, or counted twice")
    if Counter(rows) != Counter(records):
        problems.append(f"{len(Counter(rows) - Counter(records))} rows differ between the two sinks")
    return problems


def judge_epochs(epochs: list[int]) -> list[str]:
    """What is wrong with those of who wrote one checkpoint after the other."""
    if epochs and epochs == sorted(epochs):
        return []
    return [f"MariaDB: no epoch wrote, or an older one after a newer one: {epochs}"]


def judge_numbers(name: str, found: Iterable[int], sent: int) -> list[str]:
    """What is wrong in a sink that is to have each number from 0 on once."""
    counts = Counter(found)
    lost, duplicated = set(range(sent)) - counts.keys(), [n for n, count in counts.items() if count > 1]
    foreign = counts.keys() - set(range(sent))
    if lost or duplicated or foreign:
        return [f"{name}: {len(lost)} lost, {len(duplicated)} duplicated, {len(foreign)} foreign"]
    return []


def ends(checkpoint: Checkpoint) -> dict[str, dict[str, int]]:
    """Where its sources, which have the names of their topics, stand behind it: offsets by partition."""
    return {name: (of["end"] or {}).get(name, {}) for name, of in checkpoint.positions.items()}


def await_delivery(servers: Servers, sent: int, task: Task, seconds: float = 180.0, pipeline: str = PIPELINE) -> None:
    """Returns when so many rows are confirmed; TimeoutError."""
    deadline = time.monotonic() + seconds
    with closing(servers.open_store()) as store:
        while True:
            latest = store.latest_confirmed(pipeline)
            reached = 0 if latest is None else sum(sum(found.values()) for found in ends(latest).values())
            if reached >= sent:
                return
            if task.is_over or time.monotonic() > deadline:
                raise TimeoutError(f"{reached} of {sent} numbers are confirmed; see {task.log}")
            time.sleep(0.1)
