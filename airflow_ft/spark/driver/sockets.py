"""Sockets that a query reads. When a server closes one, Spark says nothing, and waits for ever for the next line.

Its reader of a socket is a thread that ends then, so the JVM is asked for its name. Lines that had come by then are
still read: the query ends when Spark has found nothing new since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.sources import SocketSource, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Sockets:
    """The declared sources that are sockets; a job's own are ignored."""

    def __init__(self, spark: SparkSession, sources: Mapping[str, Source | None]) -> None:
        self._spark: Any = spark
        self._threads = {
            f"TextSocketSource({source.host}, {source.port})": name
            for name, source in sources.items()
            if isinstance(source, SocketSource)
        }
        self._closed: dict[str, float] = {}

    def look(self, now: float) -> None:
        """Note which of them are closed, when the query has connected. `now`: of the monotonic clock."""
        if self._threads:
            living = str(self._spark._jvm.java.lang.Thread.getAllStackTraces().keySet())
            for thread, name in self._threads.items():
                if thread not in living:
                    self._closed.setdefault(name, now)

    def require_open(self, as_of: float) -> None:
        """StageError when one was closed before `as_of`: what had come by then is read.

        `as_of`: of the monotonic clock.
        """
        for name, at in self._closed.items():
            if at < as_of:
                raise StageError(
                    f"the server of source {name!r} has closed the socket.",
                    code="socket_closed",
                    remedy="Start the server again if it is down. The next attempt connects again.",
                    source=name,
                )
