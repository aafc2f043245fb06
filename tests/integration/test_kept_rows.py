"""Staged rows stay staged while the target can be changed so that it takes them; others are computed again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.store import open_store
from tests.conftest import TopicFactory
from tests.integration.real_world import RealWorld, expected
from tests.raising import raises
from tools.servers import Database, Kafka


@dataclass
class ChangingWorld(RealWorld):
    """The DAG says another table when somebody changes it."""

    table: str = "orders"
    settings: Mapping[str, Any] | None = None

    @property
    def sinks(self) -> dict[str, Any]:
        sinks: dict[str, Any] = {"rows": MySqlSink(table=self.table, conn_id="shop", **(self.settings or {}))}
        if self.kafka is not None:
            sinks["copies"] = KafkaSink(topic=self.topic, conn_id="cluster", key="name")
        return sinks


@pytest.fixture
def world(any_mysql_database: Database, tmp_path: Path) -> Iterator[ChangingWorld]:
    store = open_store(f"sqlite:///{tmp_path / 'ft.db'}")
    any_mysql_database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
    yield ChangingWorld(store, tmp_path / "wal", any_mysql_database)
    store.close()


def staged_as_before(world: RealWorld, digest: str) -> bool:
    checkpoint = world.store.checkpoint(world.pipeline, 1)
    return (
        checkpoint.state is CheckpointState.STAGED
        and checkpoint.segment is not None
        and digest == (checkpoint.segment.digest)
    )


def digest_of(world: RealWorld) -> str:
    segment = world.store.checkpoint(world.pipeline, 1).segment
    assert segment is not None
    return segment.digest


UPSERT = {"strategy": "upsert", "key_columns": ["id"], "version_column": "version"}
UNFIT: dict[str, tuple[str, str, str, Mapping[str, Any]]] = {
    # name: what makes the table unfit, what makes it fit again, code, settings of the sink
    "missing column": ("DROP COLUMN name", "ADD COLUMN name VARCHAR(100)", "column_missing", {}),
    "short column": ("MODIFY name VARCHAR(2)", "MODIFY name VARCHAR(100)", "value_unfit", {}),
    "wrong type": ("MODIFY name INT", "MODIFY name VARCHAR(100)", "column_unfit", {}),
    "narrow number": ("MODIFY id TINYINT", "MODIFY id BIGINT", "value_unfit", {}),
    "no default": ("ADD COLUMN must INT NOT NULL", "ALTER COLUMN must SET DEFAULT 3", "column_required", {}),
    "no key": ("ADD COLUMN version BIGINT NOT NULL DEFAULT 0", "ADD PRIMARY KEY (id)", "key_unfit", UPSERT),
}


@pytest.mark.parametrize("name", UNFIT)
def test_rows_wait_for_a_table_that_is_to_be_changed(world: ChangingWorld, name: str) -> None:
    breaking, mending, code, world.settings = UNFIT[name]
    world.database.sql(f"ALTER TABLE orders {breaking}")
    world.stage()
    digest = digest_of(world)
    for _ in range(2):  # a retry is no different
        with raises(UnfitTargetError, code) as caught:
            world.prepare()
        assert f"airflow ft rewind {world.pipeline}" in caught.value.remedy
        assert staged_as_before(world, digest)
    world.database.sql(f"ALTER TABLE orders {mending}")
    world.deliver()
    assert digest_of(world) == digest and world.ids() == expected([1])


def test_rows_wait_for_a_sink_that_is_to_be_declared_otherwise(world: ChangingWorld) -> None:
    world.database.sql("CREATE TABLE right_one (id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
    world.database.sql("ALTER TABLE orders DROP COLUMN name")
    world.stage()
    digest = digest_of(world)
    with pytest.raises(UnfitTargetError):
        world.prepare()
    world.table = "right_one"
    world.deliver()
    assert world.store.checkpoint(world.pipeline, 1).reason is AbortReason.SUPERSEDED
    assert digest_of(world) == digest, "nothing was computed again"
    assert [row[0] for row in world.database.sql("SELECT id FROM right_one ORDER BY id")] == expected([1])
    assert world.ids() == []


def test_rows_that_no_table_change_can_help_are_computed_again(world: ChangingWorld) -> None:
    world.database.sql("ALTER TABLE orders ADD COLUMN ratio DOUBLE")
    rows = {"id": [1], "name": ["a"], "ratio": [float("nan")]}
    world.tables = lambda number, count: {"rows": pa.table(rows)}  # type: ignore[method-assign]
    world.stage()
    with raises(DeclinedError, "value_unfit", problem="nan"):
        world.prepare()
    checkpoint = world.store.checkpoint(world.pipeline, 1)
    assert (checkpoint.reason, checkpoint.after_abort) == (AbortReason.DECLINED, AfterAbort.REWOUND)


def test_rows_wait_for_a_topic_that_takes_records_of_their_size(
    mariadb_database: Database, kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = topic_factory(1, {"max.message.bytes": "200"})
    store = open_store(f"sqlite:///{tmp_path / 'ft.db'}")
    mariadb_database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(300)) ENGINE=InnoDB")
    world = ChangingWorld(store, tmp_path / "wal", mariadb_database, kafka, topic)
    long = pa.table({"id": pa.array([1], pa.int64()), "name": ["n" * 300]})
    world.tables = lambda number, count: dict.fromkeys(world.sinks, long)  # type: ignore[method-assign]
    world.stage()
    digest = digest_of(world)
    with raises(UnfitTargetError, "record_too_large"):
        world.prepare()
    assert staged_as_before(world, digest)
    larger = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[larger])
    admin = kafka.admin()
    admin.incremental_alter_configs([resource])[resource].result(60)
    world.deliver()
    assert digest_of(world) == digest and world.ids() == [1]
    store.close()
