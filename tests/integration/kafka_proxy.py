"""A TCP proxy before a broker that loses requests or replies: whatever was lost, the connection is cut with it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType
from typing import Self


class Fate(Enum):
    """What becomes of a request."""

    DELIVER = "deliver"
    LOSE_REQUEST = "lose the request"
    LOSE_REPLY = "lose the reply"  # the broker has answered, and nobody hears it


END_TXN = 26
API_NAMES = {0: "Produce", 22: "InitProducerId", 25: "AddOffsetsToTxn", END_TXN: "EndTxn", 28: "TxnOffsetCommit"}


class KafkaProxy:
    """Forwards to `target` on the same host; `fate` decides by the API key of each request. Thread-safe enough."""

    def __init__(self, port: int, target: int) -> None:
        self.fate: Callable[[int], Fate] = lambda api: Fate.DELIVER
        self.lost: list[tuple[str, Fate]] = []
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", port))

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

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
        doomed: set[bytes] = set()  # correlation ids whose replies are lost
        threading.Thread(target=self._replies, args=(client, server, doomed), daemon=True).start()
        try:
            while (frame := _frame(client)) is not None:
                api = int.from_bytes(frame[4:6], "big")
                fate = self.fate(api)
                if fate is not Fate.DELIVER:
                    self.lost.append((API_NAMES.get(api, str(api)), fate))
                if fate is Fate.LOSE_REQUEST:
                    break
                if fate is Fate.LOSE_REPLY:
                    doomed.add(frame[8:12])
                server.sendall(frame)
        except OSError:
            pass
        _cut(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, doomed: set[bytes]) -> None:
        try:
            while (frame := _frame(server)) is not None and frame[4:8] not in doomed:
                client.sendall(frame)
        except OSError:
            pass
        _cut(client, server)


def _frame(source: socket.socket) -> bytes | None:
    head = _exactly(source, 4)
    body = _exactly(source, int.from_bytes(head, "big")) if head is not None else None
    return head + body if head is not None and body is not None else None


def _exactly(source: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = source.recv(size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def _cut(*connections: socket.socket) -> None:
    for connection in connections:
        with suppress(OSError):  # the other thread was first
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
