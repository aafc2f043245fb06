"""A database of one test: created under a random name, dropped at the end."""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import pymysql
import pymysql.constants.ER

from tools.servers.mysql_family import MySqlFamily
from tools.servers.postgres import Postgres

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Database:
    """A fresh database on `server`; `name` may be used in SQL without quotes."""

    server: MySqlFamily | Postgres
    name: str

    def sql(self, statement: str, args: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement in this database, in autocommit mode, and return its rows."""
        return self.server.sql(statement, self.name, args)

    def connect(self, **settings: Any) -> Any:
        """A new connection to this database (PyMySQL or psycopg2), in autocommit mode unless `settings` differ."""
        return self.server.connect(self.name, **settings)

    def airflow_connection(self) -> dict[str, Any]:
        """The fields of an Airflow connection to it."""
        server = self.server
        where = {"host": server.host, "port": server.port, "schema": self.name}
        kind = "postgres" if isinstance(server, Postgres) else "mysql"
        return {"conn_type": kind, **where, "login": server.user, "password": server.password}

    @classmethod
    @contextmanager
    def fresh(cls, server: MySqlFamily | Postgres) -> Iterator[Self]:
        """Create a database and drop it with all that is in it; starts the server again if a test killed it."""
        if not server.running:
            server.start()
        name = f"t_{uuid.uuid4().hex[:12]}"
        server.sql(f"CREATE DATABASE {name}")
        try:
            yield cls(server, name)
        finally:
            if not server.running:
                server.start()
            if isinstance(server, Postgres):
                _drop_in_postgres(server, name)
            else:
                _drop(server, name)


def _drop_in_postgres(server: Postgres, name: str) -> None:
    """Prepared transactions would block it; connections are ended by the server."""
    for (gid,) in server.sql("SELECT gid FROM pg_prepared_xacts WHERE database = %s", args=[name]):
        server.sql("ROLLBACK PREPARED %s", name, [gid])
    server.sql(f"DROP DATABASE {name} WITH (FORCE)")


def _drop(server: MySqlFamily, name: str, seconds: float = 60) -> None:
    """Ends the connections that would block it, and waits for what they leave: a killed one rolls back first."""
    deadline = time.monotonic() + seconds
    while True:
        for (connection,) in server.sql("SELECT id FROM information_schema.processlist WHERE db = %s", args=[name]):
            server.end_connection(connection)
        try:
            server.sql(f"DROP DATABASE {name}")
            return
        except pymysql.err.OperationalError as error:
            if error.args[0] != pymysql.constants.ER.LOCK_WAIT_TIMEOUT or time.monotonic() > deadline:
                raise
