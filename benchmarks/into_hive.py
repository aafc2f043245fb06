"""WAL -> Hive: the sink against Spark's `INSERT INTO` of the same rows, through a metastore of Hive 3."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from benchmarks.bench import Bench
from benchmarks.into_folder import IntoFolder
from benchmarks.measuring import Claim, Comparison, Contender

SPARK, SPARK_ORC = "Spark, INSERT INTO", "Spark, INSERT INTO, ORC"


def hive(bench: Bench) -> list[Comparison]:
    """All contenders; each run makes a schema of its own."""
    into = IntoHive(bench)
    return into.with_cpu(into.comparison())


class IntoHive(IntoFolder):
    """A table and its contenders."""

    def __init__(self, bench: Bench) -> None:
        from tools.servers import Hive3

        super().__init__(bench, "hive", "benchmarks.hive_sparking")
        self._server = bench.stack.enter_context(Hive3(bench.servers.folder / "hive3"))

    def comparison(self) -> Comparison:
        """Files of the log as they are, rows written again as ORC, and Spark, which writes from Parquet."""
        contenders = [
            self._sink("adopted", "parquet"),
            self._sink("ORC", "orc"),
            self._insert(SPARK, "parquet"),
            self._insert(SPARK_ORC, "orc"),
        ]
        claims = [
            Claim("WAL -> Hive, `adopted` against Spark's INSERT INTO", "adopted", (SPARK,), 2),
            Claim("WAL -> Hive, ORC against Spark's INSERT INTO", "ORC", (SPARK_ORC,), None),
        ]
        title = "WAL -> Hive, committed (prepare and commit), against Spark from Parquet"
        return Comparison("hive", title, contenders, claims, rows=self.bench.rows)

    def _sink(self, name: str, format: str) -> Contender:
        from airflow_ft.sinks.hive.spec import HiveSink

        def deliver() -> float:
            sink = HiveSink(table=f"metastore.{self._schema()}.orders", format=format, name="orders")
            seconds: float = self._worker.ask("deliver", **self._job(sink))["seconds"]
            return seconds

        return self._contender(name, deliver, self._worker.pid)

    def _insert(self, name: str, format: str) -> Contender:
        worker = self._spark_worker
        assert worker is not None

        def insert() -> float:
            table, source = f"{self._schema()}.orders", str(self.bench.source)
            answer = worker.ask("insert", source=source, port=self._server.port, table=table, format=format)
            seconds: float = answer["seconds"]
            return seconds

        return self._contender(name, insert, worker.pid)

    def _schema(self) -> str:
        """A new schema, whose tables lie in the folder."""
        from airflow_ft.protocol.connections import ConnectionInfo
        from airflow_ft.sinks.hive.metastore import Connected
        from airflow_ft.sinks.hive.thrift import API

        self.path.mkdir()
        self.path.chmod(0o777)  # the metastore runs as somebody else
        name = f"shop_{next(self.bench.servers.numbers)}"
        with closing(Connected(ConnectionInfo(**self._connection), ("", ""))) as place:
            place.client.create_database(API.Database(name=name, locationUri=self.path.as_uri(), parameters={}))
        return name

    @property
    def _connection(self) -> dict[str, Any]:
        where = {"host": self._server.host, "port": self._server.port}
        return {"conn_id": "metastore", "conn_type": "hive_metastore", **where}

    def _job(self, sink: Any) -> dict[str, Any]:
        return {**super()._job(sink), "connection": self._connection}

    def read(self, who: str) -> pa.Table:
        found = [each for each in sorted(self.path.rglob("part-*")) if each.is_file()]
        if "ORC" in who:
            return pa.concat_tables([orc.read_table(each) for each in found])
        return pa.concat_tables([pq.ParquetFile(each).read() for each in found])
