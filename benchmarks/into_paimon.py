"""WAL -> Paimon: the sink against pypaimon's own writer from the same Parquet files, on a local disk."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.into_folder import IntoFolder
from benchmarks.measuring import Claim, Comparison, Contender
from tools.paimon import Paimon

PLAIN = "pypaimon"
TABLE = "shop.orders"
MOST_ROWS, BUCKETS = 200_000, 2
"""Of a table with a primary key: pypaimon divides its rows one by one."""


def paimon(bench: Bench) -> list[Comparison]:
    """All contenders; each run makes a table of its own."""
    fewer = replace(bench.dataset, name=f"{bench.dataset.name}-by-key", make=lambda _: bench.table.slice(0, MOST_ROWS))
    into, by_key = IntoPaimon(bench), IntoPaimon(bench.over(fewer))
    return [*into.with_cpu(into.comparison()), *by_key.with_cpu(by_key.by_key())]


class IntoPaimon(IntoFolder):
    """A table and its contenders. Each is a process that stays warm."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, "paimon")
        self.path = bench.folder / "paimon" / "shop.db" / "orders"
        self._paimon = bench.servers.stack.enter_context(Paimon(bench.folder / "paimon"))

    def comparison(self) -> Comparison:
        """Files of the log as they are, rows written again, and pypaimon's append of what is in Parquet files."""
        from airflow_ft.sinks.paimon.spec import PaimonSink

        contenders = [
            self.ours("adopted", PaimonSink(table=str(self.path))),
            self.ours("written again", PaimonSink(table=str(self.path), create=False), self._with_another_name),
            self._plain(),
        ]
        claims = [
            Claim("WAL -> Paimon, `adopted` against pypaimon's append", "adopted", (PLAIN,), 3),
            Claim("WAL -> Paimon, `written again` against pypaimon's append", "written again", (PLAIN,), 0.9),
        ]
        title = "WAL -> Paimon, committed (prepare and commit), against pypaimon from Parquet"
        return Comparison("paimon", title, contenders, claims, rows=self.bench.rows)

    def by_key(self) -> Comparison:
        """A table with a primary key."""
        from airflow_ft.sinks.paimon.spec import PaimonSink

        key = next(iter(self.bench.dataset.columns))
        keyed = {"keys": (key,), "bucket": str(BUCKETS)}
        contenders = [
            self.ours("by key", PaimonSink(table=str(self.path), primary_key=[key], buckets=BUCKETS)),
            self._plain(**keyed),
        ]
        claims = [Claim("WAL -> Paimon, by primary key, against pypaimon", "by key", (PLAIN,), 0.9)]
        title = "WAL -> Paimon, by primary key (prepare and commit), against pypaimon from Parquet"
        return Comparison("paimon by key", title, contenders, claims, rows=self.bench.rows)

    def _with_another_name(self) -> None:
        """Rows are written again where a column of the table has another name: here the other case of letters."""
        schema = self.bench.table.schema
        self._paimon.create(TABLE, schema.set(1, schema.field(1).with_name(schema.names[1].upper())))

    def _plain(self, **options: Any) -> Contender:
        def create() -> None:
            self._paimon.create(TABLE, self.bench.table.schema, **options)

        def append() -> float:
            return float(self._paimon.ask("append_parquet", TABLE, folder=str(self.bench.source)))

        return self._contender(PLAIN, append, self._paimon.pid, create)

    def read(self, who: str) -> pa.Table:
        return self._paimon.rows(TABLE)
