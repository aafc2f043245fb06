"""Requests to HBase over a few connections, side by side: the gateway reads one while a region server does another.

Requests with the same key follow each other. Timestamps order their cells, but a major compaction forgets deletes: an
older put that came after that would be visible.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import AbstractContextManager, ExitStack
from queue import SimpleQueue

from airflow_ft.protocol.background import beside
from airflow_ft.sinks.base.in_flight import InFlight
from airflow_ft.sinks.hbase.server import Client

AT_ONCE = 2
"""Requests in flight. On two cores, which the server used too, four were hardly faster."""


class Requests(InFlight):
    """Calls of clients, each in a thread.

    The first error is raised by a later call, or at the end. `connect` opens each client but the first one, at the
    first call that finds none free.
    """

    def __init__(self, first: Client, connect: Callable[[], AbstractContextManager[Client]]) -> None:
        super().__init__(AT_ONCE)
        self._connect, self._clients = connect, ExitStack()
        self._free: SimpleQueue[Client] = SimpleQueue()
        self._free.put(first)
        self._connected = 1
        self._under_way: list[Set[bytes]] = []
        self._failed: list[BaseException] = []

    def call(self, work: Callable[[Client], None], keys: Set[bytes]) -> None:
        """Begin a call that writes these keys. Waits while too many are under way, or one that writes such a key."""
        if not all(keys.isdisjoint(others) for others in list(self._under_way)):
            self._wait()
        self._begin(lambda: self._start(work, keys))

    def _start(self, work: Callable[[Client], None], keys: Set[bytes]) -> None:
        if self._failed:
            raise self._failed[0]
        if self._free.empty() and self._connected < AT_ONCE:
            self._free.put(self._clients.enter_context(self._connect()))
            self._connected += 1
        self._under_way.append(keys)
        beside(lambda: self._do(work, keys), "hbase")

    def _do(self, work: Callable[[Client], None], keys: Set[bytes]) -> None:
        client = self._free.get()
        try:
            work(client)
        except BaseException as error:
            self._failed.append(error)
        finally:
            self._free.put(client)
            self._under_way.remove(keys)
            self._done()

    def _end(self, *, in_error: bool) -> None:
        self._clients.close()
        if self._failed and not in_error:
            raise self._failed[0]
