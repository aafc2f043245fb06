"""What a DAG author writes to deliver into Cassandra. Imported at DAG parse, so it imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import is_template
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.server_sink import ServerSink
from airflow_ft.sinks.base.settings import refuse_jinja
from airflow_ft.sinks.registry import Strategy

DOCUMENTS = "airflow_ft"
"""The sink's own table, in the connection's keyspace."""
CONSISTENCIES = ("QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL")
STRATEGIES: Mapping[str, Strategy] = {
    "upsert": Strategy(Promise.IDEMPOTENT, "by key, with write timestamps, after the decision", "row by row")
}
LONGEST_TTL = 20 * 365 * 86_400  # seconds, as Cassandra has it
_NAME = re.compile(r"[A-Za-z0-9_]{1,48}")


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class CassandraSink(ServerSink):
    """Rows of a pipeline into a Cassandra table, by its primary key. The last row of a key counts (IDEMPOTENT).

    Args:
        table: "keyspace.table", or "table" in the connection's keyspace, as the server spells them. It must exist.
        conn_id: the Airflow connection of type `cassandra`. All sinks of one connection are one participant.
        change_column: the column with the kind of change, which is not written. None: no deletes.
        consistency: acknowledgements for rows: "QUORUM", "LOCAL_QUORUM", "EACH_QUORUM" or "ALL".
        ttl_seconds: seconds after which written rows expire. 0: as the table says.
        allow_unsafe_durability: deliver although a node may forget what it has acknowledged.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    conn_id: str = "cassandra_default"
    strategy: str = "upsert"
    change_column: str | None = None
    consistency: str = "QUORUM"
    ttl_seconds: int = 0
    allow_unsafe_durability: bool = False
    shared: bool = False

    kind: ClassVar[str] = "cassandra"
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES

    def __post_init__(self) -> None:
        self._check_types()
        self._check_choices(consistency=CONSISTENCIES)
        if not 0 <= self.ttl_seconds <= LONGEST_TTL:
            raise self._invalid("ttl_seconds", self.ttl_seconds, f"Give 0 to {LONGEST_TTL} seconds.")
        if not is_template(self.table):
            self._check_table()

    def _check_table(self) -> None:
        parts = self.table.split(".")
        if len(parts) > 2 or not all(map(_NAME.fullmatch, parts)):
            raise self._invalid("table", self.table, 'Give "keyspace.table" or "table", of letters, digits and "_".')
        if parts[-1] == DOCUMENTS:
            raise self._invalid("table", self.table, f"Choose another table: {DOCUMENTS} is the sink's own.")

    @property
    def key_columns(self) -> Sequence[str]:
        """Return nothing: the table says it."""
        return ()

    def place(self, keyspace: str) -> tuple[str, str]:
        """Return keyspace and table; `keyspace` is the connection's."""
        first, _, second = self.table.rpartition(".")
        return first or keyspace, second

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in the table."""
        refuse_jinja(self.table)
        self._check_table()
        return self._settings()
