"""PostgreSQL: the installed programs when there are any, else those that tools/bootstrap.sh unpacks."""

import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg2

from tools.servers.base import Options, Server, installed, library_path

Row = tuple[Any, ...]


class Postgres(Server):
    """A PostgreSQL server; `user` with `password` is its superuser, over TCP. Durable, with prepared transactions."""

    name = "postgres"
    user: ClassVar[str] = "admin"
    stop_signal = signal.SIGINT  # 'fast': ends sessions, then writes a checkpoint
    defaults: ClassVar[Options] = {
        "shared_buffers": "64MB",
        "max_connections": 100,
        "max_prepared_transactions": 20,
        "synchronous_commit": "on",
        "fsync": "on",
        "unix_socket_directories": "",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }

    @property
    def password(self) -> str:
        """Password of `user`: made at random for each data folder and kept beside it."""
        path = self.folder / "password"
        if not path.exists():
            self._prepare_folder()
            self._write(path, secrets.token_hex(12))
        return path.read_text()

    def connect(self, database: str | None = None, **settings: Any) -> Any:
        """A new psycopg2 connection in autocommit mode; `settings` are those of `psycopg2.connect`."""
        connection = psycopg2.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            dbname=database or "postgres",
            **{"connect_timeout": 10, **settings},
        )
        connection.autocommit = True
        return connection

    def sql(self, statement: str, database: str | None = None, args: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement on a new connection and return its rows."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, args or None)
                return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.close()

    def _programs(self) -> Path:
        def version(folder: Path) -> int:
            return int(folder.parent.name) if folder.parent.name.isdigit() else 0

        found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
        if not found:
            root = installed("postgres", Path("servers/postgres"))
            found = [path.parent for path in root.glob("usr/lib/postgresql/*/bin/initdb")]
        return max(found, key=version)

    def _environment(self) -> dict[str, str]:
        root = (
            installed("postgres", Path("servers/postgres")) if self._programs().parts[1:3] != ("usr", "lib") else None
        )
        return super()._environment() | ({"LD_LIBRARY_PATH": library_path(root)} if root else {})

    def _initialise(self, data: Path) -> None:
        initdb = [str(self._programs() / "initdb"), f"--pgdata={data}", f"--username={self.user}", "--no-sync"]
        _ = self.password
        self._run(
            [
                *initdb,
                f"--pwfile={self.folder / 'password'}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C.UTF-8",
            ]
        )

    def _command(self, data: Path) -> Sequence[str]:
        settings: dict[str, str | int] = {**self.defaults, **self.options}
        settings |= {"listen_addresses": self.host, "port": self.port}
        command = [str(self._programs() / "postgres"), "-D", str(data)]
        return [*command, *(part for key, value in settings.items() for part in ("-c", f"{key}={value}"))]

    def _answers(self) -> bool:
        try:
            self.sql("SELECT 1")
        except psycopg2.OperationalError:
            return False
        return True
