"""WAL -> files: the sink, in each format, against Spark's own writers, and against PyArrow's."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import json

from benchmarks.bench import Bench
from benchmarks.into_folder import IntoFolder
from benchmarks.measuring import Claim, Comparison

SPARK, PLAIN = "Spark, Parquet", "PyArrow, Parquet"


def files(bench: Bench) -> list[Comparison]:
    """All contenders; each run makes a folder of its own."""
    into = IntoFiles(bench)
    return into.with_cpu(into.comparison())


class IntoFiles(IntoFolder):
    """A folder and its contenders."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench, "files", "benchmarks.sparking")

    def comparison(self) -> Comparison:
        """Files of the log as they are, rows written anew, and those who write from Parquet."""
        from airflow_ft.sinks.files.spec import FilesSink

        folder = str(self.path)
        contenders = [
            self.ours("adopted", FilesSink(folder=folder)),
            self.ours("written anew", FilesSink(folder=folder, compression="snappy")),
            self.ours("CSV", FilesSink(folder=folder, format="csv")),
            self.ours("JSON", FilesSink(folder=folder, format="json")),
            self.spark(SPARK, "files", format="parquet"),
            self.spark("Spark, CSV", "files", format="csv"),
            self.spark("Spark, JSON", "files", format="json"),
            self.plain(PLAIN, self._write),
        ]
        claims = [
            Claim("WAL -> files, Parquet as it is against Spark's writer", "adopted", (SPARK,), 2),
            Claim("WAL -> files, Parquet written anew against Spark's writer", "written anew", (SPARK,), None),
            Claim("WAL -> files, CSV against Spark's writer", "CSV", ("Spark, CSV",), None),
            Claim("WAL -> files, JSON against Spark's writer", "JSON", ("Spark, JSON",), None),
        ]
        title = "WAL -> files, visible (prepare and commit), against writers from Parquet"
        return Comparison("files", title, contenders, claims, rows=self.bench.rows)

    def _write(self) -> None:
        self.path.mkdir()
        pq.write_table(self.bench.table, self.path / "part.parquet")

    def read(self, who: str) -> pa.Table:
        """PyArrow takes times without a zone in texts for what they are: the rows' own types are given."""
        schema = self.bench.table.schema
        found = sorted(each for each in self.path.rglob("part*") if not any(map(_is_hidden, each.parts)))
        if "JSON" in who:
            # A dataset of large files stands still (PyArrow 26.0); columns come in the order in which they end.
            return pa.concat_tables([json.read_json(each).select(schema.names) for each in found])
        if "CSV" in who:
            return _csv(found, schema, header="Spark" not in who)
        return ds.dataset(found, format="parquet").to_table()


def _is_hidden(part: str) -> bool:
    return part[0] in "._"


def _csv(found: list[Path], schema: pa.Schema, *, header: bool) -> pa.Table:
    import pyarrow.csv as pc_csv

    named = pc_csv.ReadOptions(column_names=schema.names, skip_rows=int(header))
    parts = [pc_csv.read_csv(each, named, convert_options=pc_csv.ConvertOptions(column_types=schema)) for each in found]
    return pa.concat_tables(parts)
