"""What a DAG author writes to deliver into MySQL or MariaDB. Imported at DAG parse, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from airflow_ft.core.arguments import check_text, is_template
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import Promise
from airflow_ft.sinks.base.settings import refuse_unknown
from airflow_ft.sinks.mysql.naming import TableName, check_identifier
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "local": Strategy(
        Promise.ATOMIC, "one transaction with the marker, over all tables of the server", "all at once: this decides"
    ),
    "xa": Strategy(
        Promise.TWO_PHASE, "branches side by side, prepared before the decision", "branch by branch, in some moments"
    ),
    "parallel": Strategy(
        Promise.REDO, "transactions side by side, after the decision", "transaction by transaction, while they go on"
    ),
    "upsert": Strategy(
        Promise.IDEMPOTENT, "over those of the same key, in one transaction after the decision", "all at once"
    ),
}

BRANCHED = ("parallel", "xa")
DEFAULT_BRANCHES = 2
MAX_BRANCHES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MySqlSink:
    """Rows of a pipeline into one table of a MySQL (8.0 or later) or MariaDB (10.6 or later) server.

    Args:
        table: "orders" (in the connection's schema) or "shop.orders"; parts with odd characters in backticks. It must
            exist, as an InnoDB base table. May contain Jinja, which must be rendered before the plan is made.
        conn_id: the Airflow connection. All sinks of one connection are one participant: they commit together.
        strategy: how the rows of a checkpoint enter, and what that promises:

            - "local": marker and all rows of all tables of the server in one local transaction (ATOMIC).
            - "xa": rows are prepared in several branches before the decision, and only committed after it (TWO_PHASE).
            - "parallel": several local transactions side by side, after the decision (REDO).
            - "upsert": rows replace those of the same key, in one local transaction after the decision (IDEMPOTENT).

        branches: "xa" and "parallel" only: how many transactions at most, 1 to 32 (default 2); the largest of the
            connection's sinks counts. More than the server has cores is of no use.
        key_columns: "upsert" only: the table's columns of its primary (or only unique) key.
        version_column: "upsert" only: a BIGINT column of the table, which the sink fills with the checkpoint's number.
            Rows of a higher number are left alone.
        change_column: "upsert" only: the source column that tells the kind of change: "delete", "d" or "-D" deletes the
            row of that key; "insert", "update", "c", "u", "r" and the like put it there. It is not written. None: no
            deletes.
        columns: source column -> table column, naming every column that is written; a source column that is not named
            is not delivered. None: each source column goes into the table's column of the same name.
        ledger_schema: schema of the tables `airflow_ft_ledger` and `airflow_ft_head`; None: the connection's.
        allow_unsafe_durability: deliver although the server may forget commits that it acknowledged (a power cut can
            then lose or double rows); a warning is logged instead of an error.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    conn_id: str = "mysql_default"
    strategy: str = "local"
    columns: Mapping[str, str] | None = None
    ledger_schema: str | None = None
    allow_unsafe_durability: bool = False
    branches: int = 0
    key_columns: Sequence[str] = ()
    version_column: str | None = None
    change_column: str | None = None

    kind: ClassVar[str] = "mysql"

    def __post_init__(self) -> None:
        if not isinstance(self.conn_id, str) or not self.conn_id or self.conn_id != self.conn_id.strip():
            raise ConfigurationError(f"{self.conn_id!r} is not a connection id.", remedy="give conn_id= a name.")
        check_text("strategy", self.strategy, of="MySqlSink")
        if self.strategy not in STRATEGIES:
            raise ConfigurationError(
                f"MySqlSink has no strategy {self.strategy!r}.", remedy=f"available: {', '.join(sorted(STRATEGIES))}."
            )
        if not is_template(self.table):
            TableName.parse(self.table)
        if self.ledger_schema is not None and not is_template(self.ledger_schema):
            check_identifier("schema", self.ledger_schema)
        if not isinstance(self.allow_unsafe_durability, bool):
            raise ConfigurationError(
                f"allow_unsafe_durability is {self.allow_unsafe_durability!r}.", remedy="give True or False."
            )
        if self.columns is not None:
            _check_columns(self.columns)
        self._check_branches()
        self._check_keys()

    def _check_keys(self) -> None:
        given = {"key_columns": self.key_columns, "version_column": self.version_column}
        check_text("version_column", self.version_column, optional=True, of="MySqlSink")
        if self.strategy != "upsert":
            if wrong := [name for name, value in {**given, "change_column": self.change_column}.items() if value]:
                raise ConfigurationError(
                    f"{', '.join(wrong)} means nothing to strategy {self.strategy!r}.",
                    remedy="leave it out, or choose strategy 'upsert'.",
                )
            return
        if missing := [name for name, value in given.items() if not value]:
            raise ConfigurationError(
                f"strategy 'upsert' needs {' and '.join(missing)}.", remedy="name columns of the table."
            )
        if isinstance(self.key_columns, str) or not isinstance(self.key_columns, Sequence):
            raise ConfigurationError(f"key_columns is {self.key_columns!r}.", remedy="give a list of column names.")
        object.__setattr__(self, "key_columns", tuple(self.key_columns))  # a list would make the sink unhashable
        for column in (*self.key_columns, self.version_column):
            check_identifier("column", column)
        written = {target.lower() for target in self.columns.values()} if self.columns is not None else None
        if written is not None and not {key.lower() for key in self.key_columns} <= written:
            raise ConfigurationError("columns leaves out a key column.", remedy="name all of key_columns in it.")
        assert self.version_column is not None
        if self.version_column.lower() in {key.lower() for key in self.key_columns} | (written or set()):
            raise ConfigurationError(
                f"version_column {self.version_column!r} is filled by the sink itself.", remedy="name another column."
            )
        if self.change_column is not None and not isinstance(self.change_column, str):
            raise ConfigurationError(f"change_column is {self.change_column!r}.", remedy="give a source column's name.")

    def _check_branches(self) -> None:
        if self.strategy not in BRANCHED:
            if self.branches != 0:
                raise ConfigurationError(
                    f"branches={self.branches!r} means nothing to strategy {self.strategy!r}.",
                    remedy=f"leave it out, or choose one of {', '.join(BRANCHED)}.",
                )
            return
        if self.branches == 0:
            object.__setattr__(self, "branches", DEFAULT_BRANCHES)  # frozen: the usual way for a derived default
        if type(self.branches) is not int or not 1 <= self.branches <= MAX_BRANCHES:
            raise ConfigurationError(
                f"branches is {self.branches!r}.", remedy=f"give a whole number from 1 to {MAX_BRANCHES}."
            )

    @property
    def promise(self) -> Promise:
        """What the strategy can promise."""
        return STRATEGIES[self.strategy].promise

    def at_least_once(self) -> Promise:
        """The same: marker and rows are in one transaction, so its rows come once all the same."""
        if self.promise is Promise.TWO_PHASE:
            raise ConfigurationError(
                f"strategy {self.strategy!r} prepares rows for a decision, and with CheckpointingMode.AT_LEAST_ONCE"
                " there is none.",
                remedy="choose 'local' or 'parallel', or take EXACTLY_ONCE.",
            )
        return self.promise

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in a name."""
        for text in (self.table, self.ledger_schema):
            if text is not None and is_template(text):
                raise ConfigurationError(
                    f"{text!r} still contains Jinja.", remedy="render it before the plan is made (template fields)."
                )
        settings: dict[str, Any] = {
            "table": self.table,
            "columns": dict(self.columns) if self.columns is not None else None,
            "ledger_schema": self.ledger_schema,
            "allow_unsafe_durability": self.allow_unsafe_durability,
        }
        if self.strategy in BRANCHED:
            settings["branches"] = self.branches
        if self.strategy == "upsert":
            settings |= {
                "key_columns": list(self.key_columns),
                "version_column": self.version_column,
                "change_column": self.change_column,
            }
        return settings

    @classmethod
    def from_settings(cls, conn_id: str, strategy: str, settings: Mapping[str, Any]) -> MySqlSink:
        """The sink that a plan holds. ConfigurationError when the plan knows settings that this release does not."""
        refuse_unknown(settings, {field.name for field in fields(cls)} - {"conn_id", "strategy"})
        return cls(conn_id=conn_id, strategy=strategy, **settings)


def _check_columns(columns: object) -> None:
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigurationError(f"columns is {columns!r}.", remedy="map source columns to table columns, or leave it.")
    seen: dict[str, str] = {}
    for source, target in columns.items():
        if not isinstance(source, str) or not source:
            raise ConfigurationError(f"columns: {source!r} is not a source column.", remedy="give its name.")
        check_identifier("column", target)
        first = seen.setdefault(target.lower(), source)  # MySQL compares names of columns without case
        if first != source:
            raise ConfigurationError(
                f"columns: {first!r} and {source!r} both go into {target!r}.", remedy="give each a column of its own."
            )
