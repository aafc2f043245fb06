"""`SqliteSink`, with which a DAG author delivers into SQLite. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.server_sink import ServerSink
from airflow_ft.sinks.base.settings import refuse_jinja
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "local": Strategy(
        Promise.ATOMIC, "one transaction with the marker, over all tables of the file", "all at once: this decides"
    )
}


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteSink(ServerSink):
    """Rows of a pipeline into one table of a SQLite file.

    The file lies on a local disk of the machine that runs the tasks; SQLite must not be used over a network.

    Args:
        table: may contain Jinja, which must be rendered before the plan is made.
        conn_id: the Airflow connection of type `sqlite`, whose host is the file. All sinks of one connection are one
            participant: they commit together.
        strategy: "local": marker and all rows of all tables of the file in one transaction (ATOMIC), which can carry
            the commit point.
        create: the first checkpoint of a pipeline creates a missing table, with the columns of the rows.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    conn_id: str = "sqlite_default"
    strategy: str = "local"
    create: bool = True
    shared: bool = False

    kind: ClassVar[str] = "sqlite"
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES

    def __post_init__(self) -> None:
        self._check_types()
        self._check_choices()
        if isinstance(self.table, str) and not self.table.strip():
            raise self._invalid("table", self.table, "Give table= a name.")
        if isinstance(self.table, str) and fold(self.table).startswith(("sqlite_", "airflow_ft_")):
            raise ConfigurationError(
                f"table of SqliteSink is {self.table!r}. SQLite and the sink keep their own tables under names with"
                " sqlite_ and airflow_ft_.",
                code="name_invalid",
                remedy="Give the name of another table, which begins with neither.",
                argument="table",
                value=self.table,
            )

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in a name."""
        refuse_jinja(self.table)
        return self._settings()


def fold(name: str) -> str:
    """Return `name` in lower case as SQLite compares names: only A to Z have a second form (`É` is not `é`)."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
