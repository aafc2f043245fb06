"""A TCP proxy before a database: loses the request, or the reply, that it is told to lose, and cuts the connection.

For protocols in which a client waits for each answer before it asks again (MySQL, PostgreSQL); Kafka's has frames of
its own (`tests.integration.kafka_proxy`).
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.relay import Fate, Relay, cut


class Proxy(Relay):
    """Once armed it strikes one request, on whatever connection."""

    def __init__(self, port: int, target: int) -> None:
        super().__init__(port, target)
        self._lock = threading.Lock()
        self._fate, self._left, self._pattern = Fate.DELIVER, 0, b""
        self.struck = False

    def arm(self, fate: Fate, skip: int = 0, pattern: bytes = b"") -> None:
        """Lets `skip` requests with `pattern` pass, and strikes the next one."""
        with self._lock:
            self._fate, self._left, self._pattern, self.struck = fate, skip, pattern, False

    def disarm(self) -> None:
        """Strikes nothing any more."""
        with self._lock:
            self._fate = Fate.DELIVER

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Passes chunks on: each request is one, or begins one."""
        doomed = threading.Event()
        threading.Thread(target=self._replies, args=(client, server, doomed), daemon=True).start()
        with suppress(OSError):
            while chunk := client.recv(1 << 16):
                fate = self._decide(chunk)
                if fate is Fate.LOSE_REQUEST:
                    break
                if fate is Fate.LOSE_REPLY:
                    doomed.set()
                server.sendall(chunk)
        if not doomed.is_set():  # else the other thread waits for the reply, and cuts then
            cut(client, server)

    def _decide(self, request: bytes) -> Fate:
        with self._lock:
            if self._fate is Fate.DELIVER or self._pattern not in request:
                return Fate.DELIVER
            if self._left > 0:
                self._left -= 1
                return Fate.DELIVER
            fate, self._fate, self.struck = self._fate, Fate.DELIVER, True
            return fate

    def _replies(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            # The reply's arrival says that the server has done what was asked; nobody else hears of it.
            while (chunk := server.recv(1 << 16)) and not doomed.is_set():
                client.sendall(chunk)
        cut(client, server)
