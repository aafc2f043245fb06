"""WAL -> Delta Lake: the sink against Spark's Delta writer, and against delta-rs's own writer."""

from __future__ import annotations

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.into_folder import IntoFolder
from benchmarks.measuring import Claim, Comparison

SPARK, PLAIN = "Spark Delta", "delta-rs"


def delta(bench: Bench) -> list[Comparison]:
    """All contenders; each run makes a table of its own."""
    into = IntoDelta(bench)
    return into.with_cpu(into.comparison())


class IntoDelta(IntoFolder):
    """A table and its contenders."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, "delta", "benchmarks.delta_sparking")

    def comparison(self) -> Comparison:
        """Files of the log as they are, rows written anew, and those who write from Parquet."""
        from deltalake import write_deltalake

        from airflow_ft.sinks.delta.spec import DeltaSink

        table = str(self.path)
        contenders = [
            self.ours("adopted", DeltaSink(table=table)),
            self.ours("written anew", DeltaSink(table=table, create=False), self._with_another_name),
            self.spark(SPARK, "append"),
            self.plain(PLAIN, lambda: write_deltalake(self.path, self.bench.table)),
        ]
        claims = [
            Claim("WAL -> Delta, `adopted` against Spark's Delta writer", "adopted", (SPARK,), 3),
            Claim("WAL -> Delta, `written anew` against Spark's Delta writer", "written anew", (SPARK,), None),
        ]
        title = "WAL -> Delta Lake, committed (prepare and commit), against writers from Parquet"
        return Comparison("delta", title, contenders, claims, rows=self.bench.rows)

    def _with_another_name(self) -> None:
        """Rows are written anew where a column of the table has another name: here the other case of letters."""
        from deltalake import DeltaTable

        schema = self.bench.table.schema
        DeltaTable.create(str(self.path), schema.set(1, schema.field(1).with_name(schema.names[1].upper())))

    def read(self, who: str) -> pa.Table:
        from deltalake import DeltaTable

        return DeltaTable(str(self.path)).to_pyarrow_table()
