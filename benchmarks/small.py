"""A checkpoint of one row into both sinks, from before its decision to COMPLETED, in a process that stays warm.

As with `overlap=True`: one stage publishes, and one coordinator with the stage's epoch delivers, one after the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import ParticipantPlan, RunKey, SparkPosition
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.retention import finalise
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from benchmarks.bench import DATABASE, Bench
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError, timed

TIMES = 10  # in a measurement, whose cost is their median
LIMIT_MS = 50.0
PARTS = {"shop": "MariaDB", "broker": "Kafka"}


def small(bench: Bench) -> list[Comparison]:
    """Against the servers' own commits of the same row: one INSERT and one Kafka transaction, one after the other."""
    pipeline = SmallPipeline(bench)
    contenders = [
        Contender("decide to confirmed", pipeline.deliver),
        *(Contender(f"  of it {part}", partial(pipeline.part, part), warm_up=0) for part in PARTS.values()),
        Contender("the servers' commits", pipeline.plain()),
        Contender("the same steps, bare", pipeline.bare()),
        Contender("the limit", lambda: LIMIT_MS, warm_up=0),
    ]
    ours, *_, commits, bare, _ = (contender.name for contender in contenders)
    claims = [
        Claim("one row: the servers' commits, against decide to confirmed", ours, (commits,), 1 / 3),
        # What is left of the ratio when nothing but the servers' own answers is waited for.
        Claim("one row: the servers' commits, against the same steps by bare clients", bare, (commits,), None),
        Claim(f"one row: {LIMIT_MS:.0f} ms, against decide to confirmed", ours, ("the limit",), 1.0),
    ]
    title = "One row into MariaDB and Kafka, from before its decision to COMPLETED, warm"
    return [Comparison("small", title, contenders, claims, unit="ms")]


class SmallPipeline:
    """A pipeline whose checkpoints have one row, and a run of it that stages and delivers."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self._numbers = bench, count(1)
        self._parts: dict[str, list[float]] = {}
        self._root = str(bench.folder / "small")
        self._store = open_store(f"sqlite:///{bench.folder}/small.db")
        bench.stack.enter_context(closing(self._store))
        self._store.register("small")
        bench.servers.mariadb.sql("CREATE TABLE small (id BIGINT, name VARCHAR(40))", DATABASE)
        bench.servers.kafka.create_topic("small", 1)
        server = bench.servers.mariadb
        kafka = {"bootstrap.servers": bench.servers.kafka.bootstrap}
        self._connections = {
            "shop": ConnectionInfo(
                "shop", "mysql", server.host, server.port, server.user, server.password, DATABASE
            ),
            "broker": ConnectionInfo("broker", "kafka", extra=kafka),
        }  # fmt: skip
        sinks: dict[str, Any] = {
            "table": MySqlSink(table="small", conn_id="shop"),
            "topic": KafkaSink(topic="small", conn_id="broker", key="name"),
        }
        self._delivery, self._run = plan_delivery(sinks), RunKey("bench", "run")
        self._store.enter_turn("small", self._run, None)
        lease = new_epoch(self._store, "small", Worker("bench/stage", 1), "stage")
        self._epoch, _ = bench.stack.enter_context(lease)
        self._attempt = self._store.begin_stage("small", self._epoch, self._run)
        coordinator = Coordinator(self._store, "small", self._epoch, self._participant)
        self._coordinator = bench.stack.enter_context(closing(coordinator))

    def _connection(self, conn_id: str) -> ConnectionInfo:
        return self._connections[conn_id]

    def _participant(self, plan: ParticipantPlan) -> Participant:
        participant = open_participant(plan, self._connection, open_wal())
        for step in ("commit", "proof"):
            setattr(participant, step, self._noting(PARTS[plan.name], getattr(participant, step)))
        return participant

    def _noting(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*given, **named)
            finally:
                self._parts[part][-1] += (time.monotonic() - began) * 1000

        return noted

    def part(self, name: str) -> float:
        """Milliseconds that a sink has taken in the newest measurement."""
        return statistics.median(self._parts[name])

    def deliver(self) -> float:
        """Milliseconds of the middle one of some checkpoints."""
        self._parts = {part: [] for part in PARTS.values()}
        found = statistics.median(self._one() for _ in range(TIMES))
        finalise(self._store, "small", lambda _: None)  # as it is done every now and then (protocol/overlap.py)
        rows = self.bench.servers.mariadb.sql("SELECT COUNT(*), COUNT(DISTINCT id), MAX(id) FROM small", DATABASE)[0]
        if len(set(map(int, rows))) != 1:
            raise MeasurementError(f"the small pipeline is not exact: rows, ids and the last id are {rows}")
        return found

    def _one(self) -> float:
        self._publish(next(self._numbers))
        [number] = self._coordinator.plan(self._delivery, 0)
        for name in self._delivery.names:
            self._coordinator.prepare(number, name)
        for taken in self._parts.values():
            taken.append(0.0)
        began = time.monotonic()
        checkpoint = self._coordinator.deliver(number)
        took = time.monotonic() - began
        if not checkpoint.is_confirmed:
            raise MeasurementError(f"checkpoint {number} is {checkpoint.state}")
        return took * 1000

    def _publish(self, number: int) -> None:
        store = self._store
        given = store.trigger("small", self._epoch, self._run)
        table = pa.table({"id": pa.array([number], pa.int64()), "name": [f"row {number}"]})
        folder = SegmentFolder(self._root, "small", self._epoch, self._attempt, number)
        written = write_segment(folder, given, {"table": table, "topic": table})
        predecessor = store.pipeline("small").last_published
        store.publish("small", self._epoch, given, predecessor, written, SparkPosition("file:///none", number), {})

    def plain(self) -> Any:
        """The same row by a connection and a producer that stay open."""
        bench = self.bench
        connection = bench.servers.mariadb.connect(DATABASE, autocommit=False)
        bench.stack.enter_context(closing(connection))
        producer = Producer(
            {
                "bootstrap.servers": bench.servers.kafka.bootstrap,
                "transactional.id": "plain",
                "linger.ms": 0,
                "log_level": 2,
            }
        )
        producer.init_transactions(30)
        bench.servers.mariadb.sql("CREATE TABLE plain (id BIGINT, name VARCHAR(40))", DATABASE)
        bench.servers.kafka.create_topic("plain", 1)

        def one() -> None:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO plain VALUES (1, 'row 1')")
            connection.commit()
            producer.begin_transaction()
            producer.produce("plain", b'{"id":1}', b"row 1")
            producer.commit_transaction(30)

        return lambda: statistics.median(timed(one) * 1000 for _ in range(TIMES))

    def bare(self) -> Any:
        """The steps of a delivery with nothing around them: no decision log, no checks, no new connections.

        Head, then marker and row, then the marker read again; init, token, record and token, the token read again.
        """
        bench, bootstrap, group = self.bench, self.bench.servers.kafka.bootstrap, "bare"
        connection = bench.servers.mariadb.connect(DATABASE, autocommit=True)
        bench.stack.enter_context(closing(connection))
        bench.servers.mariadb.sql("CREATE TABLE bare (id BIGINT, name VARCHAR(40))", DATABASE)
        bench.servers.mariadb.sql(
            "CREATE TABLE bare_head (id BIGINT PRIMARY KEY, attempt BIGINT, delivered BIGINT)", DATABASE
        )
        bench.servers.mariadb.sql("CREATE TABLE bare_marker (number BIGINT PRIMARY KEY, note TEXT)", DATABASE)
        bench.servers.mariadb.sql("INSERT INTO bare_head VALUES (1, 0, 0)", DATABASE)
        for topic in ("bare", "bare-tokens"):
            bench.servers.kafka.create_topic(topic, 1)
        common = {"bootstrap.servers": bootstrap, "retry.backoff.ms": 20, "log_level": 2}
        reader = Consumer({**common, "group.id": group, "isolation.level": "read_committed"})
        bench.stack.enter_context(closing(reader))
        numbers, place = count(1), TopicPartition("bare-tokens", 0)

        def into_table(number: int) -> None:
            with connection.cursor() as cursor:
                cursor.execute("UPDATE bare_head SET attempt = attempt + 1 WHERE id = 1")
                cursor.execute("BEGIN")
                cursor.execute("SELECT delivered FROM bare_head WHERE id = 1 FOR UPDATE")
                cursor.execute("INSERT INTO bare_marker VALUES (%s, 'a marker')", (number,))
                cursor.execute("INSERT INTO bare VALUES (%s, 'row')", (number,))
                cursor.execute("UPDATE bare_head SET delivered = %s WHERE id = 1", (number,))
                cursor.execute("COMMIT")
                cursor.execute("SELECT note FROM bare_marker WHERE number = %s", (number,))

        def into_topic(number: int, producer: Producer) -> None:
            producer.init_transactions(30)
            reader.committed([place], 30)
            producer.begin_transaction()
            producer.produce("bare", b'{"id":1}', b"row 1")
            producer.flush(30)
            token = TopicPartition("bare-tokens", 0, number)
            producer.send_offsets_to_transaction([token], reader.consumer_group_metadata(), 30)
            producer.commit_transaction(30)
            while reader.committed([place], 30)[0].offset < number:
                pass

        def into_both(number: int, producer: Producer) -> None:
            into_table(number)
            into_topic(number, producer)

        def one() -> float:
            producer = Producer({**common, "transactional.id": group, "linger.ms": 0})
            producer.list_topics("bare", 30)  # connected before the clock starts
            number = next(numbers)
            return timed(lambda: into_both(number, producer)) * 1000

        return lambda: statistics.median(one() for _ in range(TIMES))
