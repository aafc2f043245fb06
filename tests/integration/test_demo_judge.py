"""The judge against real servers: exact data pass, and each lie that a sink could tell is found."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from psycopg2.extras import execute_values

from tests.conftest import TopicFactory
from tools.demo import data, judge
from tools.servers import Database, Kafka

FLIGHTS = 3000
PROJECT = Path(__file__).resolve().parents[2]


@dataclass
class World:
    """A table and a topic that hold the first flights exactly, and who may change them."""

    database: Database
    kafka: Kafka
    topic: str

    @property
    def settings(self) -> dict[str, Any]:
        server = self.database.server
        mysql = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
        return {
            "mysql": {**mysql, "database": self.database.name},
            "bootstrap": self.kafka.bootstrap,
            "topic": self.topic,
            "flights": FLIGHTS,
        }

    def verdict(self) -> judge.Verdict:
        return judge.judge(self.settings)

    def producer(self, **settings: str) -> Producer:
        return Producer({"bootstrap.servers": self.kafka.bootstrap, "log_level": 3, **settings})

    def produce(self, row: data.Row, producer: Producer | None = None, key: str | None = None) -> None:
        own = producer or self.producer()
        fields = dict(zip((*data.COLUMNS, *judge.EXTRA), row, strict=True))
        fields["time_hour"] = fields["time_hour"].isoformat() + ".000000Z"
        own.produce(self.topic, json.dumps(fields), key=key or fields["tailnum"])
        if producer is None:
            assert own.flush(30) == 0


@pytest.fixture(scope="module")
def delivered() -> list[data.Row]:
    """Rows as an exact delivery makes them: values, running count, some random number."""
    totals: Counter[str] = Counter()
    rows = []
    for position, row in enumerate(data.rows(data.flights(FLIGHTS))):
        carrier = row[data.COLUMNS.index("carrier")]
        totals[carrier] += 1
        rows.append((*row, totals[carrier], 1 / (position + 3)))
    return rows


@pytest.fixture
def world(mariadb_database: Database, kafka: Kafka, topic_factory: TopicFactory, delivered: list[data.Row]) -> World:
    mariadb_database.sql((PROJECT / "dags" / "flights.sql").read_text())
    with mariadb_database.connect() as connection, connection.cursor() as cursor:
        marks = ", ".join(["%s"] * len(delivered[0]))
        cursor.executemany(f"INSERT INTO flights VALUES ({marks})", delivered)
    world = World(mariadb_database, kafka, topic_factory(2))
    producer = world.producer()
    for row in delivered:
        if data.is_late(row):
            world.produce(row, producer)
    assert producer.flush(30) == 0
    return world


def late(delivered: list[data.Row]) -> data.Row:
    return next(row for row in delivered if data.is_late(row))


def test_the_judge_passes_exact_data_without_the_package(world: World) -> None:
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tools.demo.judge"],
        cwd=PROJECT,
        input=json.dumps(world.settings),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    found = json.loads(finished.stdout)
    assert found["exact"]
    assert found["mysql"]["found"] == FLIGHTS
    assert found["kafka"]["found"] == found["kafka"]["expected"] > 50
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "pymysql" in imported
    assert not {name for name in imported if name.partition(".")[0] in ("airflow_ft", "airflow", "pyspark")}


LIES: dict[str, Callable[[World], object]] = {
    "a row stands there twice": lambda w: w.database.sql("INSERT INTO flights SELECT * FROM flights LIMIT 1"),
    "a row is missing": lambda w: w.database.sql("DELETE FROM flights LIMIT 1"),
    "one is missing and another doubled": lambda w: (
        w.database.sql("DELETE FROM flights WHERE carrier = 'AA' LIMIT 1"),
        w.database.sql("INSERT INTO flights SELECT * FROM flights WHERE carrier = 'UA' LIMIT 1"),
    ),
    "a missing value became zero": lambda w: w.database.sql(
        "UPDATE flights SET dep_delay = 0 WHERE dep_delay IS NULL LIMIT 1"
    ),
    "an hour was shifted": lambda w: w.database.sql(
        "UPDATE flights SET time_hour = time_hour + INTERVAL 1 HOUR ORDER BY random LIMIT 1"
    ),
    "state went back and counted twice": lambda w: w.database.sql(
        "UPDATE flights SET carrier_count = carrier_count - 1 WHERE carrier = 'UA' AND carrier_count > 50"
    ),
    "the table holds another computation of a late row": lambda w: w.database.sql(
        "UPDATE flights SET random = random / 2 WHERE arr_delay >= 60 LIMIT 1"
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_of_the_table_is_found(lie: str, world: World) -> None:
    assert world.verdict().exact
    LIES[lie](world)
    assert not world.verdict().exact


def test_a_record_sent_twice_is_a_duplicate(world: World, delivered: list[data.Row]) -> None:
    world.produce(late(delivered))
    found = world.verdict()
    assert not found.exact
    assert (found.kafka.duplicates, found.kafka.missing) == (1, 0)


def test_a_record_with_another_key_is_found(
    world: World, delivered: list[data.Row], topic_factory: TopicFactory
) -> None:
    producer = world.producer()
    world.topic = topic_factory(2)
    for row in delivered:
        if data.is_late(row):
            world.produce(row, producer, key="N00000" if row == late(delivered) else None)
    assert producer.flush(30) == 0
    found = world.verdict()
    assert not found.exact
    assert found.kafka.exact
    assert found.problems == ("topic: 1 records have another key than the flight's tail number",)


def test_records_of_an_aborted_transaction_do_not_count(world: World, delivered: list[data.Row]) -> None:
    producer = world.producer(**{"transactional.id": world.topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    world.produce(late(delivered), producer)
    producer.flush(30)
    producer.abort_transaction(30)
    assert world.verdict().exact


def test_a_transaction_that_hangs_is_found(
    world: World, delivered: list[data.Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "END_SECONDS", 1)
    producer = world.producer(**{"transactional.id": world.topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    world.produce(late(delivered), producer)
    producer.flush(30)
    with pytest.raises(TimeoutError):
        world.verdict()
    producer.abort_transaction(30)


COLUMNS = (*data.COLUMNS, *judge.EXTRA)


def copied(folder: Path, rows: list[data.Row]) -> Path:
    """A folder with two checkpoints, as the files sink leaves it."""
    at = COLUMNS.index("time_hour")
    for number, part in enumerate((rows[:1000], rows[1000:]), 1):
        columns = dict(zip(COLUMNS, map(list, zip(*part, strict=True)), strict=True))
        columns["time_hour"] = [row[at].replace(tzinfo=UTC) for row in part]
        checkpoint = folder / f"checkpoint={number:010}"
        checkpoint.mkdir(parents=True)
        pq.write_table(pa.table(columns), checkpoint / "part-00000.parquet")
    return folder


@pytest.mark.parametrize(
    "lie",
    {
        "none": lambda rows: rows,
        "a row is missing": lambda rows: rows[1:],
        "a row is there twice": lambda rows: [*rows, rows[-1]],
        "another computation": lambda rows: [(*rows[0][:-1], 0.25), *rows[1:]],
    }.values(),
)
def test_a_copy_in_files_has_the_rows_of_the_table(
    world: World, tmp_path: Path, delivered: list[data.Row], lie: Callable[[list[data.Row]], list[data.Row]]
) -> None:
    problems = lie(delivered)
    found = judge.judge({**world.settings, "copies": {"files": str(copied(tmp_path / "lake", problems))}})
    assert found.exact == found.copies["files"].exact == (problems == delivered)


def test_a_copy_in_postgresql_has_the_rows_of_the_table(
    world: World, postgres_database: Database, delivered: list[data.Row]
) -> None:
    server = postgres_database.server
    postgres_database.sql((PROJECT / "dags" / "flights_postgres.sql").read_text())
    with server.connect(postgres_database.name) as connection, connection.cursor() as cursor:
        cursor.execute("SET timezone TO 'UTC'")
        execute_values(cursor, "INSERT INTO flights VALUES %s", delivered)
    reader = {"host": server.host, "port": server.port, "login": server.user, "password": server.password}
    settings = {**world.settings, "copies": {"postgres": {**reader, "schema": postgres_database.name}}}
    assert judge.judge(settings).exact
    postgres_database.sql("DELETE FROM flights WHERE ctid = (SELECT min(ctid) FROM flights)")
    assert judge.judge(settings).copies["postgres"].missing == 1
