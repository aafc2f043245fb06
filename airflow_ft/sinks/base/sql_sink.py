"""What a DAG author writes to deliver into a table of an SQL server, whichever it is. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from airflow_ft.protocol.arguments import check_known, check_texts, is_template, shown
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.sinks.base.server_sink import ServerSink
from airflow_ft.sinks.base.settings import refuse_jinja, shared_setting
from airflow_ft.sinks.base.sql_names import TableName

MAX_BRANCHES = 32
_UPSERT_COLUMNS = {
    "key_columns": "Name the columns of the table's unique key in key_columns.",
    "version_column": "Name a bigint column of the table, which the sink fills, in version_column.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSink(ServerSink):
    """Rows into one table of a server. A system says its strategies, how tables are named, and what it has besides."""

    table: str
    conn_id: str
    strategy: str = "local"
    ledger_schema: str | None = None
    allow_unsafe_durability: bool = False
    key_columns: Sequence[str] = ()
    version_column: str | None = None
    change_column: str | None = None
    shared: bool = False
    branches: int = 0

    default_branches: ClassVar[int] = 1
    names: ClassVar[type[TableName]]

    def __post_init__(self) -> None:
        of = type(self).__name__
        for name in ("key_columns", "version_column", "change_column"):
            check_known(name, getattr(self, name), of=of)
        self._check_types()
        self._check_choices()
        if self.ledger_schema is not None and not is_template(self.ledger_schema):
            self.names.check("schema (ledger_schema)", self.ledger_schema)
        check_texts("key_columns", self.key_columns, of=of)
        object.__setattr__(self, "key_columns", tuple(self.key_columns))  # a list would make the sink unhashable
        if not is_template(self.table) and self.names.parse(self.table).name.lower().startswith("airflow_ft_"):
            raise ConfigurationError(
                f"{of} cannot write into {self.table!r}:"
                " names that begin with airflow_ft_ are those of the sink's own tables.",
                code="name_invalid",
                remedy="Give the name of another table in table=.",
                argument="table",
                value=self.table,
            )
        given = {name: getattr(self, name) for name in ("key_columns", "version_column", "change_column")}
        if self.strategy != "upsert":
            if useless := [name for name, value in given.items() if value]:
                what = f"{of}: strategy {self.strategy!r} does not use {', '.join(useless)}."
                remedy = f"Leave out {', '.join(useless)}, or choose strategy 'upsert'."
                raise ConfigurationError(
                    what, code="arguments_conflict", remedy=remedy, arguments=["strategy", *useless]
                )
        elif missing := [name for name in ("key_columns", "version_column") if not given[name]]:
            what = f"{of}: strategy 'upsert' needs {' and '.join(missing)}."
            remedy = " ".join(_UPSERT_COLUMNS[name] for name in missing)
            raise ConfigurationError(what, code="argument_missing", remedy=remedy, argument=missing[0])
        elif self.shared:
            what = (
                f"{of}: strategy 'upsert' compares checkpoint numbers, and those of two pipelines are not comparable."
            )
            remedy = "Leave out shared, and give the table to one pipeline only. Or choose another strategy."
            raise ConfigurationError(what, code="arguments_conflict", remedy=remedy, arguments=["strategy", "shared"])
        else:
            for column in self.key_columns:
                self.names.check("column (key_columns)", column)
            self.names.check("column (version_column)", self.version_column)

        self._check_branches()

    def _check_branches(self) -> None:
        of = type(self).__name__
        branched = [name for name, each in self.strategies.items() if each.has_branches]
        if self.strategy not in branched:
            if self.branches != 0:
                remedy = f", or choose the strategy {branched[0]!r}" if branched else ""
                raise ConfigurationError(
                    f"{of}: strategy {self.strategy!r} does not use branches={shown(self.branches)}.",
                    code="arguments_conflict",
                    remedy=f"Leave out branches{remedy}.",
                    arguments=["strategy", "branches"],
                )
            return
        if self.branches == 0:
            object.__setattr__(self, "branches", self.default_branches)  # frozen: the usual way for a derived default
        if type(self.branches) is not int or not 1 <= self.branches <= MAX_BRANCHES:
            raise ConfigurationError(
                f"{of}: branches is {shown(self.branches)}.",
                code="argument_invalid",
                remedy=f"Give a whole number from 1 to {MAX_BRANCHES} as branches.",
                argument="branches",
            )

    def at_least_once(self) -> Promise:
        """The same: marker and rows are in one transaction, so its rows come once all the same."""
        if self.promise is Promise.TWO_PHASE:
            others = [repr(name) for name, each in self.strategies.items() if each.promise is not Promise.TWO_PHASE]
            raise ConfigurationError(
                f"strategy {self.strategy!r} needs a decision before it commits, and CheckpointingMode.AT_LEAST_ONCE"
                " makes none.",
                code="arguments_conflict",
                remedy=f"Choose strategy {' or '.join(others)}, or CheckpointingMode.EXACTLY_ONCE.",
                arguments=["strategy", "mode"],
            )
        return self.promise

    @property
    def privileges(self) -> Sequence[str]:
        """Return what a delivery does to the table."""
        if self.strategy != "upsert":
            return ("INSERT",)
        return ("SELECT", "INSERT", "UPDATE", *(("DELETE",) if self.change_column else ()))

    def settings(self) -> dict[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in a name."""
        refuse_jinja(self.table, self.ledger_schema)
        names = ["table", "ledger_schema", "allow_unsafe_durability"]
        given = {name: getattr(self, name) for name in names} | shared_setting(self.shared)
        if self.strategies[self.strategy].has_branches:
            return given | {"branches": self.branches}
        if self.strategy != "upsert":
            return given
        by_key = {"version_column": self.version_column, "change_column": self.change_column}
        return given | {"key_columns": list(self.key_columns), **by_key}

    @classmethod
    def _check_together(cls, plan: ParticipantPlan, sinks: Mapping[str, Self]) -> None:
        if len({sink.ledger_schema for sink in sinks.values()}) > 1:
            what = f"the sinks {', '.join(sorted(sinks))} name different ledger schemas, and share one ledger."
            remedy = "Give all of these sinks the same ledger_schema."
            raise ConfigurationError(
                what, code="arguments_conflict", remedy=remedy, participant=plan.name, arguments=["ledger_schema"]
            )
