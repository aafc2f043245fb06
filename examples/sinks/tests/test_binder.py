import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values
from binder_for_airflow import BinderSink


class BinderFolder(Target):
    adopts = True  # files of the log become the binder's
    row_files = "*.parquet"

    def __init__(self, folder):
        self.folder = folder / "binders"
        self.path = self.folder / "orders"
        (self.path / "versions").mkdir(parents=True)
        columns = [["id", "bigint", True], ["text", "string", False]]  # the texts are NOT NULL
        self.write(1, {"columns": columns, "files": [], "documents": {}})
        self.sink = BinderSink(table=str(self.path))
        self.connection = ConnectionInfo(self.sink.participant, "")
        self.refused = pa.table({"id": [1, 2, 3], "text": ["a", None, "c"]})
        self.taken = (1, 3)

    def write(self, number, content):
        (self.path / "versions" / f"{number:010}.json").write_text(json.dumps(content))

    def newest(self, path):
        versions = sorted(path.glob("versions/*.json"))
        return json.loads(versions[-1].read_text()) if versions else {"columns": [], "files": []}

    def rows(self, path):
        content = self.newest(path)
        found = [row for name in content["files"] for row in pq.ParquetFile(path / name).read().to_pylist()]
        return [{name: row.get(name) for name, _, _ in content["columns"]} for row in found]

    def ids(self):
        return sorted(row["id"] for row in self.rows(self.path))

    def plant(self, what, id):
        content, rows = self.newest(self.path), []
        for row in self.rows(self.path):
            if row["id"] != id:
                rows.append(row)
            elif what != "loss":
                rows += [row, row] if what == "double" else [row | {"text": "changed"}]
        pq.write_table(pa.Table.from_pylist(rows), self.path / "planted.parquet")
        self.write(len(list(self.path.glob("versions/*.json"))) + 1, content | {"files": ["planted.parquet"]})
        return 1

    def drop(self):
        shutil.rmtree(self.path)
        return True

    def bag(self):
        path = self.folder / "bag"
        sink = replace(self.sink, table=str(path), schema_evolution=True)
        return Bag(sink, lambda: [(row["id"], row["text"], row.get("note")) for row in self.rows(path)])

    def values(self):
        path = self.folder / "kinds"
        return Values(
            sink=replace(self.sink, table=str(path)),
            columns={
                "big": pa.array([-(2**63), 0, 2**63 - 1, None]),
                "ratio": pa.array([5e-324, float("inf"), float("nan"), None]),
                "words": pa.array(["", "it's \N{SNOWMAN} ", None]),
                "data": pa.array([b"", b"\x00\xff", None]),
            },
            read=lambda: self.rows(path),
            refused={"unsigned": ("big", pa.array([1], pa.uint32()))},
        )

    def mistaken(self):
        (self.folder / "file").write_text("no folder")
        other = self.folder / "other"
        other.mkdir()
        (other / "x.csv").touch()
        sinks = {
            "no folder": replace(self.sink, table=str(self.folder / "file")),
            "no binder": replace(self.sink, table=str(self.folder / "missing"), create=False),
            "another folder": replace(self.sink, table=str(other)),
        }
        return {name: (sink, self.connection) for name, sink in sinks.items()}


class TestBinder(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path):
        return BinderFolder(tmp_path)
