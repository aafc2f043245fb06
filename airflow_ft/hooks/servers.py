"""The connection types of databases and Spark: their forms in the UI and their Test button.

They are registered where Airflow's own providers of these types are not installed (`airflow_ft.provider_info`). These
hooks only test; use those providers for queries in other tasks.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from typing import Any, ClassVar

from airflow.sdk.bases.hook import BaseHook

from airflow_ft.pipeline.connections import task_connections
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.numbers import count_text

_SECONDS = 10.0  # until a server that does not answer is given up


class _TestedHook(BaseHook):
    """A connection that can be tried. Airflow gives its id as the argument that `conn_name_attr` names.

    Both names come from `conn_type`, unless a hook has its own.
    """

    conn_name_attr: ClassVar[str] = ""
    default_conn_name: ClassVar[str]
    conn_type: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.conn_name_attr = cls.conn_name_attr or f"{cls.conn_type}_conn_id"
        cls.default_conn_name = f"{cls.conn_type}_default"

    def __init__(self, conn_id: str = "", **kwargs: Any) -> None:
        named = kwargs.pop(self.conn_name_attr, "")
        super().__init__(**kwargs)
        self.conn_id = conn_id or named or self.default_conn_name

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the server can be reached and accepts the login, with a message that holds no secret."""
        try:
            return True, self._try(task_connections(self.conn_id))
        except AirflowFtError as error:
            return False, with_fix(error.what, error.remedy).replace(f"{self.conn_id!r}", "this connection")

    @abstractmethod
    def _try(self, connection: ConnectionInfo) -> str:
        """Return what the server says of itself; one of our errors when it is not reached."""


class MySqlServerHook(_TestedHook):
    """A MySQL or MariaDB server, for `MySqlSink`."""

    conn_type: ClassVar[str] = "mysql"
    hook_name: ClassVar[str] = "MySQL, MariaDB"

    def _try(self, connection: ConnectionInfo) -> str:
        import pymysql

        from airflow_ft.sinks.mysql.failures import failure
        from airflow_ft.sinks.mysql.limits import Limits
        from airflow_ft.sinks.mysql.session import Session

        try:
            with closing(Session(connection, Limits(connect=_SECONDS, answer=_SECONDS))) as session:
                row = session.row("SELECT CURRENT_USER()")
                return f"{session.product}, as {row[0] if row else '?'}"
        except (pymysql.err.MySQLError, OSError) as error:
            raise failure(error, "connecting") from error


class SqliteFileHook(_TestedHook):
    """A file, for `SqliteSink`."""

    conn_type: ClassVar[str] = "sqlite"
    hook_name: ClassVar[str] = "SQLite"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.sinks.sqlite.file import SqliteFile

        return SqliteFile.of(connection).describe()


class PostgresServerHook(_TestedHook):
    """A PostgreSQL server, for `PostgresSink` and for the decision log."""

    conn_type: ClassVar[str] = "postgres"
    hook_name: ClassVar[str] = "PostgreSQL"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.pipeline.decision_log import store_url
        from airflow_ft.store.postgres import PostgresDatabase
        from airflow_ft.store.url import parse_url

        dsn = parse_url(store_url(f"conn:{self.conn_id}", lambda _: connection)).dsn
        with closing(PostgresDatabase({"connect_timeout": str(_SECONDS), **dsn})) as database:
            [row] = database.read("SELECT current_setting('server_version') AS version, current_user AS name")
            return f"PostgreSQL {row['version']}, as {row['name']}"


class RedisServerHook(_TestedHook):
    """A Redis server, for `RedisSink`."""

    conn_type: ClassVar[str] = "redis"
    hook_name: ClassVar[str] = "Redis"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.sinks.redis.server import opened

        with opened(connection, _SECONDS) as client:
            return f"Redis {client.info('server')['redis_version']}, as {connection.login or 'default'}"


class IcebergCatalogHook(_TestedHook):
    """A catalog of Iceberg tables, for `IcebergSink`."""

    conn_type: ClassVar[str] = "iceberg"
    hook_name: ClassVar[str] = "Iceberg"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.sinks.iceberg.catalog import Connected

        with closing(Connected(connection, ())) as place, place.translated_errors():
            return f"an Iceberg catalog with {count_text(len(place.catalog.list_namespaces()), 'namespace')}"


class HiveMetastoreHook(_TestedHook):
    """A Hive metastore, for `HiveSink`."""

    conn_type: ClassVar[str] = "hive_metastore"
    hook_name: ClassVar[str] = "Hive metastore"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.sinks.hive.metastore import Connected

        with closing(Connected(connection, ("", ""), _SECONDS)) as place, place.translated_errors():
            return f"a Hive metastore with {count_text(len(place.client.get_all_databases()), 'schema')}"


class HBaseGatewayHook(_TestedHook):
    """A Thrift gateway of HBase, for `HBaseSink`."""

    conn_type: ClassVar[str] = "hbase"
    hook_name: ClassVar[str] = "HBase"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.sinks.hbase.server import families, ledger_table, opened

        table = ledger_table(connection)
        with opened(connection, _SECONDS) as client:
            found = "exists" if families(client, table) is not None else "does not exist yet"
        return f"the gateway answers; table {table} {found}"


class CassandraServerHook(_TestedHook):
    """A Cassandra cluster, for `CassandraSink`."""

    conn_type: ClassVar[str] = "cassandra"
    hook_name: ClassVar[str] = "Cassandra"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.sinks.cassandra.server import opened

        with opened(connection, _SECONDS) as session:
            row = session.execute("SELECT release_version, cluster_name FROM system.local").one()
            return f"Cassandra {row.release_version}, cluster {row.cluster_name}, as {connection.login or 'anonymous'}"


class SparkMasterHook(_TestedHook):
    """Master for Spark's executors, for `[airflow_ft] spark_master = conn:<id>`."""

    conn_name_attr: ClassVar[str] = "conn_id"
    conn_type: ClassVar[str] = "spark"
    hook_name: ClassVar[str] = "Spark"

    def _try(self, connection: ConnectionInfo) -> str:
        from airflow_ft.pipeline.spark_connection import spark_master
        from airflow_ft.spark.session import masters

        master = spark_master(f"conn:{self.conn_id}", lambda _: connection)
        if not masters.is_standalone(master):
            return f"{master}: it starts executors with the driver, so there is nothing to test now"
        return f"{master}: {masters.require_master(master)} accepts connections"
