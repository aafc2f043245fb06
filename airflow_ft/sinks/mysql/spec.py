"""`MySqlSink`, with which a DAG author delivers into MySQL or MariaDB. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.sql_sink import SqlSink
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "local": Strategy(
        Promise.ATOMIC, "one transaction with the marker, over all tables of the server", "all at once: this decides"
    ),
    "xa": Strategy(
        Promise.TWO_PHASE,
        "branches side by side, prepared before the decision",
        "branch by branch, within moments",
        has_branches=True,
    ),
    "upsert": Strategy(
        Promise.IDEMPOTENT, "in place of rows with the same key, in one transaction after the decision", "all at once"
    ),
}


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlSink(SqlSink):
    """Rows of a pipeline into one table of a MySQL (8.0 or later) or MariaDB (10.6 or later) server.

    Args:
        table: "orders" (in the connection's schema) or "shop.orders"; parts with odd characters in backticks. It must
            exist, as an InnoDB base table. May contain Jinja, which must be rendered before the plan is made.
        conn_id: the Airflow connection. All sinks of one connection are one participant: they commit together.
        strategy: delivery of a checkpoint's rows, with its promise:

            - "local": marker and all rows of all tables of the server in one local transaction (ATOMIC).
            - "xa": rows are prepared in several branches before the decision, and only committed after it (TWO_PHASE).
            - "upsert": rows replace those of the same key, in one local transaction after the decision (IDEMPOTENT).

        branches: "xa" only: most branches, 1 to 32 (default 2); the largest of the connection's sinks counts. More
            than the server's cores are useless.
        key_columns: "upsert" only: the table's columns of its primary (or only unique) key.
        version_column: "upsert" only: a BIGINT column of the table, which the sink fills with the checkpoint's number.
            Rows of a higher number are left alone.
        change_column: "upsert" only: the source column with the kind of change. The values "delete", "d" and "-D"
            delete the row of that key. Values such as "insert", "update", "c", "u" and "r" write it. The column itself
            is not written. None: no deletes.
        ledger_schema: schema of the tables `airflow_ft_ledger` and `airflow_ft_head`; None: the connection's.
        allow_unsafe_durability: deliver although the server may forget commits that it acknowledged (a power cut can
            then lose or duplicate rows); a warning is logged instead of an error.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well. Not with "upsert".

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    conn_id: str = "mysql_default"

    kind: ClassVar[str] = "mysql"
    default_branches: ClassVar[int] = 2
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES
    names: ClassVar[type[TableName]] = TableName

    def __post_init__(self) -> None:
        SqlSink.__post_init__(self)
        keys = {key.lower() for key in self.key_columns}
        if len(keys) < len(self.key_columns) or (self.change_column or "").lower() in keys:
            raise ConfigurationError(
                "MySqlSink: key_columns and change_column name a column twice.",
                code="arguments_conflict",
                remedy="Name each column once.",
                arguments=["key_columns", "change_column"],
            )
        if str(self.version_column).lower() in keys:
            raise ConfigurationError(
                f"the sink itself fills version_column {self.version_column!r}, and key_columns has it too.",
                code="column_reserved",
                remedy="Name another column of the table as version_column.",
                column=str(self.version_column),
            )
