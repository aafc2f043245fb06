"""Redis, a broker, run from the unpacked packages that tools/bootstrap.sh fetches when it is asked for `redis`."""

import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tools.servers.base import Options, Server, installed, library_path


class Redis(Server):
    """A Redis server that wants `password`; what it was told is in its log of commands, and survives a kill."""

    name = "redis"
    defaults: ClassVar[Options] = {"appendonly": "yes", "save": '""'}

    @property
    def password(self) -> str:
        """Made at random for each data folder and kept beside it."""
        path = self.folder / "password"
        if not path.exists():
            self._prepare_folder()
            self._write(path, secrets.token_hex(12))
        return path.read_text()

    def _initialise(self, data: Path) -> None:
        """It makes what it needs."""

    def _command(self, data: Path) -> Sequence[str]:
        settings: dict[str, str | int] = {**self.defaults, **self.options}
        settings |= {"bind": self.host, "port": self.port, "dir": str(data), "requirepass": self.password}
        text = "".join(f"{name} {value}\n" for name, value in settings.items())
        return [
            str(self._programs() / "usr" / "bin" / "redis-server"),
            str(self._write(self.folder / "redis.conf", text)),
        ]

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"LD_LIBRARY_PATH": library_path(self._programs())}

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=5) as connection:
                connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
                answers = connection.makefile("rb")
                return [answers.readline(), answers.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
        except OSError:
            return False

    def _programs(self) -> Path:
        return installed("redis", Path("servers/redis"))
