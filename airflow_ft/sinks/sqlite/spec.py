"""`SqliteSink`, with which a DAG author delivers into SQLite. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_text, check_type
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.settings import refuse_jinja, refuse_unknown, shared_setting
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "local": Strategy(
        Promise.ATOMIC, "one transaction with the marker, over all tables of the file", "all at once: this decides"
    )
}


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSink:
    """Rows of a pipeline into one table of a SQLite file.

    The file lies on a local disk of the machine that runs the tasks; SQLite must not be used over a network.

    Args:
        table: may contain Jinja, which must be rendered before the plan is made.
        conn_id: the Airflow connection of type `sqlite`, whose host is the file. All sinks of one connection are one
            participant: they commit together, in one transaction (ATOMIC), which can carry the commit point.
        create: the first checkpoint of a pipeline creates a missing table, with the columns of the rows.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    conn_id: str = "sqlite_default"
    create: bool = True
    shared: bool = False

    kind: ClassVar[str] = "sqlite"
    strategy: ClassVar[str] = "local"
    promise: ClassVar[Promise] = STRATEGIES["local"].promise

    def __post_init__(self) -> None:
        for name in ("table", "conn_id"):
            check_text(name, given := getattr(self, name), of="SqliteSink")
            if isinstance(given, str) and not given.strip():
                raise ConfigurationError(
                    f"{name} of SqliteSink is empty.",
                    code="argument_invalid",
                    remedy=f"Give {name}= a name.",
                    argument=name,
                    value=given,
                )
        check_type("create", self.create, bool, "give True or False.", of="SqliteSink")
        check_type("shared", self.shared, bool, "give True or False.", of="SqliteSink")
        if isinstance(self.table, str) and fold(self.table).startswith(("sqlite_", "airflow_ft_")):
            raise ConfigurationError(
                f"table of SqliteSink is {self.table!r}. SQLite and the sink keep their own tables under names with"
                " sqlite_ and airflow_ft_.",
                code="name_invalid",
                remedy="Give the name of another table, which begins with neither.",
                argument="table",
                value=self.table,
            )

    def at_least_once(self) -> Promise:
        """The same: marker and rows are in one transaction, so its rows still arrive once."""
        return self.promise

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in a name."""
        refuse_jinja(self.table)
        return {"table": self.table, "create": self.create, **shared_setting(self.shared)}

    @classmethod
    def from_settings(cls, conn_id: str, settings: Mapping[str, Any]) -> SqliteSink:
        """The sink that a plan holds. ConfigurationError when the plan knows settings that this release does not."""
        refuse_unknown(settings, {field.name for field in fields(cls)} - {"conn_id"})
        return cls(conn_id=conn_id, **settings)


def fold(name: str) -> str:
    """Return `name` in lower case as SQLite compares names: only A to Z have a second form (`É` is not `é`)."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
