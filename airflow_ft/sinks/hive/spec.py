"""What a DAG author writes to deliver into a table of Hive. Imported at DAG parse, so it imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import is_template
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.places import check_sink, is_late
from airflow_ft.sinks.base.table_sink import IN_A_CATALOG, TableSink
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "partitions": Strategy(
        Promise.ATOMIC,
        "one request that adds all partitions, with the marker",
        "all at once, as new partitions: this decides",
    )
}
FORMATS = ("parquet", "orc")
KEY = "airflow_ft"
"""The partition column by which deliveries differ. Each table has it."""


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class HiveSink(TableSink):
    """Rows of a pipeline into one partitioned table of a Hive metastore, as Parquet or ORC files.

    The rows of a checkpoint become new partitions. One request adds all of them, and the marker that proves them
    (ATOMIC), so it can carry the commit point.

    Args:
        table: "CONNECTION.SCHEMA.TABLE": the Airflow connection of type `hive_metastore`, the schema and the table.
        partition_by: the columns that a table which is made here is partitioned by, before the column `airflow_ft`.
            A table that is there has its own.
        format: "parquet" or "orc", of the files of a table that is made here. "": "parquet", or that of a table that is
            there.
        file_bytes: files of the log under an eighth of it are put together.
        create: the first checkpoint of a pipeline makes the table, if it is lacking, with the columns of the rows.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well.
        aws_conn_id: the Airflow connection of type `aws` that reaches a table in a bucket. "": keys of the environment.
        strategy: "partitions", the only one.
        name: of the participant; tasks are named by it. "": made of the table. To be given where that contains Jinja.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    partition_by: Sequence[str] = ()
    format: str = ""
    file_bytes: int = 128 << 20
    create: bool = True
    shared: bool = False
    aws_conn_id: str = ""
    strategy: str = "partitions"
    name: str = ""

    meant: ClassVar[Mapping[str, str]] = IN_A_CATALOG
    kind: ClassVar[str] = "hive"
    promise: ClassVar[Promise] = STRATEGIES["partitions"].promise

    def __post_init__(self) -> None:
        self._check_types()
        check_sink(self, "table", "orders")
        if self.strategy not in STRATEGIES:
            raise self._invalid("strategy", self.strategy, 'Give strategy="partitions", or leave it out.')
        if self.format not in ("", *FORMATS):
            raise self._invalid("format", self.format, 'Give format="parquet" or format="orc".')
        if not is_late(self.table) and not re.fullmatch(r"[\w-]+\.[A-Za-z0-9_]+\.[A-Za-z0-9_]+", self.table):
            raise self._invalid(
                "table", self.table, 'Give connection, schema and table: table="metastore.shop.orders".'
            )
        if not re.fullmatch(r"[\w.-]*", self.aws_conn_id):
            raise self._invalid("aws_conn_id", self.aws_conn_id, 'Give the id of a connection: aws_conn_id="lake".')
        for one in self.partition_by:
            if not is_template(one) and (not re.fullmatch(r"[A-Za-z0-9_]+", one) or one.lower() == KEY):
                raise self._invalid("partition_by", one, f"Give a column of the rows other than {KEY}, which is added.")

    @property
    def metastore(self) -> str:
        """The Airflow connection that leads to the metastore."""
        return self.table.partition(".")[0]

    @property
    def identifier(self) -> tuple[str, str]:
        """Schema and table, as the metastore has them: in lower case."""
        _, schema, table = self.table.lower().split(".")
        return schema, table
