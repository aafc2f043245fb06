"""What MariaDB and MySQL have in common: options, the administrator, SQL by PyMySQL."""

import secrets
import time
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pymysql
import pymysql.constants.ER
from pymysql.connections import Connection

from tools.servers.base import Options, Server

Row = tuple[Any, ...]


class MySqlFamily(Server):
    """A server that speaks the MySQL protocol; `user` with `password` may do everything, over TCP.

    Durable by default: `innodb_flush_log_at_trx_commit=1`, `sync_binlog=1`. `LOAD DATA LOCAL` is allowed unless the
    options say `local_infile=0`.
    """

    user: ClassVar[str] = "admin"
    defaults: ClassVar[Options] = {
        "innodb-buffer-pool-size": "128M",
        "innodb-flush-log-at-trx-commit": 1,
        "sync-binlog": 1,
        "local-infile": 1,
        "max-connections": 100,
        "skip-name-resolve": 1,
        "character-set-server": "utf8mb4",
        "default-time-zone": "+00:00",
        "server-id": 1,
    }

    @abstractmethod
    def _program(self) -> Sequence[str]:
        """The start of the command line: the server itself and where it was unpacked."""

    @property
    def password(self) -> str:
        """Password of `user`: made at random for each data folder and kept beside it."""
        path = self.folder / "password"
        if not path.exists():
            self._prepare_folder()
            self._write(path, secrets.token_hex(12))
        return path.read_text()

    def connect(self, database: str | None = None, **settings: Any) -> "Connection[Any]":
        """A new connection of PyMySQL in autocommit mode; `settings` are those of `pymysql.connect`."""
        # No TLS on the loopback interface: a context for each connection took a tenth of the tests' CPU time.
        defaults = {"autocommit": True, "connect_timeout": 10, "charset": "utf8mb4", "ssl_disabled": True}
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            database=database,
            **{**defaults, **settings},
        )

    def sql(self, statement: str, database: str | None = None, args: Sequence[Any] = ()) -> list[Row]:
        """Execute one statement on a new connection and return its rows."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, args or None)
            return list(cursor.fetchall())

    def end_connection(self, connection_id: int) -> None:
        """KILL a connection; one that ended by itself in the meantime is no error."""
        try:
            self.sql("KILL %s", args=[connection_id])
        except pymysql.err.OperationalError as error:
            if error.args[0] != pymysql.constants.ER.NO_SUCH_THREAD:
                raise

    def end_prepared(self, seconds: float = 30) -> None:
        """Roll back every prepared branch of the server: they keep locks, which DROP DATABASE would wait for.

        A branch that is attached to the connection which prepared it ends after that connection only, and then another
        may have ended it; so this asks again until none is left.

        Raises:
            ServerError: some are left after `seconds`.
        """
        deadline = time.monotonic() + seconds
        listing = "XA RECOVER CONVERT XID" if self.name == "mysql" else "XA RECOVER"
        while self.sql(listing):
            time.sleep(0.3)  # MariaDB: XA ROLLBACK does nothing at the moment that a connection leaves its branch
            branches = self.sql(listing)
            for format_id, cut, _, found in branches:
                data = bytes.fromhex(found[2:]) if isinstance(found, str) and found.startswith("0x") else found
                data = data.encode() if isinstance(data, str) else data
                try:
                    self.sql(f"XA ROLLBACK X'{data[:cut].hex()}',X'{data[cut:].hex()}',{format_id}")
                except pymysql.err.MySQLError as error:
                    if time.monotonic() > deadline:
                        raise self._error(f"keeps a prepared branch, {data!r}: {error}") from error

    def _administrator(self) -> str:
        return (
            f"CREATE USER '{self.user}'@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'%' WITH GRANT OPTION;\n"
        )

    def _command(self, data: Path) -> Sequence[str]:
        for left_over in ("server.sock", "server.sock.lock", "server.pid"):  # of a server that was killed
            (data / left_over).unlink(missing_ok=True)
        options: dict[str, str | int] = {
            "datadir": str(data),
            "bind-address": self.host,
            "port": self.port,
            "socket": "server.sock",  # relative to the data folder: the path of a socket has at most 107 bytes
            "pid-file": "server.pid",
            **self.defaults,
        }
        options |= {key.replace("_", "-"): value for key, value in self.options.items()}
        return [*self._program(), *(f"--{key}={value}" for key, value in options.items())]

    def _answers(self) -> bool:
        try:
            self.sql("SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True
