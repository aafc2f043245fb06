"""`RedisSink`, with which a DAG author delivers into Redis. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.key_template import TemplateSink
from airflow_ft.sinks.base.settings import refuse_jinja
from airflow_ft.sinks.registry import Strategy

ATOMIC_ROWS = 100_000
"""Rows of a delivery with the strategy `atomic`, at most: Redis needs 2 to 3 s for them."""
OURS = "airflow_ft:"
"""Keys of the sink itself begin with this."""
VALUES = ("hash", "json", "string")
STRATEGIES: Mapping[str, Strategy] = {
    "upsert": Strategy(Promise.IDEMPOTENT, "by key, 1,000 rows at a time, after the decision", "1,000 rows at a time"),
    "atomic": Strategy(Promise.ATOMIC, "one script with the marker", "all at once: this decides"),
}
_LONGEST_TTL = 10 * 366 * 86_400  # seconds
_MOST_REPLICAS = 100


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSink(TemplateSink):
    """Rows of a pipeline into keys of a Redis server: one primary, no cluster.

    Args:
        key: template of a row's key, with columns in braces: "orders:{id}". The last row of a key counts.
        conn_id: the Airflow connection of type `redis`. All sinks of one connection are one participant.
        value: "hash" has a field for each column. NULL removes the field, and fields of others stay. "json" is a text
            with all columns. "string" is the one column that is not in the key.
        strategy: "upsert": 1,000 rows at a time, after the decision (IDEMPOTENT). "atomic": all rows and the marker in
            one script (ATOMIC), during which the server answers no other client. For small checkpoints.
        version_field: field of the hash, or member of the JSON, with the number of the checkpoint that wrote it, for
            people and for `airflow ft verify`. Strings have none.
        change_column: the column with the kind of change, which is not written. None: no deletes.
        ttl_seconds: seconds from the write of a key until it expires. 0: never.
        wait_replicas: number of replicas that must have acknowledged a delivery (Redis' WAIT). 0: none. The highest
            number among the sinks of one connection counts.
        allow_unsafe_durability: deliver although the server may forget what it has acknowledged.
        shared: other pipelines write these keys, too, and their sinks declare it as well.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    key: str
    conn_id: str = "redis_default"
    value: str = "hash"
    strategy: str = "upsert"
    version_field: str = "_version"
    change_column: str | None = None
    ttl_seconds: int = 0
    wait_replicas: int = 0
    allow_unsafe_durability: bool = False
    shared: bool = False

    kind: ClassVar[str] = "redis"
    template: ClassVar[str] = "key"
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES

    def __post_init__(self) -> None:
        self._check_types()
        self._check_choices(value=VALUES)
        if not 0 <= self.ttl_seconds <= _LONGEST_TTL:
            raise self._invalid("ttl_seconds", self.ttl_seconds, f"Give 0 to {_LONGEST_TTL} seconds; 0 keeps keys.")
        if not 0 <= self.wait_replicas <= _MOST_REPLICAS:
            raise self._invalid("wait_replicas", self.wait_replicas, f"Give 0 to {_MOST_REPLICAS} replicas.")
        if self.value != "string" and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.version_field):
            raise self._invalid("version_field", self.version_field, "Use letters, digits and '_' in version_field.")
        self._check_template()

    @property
    def most_rows(self) -> int | None:
        """Return the most rows of a delivery; None: any number."""
        return ATOMIC_ROWS if self.promise is Promise.ATOMIC else None

    def _check_key(self) -> None:
        if self.parts and self.key.startswith(OURS):
            raise self._key_invalid(f"Choose another beginning: the sink keeps its own keys below {OURS!r}.")
        TemplateSink._check_key(self)

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in the key."""
        refuse_jinja(self.key)
        self._check_key()
        return self._settings()
