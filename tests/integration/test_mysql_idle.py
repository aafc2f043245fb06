"""Sessions that wait for the write-ahead log: the server ends idle ones, so that stopped processes free locks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.model import Segment
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.write_ahead_log import WalFile
from airflow_ft.sinks.mysql import doctor
from airflow_ft.wal import open_wal
from airflow_ft.wal.reader import ParquetSegment, ParquetWal
from tests.sinks.mysql.world import QUICK, MySqlWorld, each_way, make_world, orders, vote_for
from tools.servers import Database

IDLE = replace(QUICK, idle=1, tries=1)
STRATEGIES: dict[str, dict[str, Any]] = {
    "local": {},
    "xa": {},
    "upsert": {"key_columns": ["id"], "version_column": "version"},
}
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)


def idle_world(database: Database, root: Path, strategy: str = "local", check: str = "") -> MySqlWorld:
    world = make_world(
        database, root, orders=f"id BIGINT PRIMARY KEY {check}, name VARCHAR(100), version BIGINT DEFAULT 0"
    )
    world.limits = IDLE
    return world.use(strategy, **STRATEGIES[strategy])


def slow_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each file is checked for longer than a session may idle."""
    batches = ParquetSegment.batches

    def slow(segment: ParquetSegment, sink: str, file: WalFile) -> Iterator[pa.RecordBatch]:
        time.sleep(2.5)
        yield from batches(segment, sink, file)

    monkeypatch.setattr(ParquetSegment, "batches", slow)


@each_strategy
def test_many_segments_do_not_end_the_session(
    any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Opening each of them may be a request to a remote store."""
    world = idle_world(any_mysql_database, tmp_path, strategy)
    plan = world.plan_of(1, *(world.segment(1, {"orders": orders(each, 1)}) for each in range(25)))
    opening = ParquetWal.open

    def slow(wal: ParquetWal, segment: Segment) -> ParquetSegment:
        time.sleep(0.1)
        return opening(wal, segment)

    monkeypatch.setattr(ParquetWal, "open", slow)
    world.deliver(plan)
    assert world.count() == 25


@each_way
@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_rows_of_a_slow_log_are_set_aside(
    any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, strategy: str
) -> None:
    world = idle_world(any_mysql_database, tmp_path, strategy)
    world.use_way(way)
    plan = world.plan(orders=orders(1, 9))
    participant = world.participant(plan)
    vote = vote_for(participant.prepare(plan, world.fence()))
    refused = "BEGIN IF NEW.id = 7 THEN SIGNAL SQLSTATE '45000'; END IF; END"
    world.sql(f"CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW {refused}")
    slow_rows(monkeypatch)
    proof = participant.commit(plan, world.fence(1, 2), vote, set_aside=True)
    assert (proof.counts, of_proof(proof)["orders"].rows) == ({"orders": 8}, 1)


def test_the_doctor_keeps_its_session_while_it_reads_rows(
    any_mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(any_mysql_database, tmp_path, orders="id BIGINT, name CHAR(100)")
    plan = world.plan_of(1, *(world.segment(1, {"orders": orders(each, 1)}) for each in range(2)))
    readers = [open_wal().open(segment) for segment in plan.segments]
    slow_rows(monkeypatch)
    monkeypatch.setattr(doctor, "Limits", lambda **limits: replace(IDLE, **limits))
    checks = doctor.examine("orders", plan.participants[0], world.connection(), readers)
    assert [check for check in checks if check.verdict is Verdict.PROBLEM] == []
    assert sum(check.name.startswith("rows for") for check in checks) == 2
