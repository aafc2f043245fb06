"""A connection that leads to another system is refused by its type, before that system is asked in foreign words."""

from __future__ import annotations

import inspect
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyiceberg
import pymysql
import pytest
import redis

from airflow_ft import KafkaSource, MySqlSink, PipelineSpec, SqliteSink
from airflow_ft.clients.kafka.client import KafkaSettings
from airflow_ft.pipeline import ready
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.resolved import resolve
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.model import RunKey
from airflow_ft.sinks.cassandra.server import _tls as cassandra_tls
from airflow_ft.sinks.cassandra.server import opened as cassandra
from airflow_ft.sinks.hbase import server as hbase
from airflow_ft.sinks.hive.metastore import Connected as Metastore
from airflow_ft.sinks.iceberg.connection import properties
from airflow_ft.sinks.mysql.arguments import arguments
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.redis.server import opened
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sources.kafka_options import kafka_options
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises

READERS: dict[str, tuple[str, Callable[[ConnectionInfo], Any]]] = {
    "mysql": ("MySQL", lambda info: arguments(info, Limits(), local_infile=False)),
    "postgres": ("PostgreSQL", lambda info: Session(info, Limits())),  # type: ignore[arg-type]
    "sqlite": ("SQLite", SqliteFile.of),
    "redis": ("Redis", lambda info: opened(info).__enter__()),
    "iceberg": ("Iceberg", properties),
    "hive_metastore": ("Hive", lambda info: Metastore(info, ("", "")).client),
    "hbase": ("HBase", lambda info: hbase.opened(info).__enter__()),
    "cassandra": ("Cassandra", lambda info: cassandra(info).__enter__()),
    "kafka": ("Kafka", KafkaSettings.from_connection),
    "kafka as a source": ("Kafka", kafka_options),
}
CONNECT = {"hbase", "hive_metastore", "cassandra", "postgres"}


def of_type(conn_type: str) -> ConnectionInfo:
    return ConnectionInfo("shop", conn_type, host="/data/shop.db", password="planted")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "conn_type",
    [
        "mysql",
        "postgres",
        "postgresql",
        "sqlite",
        "kafka",
        "aws",
        "redis",
        "iceberg",
        "hive_metastore",
        "hbase",
        "cassandra",
        "Spark ",
    ],
)
def test_one_that_leads_elsewhere_is_refused(reader: str, conn_type: str) -> None:
    there, read = READERS[reader]
    if conn_type.startswith(reader.partition(" ")[0]):
        return
    with raises(SinkAccessError, "connection_invalid", participant="shop", conn_type=conn_type) as caught:
        read(of_type(conn_type))
    assert (
        caught.error and there in caught.error.headline and f"of type {reader.partition(' ')[0]}" in caught.error.remedy
    )
    assert "planted" not in f"{caught.error} {vars(caught.error)}"


@pytest.mark.parametrize("reader", sorted(READERS.keys() - CONNECT))
@pytest.mark.parametrize("conn_type", ["own", "", "generic", "gcpcloudsql"])
def test_its_own_and_what_may_lead_anywhere_are_taken(reader: str, conn_type: str) -> None:
    _, read = READERS[reader]
    read(of_type(conn_type if conn_type != "own" else reader.partition(" ")[0]))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("wrong", ["planted-\udc80", "planted-\0"])
@pytest.mark.parametrize("field", ["password", "login", "extra"])
def test_a_text_no_driver_can_encode_is_refused_but_not_shown(reader: str, wrong: str, field: str) -> None:
    _, read = READERS[reader]
    given: dict[str, Any] = {field: {"sasl.password": wrong} if field == "extra" else wrong}
    with raises(SinkAccessError, "connection_invalid") as caught:
        read(ConnectionInfo("shop", reader.partition(" ")[0], host="/data/shop.db", **given))
    seen: BaseException | None = caught.value
    while seen is not None:
        assert "planted" not in repr(seen) + repr(vars(seen))
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize(
    ("reader", "name", "value"),
    [
        ("redis", "ssl_ca_cert", "/ca.pem"),
        ("redis", "tls", True),
        ("mysql", "sslmode", "verify-full"),
        ("mysql", "ssl_capath", "/certificates"),
        ("mysql", "ssl_verify_server_cert", True),
        ("cassandra", "ssl", {}),
        ("cassandra", "verify_mode", "CERT_REQUIRED"),
        ("hbase", "use_ssl", "true"),
        ("hbase", "authentication", "kerberos"),
        ("hive_metastore", "SSL", True),
        ("hive_metastore", "kerberos_service_name", "hive"),
    ],
)
def test_a_tls_setting_that_nothing_reads_is_refused(reader: str, name: str, value: object) -> None:
    """If it were dropped, the login would travel in the clear."""
    given = ConnectionInfo("shop", reader, "127.0.0.1", 1, schema="s", extra={name: value, "ssl_other": None})
    with raises(SinkAccessError, "connection_invalid", participant="shop", fields=[name]):
        READERS[reader][1](given)


@pytest.mark.parametrize(
    ("reader", "name", "meant"),
    [
        ("mysql", "unix_sockt", "unix_socket"),
        ("mysql", "sslmode", "ssl_mode"),
        ("postgres", "connect_timout", "connect_timeout"),
        ("redis", "DB", "db"),
        ("redis", "ssl_ca_cert", "ssl_ca_certs"),
        ("iceberg", "tpye", "type"),
        ("iceberg", "warehous", "warehouse"),
        ("iceberg", "s3.acess-key-id", "s3.access-key-id"),
        ("hive_metastore", "auth_mecanism", "auth_mechanism"),
        ("hbase", "transprt", "transport"),
        ("cassandra", "data_center", "datacenter"),
    ],
)
def test_a_misspelled_setting_is_named(reader: str, name: str, meant: str) -> None:
    given = ConnectionInfo("shop", reader, "127.0.0.1", 1, schema="s", extra={name: "a", "other": "b"})
    with raises(SinkAccessError, "connection_invalid", participant="shop", fields=[name]) as caught:
        READERS[reader][1](given)
    assert caught.error is not None and f"{meant} in place of {name}" in caught.error.remedy


def test_settings_for_others_are_left_alone() -> None:
    others = {"s3.access-key": "a", "header.warehouse": "b", "adls.sas-token.shop": "c", "hf.token": "d", "uri_of": "e"}
    assert others.items() <= properties(ConnectionInfo("lake", "iceberg", "https://h", extra=others)).items()
    of_airflow = {"charset": "utf8", "cursor": "sscursor", "iam": False, "client": "mysqlclient"}
    assert READERS["mysql"][1](ConnectionInfo("shop", "mysql", "h", extra=of_airflow))["host"] == "h"


def test_names_of_the_clients_are_not_taken_for_misspelled_ones() -> None:
    files = Path(pyiceberg.__path__[0]).glob("**/*.py")
    of_iceberg = {name for file in files for name in re.findall(r'"([a-z0-9]+\.[a-z0-9.-]+)"', file.read_text())}
    assert {"hf.endpoint", "s3.endpoint", "glue.access-key-id", "dynamodb.secret-access-key"} <= of_iceberg
    for name in of_iceberg:
        properties(ConnectionInfo("lake", "iceberg", "https://h", extra={name: "a"}))
    of_pymysql = set(inspect.signature(pymysql.connections.Connection).parameters)
    assert {"sql_mode", "charset", "ssl_ca"} <= of_pymysql
    for name in of_pymysql:
        if not name.startswith("ssl"):
            READERS["mysql"][1](ConnectionInfo("shop", "mysql", "h", extra={name: "a"}))


def test_a_setting_that_others_read_is_not_corrected() -> None:
    with raises(SinkAccessError, "connection_invalid", participant="shop", fields=["ssl_cipher"]) as caught:
        READERS["mysql"][1](ConnectionInfo("shop", "mysql", "h", extra={"ssl_cipher": "a"}))
    assert caught.error is not None and "This sink reads ssl, ssl_mode" in caught.error.remedy


def test_a_sink_without_tls_says_that_it_has_none() -> None:
    for reader in ("hbase", "hive_metastore"):
        with raises(SinkAccessError, "connection_invalid", participant="shop", fields=["ssl"]) as caught:
            READERS[reader][1](ConnectionInfo("shop", reader, "127.0.0.1", 1, extra={"ssl": True}))
        assert "neither TLS" in caught.value.remedy


def test_an_empty_field_of_the_form_weakens_no_tls() -> None:
    extra = {"ssl": True, "ssl_cert_reqs": None, "ssl_check_hostname": "", "ssl_ca_certs": ""}
    with opened(ConnectionInfo("shop", "redis", extra=extra)) as client:
        made = client.connection_pool.make_connection()
    assert (made.cert_reqs, made.check_hostname) == (ssl.CERT_REQUIRED, True)


def test_a_connection_that_names_no_tls_has_none() -> None:
    """As Airflow's own form and hooks have it."""
    form = {"ssl": False, "ssl_cert_reqs": "required", "ssl_check_hostname": False}
    with opened(ConnectionInfo("shop", "redis", extra=form)) as client:
        assert not isinstance(client.connection_pool.make_connection(), redis.SSLConnection)
    assert cassandra_tls(ConnectionInfo("shop", "cassandra", extra={"ssl_options": {}})) is None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield store


@pytest.mark.airflow
def test_wrong_connection_types_are_refused_before_spark_starts(store: DecisionLog, tmp_path: Path) -> None:
    types = {"shop": "postgres", "files": "mysql", "topics": "mysql"}
    declared = PipelineSpec(
        pipeline="orders",
        job="jobs.orders",
        sources={"orders": KafkaSource(topics=["orders"], conn_id="topics")},
        sinks={"orders": MySqlSink(table="orders", conn_id="shop"), "copies": SqliteSink(table="o", conn_id="files")},
        store=f"sqlite:///{tmp_path}/ft.db",
        wal_root=str(tmp_path / "wal"),
    )

    def connections(conn_id: str) -> ConnectionInfo:
        return ConnectionInfo(conn_id, types[conn_id], host="127.0.0.1")

    opener: Any = lambda _: SimpleNamespace(close=lambda: None)  # noqa: E731
    with raises(SinkAccessError, "connection_invalid", codes=["connection_invalid"] * 2) as caught:
        plans = declared.delivery.participants
        ready.require_ready("orders", plans, connections, None, opener, store.installation)
    assert caught.error and "'shop'" in caught.error.headline and "'files'" in caught.error.headline
    before = store.register("orders")
    with raises(SinkAccessError, "connection_invalid", participant="topics", fields=["conn_type"]):
        pipeline_steps.request(resolve(declared), RunKey("d", "r"), before, 1, 1, connections)
