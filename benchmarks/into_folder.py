"""WAL -> a folder: what the measurements of sinks into files and tables of files have in common."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench, check
from benchmarks.beside import Beside, noting
from benchmarks.data import segment
from benchmarks.into_mysql import INSTALLATION
from benchmarks.measuring import Comparison, Contender, timed


class IntoFolder(ABC):
    """A folder, which each run makes anew, and its contenders.

    `kind` is the system's, `spark` the module of a worker, if Spark is among them.
    """

    def __init__(self, bench: Bench, kind: str, spark: str = "") -> None:
        self.bench, self._kind = bench, kind
        self.path = bench.folder / kind / "orders"
        self._segment = segment(bench.folder / "wal", f"{kind}-{next(bench.servers.numbers)}", {"orders": bench.table})
        self._worker = bench.servers.worker("benchmarks.delivering")
        self._spark_worker = bench.servers.worker(spark) if spark else None
        self._noted: dict[str, list[float]] = {}

    @abstractmethod
    def read(self, who: str) -> pa.Table:
        """All rows that a contender has left, by a reader that is not its own."""

    def ours(self, name: str, sink: Any, prepared: Callable[[], None] | None = None) -> Contender:
        """Prepare and commit of a checkpoint of a new pipeline, in a process that stays warm."""

        def deliver() -> float:
            seconds: float = self._worker.ask("deliver", **self._job(sink))["seconds"]
            return seconds

        return self._contender(name, deliver, self._worker.pid, prepared)

    def spark(self, name: str, command: str, **options: Any) -> Contender:
        """Spark's own writer, in a session that stays warm."""
        worker = self._spark_worker
        assert worker is not None

        def deliver() -> float:
            answer = worker.ask(command, source=str(self.bench.source), target=str(self.path), **options)
            seconds: float = answer["seconds"]
            return seconds

        return self._contender(name, deliver, worker.pid)

    def plain(self, name: str, write: Callable[[], Any]) -> Contender:
        """A library that writes what is in memory already: the best that writing anew could be."""
        return self._contender(name, lambda: timed(write))

    def with_cpu(self, found: Comparison) -> list[Comparison]:
        """The comparison, and CPU time of the processes that write."""
        return [found, Beside.of(found, self._noted)]

    def _contender(
        self, name: str, deliver: Callable[[], float], writer: int = 0, prepared: Callable[[], object] | None = None
    ) -> Contender:
        """`writer`: the process that writes, by default this one."""

        def run() -> float:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if prepared is not None:
                prepared()
            with noting(self._noted, name, writer or os.getpid()):
                seconds = deliver()
            self._check(name)
            return seconds

        return Contender(name, run)

    def _job(self, sink: Any) -> dict[str, Any]:
        from airflow_ft.protocol.model import ParticipantPlan, Plan

        name = sink.participant
        chosen = ParticipantPlan(name, self._kind, sink.strategy, sink.promise, 0, {"orders": sink.settings()})
        pipeline = f"orders-{next(self.bench.servers.numbers)}"
        plan = Plan(pipeline, INSTALLATION, 1, (self._segment,), (chosen,), name)
        return {"plan": plan.to_json(), "connection": {"conn_id": name, "conn_type": ""}}

    def _check(self, who: str) -> None:
        """MeasurementError unless the folder holds just the rows."""
        found, schema = self.read(who), self.bench.table.schema
        found = found.rename_columns([name.lower() for name in found.column_names]).select(schema.names).cast(schema)
        check(who, self.bench.dataset.content(found.sort_by(schema.names[0])), self.bench.content)
