"""Shelves, tables of a SQLite file, as a sink: for DAG authors, and for the registry."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.registry import Strategy, System


@dataclass(frozen=True, kw_only=True)
class ShelfSink:
    """Write rows into a table of the SQLite file that is the host of the connection."""

    table: str
    conn_id: str

    kind: ClassVar[str] = "shelf"
    strategy: ClassVar[str] = "local"
    promise: ClassVar[Promise] = Promise.ATOMIC

    def __post_init__(self):
        if not self.table.isidentifier() or self.table.startswith("airflow_ft_"):
            raise ConfigurationError(
                f"{self.table!r} is not a name for a shelf.",
                code="name_invalid",
                remedy="Use letters, digits and underscores. Begin with a letter, and not with airflow_ft_.",
                table=self.table,
            )

    def at_least_once(self):
        return Promise.ATOMIC

    def settings(self):
        return {"table": self.table}


SYSTEM = System(
    kind="shelf",
    title="Shelves",
    package="shelf_for_airflow.sink",
    strategies={"local": Strategy(Promise.ATOMIC, "one transaction with the marker", "all at once: this decides")},
)
