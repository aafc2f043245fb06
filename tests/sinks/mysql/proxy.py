"""A TCP proxy between client and server that cuts connections at a chosen moment of the MySQL protocol."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType


class CuttingProxy:
    """Forwards to `port` on the loopback interface; `cut` says what happens to the next connection that fits.

    "lost request": it is cut when the client sends a packet that contains `pattern`, which never reaches the server.
    "lost reply": that packet is forwarded; when the server answers, the answer is dropped and the connection is cut.
    Each cut happens once for each time that `cut` is called.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._wanted: list[tuple[str, bytes]] = []
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, kind: str, pattern: bytes) -> None:
        self._wanted.append((kind, pattern))

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for side in self._open:
            side.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            reply_lost = threading.Event()

            with self._lock:
                self._open += [client, server]

            def cut(client: socket.socket = client, server: socket.socket = server) -> None:
                for side in (client, server):
                    with suppress(OSError):  # the other thread was faster
                        side.shutdown(socket.SHUT_RDWR)

            threading.Thread(target=self._requests, args=(client, server, reply_lost, cut), daemon=True).start()
            threading.Thread(target=self._replies, args=(server, client, reply_lost, cut), daemon=True).start()

    def _requests(
        self, client: socket.socket, server: socket.socket, reply_lost: threading.Event, cut: Callable[[], None]
    ) -> None:
        try:
            while data := client.recv(1 << 16):
                with self._lock:
                    hit = next((wanted for wanted in self._wanted if wanted[1] in data), None)
                    if hit is not None:
                        self._wanted.remove(hit)
                        self.cuts += 1
                if hit is not None and hit[0] == "lost request":
                    break
                if hit is not None:
                    reply_lost.set()
                server.sendall(data)
        except OSError:
            pass
        cut()

    def _replies(
        self, server: socket.socket, client: socket.socket, reply_lost: threading.Event, cut: Callable[[], None]
    ) -> None:
        try:
            while data := server.recv(1 << 16):
                if reply_lost.is_set():
                    break
                client.sendall(data)
        except OSError:
            pass
        cut()
