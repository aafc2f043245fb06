"""WAL -> Delta Lake: the sink against Spark's Delta writer, and against delta-rs's own writer."""

from __future__ import annotations

import shutil
from typing import Any

from benchmarks.bench import Bench, check
from benchmarks.data import segment
from benchmarks.into_mysql import INSTALLATION
from benchmarks.measuring import Claim, Comparison, Contender, timed

SPARK, PLAIN = "Spark Delta", "delta-rs"


def delta(bench: Bench) -> list[Comparison]:
    """All contenders; each run makes a table of its own."""
    return [IntoDelta(bench).comparison()]


class IntoDelta:
    """A folder and its contenders."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.path = bench, bench.folder / "delta" / "orders"
        self._segment = segment(bench.folder / "wal", f"delta-{next(bench.servers.numbers)}", {"orders": bench.table})
        self._worker = bench.servers.worker("benchmarks.delivering")
        self._spark_worker = bench.servers.worker("benchmarks.delta_sparking")

    def comparison(self) -> Comparison:
        """Files of the log as they are, rows written anew, and those who write from Parquet."""
        ours = [self._ours("adopted"), self._ours("written anew", create=False)]
        claims = [
            Claim("WAL -> Delta, `adopted` against Spark's Delta writer", "adopted", (SPARK,), 3),
            Claim("WAL -> Delta, `written anew` against Spark's Delta writer", "written anew", (SPARK,), None),
        ]
        title = "WAL -> Delta Lake, committed (prepare and commit), against writers from Parquet"
        contenders = [*ours, self._spark(), self._plain()]
        return Comparison("delta", title, contenders, claims, rows=self.bench.rows)

    def _ours(self, name: str, **settings: Any) -> Contender:
        """Prepare and commit of a checkpoint of a new pipeline, in a process that stays warm.

        Rows are written anew where a column of the table has another name: here the other case of letters.
        """

        def run() -> float:
            shutil.rmtree(self.path, ignore_errors=True)
            if settings:
                self._other_names()
            answer = self._worker.ask("deliver", **self._job(settings))
            self._check(name)
            seconds: float = answer["seconds"]
            return seconds

        return Contender(name, run)

    def _other_names(self) -> None:
        from deltalake import DeltaTable

        schema = self.bench.table.schema
        DeltaTable.create(str(self.path), schema.set(1, schema.field(1).with_name(schema.names[1].upper())))

    def _job(self, settings: dict[str, Any]) -> dict[str, Any]:
        from airflow_ft.core.model import ParticipantPlan, Plan
        from airflow_ft.sinks.delta.spec import DeltaSink

        sink = DeltaSink(table=str(self.path), **settings)
        name = sink.participant
        chosen = ParticipantPlan(name, "delta", sink.strategy, sink.promise, 0, {"orders": sink.settings()})
        pipeline = f"orders-{next(self.bench.servers.numbers)}"
        plan = Plan(pipeline, INSTALLATION, 1, (self._segment,), (chosen,), name)
        return {"plan": plan.to_json(), "connection": {"conn_id": name, "conn_type": ""}}

    def _spark(self) -> Contender:
        """Spark's Delta writer in a session that stays warm."""

        def run() -> float:
            shutil.rmtree(self.path, ignore_errors=True)
            answer = self._spark_worker.ask("append", source=str(self.bench.source), target=str(self.path))
            self._check(SPARK)
            seconds: float = answer["seconds"]
            return seconds

        return Contender(SPARK, run)

    def _plain(self) -> Contender:
        """delta-rs writes what is in memory already: what it could be at best, if rows were written anew."""
        from deltalake import write_deltalake

        def run() -> float:
            shutil.rmtree(self.path, ignore_errors=True)
            seconds = timed(lambda: write_deltalake(self.path, self.bench.table))
            self._check(PLAIN)
            return seconds

        return Contender(PLAIN, run)

    def _check(self, who: str) -> None:
        """MeasurementError unless the table holds just the rows."""
        from deltalake import DeltaTable

        found = DeltaTable(str(self.path)).to_pyarrow_table()
        schema = self.bench.table.schema
        found = found.rename_columns([name.lower() for name in found.column_names]).select(schema.names).cast(schema)
        check(who, self.bench.dataset.content(found.sort_by(schema.names[0])), self.bench.content)
