"""A session of the model of a MySQL server: `ModelSession` stands in for `airflow_ft.sinks.mysql.session.Session`."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, TypeVar

import pymysql

from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.session import Statement
from tests.simulation.mysql_server import MySqlServer
from tests.simulation.mysql_state import Connection, error
from tests.simulation.source import Item

T = TypeVar("T")


class ModelSession:
    """See `airflow_ft.sinks.mysql.session.Session`."""

    can_kill, is_proxied = True, False
    can_prepare = True
    can_load_local = True
    max_allowed_packet = 1 << 24
    variables: Mapping[str, str] = {}

    def __init__(self, server: MySqlServer, limits: Limits) -> None:
        self._server = server
        self._usable = True
        self._connection = self._ask("connect", server.connect)

    @property
    def is_mariadb(self) -> bool:
        return self._server.is_mariadb

    @property
    def version(self) -> tuple[int, ...]:
        return (10, 11, 6) if self.is_mariadb else (9, 7, 4)

    @property
    def product(self) -> str:
        return "MariaDB 10.11.6" if self.is_mariadb else "MySQL 9.7.4"

    @property
    def id(self) -> int:
        return self._connection.id

    @property
    def is_open(self) -> bool:
        return self._usable

    def run(self, text: str, args: Iterable[Any] | None = None) -> Statement:
        return Statement(self._execute(text, args)[0], 0)

    def rows(self, text: str, args: Iterable[Any] | None = None) -> list[tuple[Any, ...]]:
        return self._execute(text, args)[1]

    def row(self, text: str, args: Iterable[Any] | None = None) -> tuple[Any, ...] | None:
        found = self.rows(text, args)
        return found[0] if found else None

    def require_settings(self, *, autocommit: bool = True) -> None:
        pass

    def require_begun(self) -> None:
        pass

    def forget_statements(self) -> None:
        pass

    def begin(self) -> None:
        self._ask("BEGIN", lambda: self._server.begin(self._connection))

    def commit(self) -> None:
        self._ask("COMMIT", lambda: self._server.commit(self._connection))

    def awaiting(self, items: Iterable[T]) -> Generator[T]:
        """The model's sessions do not end while they rest."""
        yield from items

    def load(self, table: str, items: list[Item]) -> int:
        """Stands in for LOAD DATA LOCAL (see `adapters.ModelLoader`)."""
        return self._ask(
            f"LOAD DATA {table} {', '.join(map(str, items))}", lambda: self._server.load(self._connection, table, items)
        )

    def close(self) -> None:
        process = self._server.kernel.current
        if self._usable and not (process is not None and process.dead):
            self._server.end(self._connection)
        self._usable = False

    def _execute(self, text: str, args: Iterable[Any] | None) -> tuple[int, list[tuple[Any, ...]]]:
        values = tuple(args) if args is not None else ()
        what = _shown(text, values) if self._server.kernel.tracing else text
        return self._ask(
            what,
            lambda: self._server.execute(self._connection, text, values),
            writes=not text.startswith(("SELECT", "XA RECOVER")) or "FOR UPDATE" in text or "SHARE MODE" in text,
        )

    def _ask(self, what: str, call: Callable[[], T], *, writes: bool = True) -> T:
        if not self._usable:
            raise error(2006, "MySQL server has gone away")
        try:
            return self._server.kernel.call(f"{self._server.name} {what}", call, self._lost, writes=writes)
        except pymysql.err.MySQLError as failure:
            if failure.args[0] in (2006, 2013):
                self._usable = False
            raise

    def _lost(self, sent: bool) -> Exception:
        """The connection is gone. What is still under way in it (DELAY) ends it on the server's side."""
        self._usable = False
        connection = getattr(self, "_connection", None)
        if connection is not None and not self._under_way(connection):
            self._server.end(connection)
        return error(2013, "Lost connection to MySQL server during query")

    def _under_way(self, connection: Connection) -> bool:
        done = self._server.kernel.done
        if not done or done[-1].kind.name != "DELAY":
            return False
        late = self._server.kernel.processes[-1]
        connection.owner = late  # the server ends the connection when it has served the request
        return True


def _shown(text: str, args: tuple[Any, ...]) -> str:
    short = text.replace("`airflow_ft_", "`").replace("`", "")
    short = re.sub(r"'aft\.[0-9a-f]+\.([0-9a-f]+)','([0-9a-z.]+)\.[0-9a-f]{24}',1", r"number \1: \2", short)
    given = ", ".join(str(arg)[:16] for arg in args)
    return f"{short[:90]}{'...' if len(short) > 90 else ''} ({given})"
