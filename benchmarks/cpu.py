"""CPU time of a row, client and server apart: which of them bounds a path, and a figure that other work hardly changes.

A path that keeps one thread of the server busy can be no faster than that thread. On two cores no path can be faster
than both of them together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.into_kafka import IntoKafka
from benchmarks.into_mysql import FASTER, IntoMySql
from benchmarks.measuring import Claim, Comparison, Contender
from tools.servers.processes import tree

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu(bench: Bench) -> list[Comparison]:
    """One comparison a server, in microseconds of CPU for each row."""
    found = []
    for server in (bench.servers.mariadb, bench.servers.mysql):
        table = IntoMySql(bench, server)
        meter = Meter(bench, server.pid)
        table.watching = meter.watching
        writers = {
            "local": (table.ours("local", "local"), table.worker.pid),
            "Spark": (table.spark(FASTER), bench.servers.spark.pid),
            "insert": (table.ours("insert", "local", local_infile=False), table.worker.pid),
            "1 x LOAD DATA": (table.plain_load(1), os.getpid()),
        }
        if server.name == "mariadb":
            del writers["insert"]  # that is how `local` sends its rows there
        found.append(meter.comparison(server.name, writers))
    topic = IntoKafka(bench)
    meter = Meter(bench, bench.servers.kafka.pid)
    topic.watching = meter.watching
    writers = {
        "transaction": (topic.ours("transaction"), topic.worker.pid),
        "Spark": (topic.spark("Spark", {}), bench.servers.spark.pid),
    }
    found.append(meter.comparison("kafka", writers))
    return found


class Meter:
    """Reads what a server and a client have used while a contender works."""

    def __init__(self, bench: Bench, server: int) -> None:
        self._bench, self._server, self._client = bench, server, 0
        self._last: dict[str, tuple[float, float]] = {}
        self._name = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around the work itself, without its preparation and the check of its result."""
        before = used(self._client), used(self._server)
        yield
        after = used(self._client), used(self._server)
        client, server = ((late - early) * 1e6 / self._bench.rows for late, early in zip(after, before, strict=True))
        self._last[self._name] = client, server

    def comparison(
        self, name: str, writers: dict[str, tuple[Contender, int]], wanted: float | None = None
    ) -> Comparison:
        """What each writer costs its client (a process id), the server, and both; claims about the first two."""
        ours, other, *_ = writers
        contenders: list[Contender] = []
        for writer, (contender, client) in writers.items():
            contenders.append(Contender(f"{writer}, client", self._run(writer, contender, client)))
            contenders.append(Contender(f"{writer}, server", self._read(writer, lambda parts: parts[1]), warm_up=0))
            contenders.append(Contender(f"{writer}, both", self._read(writer, sum), warm_up=0))
        label = f"CPU of a row into {name}, client and server: {other} against {ours}"
        title = f"CPU time of a row into {name}"
        claims = [Claim(label, f"{ours}, both", (f"{other}, both",), wanted)]
        return Comparison(f"cpu/{name}", title, contenders, claims, unit="us")

    def _run(self, name: str, contender: Contender, client: int) -> Callable[[], float]:
        def run() -> float:
            self._name, self._client = name, client
            contender.run()
            return self._last[name][0]

        return run

    def _read(self, name: str, part: Callable[[Sequence[float]], float]) -> Callable[[], float]:
        return lambda: part(self._last[name])  # of the newest run


def used(pid: int) -> float:
    """Seconds of CPU of a process, with the children that work for it (Spark's JVM)."""
    children = tree(pid) if pid != os.getpid() else [pid]
    return sum(_seconds(child) for child in children)


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
