"""Streams whose log and Spark's locations are in a bucket, while processes and the store are killed."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.clients import buckets
from tests.conftest import TopicFactory
from tests.integration.test_stream import World
from tests.wal.s3.conftest import connection_of
from tools.servers import Database, Kafka, VersityGw

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(3000),
]
TOTALS = "CREATE TABLE totals (n BIGINT, k BIGINT, place BIGINT, random DOUBLE) ENGINE=InnoDB"
CONF = {"spark.python.authenticate.socketTimeout": "120s"}


class Bucketed(World):
    """The same with its log in a bucket."""

    def __init__(self, server: VersityGw, folder: Path, kafka: Kafka, database: Database, topics: TopicFactory) -> None:
        super().__init__(folder, kafka, database, topics)
        database.sql(TOTALS)
        self.root = f"s3://lake@{server.bucket}/{uuid.uuid4().hex}"
        self._given = {"lake": server.connection(), "wal_root": self.root, "conf": CONF}

    def stream(self, job: str = "Totals", **changes: Any) -> Any:
        usual = {"checkpointing": {"interval": 1.0}, "tables": {"totals": "totals"}}
        return super().stream(job, **{**self._given, **usual, **changes})

    def until(self, condition: Callable[[], Any], seconds: float = 900.0) -> Any:
        return super().until(condition, seconds)

    def until_all_is_there(self) -> None:
        self.until(lambda: len(self.database.sql("SELECT n FROM totals")) >= self.sent)

    def check_exactly_once(self) -> None:
        """Each number once in both sinks, and state as if nothing had ever died."""
        rows = self.database.sql("SELECT n, k, place FROM totals")
        assert Counter(row[0] for row in rows) == Counter(range(self.sent)) == Counter(self.records())
        counts = Counter(n % 7 for n in range(self.sent))
        places = sorted((row[1], row[2]) for row in rows)
        assert places == [(k, place) for k in range(7) for place in range(1, counts[k] + 1)]


@pytest.fixture
def world(
    tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory, versitygw: VersityGw
) -> Iterator[Bucketed]:
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    made = Bucketed(versitygw, tmp_path, kafka, mariadb_database, topic_factory)
    with closing(made.store):
        yield made
    buckets.forget()
    print(made.log()[-20_000:])


@pytest.mark.chaos
def test_a_stream_is_killed_and_each_row_is_there_once(world: Bucketed, versitygw: VersityGw) -> None:
    with world.sending():
        with world.task(world.stream()) as process:
            world.until_confirmed(2)
            world.kill_driver()
            process.kill()
        with world.task(world.stream()):
            world.until_confirmed(2)
    with world.task(world.stream()):
        world.until_all_is_there()
        assert world.stop().startswith("stopped; ")
    world.check_exactly_once()
    base = world.store.pipeline(world.pipeline).base
    assert base is not None and base.location.startswith(world.root)
    logs = "".join(path.read_text() for path in world.folder.glob("task-*.log"))
    assert versitygw.password not in logs
