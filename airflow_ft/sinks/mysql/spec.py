"""`MySqlSink`, with which a DAG author delivers into MySQL or MariaDB. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_key, shown
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
        columns: source column -> table column, naming every column that is written; a source column that is not named
            is not delivered. None: each source column goes into the table's column of the same name.
        ledger_schema: schema of the tables `airflow_ft_ledger` and `airflow_ft_head`; None: the connection's.
        allow_unsafe_durability: deliver although the server may forget commits that it acknowledged (a power cut can
            then lose or double rows); a warning is logged instead of an error.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well. Not with "upsert".

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    conn_id: str = "mysql_default"
    columns: Mapping[str, str] | None = None

    kind: ClassVar[str] = "mysql"
    default_branches: ClassVar[int] = 2
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES
    names: ClassVar[type[TableName]] = TableName

    def __post_init__(self) -> None:
        SqlSink.__post_init__(self)
        if self.columns is not None:
            _check_columns(self.columns)
        if self.strategy == "upsert":
            self._check_written()

    def _check_written(self) -> None:
        written = {target.lower() for target in self.columns.values()} if self.columns is not None else None
        keys = {key.lower() for key in self.key_columns}
        as_key = self.columns is None and (self.change_column or "").lower() in keys
        if len(keys) < len(self.key_columns) or as_key:
            raise ConfigurationError(
                "MySqlSink: key_columns and change_column name a column twice.",
                code="arguments_conflict",
                remedy="Name each column once.",
                arguments=["key_columns", "change_column"],
            )
        if written is not None and not keys <= written:
            lacking = sorted(keys - written)
            raise ConfigurationError(
                f"MySqlSink: columns leaves out the key {', '.join(lacking)}.",
                code="arguments_conflict",
                remedy=f"Map a column of the rows to {', '.join(lacking)} in columns.",
                arguments=["columns", "key_columns"],
            )
        if str(self.version_column).lower() in keys | (written or set()):
            raise ConfigurationError(
                f"the sink itself fills version_column {self.version_column!r}, and key_columns or columns has it too.",
                code="column_reserved",
                remedy="Name another column of the table as version_column.",
                column=str(self.version_column),
            )

    def settings(self) -> dict[str, Any]:
        return SqlSink.settings(self) | {"columns": dict(self.columns) if self.columns is not None else None}


def _check_columns(columns: object) -> None:
    def refused(what: str, remedy: str, code: str = "argument_invalid", **fields: Any) -> ConfigurationError:
        return ConfigurationError(f"MySqlSink: columns {what}.", code=code, remedy=remedy, argument="columns", **fields)

    if not isinstance(columns, Mapping) or not columns:
        remedy = 'Map columns of the rows to columns of the table: columns={"id": "order_id"}.'
        raise refused(f"is {shown(columns)}", remedy)
    seen: dict[str, str] = {}
    for source, target in columns.items():
        if not isinstance(source, str) or not source:
            what = f"maps {shown(source)}, which is not the name of a column"
            raise refused(what, "Name a column of the rows in its place.")
        check_key("columns", source)
        TableName.check("column (columns)", target)
        first = seen.setdefault(target.lower(), source)  # MySQL compares names of columns without case
        if first != source:
            what, remedy = f"maps both {first!r} and {source!r} to {target!r}", "Give each of them a column of its own."
            raise refused(what, remedy, "column_ambiguous", columns=[first, source])
