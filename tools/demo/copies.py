"""Systems that a demonstration copies all flights into, beside MySQL and Kafka: server, connection, and how to read it.

A system more is a line in `COPIES`, one in `tools.demo.readers.READERS`, and one in `dags/flights_everywhere.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tools.servers import Cassandra, HBase, Hive, Postgres, Redis
from tools.servers.base import Server

PROJECT = Path(__file__).resolve().parents[2]
DATABASE = USER = "demo"


class Copy:
    """One copy, `name`, which lies in the folder `place`. A folder needs no server and no connection."""

    server: Server | None = None

    def __init__(self, name: str, place: Path, password: str) -> None:
        self.name, self.place, self.password = name, place, password

    def start(self) -> None:
        """Start the server, and create what the sink expects to be there."""

    def stop(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.stop()

    @property
    def connections(self) -> Mapping[str, Mapping[str, Any]]:
        """Return Airflow's connections: id -> fields."""
        return {}

    @property
    def reading(self) -> Any:
        """Return what the judge's reader needs."""
        return str(self.place)

    @property
    def striking(self) -> str:
        """Return the participant whose delivery can be met half done; "": none."""
        return ""

    def half_done(self) -> str:
        """Return what the server does since the last call, "" if nothing can be seen."""
        return ""


class InIceberg(Copy):
    """A table in a SQL catalog on SQLite, which needs no server."""

    def start(self) -> None:
        self.place.mkdir(parents=True)

    @property
    def connections(self) -> Mapping[str, Mapping[str, Any]]:
        return {"lake": {"conn_type": "iceberg", "extra": {"type": "sql", **self.reading}}}

    @property
    def reading(self) -> Any:
        return {"uri": f"sqlite:///{self.place}/catalog.db?timeout=60", "warehouse": f"{self.place.as_uri()}/tables"}


class InPaimon(Copy):
    """A table of a warehouse on disk, which needs neither server nor connection. pypaimon reads it."""

    @property
    def reading(self) -> Any:
        return str(self.place / "warehouse")


class InServer(Copy):
    """What lies in a server that an Airflow connection leads to."""

    server: Server

    @property
    def connections(self) -> Mapping[str, Mapping[str, Any]]:
        fields = {"conn_type": self.name, "host": self.server.host, "port": self.server.port}
        return {f"{self.name}_default": {**fields, **self._login}}

    @property
    def _login(self) -> Mapping[str, str]:
        return {"login": USER, "password": self.password, "schema": DATABASE}

    @property
    def reading(self) -> Any:
        return {"host": self.server.host, "port": self.server.port, **self._login}


class InPostgres(InServer):
    """A table without a unique key, of a database of its own."""

    def __init__(self, name: str, place: Path, password: str) -> None:
        super().__init__(name, place, password)
        self.server: Postgres = Postgres(place)

    def start(self) -> None:
        server = self.server.start()
        server.sql(f"CREATE ROLE {USER} LOGIN PASSWORD '{self.password}'")
        server.sql(f"CREATE DATABASE {DATABASE} OWNER {USER}")
        server.sql((PROJECT / "dags" / "flights_postgres.sql").read_text(), DATABASE)
        server.sql(f"ALTER TABLE flights OWNER TO {USER}; GRANT ALL ON SCHEMA public TO {USER}", DATABASE)


class InRedis(InServer):
    """Hashes of a server that forgets nothing."""

    def __init__(self, name: str, place: Path, password: str) -> None:
        super().__init__(name, place, password)
        self.server: Redis = Redis(place, options={"appendfsync": "always"})
        self._keys = 0

    def start(self) -> None:
        self.server.start()

    @property
    def _login(self) -> Mapping[str, str]:
        return {"password": self.server.password}

    @property
    def striking(self) -> str:
        return f"{self.name}_default"

    def half_done(self) -> str:
        import redis

        with closing(redis.Redis(**self.reading)) as db:
            before, self._keys = self._keys, int(db.dbsize())
        return f"its rows, {self._keys:,} keys in Redis" if before and self._keys > before else ""


class InHBase(InServer):
    """A table with one column family."""

    def __init__(self, name: str, place: Path, password: str) -> None:
        super().__init__(name, place, password)
        self.server: HBase = HBase(place)

    def start(self) -> None:
        import happybase

        self.server.start()
        with closing(happybase.Connection(self.server.host, self.server.port, timeout=60_000)) as db:
            db.create_table("flights", {"f": {}})

    @property
    def _login(self) -> Mapping[str, str]:
        return {}


class InHive(InServer):
    """A table of a metastore, whose files lie in the metastore's folder."""

    def __init__(self, name: str, place: Path, password: str) -> None:
        super().__init__(name, place, password)
        self.server: Hive = Hive(place)

    def start(self) -> None:
        self.server.start()

    @property
    def connections(self) -> Mapping[str, Mapping[str, Any]]:
        return {"metastore": {"conn_type": "hive_metastore", **self.reading}}

    @property
    def _login(self) -> Mapping[str, str]:
        return {}


class InCassandra(InServer):
    """A table in a keyspace, whose role may do what `airflow ft setup` prints."""

    def __init__(self, name: str, place: Path, password: str) -> None:
        super().__init__(name, place, password)
        self.server: Cassandra = Cassandra(place)

    def start(self) -> None:
        from cassandra.auth import PlainTextAuthProvider
        from cassandra.cluster import Cluster

        server = self.server.start()
        login = PlainTextAuthProvider(server.user, server.password)
        cluster = Cluster([server.host], port=server.port, auth_provider=login)
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        try:
            session = cluster.connect()
            session.default_timeout = 60
            session.execute(f"CREATE KEYSPACE {DATABASE} WITH replication = {replication}")
            session.execute(f"CREATE ROLE {USER} WITH LOGIN = true AND PASSWORD = '{self.password}'")
            session.execute(f"GRANT ALL ON KEYSPACE {DATABASE} TO {USER}")
            session.execute(f"GRANT SELECT ON TABLE system_views.settings TO {USER}")
            session.set_keyspace(DATABASE)
            session.execute((PROJECT / "dags" / "flights_cassandra.sql").read_text())
        finally:
            cluster.shutdown()


COPIES: Mapping[str, type[Copy]] = {
    "postgres": InPostgres,
    "files": Copy,
    "delta": Copy,
    "iceberg": InIceberg,
    "paimon": InPaimon,
    "hive": InHive,
    "redis": InRedis,
    "hbase": InHBase,
    "cassandra": InCassandra,
}
"""What SINKS= may name."""
