"""A TCP proxy on the loopback interface; what it loses, a subclass decides."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self


class Fate(Enum):
    """What becomes of a request."""

    DELIVER = "deliver"
    LOSE_REQUEST = "lose the request"
    LOSE_REPLY = "lose the reply"  # the server has answered, and nobody hears it


class Relay(ABC):
    """Takes connections to `127.0.0.1:port`, and makes one to `127.0.0.1:target` for each. Outlives its server."""

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @abstractmethod
    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Passes on what comes, both ways, until one side ends, and then ends both (`cut`). OSError is an end, too."""

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        for side in (client, server):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.relay(client, server)


def cut(*connections: socket.socket) -> None:
    """Ends them, also for a thread that reads from one."""
    for connection in connections:
        with suppress(OSError):  # the other thread was first
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
