"""WAL -> MySQL, Kafka by several processes: each loads a branch of one checkpoint, as mapped tasks do."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from airflow_ft.protocol.model import Segment
from benchmarks.bench import Bench
from benchmarks.beside import used_by
from benchmarks.data import segment
from benchmarks.into_kafka import PARTITIONS, kafka_job
from benchmarks.into_mysql import mysql_job
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError

PROCESSES = (1, 2, 4)
BRANCHES = 4


def mapped(bench: Bench) -> list[Comparison]:
    """Two comparisons a server: seconds by processes, and the CPU time of a row."""
    found = []
    for server in (bench.servers.mariadb, bench.servers.mysql):
        title = f"WAL -> {server.name}, {BRANCHES} branches of `xa`, loaded by processes"
        found += _by_processes(bench, Shared(bench, server), server.name, title)
    return found


def mapped_kafka(bench: Bench) -> list[Comparison]:
    """The same for slots of Kafka's strategy `held`."""
    return _by_processes(
        bench,
        SharedSlots(bench, bench.servers.kafka),
        "kafka",
        f"WAL -> Kafka, {BRANCHES} slots of `held`, by processes",
    )


def _by_processes(bench: Bench, shared: Shared, name: str, title: str) -> list[Comparison]:
    seconds = [Contender(f"{n} processes", shared.run(n)) for n in PROCESSES]
    claims = [
        Claim(f"{name}: {n} processes against one", f"{n} processes", ("1 processes",), None) for n in PROCESSES[1:]
    ]
    costs = [
        Contender(f"{n} processes, {what}", shared.cost(n, what), warm_up=0)
        for n in PROCESSES
        for what in ("clients", "server")
    ]
    return [
        Comparison(f"mapped/{name}", title, seconds, claims, rows=bench.rows),
        Comparison(f"mapped-cpu/{name}", f"CPU time of a row, {title}", costs, [], unit="us"),
    ]


class Shared:
    """One server, and processes that stay warm."""

    def __init__(self, bench: Bench, server: Any) -> None:
        self._bench, self._server = bench, server
        self._segment = self._staged(f"shared-{server.name}-{next(bench.servers.numbers)}")
        self._workers = [bench.servers.worker("benchmarks.delivering") for _ in range(max(PROCESSES))]
        self._used: dict[tuple[int, str], float] = {}

    def run(self, processes: int) -> Callable[[], float]:
        """Seconds from `announce` to the proof: `announce`, the loads side by side, `conclude`, `commit`."""

        def run() -> float:
            job = self._job()
            first, working = self._workers[0], self._workers[:processes]
            pids = [worker.pid for worker in working]
            before = sum(map(used_by, pids)), used_by(self._server.pid)
            began = time.monotonic()
            announced = first.ask("shared", step="announce", **job)
            labels = announced["branches"]
            if len(labels) != BRANCHES:
                raise MeasurementError(f"{len(labels)} branches instead of {BRANCHES}: too few rows")

            def load(index: int) -> bool:
                mine = labels[index::processes]
                answer = working[index].ask("shared", step="load", notes=announced["notes"], branches=mine, **job)
                return bool(answer["loaded"])

            with ThreadPoolExecutor(processes) as pool:
                if not all(pool.map(load, range(processes))):
                    raise MeasurementError("a branch was not loaded")
            voted = first.ask("shared", step="conclude", notes=announced["notes"], **job)
            first.ask("commit", attempt=2, notes=voted["notes"], **job)
            seconds = time.monotonic() - began
            after = sum(map(used_by, pids)), used_by(self._server.pid)
            for what, late, early in zip(("clients", "server"), after, before, strict=True):
                self._used[processes, what] = (late - early) * 1e6 / self._bench.rows
            self._check(f"{processes} processes")
            return seconds

        return run

    def cost(self, processes: int, what: str) -> Callable[[], float]:
        """Microseconds of CPU of a row in the newest run with this number of processes."""
        return lambda: self._used[processes, what]

    def _staged(self, name: str) -> Segment:
        return segment(self._bench.folder / "wal", name, {"orders": self._bench.table})

    def _job(self) -> Any:
        self._bench.empty_table(self._server)
        return mysql_job(self._bench, self._server, self._segment, "xa", {"branches": BRANCHES})

    def _check(self, who: str) -> None:
        self._bench.check_table(self._server, who)


class SharedSlots(Shared):
    """The broker. A slot sends whole files, so there are as many as slots; each run fills a new topic."""

    def _staged(self, name: str) -> Segment:
        return segment(self._bench.folder / "wal", name, {"orders": self._bench.records}, files=BRANCHES)

    def _job(self) -> Any:
        self._topic = f"bench-{next(self._bench.servers.numbers)}"
        self._server.create_topic(self._topic, PARTITIONS)
        return kafka_job(self._bench, self._segment, self._topic, "held", BRANCHES)

    def _check(self, who: str) -> None:
        self._bench.check_topic(self._topic, who)
        self._server.delete_topic(self._topic)
