"""What a DAG author writes to deliver into a Delta table. Imported at DAG parse, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.places import (
    check_bucket,
    check_path,
    check_sink,
    is_late,
    is_object_store,
    path_of,
    unusable,
)
from airflow_ft.sinks.base.table_sink import TableSink
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "commit": Strategy(
        Promise.ATOMIC, "one commit of the table's log, with the marker", "all at once, as a version: this decides"
    )
}


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink(TableSink):
    """Rows of a pipeline into one Delta table. No Airflow connection is needed on disk.

    The rows of a checkpoint and the marker that proves them are one commit of the table's log (ATOMIC), which can carry
    the commit point.

    Args:
        table: the table's folder: an absolute path, or a `file:///` URI, which all tasks reach under that name; or
            `s3://BUCKET/FOLDER`, as `s3://CONNECTION@BUCKET/FOLDER` with an Airflow connection of type `aws`.
        partition_by: the columns that a table which is made here is partitioned by. A table that is there has its own.
        schema_evolution: columns that the table lacks are added to it. Else they are refused.
        file_bytes: a file is ended when it has become that large. Files of the log under an eighth of it are put
            together.
        create: the first checkpoint of a pipeline creates a missing table, with the columns of the rows.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well.
        name: of the participant; tasks are named by it. "": made of the folder. To be given where that contains Jinja.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    partition_by: Sequence[str] = ()
    schema_evolution: bool = False
    file_bytes: int = 128 << 20
    create: bool = True
    shared: bool = False
    name: str = ""

    meant: ClassVar[Mapping[str, str]] = {
        "conn_id": 'Remove conn_id. Only a table in S3 has a connection: table="s3://CONNECTION@BUCKET/FOLDER".'
    }
    kind: ClassVar[str] = "delta"
    strategy: ClassVar[str] = "commit"
    promise: ClassVar[Promise] = STRATEGIES["commit"].promise

    def __post_init__(self) -> None:
        self._check_types()
        check_sink(self, "table", "orders")
        if not is_late(self.table):
            self._check_table()

    def _check_table(self) -> None:
        if is_object_store(self.table):
            check_bucket(self.table, r"[\w.=+-]+")
            return
        remedy = (
            "Give an absolute path or a file:/// URI of a file system that all tasks have mounted, or"
            " s3://BUCKET/FOLDER. For HDFS, use FilesSink, which delivers Parquet there."
        )
        check_path(self, remedy)
        if unquote(str(self.path)) != str(self.path):
            what = "has a '%' that delta-rs decodes, with the two digits after it"
            raise unusable(self, what, "Choose a folder without such a '%'.")
        if self.path == Path("/"):
            raise unusable(self, "is the root of a file system", "Give a folder below it.")

    @property
    def path(self) -> Path:
        """The table's folder, on disk."""
        return path_of(self.table)
