"""What a DAG author writes to deliver into PostgreSQL. Imported at DAG parse, so it imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from airflow_ft.core.arguments import check_text, check_texts, check_type, is_resolved_later, is_template
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import Promise
from airflow_ft.sinks.base.settings import refuse_unknown
from airflow_ft.sinks.postgres.naming import TableName, check_name
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "local": Strategy(
        Promise.ATOMIC, "one transaction with the marker, over all tables of the database", "all at once: this decides"
    ),
    "prepared": Strategy(
        Promise.TWO_PHASE, "a transaction that is prepared before the decision", "all at once, after the decision"
    ),
    "upsert": Strategy(
        Promise.IDEMPOTENT, "over those of the same key, in one transaction after the decision", "all at once"
    ),
}

_OF = "PostgresSink"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink:
    """Rows of a pipeline into one table of a PostgreSQL database (12 or later).

    Args:
        table: "orders" (found by the connection's search path) or "shop.orders"; parts with odd characters in double
            quotes. It must exist. May contain Jinja, which must be rendered before the plan is made.
        conn_id: the Airflow connection. All sinks of one connection are one participant: they commit together.
        strategy: how the rows of a checkpoint enter, and what that promises:

            - "local": marker and all rows of all tables in one transaction (ATOMIC).
            - "prepared": rows are prepared before the decision (PREPARE TRANSACTION), and only committed after it
              (TWO_PHASE). The server needs max_prepared_transactions > 0.
            - "upsert": rows replace those of the same key, in one transaction after the decision (IDEMPOTENT).

        key_columns: "upsert" only: the table's columns of a unique key without NULL.
        version_column: "upsert" only: a bigint column of the table, which the sink fills with the checkpoint's number.
            Rows of a higher number are left alone.
        change_column: "upsert" only: the source column that tells the kind of change: "delete", "d" or "-D" deletes the
            row of that key; "insert", "update", "c", "u", "r" and the like put it there. It is not written. None: no
            deletes.
        ledger_schema: schema of the tables `airflow_ft_ledger` and `airflow_ft_head`; None: the first of the search
            path.
        allow_unsafe_durability: deliver although the server may forget commits that it acknowledged (a crash can then
            lose or double rows); a warning is logged instead of an error.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    conn_id: str = "postgres_default"
    strategy: str = "local"
    ledger_schema: str | None = None
    allow_unsafe_durability: bool = False
    key_columns: Sequence[str] = ()
    version_column: str | None = None
    change_column: str | None = None

    kind: ClassVar[str] = "postgres"

    def __post_init__(self) -> None:
        for name in ("table", "conn_id", "strategy"):
            check_text(name, getattr(self, name), of=_OF)
        check_text("ledger_schema", self.ledger_schema, optional=True, of=_OF)
        check_type("allow_unsafe_durability", self.allow_unsafe_durability, bool, "give True or False.", of=_OF)
        if not self.conn_id or self.conn_id != self.conn_id.strip():
            raise ConfigurationError(f"{self.conn_id!r} is not a connection id.", remedy="give conn_id= a name.")
        if self.strategy not in STRATEGIES:
            raise ConfigurationError(
                f"{_OF} has no strategy {self.strategy!r}.", remedy=f"available: {', '.join(sorted(STRATEGIES))}."
            )
        is_known = not is_template(self.table) and not is_resolved_later(self.table)
        if is_known and TableName.parse(self.table).name.startswith("airflow_ft_"):
            raise ConfigurationError(
                f"{self.table!r} is no name for a table of rows: this sink keeps its own under such names.",
                remedy="choose another one.",
            )
        if self.ledger_schema is not None and not is_template(self.ledger_schema):
            check_name("schema", self.ledger_schema)
        self._check_keys()

    def _check_keys(self) -> None:
        check_texts("key_columns", self.key_columns, of=_OF)
        object.__setattr__(self, "key_columns", tuple(self.key_columns))  # a list would make the sink unhashable
        for name in ("version_column", "change_column"):
            check_text(name, getattr(self, name), optional=True, of=_OF)
        given = {name: getattr(self, name) for name in ("key_columns", "version_column", "change_column")}
        if self.strategy != "upsert":
            if wrong := [name for name, value in given.items() if value]:
                raise ConfigurationError(
                    f"{', '.join(wrong)} means nothing to strategy {self.strategy!r}.",
                    remedy="leave it out, or choose strategy 'upsert'.",
                )
            return
        if missing := [name for name in ("key_columns", "version_column") if not given[name]]:
            raise ConfigurationError(
                f"strategy 'upsert' needs {' and '.join(missing)}.", remedy="name columns of the table."
            )
        named = [*self.key_columns, self.version_column, *([] if self.change_column is None else [self.change_column])]
        for column in named:
            check_name("column", column)
        if len(set(named)) < len(named):
            raise ConfigurationError(
                "key_columns, version_column and change_column name a column twice.", remedy="name others."
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
                remedy="choose 'local', or take EXACTLY_ONCE.",
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
            "ledger_schema": self.ledger_schema,
            "allow_unsafe_durability": self.allow_unsafe_durability,
        }
        if self.strategy == "upsert":
            settings |= {
                "key_columns": list(self.key_columns),
                "version_column": self.version_column,
                "change_column": self.change_column,
            }
        return settings

    @classmethod
    def from_settings(cls, conn_id: str, strategy: str, settings: Mapping[str, Any]) -> PostgresSink:
        """The sink that a plan holds. ConfigurationError when the plan knows settings that this release does not."""
        refuse_unknown(settings, {field.name for field in fields(cls)} - {"conn_id", "strategy"})
        return cls(conn_id=conn_id, strategy=strategy, **settings)
