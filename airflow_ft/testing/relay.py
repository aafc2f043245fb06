"""TCP proxies on the loopback interface that lose requests and replies, and cut the connection with them."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self


class Fate(Enum):
    """Fate of a request."""

    DELIVER = "deliver"
    LOSE_REQUEST = "lose the request"
    LOSE_REPLY = "lose the reply"  # the server has answered, and the client does not receive it
    HOLD_REQUEST = "hold the request"  # the client waits until it is killed, and the server has heard nothing
    HOLD_REPLY = "hold the reply"  # the client waits until it is killed, and the server has done what was asked


class Relay(ABC):
    """Takes connections to `127.0.0.1:port`, and makes one to `127.0.0.1:target` for each. Outlives its server.

    `port` 0: any that is free.
    """

    def __init__(self, port: int, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port), backlog=64)
        self.port: int = self._listener.getsockname()[1]

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


def drain(client: socket.socket) -> None:
    """Returns when the client is gone; nothing of what it says is heard."""
    while client.recv(1 << 16):
        pass


class Proxy(Relay):
    """Once armed, it strikes one request on any connection. Then `struck` is true; for a held reply, once it has come.

    `reached` is called before each request is passed on, and may wait. `length(sent)` returns the length of the first
    request in `sent`. If that is more than `sent` has, the rest has not arrived. By default everything that has arrived
    is one request, as in protocols whose client waits for each answer before it asks again (most databases).
    """

    def __init__(
        self,
        port: int,
        target: int,
        reached: Callable[[], None] = lambda: None,
        length: Callable[[bytes], int] = len,
    ) -> None:
        super().__init__(port, target)
        self._reached, self._length = reached, length
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
        """Pass requests on, or their beginnings."""
        doomed, held = threading.Event(), threading.Event()
        threading.Thread(target=self._replies, args=(client, server, doomed, held), daemon=True).start()
        with suppress(OSError):
            for request in self._requests(client):
                self._reached()
                fate = self._decide(request)
                if fate is Fate.LOSE_REQUEST:
                    break
                if fate is Fate.HOLD_REQUEST:
                    drain(client)
                    break
                if fate is Fate.LOSE_REPLY:
                    doomed.set()
                elif fate is Fate.HOLD_REPLY:
                    held.set()
                server.sendall(request)
        if not doomed.is_set():  # else the other thread waits for the reply, and cuts then
            cut(client, server)

    def _requests(self, client: socket.socket) -> Iterator[bytes]:
        arrived = b""
        while chunk := client.recv(1 << 16):
            arrived += chunk
            while arrived and (length := self._length(arrived)) <= len(arrived):
                yield arrived[:length]
                arrived = arrived[length:]

    def _decide(self, request: bytes) -> Fate:
        with self._lock:
            if self._fate is Fate.DELIVER or self._pattern not in request:
                return Fate.DELIVER
            if self._left > 0:
                self._left -= 1
                return Fate.DELIVER
            fate, self._fate = self._fate, Fate.DELIVER
            self.struck = fate is not Fate.HOLD_REPLY
            return fate

    def _replies(
        self, client: socket.socket, server: socket.socket, doomed: threading.Event, held: threading.Event
    ) -> None:
        with suppress(OSError):
            # The reply proves that the server has done it. The client does not get it.
            while (chunk := server.recv(1 << 16)) and not doomed.is_set():
                if held.is_set():
                    self.struck = True
                else:
                    client.sendall(chunk)
        if held.is_set():  # the connection is ended on request, so no one waits
            self.struck = True
        cut(client, server)
