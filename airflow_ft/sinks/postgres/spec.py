"""`PostgresSink`, with which a DAG author delivers into PostgreSQL. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.sql_sink import SqlSink
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "local": Strategy(
        Promise.ATOMIC, "one transaction with the marker, over all tables of the database", "all at once: this decides"
    ),
    "prepared": Strategy(
        Promise.TWO_PHASE,
        "branches side by side, prepared before the decision",
        "branch by branch, within moments; one branch all at once",
        has_branches=True,
    ),
    "upsert": Strategy(
        Promise.IDEMPOTENT, "in place of rows with the same key, in one transaction after the decision", "all at once"
    ),
}


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink(SqlSink):
    """Rows of a pipeline into one table of a PostgreSQL database (12 or later).

    Args:
        table: "orders" (found by the connection's search path) or "shop.orders"; parts with odd characters in double
            quotes. It must exist. May contain Jinja, which must be rendered before the plan is made.
        conn_id: the Airflow connection. All sinks of one connection are one participant: they commit together.
        strategy: delivery of a checkpoint's rows, with its promise:

            - "local": marker and all rows of all tables in one transaction (ATOMIC).
            - "prepared": rows are prepared in one or several branches before the decision (PREPARE TRANSACTION), and
              only committed after it (TWO_PHASE). The server needs max_prepared_transactions > 0.
            - "upsert": rows replace those of the same key, in one transaction after the decision (IDEMPOTENT).

        branches: "prepared" only: most branches, 1 to 32 (default 1); the largest of the connection's sinks counts.
            More than the server's cores are useless. The server needs max_prepared_transactions of at least twice
            as many.
        key_columns: "upsert" only: the table's columns of a unique key without NULL.
        version_column: "upsert" only: a bigint column of the table, which the sink fills with the checkpoint's number.
            Rows of a higher number are left alone.
        change_column: "upsert" only: the source column with the kind of change. The values "delete", "d" and "-D"
            delete the row of that key. Values such as "insert", "update", "c", "u" and "r" write it. The column itself
            is not written. None: no deletes.
        ledger_schema: schema of the tables `airflow_ft_ledger` and `airflow_ft_head`; None: the first of the search
            path.
        allow_unsafe_durability: deliver although the server may forget commits that it acknowledged (a crash can then
            lose or duplicate rows); a warning is logged instead of an error.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well. Not with "upsert".

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    conn_id: str = "postgres_default"

    kind: ClassVar[str] = "postgres"
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES
    names: ClassVar[type[TableName]] = TableName

    def __post_init__(self) -> None:
        SqlSink.__post_init__(self)
        if self.change_column is not None:
            TableName.check("column", self.change_column)
        named = [each for each in (*self.key_columns, self.version_column, self.change_column) if each is not None]
        if len(set(named)) < len(named):
            raise ConfigurationError(
                "key_columns, version_column and change_column of PostgresSink name a column twice:"
                f" {', '.join(sorted({each for each in named if named.count(each) > 1}))}.",
                code="arguments_conflict",
                remedy="Name each column once.",
                arguments=["key_columns", "version_column", "change_column"],
            )
