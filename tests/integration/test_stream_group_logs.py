"""A group of streams whose decision log is in PostgreSQL, or whose write-ahead logs are in a bucket, while its
processes are killed and sleep.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from airflow_ft.clients import buckets
from tests.conftest import TopicFactory
from tests.integration.test_stream_group import NAMES, Group, asleep
from tests.wal.s3.conftest import connection_of
from tools.servers import Database, Kafka, Postgres, VersityGw

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.release,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]
CONF = {"spark.python.authenticate.socketTimeout": "120s"}


@pytest.fixture
def in_postgres(
    tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory, postgres: Postgres
) -> Iterator[Group]:
    """A group whose decision log is in PostgreSQL."""
    schema = f"ft_{uuid.uuid4().hex[:8]}"
    place = f"{postgres.host}:{postgres.port}/postgres?schema={schema}"
    log = f"postgresql://{postgres.user}:{quote(postgres.password)}@{place}"
    made = Group(tmp_path, kafka, mariadb_database, topic_factory, log=log)
    yield made
    made.store.close()
    postgres.sql(f"DROP SCHEMA {schema} CASCADE")
    print(made.log()[-20_000:])


@pytest.fixture
def in_bucket(
    tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory, versitygw: VersityGw
) -> Iterator[Group]:
    """A group whose write-ahead logs are in a bucket."""
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    made = Group(
        tmp_path,
        kafka,
        mariadb_database,
        topic_factory,
        wal_root=versitygw.place(uuid.uuid4().hex),
        lake=versitygw.connection(),
        conf=CONF,
        checkpointing={"interval": 1.0},
    )
    yield made
    made.store.close()
    buckets.forget()
    print(made.log()[-20_000:])


@pytest.fixture(params=["in_postgres", "in_bucket"])
def group(request: pytest.FixtureRequest) -> Group:
    found: Group = request.getfixturevalue(request.param)
    return found


def test_a_task_is_killed_while_its_next_try_starts(group: Group) -> None:
    """When the next try has fenced the first of its streams."""
    with group.task() as first:
        group.deliver(*NAMES)
        for name in NAMES:
            group.send(name)
        epochs = {each: group.store.pipeline(each).epoch for each in group.pipelines.values()}
        with group.task() as second:
            group.until(lambda: any(group.store.pipeline(each).epoch > epochs[each] for each in epochs))
            first.kill()
            group.deliver(*NAMES)
            group.stop(*NAMES)
            assert second.wait(120) == 0
    group.check_exactly_once()


def test_a_group_that_slept_does_no_harm_beside_its_successor(group: Group) -> None:
    with group.task() as first:
        group.deliver(*NAMES)
        for name in NAMES:
            group.send(name)
        with asleep(group, first) as wake, group.task() as second:
            group.deliver(*NAMES)
            wake()
            for _ in range(5):
                group.deliver(*NAMES)
            group.stop(*NAMES)
            assert second.wait(120) == 0
        assert first.wait(120) != 0, "it was fenced"
    group.check_exactly_once()


def test_all_streams_restart_from_the_bucket_after_a_driver_kill(in_bucket: Group, versitygw: VersityGw) -> None:
    group = in_bucket
    with group.task() as process:
        group.deliver(*NAMES)
        for name in NAMES:
            group.send(name)
        before = group.driver()
        os.kill(before, signal.SIGKILL)
        group.until(lambda: group.driver() != before)
        group.deliver(*NAMES)
        group.stop(*NAMES)
        assert process.wait(120) == 0
    group.check_exactly_once()
    assert versitygw.password not in group.log()
