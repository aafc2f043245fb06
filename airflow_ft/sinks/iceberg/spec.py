"""What a DAG author writes to deliver into an Iceberg table. Imported at DAG parse, so it imports nothing heavy."""

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
    "commit": Strategy(
        Promise.ATOMIC, "one commit of the table, with the marker", "all at once, as a snapshot: this decides"
    )
}
PARTITION = re.compile(
    r"(?P<plain>\w+)|(?P<transform>identity|year|month|day|hour)\((?P<source>\w+)\)"
    r"|(?P<counted>bucket|truncate)\((?P<count>[1-9]\d{0,8}), ?(?P<column>\w+)\)"
)
"""A column, or a transform of one."""


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergSink(TableSink):
    """Rows of a pipeline into one Iceberg table.

    The rows of a checkpoint and the marker that proves them are one commit of the table (ATOMIC), which can carry the
    commit point.

    Args:
        table: "CONNECTION.NAMESPACE.TABLE": the Airflow connection of type `iceberg` that leads to the catalog, one or
            more levels of namespaces, and the table.
        partition_by: the columns, or transforms such as "day(at)" and "bucket(16, id)", that a table which is made
            here is partitioned by. A table that is there has its own.
        schema_evolution: columns that the table lacks are added to it. Else they are refused.
        file_bytes: files of the log under an eighth of it are put together.
        create: the first checkpoint of a pipeline creates a missing table, with the columns of the rows.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well.
        strategy: "commit", the only one.
        name: of the participant; tasks are named by it. "": made of the table. To be given where that contains Jinja.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    partition_by: Sequence[str] = ()
    schema_evolution: bool = False
    file_bytes: int = 128 << 20
    create: bool = True
    shared: bool = False
    strategy: str = "commit"
    name: str = ""

    meant: ClassVar[Mapping[str, str]] = IN_A_CATALOG
    kind: ClassVar[str] = "iceberg"
    promise: ClassVar[Promise] = STRATEGIES["commit"].promise

    def __post_init__(self) -> None:
        self._check_types()
        check_sink(self, "table", "orders")
        if self.strategy == "upsert":
            raise self._invalid(
                "strategy", "upsert", "Deliver changes as rows: the client pyiceberg writes no equality deletes."
            )
        if self.strategy not in STRATEGIES:
            raise self._invalid("strategy", self.strategy, 'Give strategy="commit", or leave it out.')
        if not is_late(self.table) and not re.fullmatch(r"[\w-]+(\.[\w-]+){2,}", self.table):
            raise self._invalid("table", self.table, 'Give connection, namespace and table: table="lake.shop.orders".')
        for one in self.partition_by:
            if not is_template(one) and not PARTITION.fullmatch(one):
                raise self._invalid("partition_by", one, 'Give a column, or a transform: "day(at)", "bucket(16, id)".')

    @property
    def catalog(self) -> str:
        """The Airflow connection that leads to the catalog."""
        return self.table.partition(".")[0]

    @property
    def identifier(self) -> tuple[str, ...]:
        """The table in its catalog: namespaces and name."""
        return tuple(self.table.split(".")[1:])
