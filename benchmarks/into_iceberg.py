"""WAL -> Iceberg: the sink against pyiceberg's own writer from the same Parquet files, in a SQL catalog on disk."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.into_folder import IntoFolder
from benchmarks.measuring import Claim, Comparison

PLAIN = "pyiceberg append"


def iceberg(bench: Bench) -> list[Comparison]:
    """All contenders; each run makes a catalog of its own."""
    into = IntoIceberg(bench)
    return into.with_cpu(into.comparison())


class IntoIceberg(IntoFolder):
    """A table and its contenders."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, "iceberg")
        self._appending = bench.servers.worker("benchmarks.iceberg_appending")

    @property
    def _extra(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.path}/catalog.db", "warehouse": self.path.as_uri()}

    def comparison(self) -> Comparison:
        """Files of the log as they are, rows written again, and a plain append of what is in Parquet files."""
        from airflow_ft.sinks.iceberg.spec import IcebergSink

        contenders = [
            self.ours("adopted", IcebergSink(table="lake.shop.orders"), self._made),
            self.ours("written again", IcebergSink(table="lake.shop.orders", create=False), self._with_another_name),
            self._contender(
                PLAIN, self._append, self._appending.pid, prepared=lambda: self._made(self.bench.table.schema)
            ),
        ]
        claims = [
            Claim("WAL -> Iceberg, `adopted` against pyiceberg's append", "adopted", (PLAIN,), 3),
            Claim("WAL -> Iceberg, `written again` against pyiceberg's append", "written again", (PLAIN,), 0.9),
        ]
        title = "WAL -> Iceberg, committed (prepare and commit), against pyiceberg from Parquet"
        return Comparison("iceberg", title, contenders, claims, rows=self.bench.rows)

    def _made(self, schema: pa.Schema | None = None) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with closing(self._catalog()) as catalog:
            catalog.create_namespace("shop")
            if schema is not None:
                catalog.create_table("shop.orders", schema)

    def _with_another_name(self) -> None:
        """Rows are written again where a column of the table has another name: here the other case of letters."""
        schema = self.bench.table.schema
        self._made(schema.set(1, schema.field(1).with_name(schema.names[1].upper())))

    def _append(self) -> float:
        answer = self._appending.ask("append", source=str(self.bench.source), properties=self._extra)
        seconds: float = answer["seconds"]
        return seconds

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog("lake", **self._extra)

    def _job(self, sink: Any) -> dict[str, Any]:
        connection = {"conn_id": "lake", "conn_type": "iceberg", "extra": self._extra}
        return {**super()._job(sink), "connection": connection}

    def read(self, who: str) -> pa.Table:
        with closing(self._catalog()) as catalog:
            found: pa.Table = catalog.load_table("shop.orders").scan().to_arrow()
            return found
