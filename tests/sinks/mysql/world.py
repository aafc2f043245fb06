"""A pipeline that writes into one MySQL server, for tests: segments in a real WAL, plans, participants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import Fence, ParticipantPlan, Plan, Promise, Segment
from airflow_ft.protocol.votes import Vote
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tools.servers import Database, MariaDb, MySql

INSTALLATION = "11111111-2222-4333-8444-555555555555"
THE_ROWS = b"the rows"
each_way = pytest.mark.parametrize(
    ("any_mysql", "way"),
    [("mariadb", "insert"), ("mysql", "load"), ("mysql", "insert")],
    indirect=["any_mysql"],
)
"""Runs a test with each way that rows can go on each server: see `MySqlWorld.use_way`."""
QUICK = Limits(lock_wait=1, metadata_wait=2, head_wait=20)


@dataclass
class MySqlWorld:
    """`sinks` are the pipeline's; `number` grows with every `plan` made from new rows."""

    server: MariaDb | MySql
    database: str
    root: Path
    sinks: dict[str, MySqlSink]
    pipeline: str = "orders"
    installation: str = INSTALLATION
    limits: Limits = QUICK
    extra: dict[str, Any] = field(default_factory=dict)
    predecessor: int = 0
    number: int = 0
    batch: int = 0
    port: int | None = None

    def connection(self, **changed: Any) -> ConnectionInfo:
        info = ConnectionInfo(
            conn_id="shop",
            conn_type="mysql",
            host=self.server.host,
            port=self.port or self.server.port,
            login=self.server.user,
            password=self.server.password,
            schema=self.database,
            extra=self.extra,
        )
        return replace(info, **changed)

    @property
    def way(self) -> str:
        """How rows go by default."""
        return "insert" if isinstance(self.server, MariaDb) else "load"

    def request(self, statement: bytes) -> bytes:
        """What a request of this statement contains; of `THE_ROWS`, the first one with `orders` on the default way."""
        if statement != THE_ROWS:
            return statement
        # COM_STMT_EXECUTE: behind a flag, the types of a BIGINT and of a string.
        return b"\1\x08\0\xfe\0" if self.way == "insert" else b"LOAD DATA"

    def use_way(self, way: str) -> None:
        """From now on rows go by "load" or "insert"; to MariaDB by the latter."""
        self.extra = {"local_infile": way == "load"}

    def segment(self, number: int, tables: Mapping[str, pa.Table]) -> Segment:
        self.batch += 1
        return write_segment(SegmentFolder(str(self.root), self.pipeline, 1, 1, self.batch), number, tables)

    def use(self, strategy: str, **settings: Any) -> MySqlWorld:
        """From now on all sinks have this strategy; returns itself."""
        self.sinks = {name: replace(sink, strategy=strategy, **settings) for name, sink in self.sinks.items()}
        return self

    def participant_plan(self) -> ParticipantPlan:
        sink = next(iter(self.sinks.values()))
        return ParticipantPlan(
            name="shop",
            kind="mysql",
            strategy=sink.strategy,
            promise=sink.promise,
            predecessor=self.predecessor,
            sinks={name: dict(sink.settings()) for name, sink in self.sinks.items()},
        )

    def plan_of(self, number: int, *segments: Segment) -> Plan:
        return Plan(
            pipeline=self.pipeline,
            installation=self.installation,
            number=number,
            segments=segments,
            participants=(self.participant_plan(),),
            commit_point="shop" if self.participant_plan().promise is Promise.ATOMIC else None,
        )

    def plan(self, **tables: pa.Table) -> Plan:
        """The next number, with these rows by sink."""
        self.number += 1
        return self.plan_of(self.number, self.segment(self.number, tables))

    def participant(self, plan: Plan, **connection: Any) -> ServerParticipant:
        opened = open_participant(plan.participants[0], self.connection(**connection), open_wal(), self.limits)
        assert isinstance(opened, ServerParticipant)
        return opened

    def fence(self, epoch: int = 1, attempt: int = 1) -> Fence:
        return Fence(self.pipeline, self.installation, epoch, attempt)

    def deliver(self, plan: Plan, epoch: int = 1, attempt: int = 1) -> None:
        """Prepares and commits; the next plan has this number as its predecessor."""
        participant = self.participant(plan)
        notes = participant.prepare(plan, self.fence(epoch, attempt))
        participant.commit(plan, self.fence(epoch, attempt), vote_for(notes, attempt))
        self.predecessor = plan.number

    def sql(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.server.sql(statement, self.database, args)

    def count(self, table: str = "orders") -> int:
        return int(self.sql(f"SELECT COUNT(*) FROM `{table}`")[0][0])

    def markers(self) -> list[tuple[Any, ...]]:
        found = self.sql("SELECT number, kind, epoch, attempt, counts FROM airflow_ft_ledger ORDER BY number")
        return [(*row[:4], sum(json.loads(row[4]).values())) for row in found]


def make_world(database: Database, root: Path, **tables: str) -> MySqlWorld:
    """A world whose sinks are the given tables, each created with the given column definitions."""
    for table, columns in (tables or {"orders": "id BIGINT, name VARCHAR(100)"}).items():
        database.sql(f"CREATE TABLE `{table}` ({columns}) ENGINE=InnoDB CHARACTER SET utf8mb4")
    sinks = {table: MySqlSink(table=table, conn_id="shop") for table in (tables or {"orders": ""})}
    server = database.server
    assert isinstance(server, (MariaDb, MySql))
    return MySqlWorld(server, database.name, root, sinks)


def vote_for(notes: Mapping[str, Any], attempt: int = 1) -> Vote:
    """The vote that a decision counts, as the store would hand it over."""
    return Vote("shop", attempt, attempt, None, json.loads(json.dumps(notes)))


def orders(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"order {i}" for i in ids]})
