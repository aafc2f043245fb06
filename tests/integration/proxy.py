"""A TCP proxy on the loopback interface that loses what it is told to lose."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Passes bytes between its clients and `127.0.0.1:target`.

    Once armed, the first chunk of a client that contains `after` starts the loss, on that connection: answers are
    swallowed from then on, or the requests themselves (that chunk included) are kept back; with `cut` the client's
    connection is closed instead of falling silent. Connections that are opened after `pass_on` work.

    Each call of `cut` ends one connection, the first that fits; `cuts` counts them.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._armed: tuple[str, bytes, bool] | None = None
        self._kept: list[tuple[socket.socket, bytes]] = []
        self._sockets: list[socket.socket] = []
        self._muted: set[socket.socket] = set()
        self._wanted: list[tuple[str, bytes]] = []
        self._doomed: set[socket.socket] = set()
        self._unknown: bytes | None = None
        self.cuts = 0
        self._threads: list[threading.Thread] = []

    def swallow_answers(self, after: bytes, *, cut: bool = False) -> None:
        """The server gets the request; the client never gets an answer to it."""
        self._armed = ("answers", after, cut)

    def swallow_requests(self, after: bytes, *, cut: bool = False) -> None:
        """The server does not get the request (until `release`)."""
        self._armed = ("requests", after, cut)

    def cut(self, kind: str, pattern: bytes) -> None:
        """The next connection whose client sends `pattern` is ended, on both sides.

        "lost request": that chunk never reaches the server. "lost reply": it does; the answer is dropped.
        """
        self._wanted.append((kind, pattern))

    def answer_501(self, pattern: bytes) -> None:
        """Answer each request that has `pattern` with 501 Not Implemented, without the server."""
        self._unknown = pattern

    def pass_on(self) -> None:
        """New losses no more; connections that suffer one go on suffering it."""
        self._armed = None

    def release(self) -> None:
        """Late delivery: what was kept back goes to the server now."""
        with self._lock:
            kept, self._kept = self._kept, []
        for server, chunk in kept:
            server.sendall(chunk)

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            _shut(connection)
        for thread in self._threads:
            thread.join()
        for connection in self._sockets:
            connection.close()

    def _spawn(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is down: the next client may find it again
                client.close()
                continue
            self._sockets += [client, server]
            self._spawn(self._requests, client, server)
            self._spawn(self._answers, client, server)

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        held = False
        while chunk := _receive(client):
            if self._unknown is not None and self._unknown in chunk:
                client.sendall(b"HTTP/1.1 501 Not Implemented\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                _shut(client)
                break
            cut_now = self._hit(chunk)
            if cut_now == "lost request":
                _shut(client)
                break
            if cut_now == "lost reply":
                self._doomed.add(client)
            armed = self._armed
            if armed is not None and armed[1] in chunk:
                what, _, cut = armed
                if what == "answers":
                    self._muted.add(client)
                    server.sendall(chunk)
                    if cut:
                        _shut(client)
                        return  # without closing the server's side: it commits undisturbed
                    continue
                if cut:
                    _shut(client)
                    break
                held = True
            if held:
                with self._lock:
                    self._kept.append((server, chunk))
            else:
                with contextlib.suppress(OSError):
                    server.sendall(chunk)
        if not held and client not in self._muted:
            _shut(server)

    def _hit(self, chunk: bytes) -> str:
        """The kind of a cut that was waiting for this chunk; '' for none."""
        with self._lock:
            for wanted in self._wanted:
                if wanted[1] in chunk:
                    self._wanted.remove(wanted)
                    self.cuts += 1
                    return wanted[0]
        return ""

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        while chunk := _receive(server):
            if client in self._doomed:
                _shut(server)
                break
            if client not in self._muted:
                with contextlib.suppress(OSError):
                    client.sendall(chunk)
        if client not in self._muted:
            _shut(client)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
