"""`airflow ft setup`: what it prints is enough to deliver, and it makes no more than that."""

from __future__ import annotations

import json
import uuid
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.admin.commands import setup as command
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka import setup as kafka_setup
from airflow_ft.sinks.mysql import setup
from airflow_ft.sources.kafka import KafkaSource
from airflow_ft.sources.setup import grants
from tests.integration.kafka_world import World
from tests.integration.test_mysql_upsert import KEYS, TABLE, changes
from tests.sinks.mysql.world import MySqlWorld, make_world, orders, vote_for
from tools.servers import Database, Kafka

pytestmark = pytest.mark.server

PASSWORD = "planted-Secret-3"


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def user(any_mysql_database: Database) -> Iterator[str]:
    """May log in, and nothing else."""
    name = f"u{uuid.uuid4().hex[:12]}"
    any_mysql_database.server.sql(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'")
    yield name
    any_mysql_database.server.sql(f"DROP USER '{name}'@'%'")


def connection(world: MySqlWorld, user: str) -> ConnectionInfo:
    return world.connection(login=user, password=PASSWORD)


def run_as_a_dba(world: MySqlWorld, plan: Any, user: str) -> None:
    found = setup.statements(world.pipeline, plan.participants[0], connection(world, user))
    with world.server.connect(world.database) as dba, dba.cursor() as cursor:
        for statement in found:
            cursor.execute(statement)


@pytest.mark.parametrize("strategy", ["local", "xa", "upsert"])
def test_what_is_printed_is_enough_to_deliver(
    any_mysql_database: Database, tmp_path: Path, user: str, strategy: str
) -> None:
    if strategy == "upsert":
        world = make_world(any_mysql_database, tmp_path, orders=TABLE).use("upsert", **KEYS)
        tables = [changes(("c", 1, "a"), ("c", 2, "b")), changes(("u", 1, "A"), ("d", 2, None))]
    else:
        world = make_world(any_mysql_database, tmp_path).use(strategy)
        tables = [orders(1, 10), orders(11, 10)]
    account = {"login": user, "password": PASSWORD}
    for number, table in enumerate(tables, start=1):
        plan = world.plan(orders=table)
        participant = world.participant(plan, **account)
        if number == 1:
            with pytest.raises(SinkAccessError):  # without the statements it is not
                participant.prepare(plan, world.fence(1, 1))
            run_as_a_dba(world, plan, user)
            run_as_a_dba(world, plan, user)  # may be repeated
        notes = participant.prepare(plan, world.fence(1, 2 * number))
        assert "created" not in notes
        proof = participant.commit(plan, world.fence(1, 2 * number + 1), vote_for(notes, 2 * number))
        assert proof.outcome is Outcome.COMMITTED
        assert participant.proof(plan) == proof
        world.predecessor = number
    world.participant(plan, **account).forget(world.fence(1, 9), 1)
    assert world.count() == (1 if strategy == "upsert" else 20)


def test_setup_creates_the_ledger_only_for_a_privileged_user(
    any_mysql_database: Database, tmp_path: Path, user: str
) -> None:
    world = make_world(any_mysql_database, tmp_path)
    plan = world.plan(orders=orders(1, 1)).participants[0]
    with pytest.raises(SinkAccessError) as caught:
        setup.create(world.pipeline, plan, connection(world, user))
    assert "denied" in caught.value.headline
    assert PASSWORD not in f"{caught.value} {caught.value.fields}"
    made = setup.create(world.pipeline, plan, world.connection())
    assert made == f"airflow_ft_ledger and airflow_ft_head in schema {world.database}"
    assert setup.create(world.pipeline, plan, world.connection()) == ""
    assert world.sql("SELECT COUNT(*) FROM airflow_ft_head") == [(0,)]


def test_the_text_says_who_runs_it_and_holds_no_password(any_mysql_database: Database, tmp_path: Path) -> None:
    world = make_world(any_mysql_database, tmp_path).use("xa")
    plan = world.plan(orders=orders(1, 1)).participants[0]
    text = "\n".join(setup.describe(world.pipeline, plan, connection(world, "o'hara")))
    assert "TO 'o''hara'@'%'" in text and "XA_RECOVER_ADMIN" in text and PASSWORD not in text
    assert f"GRANT INSERT ON `{world.database}`.`orders`" in text
    assert f"\nGRANT SELECT ON `{world.database}`.`orders` TO 'o''hara'@'%';" in text
    assert f"\nGRANT CREATE TEMPORARY TABLES ON `{world.database}`.* TO 'o''hara'@'%';" in text
    nameless = replace(connection(world, "ada"), schema="")
    with pytest.raises(ConfigurationError) as refused:
        setup.statements(world.pipeline, plan, nameless)
    assert "schema" in refused.value.headline


def test_the_topic_of_tokens_is_made_once(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    name = f"tokens-{uuid.uuid4().hex[:8]}"
    extra = {"airflow_ft_token_topic": name, "sasl.username": "ada"}
    world = World(tmp_path, kafka.bootstrap, {"alerts": KafkaSink(topic=topic)}, extra=extra)
    plan = world.plan(1).participants[0]
    try:
        text = "\n".join(kafka_setup.describe(world.pipeline, plan, world.connection))
        assert f"--create --if-not-exists --topic {name} --partitions 1" in text
        for words in (
            f"--transactional-id airflow_ft.{world.pipeline}.kafka_default. --resource-pattern-type prefixed",
            f"--operation Write --operation Describe --topic {topic}",
            "User:ada",
        ):
            assert words in text, text
        assert name not in kafka.admin().list_topics(timeout=30).topics
        assert kafka_setup.create(world.pipeline, plan, world.connection) == f"topic {name}"
        assert kafka_setup.create(world.pipeline, plan, world.connection) == ""
    finally:
        kafka.delete_topic(name)


def test_a_missing_topic_of_a_source_is_told_for_itself(
    kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dag = tmp_path / "a_dag.py"
    dag.write_text(
        "from airflow.sdk import DAG\n"
        "from airflow_ft import CheckpointedPipeline, KafkaSource, PostgresSink\n"
        "with DAG('d', schedule=None):\n"
        "    CheckpointedPipeline(pipeline='new', job='jobs.x',\n"
        f"        sources={{'orders': KafkaSource(topics=['{topic}', 'no-such-topic'], group_id='us', conn_id='bus'),\n"
        "                 'rest': KafkaSource(pattern=r'shop\\.orders-.*', conn_id='bus')},\n"
        "        sinks={'rows': PostgresSink(table='own.t', conn_id='shop', ledger_schema='ft')})\n"
    )
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgres://ada:planted-Secret-4@nowhere.invalid/sales")
    extra = {"bootstrap.servers": kafka.bootstrap, "sasl.username": "ada"}
    monkeypatch.setenv("AIRFLOW_CONN_BUS", json.dumps({"conn_type": "kafka", "extra": extra}))
    args = Namespace(pipeline="new", dag=str(dag), print=True, tables=True, output="table", store=None)
    with pytest.raises(SystemExit) as ended:
        command.setup(args)
    text = capsys.readouterr().out
    assert ended.value.code == 1
    for words in (
        "Topic 'no-such-topic' does not exist",
        "--create --if-not-exists --topic no-such-topic",
        f"--operation Read --operation Describe --topic {topic}\n",
        "--operation Read --operation Describe --group us\n",
        "--topic shop.orders- --resource-pattern-type prefixed",
        'CREATE SCHEMA IF NOT EXISTS "own";',
        'CREATE SCHEMA IF NOT EXISTS "ft";',
        'GRANT SELECT ON "own"."t" TO "ada";',
        'GRANT TEMPORARY ON DATABASE "sales" TO "ada";',
    ):
        assert words in text, text
    assert f"'{topic}' does not exist" not in text and "loss" not in text and "planted" not in text


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [("orders-.*", "orders-"), ("orders*", "order"), (r"a\.b.c", "a.b"), ("a|b", ""), (".*", ""), ("orders", "orders")],
)
def test_the_prefix_of_a_pattern_is_that_of_all_names(pattern: str, prefix: str) -> None:
    [grant] = grants(KafkaSource(pattern=pattern, conn_id="bus"))
    assert (grant.name, grant.is_prefix) == (prefix or "*", bool(prefix))
