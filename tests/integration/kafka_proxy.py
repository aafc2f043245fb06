"""A TCP proxy before a broker that loses requests or replies: whatever was lost, the connection is cut with it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from airflow_ft.testing.relay import Fate, Relay, cut, drain

END_TXN = 26
API_NAMES = {0: "Produce", 22: "InitProducerId", 25: "AddOffsetsToTxn", END_TXN: "EndTxn", 28: "TxnOffsetCommit"}


class KafkaProxy(Relay):
    """`fate` decides by the API key of each request. Thread-safe enough. `lost` has a held reply when it has come."""

    def __init__(self, port: int, target: int) -> None:
        super().__init__(port, target)
        self.fate: Callable[[int], Fate] = lambda api: Fate.DELIVER
        self.lost: list[tuple[str, Fate]] = []

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        """Passes frames on."""
        doomed: set[bytes] = set()  # correlation ids whose replies are lost
        held: dict[bytes, str] = {}  # ... or held
        threading.Thread(target=self._replies, args=(client, server, doomed, held), daemon=True).start()
        with suppress(OSError):
            while (frame := _frame(client)) is not None:
                api = int.from_bytes(frame[4:6], "big")
                fate = self.fate(api)
                if fate is Fate.HOLD_REPLY:
                    held[frame[8:12]] = API_NAMES.get(api, str(api))
                elif fate is not Fate.DELIVER:
                    self.lost.append((API_NAMES.get(api, str(api)), fate))
                if fate is Fate.LOSE_REQUEST:
                    break
                if fate is Fate.HOLD_REQUEST:
                    drain(client)
                    break
                if fate is Fate.LOSE_REPLY:
                    doomed.add(frame[8:12])
                server.sendall(frame)
        cut(client, server)

    def _replies(
        self, client: socket.socket, server: socket.socket, doomed: set[bytes], held: dict[bytes, str]
    ) -> None:
        with suppress(OSError):
            while (frame := _frame(server)) is not None and frame[4:8] not in doomed:
                if (name := held.get(frame[4:8])) is not None:
                    self.lost.append((name, Fate.HOLD_REPLY))
                    drain(server)  # until the client is gone, and both are cut
                    break
                client.sendall(frame)
        cut(client, server)


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
