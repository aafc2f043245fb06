"""A table that is not there yet, in a Hive metastore, and a reader that asks the metastore for its files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from airflow_ft import HiveSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.hive.formats import CLASSES
from airflow_ft.sinks.hive.memory import is_memory
from airflow_ft.sinks.hive.metastore import Connected
from airflow_ft.sinks.hive.spec import KEY
from airflow_ft.sinks.hive.table import path_of
from airflow_ft.sinks.hive.thrift import API
from airflow_ft.testing.world import Target
from airflow_ft.wal.filesystem import filesystem
from tools.servers import Hive

TYPES = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "boolean": pa.bool_(), "date": pa.date32()}
MICROS = pa.timestamp("us", "UTC")


def storage(columns: dict[str, str], format: str = "parquet", **settings: Any) -> Any:
    """Return what a table says of its files."""
    classes, serde = CLASSES[format]
    return API.StorageDescriptor(
        cols=[API.FieldSchema(name=name, type=type_) for name, type_ in columns.items()],
        outputFormat=f"{classes}OutputFormat", compressed=False,
        serdeInfo=API.SerDeInfo(serializationLib=serde, parameters={}), parameters={},
        **{"numBuckets": -1, "bucketCols": [], "sortCols": [], "inputFormat": f"{classes}InputFormat"}
        | settings,
    )  # fmt: skip


def read_file(uri: str) -> pa.Table:
    """Return the rows of a file, by the reader of its format."""
    with filesystem(uri).open(uri) as source:
        if not uri.endswith(".orc"):
            return pq.ParquetFile(source).read()
        read = orc.ORCFile(source).read()
    micros = [field.with_type(MICROS) if field.type == pa.timestamp("ns", "UTC") else field for field in read.schema]
    return read.cast(pa.schema(micros))


def write_file(table: pa.Table, uri: str) -> None:
    """Write rows in the place of a file."""
    files = filesystem(uri)
    files.remove(uri)  # the log's file may be the same
    with files.create(uri) as out:
        orc.write_table(table, out) if uri.endswith(".orc") else pq.write_table(table, out)


class Table(Target):
    """Read file by file. `location`: of the schema, elsewhere than in the metastore's warehouse."""

    texts = 16

    def __init__(self, server: Hive, location: str = "", **settings: Any) -> None:
        self.server, self.space = server, f"s{uuid.uuid4().hex[:8]}"
        self.connection = ConnectionInfo("metastore", "hive_metastore", host=server.host, port=server.port)
        self.sink: HiveSink = HiveSink(table=f"metastore.{self.space}.orders", **{"name": "orders", **settings})

        if location:
            with self.opened() as place:
                made = API.Database(name=self.space, locationUri=f"{location}/{self.space}", parameters={})
                place.client.create_database(made)

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
        place = Connected(self.connection, (schema, name or table), aws_conn_id=self.sink.aws_conn_id)
        with closing(place):
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
                    folder = path_of(part.sd.location, self.sink.aws_conn_id)
                    found.append({**values, "folder": folder, "parameters": part.parameters})
            return found

    def files(self, name: str = "") -> list[str]:
        """The URI of each file with rows."""
        return [file for part in self.partitions(name) for file in _files_of(part)]

    def read(self, name: str = "") -> list[dict[str, Any]]:
        """All rows that a reader sees, with the columns of partitions."""
        with self.opened(name) as place:
            table = place.table()
            types = {key.name: key.type for key in table.partitionKeys if key.name != KEY} if table else {}
        rows: list[dict[str, Any]] = []
        for part in self.partitions(name):
            for file in _files_of(part):
                read = read_file(file)
                for key, type_ in types.items():
                    text = None if part[key] == "__HIVE_DEFAULT_PARTITION__" else part[key]
                    read = read.append_column(key, pa.array([text] * len(read), pa.string()).cast(TYPES[type_]))
                rows += read.to_pylist()
        return rows

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.read())

    def plant(self, what: str, id: int) -> int:
        for file in self.files():
            read = read_file(file)
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
            write_file(changed, file)
            return 1
        return 0


def _files_of(part: dict[str, Any]) -> list[str]:
    files = filesystem(part["folder"])
    return [files.uri(part["folder"], name) for name in sorted(files.names(part["folder"])) if name.startswith("part")]
