"""A table that is not there yet, in a Hive metastore, and a reader that asks the metastore for its files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ft import HiveSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.hive.memory import is_memory
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.spec import KEY
from airflow_ft.sinks.hive.table import path_of
from airflow_ft.sinks.hive.thrift import API
from airflow_ft.testing.world import Target
from tools.servers import Hive

TYPES = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(), "date": pa.date32()}
FORMAT = "org.apache.hadoop.hive.ql.io.parquet"


def storage(columns: dict[str, str], **settings: Any) -> Any:
    """Return what a table says of its files."""
    return API.StorageDescriptor(
        cols=[API.FieldSchema(name=name, type=type_) for name, type_ in columns.items()],
        outputFormat=f"{FORMAT}.MapredParquetOutputFormat", compressed=False,
        serdeInfo=API.SerDeInfo(serializationLib=f"{FORMAT}.serde.ParquetHiveSerDe", parameters={}), parameters={},
        **{"numBuckets": -1, "bucketCols": [], "sortCols": [], "inputFormat": f"{FORMAT}.MapredParquetInputFormat"}
        | settings,
    )  # fmt: skip


class Table(Target):
    """Read file by file."""

    texts = 16

    def __init__(self, server: Hive, **settings: Any) -> None:
        self.server, self.space = server, f"s{uuid.uuid4().hex[:8]}"
        self.connection = ConnectionInfo("metastore", "hive_metastore", host=server.host, port=server.port)
        self.sink: HiveSink = HiveSink(table=f"metastore.{self.space}.orders", **{"name": "orders", **settings})

    def fresh(self) -> Table:
        """One that is made."""
        other = copy(self)
        other.sink = replace(self.sink, table=f"metastore.{self.space}.orders_{uuid.uuid4().hex[:8]}")
        return other

    def beside(self, name: str, **settings: Any) -> HiveSink:
        """A sink into another table of the same schema."""
        return HiveSink(table=f"metastore.{self.space}.{name}", name=self.sink.name, **settings)

    @contextmanager
    def opened(self, name: str = "") -> Iterator[Connected]:
        schema, table = self.sink.identifier
        with closing(Connected(self.connection, (schema, name or table))) as place:
            yield place

    def make(
        self, columns: dict[str, str], keys: dict[str, str], name: str = "", parameters: dict[str, str] | None = None,
        kind: str = "EXTERNAL_TABLE", **settings: Any,
    ) -> None:  # fmt: skip
        """As somebody else does."""
        with self.opened(name) as place:
            with suppress(API.AlreadyExistsException):
                place.client.create_database(API.Database(name=self.space, parameters={}))
            made = API.Table(
                tableName=place.identifier[1], dbName=self.space, owner="other", createTime=0, lastAccessTime=0,
                retention=0, sd=storage(columns, **settings), tableType=kind,
                partitionKeys=[API.FieldSchema(name=key, type=type_) for key, type_ in keys.items()],
                parameters={"EXTERNAL": "TRUE" if kind == "EXTERNAL_TABLE" else "FALSE", **(parameters or {})},
            )  # fmt: skip
            place.client.create_table(made)

    def partitions(self, name: str = "", *, memory: bool = False) -> list[dict[str, Any]]:
        """Values and folder of each partition; with `memory` of those without rows."""
        with self.opened(name) as place:
            table = place.table()
            if table is None:
                return []
            keys = [key.name for key in table.partitionKeys]
            found = []
            for part in place.partitions(place.client.get_partition_names(*place.identifier, -1)):
                values = dict(zip(keys, part.values, strict=True))
                if is_memory(values[KEY]) == memory:
                    found.append({**values, "folder": Path(path_of(part.sd.location)), "parameters": part.parameters})
            return found

    def files(self, name: str = "") -> list[Path]:
        return [file for part in self.partitions(name) for file in sorted(part["folder"].glob("*.parquet"))]

    def read(self, name: str = "") -> list[dict[str, Any]]:
        """All rows that a reader sees, with the columns of partitions."""
        with self.opened(name) as place:
            table = place.table()
            types = {key.name: key.type for key in table.partitionKeys if key.name != KEY} if table else {}
        rows: list[dict[str, Any]] = []
        for part in self.partitions(name):
            for file in sorted(part["folder"].glob("*.parquet")):
                read = pq.ParquetFile(file).read()
                for key, type_ in types.items():
                    text = None if part[key] == "__HIVE_DEFAULT_PARTITION__" else part[key]
                    read = read.append_column(key, pa.array([text] * len(read), pa.string()).cast(TYPES[type_]))
                rows += read.to_pylist()
        return rows

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.read())

    def plant(self, what: str, id: int) -> int:
        for file in self.files():
            read = pq.ParquetFile(file).read()
            at = next((index for index, each in enumerate(read["id"].to_pylist()) if each == id), None)
            if at is None:
                continue
            if what == "loss":
                changed = pa.concat_tables([read.slice(0, at), read.slice(at + 1)])
            elif what == "double":
                changed = pa.concat_tables([read, read.slice(at, 1)])
            elif "text" in read.column_names:
                texts = read["text"].to_pylist()
                texts[at] = "changed"
                changed = read.set_column(read.column_names.index("text"), "text", pa.array(texts, pa.string()))
            else:
                return 0
            file.unlink()  # the log's file may be the same
            pq.write_table(changed, file)
            return 1
        return 0
