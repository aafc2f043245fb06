"""A pipeline into a real MySQL server and a real Kafka cluster, over a real decision log, led by the real steps."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_ft.protocol import steps
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import ParticipantPlan, RunKey, SparkPosition
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import open_wal
from airflow_ft.wal.retention import WalArchive
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tools.servers import Database, Kafka, MariaDb, MySql


@dataclass
class RealWorld:
    """Sinks `rows` (table `orders` of connection `shop`) and, with Kafka, `copies` (topic of connection `cluster`)."""

    store: DecisionLog
    root: Path
    database: Database
    kafka: Kafka | None = None
    topic: str = ""
    pipeline: str = field(default_factory=lambda: f"p{uuid.uuid4().hex[:10]}")
    run: RunKey = field(default_factory=lambda: RunKey("dag", "run-1"))
    lease_seconds: float = 0.1
    overrides: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: CheckpointConfig = field(default_factory=lambda: CheckpointConfig(max_delivery_rows=0))
    tries: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def server(self) -> MariaDb | MySql:
        server = self.database.server
        assert isinstance(server, MariaDb | MySql)
        return server

    @property
    def sinks(self) -> dict[str, Any]:
        sinks: dict[str, Any] = {"rows": MySqlSink(table="orders", conn_id="shop")}
        if self.kafka is not None:
            sinks["copies"] = KafkaSink(topic=self.topic, conn_id="cluster", key="name")
        return sinks

    @property
    def delivery(self) -> Delivery:
        return plan_delivery(self.sinks)

    def connections(self, conn_id: str) -> ConnectionInfo:
        if conn_id == "shop":
            info = ConnectionInfo(
                "shop",
                "mysql",
                self.server.host,
                self.server.port,
                self.server.user,
                self.server.password,
                self.database.name,
            )
        elif conn_id == "cluster" and self.kafka is not None:
            extra = {"bootstrap.servers": self.kafka.bootstrap, "airflow_ft_timeout": 20}
            info = ConnectionInfo("cluster", "kafka", extra=extra)
        else:
            raise ConfigurationError("no such connection.", participant=conn_id)
        return replace(info, **self.overrides.get(conn_id, {}))

    def participants(self, plan: ParticipantPlan) -> Participant:
        return open_participant(plan, self.connections, open_wal())

    def context(self, run: RunKey | None = None) -> steps.Context:
        """Of a new try, so that it takes over from older ones at once."""
        run = run or self.run
        return steps.Context(
            store=self.store,
            pipeline=self.pipeline,
            run=run,
            participants=self.participants,
            worker=Worker(f"{run}/step", next(self.tries)),
            lease_seconds=self.lease_seconds,
            run_is_over=lambda other: other != run,
        )

    def stage(self, count: int = 1, rows: int = 20) -> list[int]:
        """Publishes checkpoints, as the Spark driver would: ids continue over numbers."""
        self.store.register(self.pipeline)
        self.store.enter_turn(
            self.pipeline, self.run, None, ended=[r for r in [self.store.pipeline(self.pipeline).turn] if r]
        )
        numbers = []
        with new_epoch(self.store, self.pipeline, self.context().worker, "stage", self.lease_seconds) as (epoch, _):
            attempt = self.store.begin_stage(self.pipeline, epoch, self.run)
            for batch in range(count):
                number = self.store.trigger(self.pipeline, epoch, self.run)
                folder = SegmentFolder(str(self.root), self.pipeline, epoch, attempt, batch)
                segment = write_segment(folder, number, self.tables(number, rows))
                predecessor = self.store.pipeline(self.pipeline).last_published
                position = self.position(epoch, attempt, batch, number)
                self.store.publish(self.pipeline, epoch, number, predecessor, segment, position, {})
                numbers.append(number)
            self.store.end_stage(self.pipeline, epoch, self.run, None)
        return numbers

    def position(self, epoch: int, attempt: int, batch: int, number: int) -> SparkPosition:
        """Where Spark's own state of a checkpoint would lie: there is no Spark."""
        return SparkPosition(f"file:///spark/{epoch}-{attempt}", batch)

    def tables(self, number: int, rows: int) -> Mapping[str, pa.Table]:
        ids = range(number * 1000, number * 1000 + rows)
        table = pa.table({"id": pa.array(ids, pa.int64()), "name": pa.array([f"order {i}" for i in ids], pa.string())})
        return dict.fromkeys(self.sinks, table)

    def prepare(self) -> None:
        for name in self.delivery.names:
            steps.prepare_step(self.context(), self.delivery, self.config, name)

    def commit(self, participant: str) -> None:
        steps.commit_step(self.context(), participant)

    def deliver(self) -> None:
        """recover, every prepare, every commit, confirm."""
        steps.recover_step(self.context())
        self.prepare()
        for name in self.delivery.names:
            self.commit(name)
        steps.confirm_step(self.context(), self.config, WalArchive(str(self.root)))

    def ids(self) -> list[int]:
        """What the table holds, read from outside; duplicates stay visible."""
        return [int(row[0]) for row in self.server.sql("SELECT id FROM orders ORDER BY id", self.database.name)]


def expected(numbers: list[int], rows: int = 20) -> list[int]:
    return [number * 1000 + i for number in numbers for i in range(rows)]


def make_world(
    store: DecisionLog, root: Path, database: Database, kafka: Kafka | None = None, topic: str = "", key: bool = False
) -> RealWorld:
    """Creates the table, without a unique key unless `key`."""
    database.sql(f"CREATE TABLE orders (id BIGINT{' PRIMARY KEY' if key else ''}, name VARCHAR(100)) ENGINE=InnoDB")
    return RealWorld(store, root, database, kafka, topic)
