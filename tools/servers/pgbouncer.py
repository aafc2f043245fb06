"""PgBouncer, run from the unpacked packages that tools/bootstrap.sh fetches when it is asked for `pgbouncer`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psycopg2

from tools.servers.base import Options, Server, installed, library_path
from tools.servers.postgres import Postgres


class PgBouncer(Server):
    """A pooler of transactions before `postgres`, with that server's user and password, and two backends a database."""

    name = "pgbouncer"
    defaults: ClassVar[Options] = {"pool_mode": "transaction", "default_pool_size": 2, "auth_type": "scram-sha-256"}

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None, **given: Any) -> None:
        super().__init__(folder, port, options)
        self.postgres: Postgres = given["postgres"]

    def _initialise(self, data: Path) -> None:
        """It keeps nothing."""

    def _command(self, data: Path) -> Sequence[str]:
        server = self.postgres
        users = self._write(self.folder / "users.txt", f'"{server.user}" "{server.password}"\n')
        settings: dict[str, str | int] = {**self.defaults, **self.options}
        settings |= {"listen_addr": self.host, "listen_port": self.port, "auth_file": str(users), "unix_socket_dir": ""}
        lines = ["[databases]", f"* = host={server.host} port={server.port}", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in settings.items()]
        text = "".join(f"{line}\n" for line in lines)
        return [
            str(self._programs() / "usr" / "sbin" / "pgbouncer"),
            str(self._write(self.folder / "pgbouncer.ini", text)),
        ]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"LD_LIBRARY_PATH": library_path(self._programs())}

    def _answers(self) -> bool:
        where: dict[str, Any] = {"host": self.host, "port": self.port, "dbname": "postgres", "connect_timeout": 5}
        try:
            psycopg2.connect(**where, user=self.postgres.user, password=self.postgres.password).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _programs(self) -> Path:
        return installed("pgbouncer", Path("servers/pgbouncer"))
