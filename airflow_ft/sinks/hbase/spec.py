"""What a DAG author writes to deliver into HBase. Imported at DAG parse, so it imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_type, is_template
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.key_template import TemplateSink
from airflow_ft.sinks.base.settings import refuse_jinja
from airflow_ft.sinks.registry import Strategy

LEDGER = "airflow_ft"
"""The sink's own table, in the namespace that the connection names."""
ENCODINGS = ("text", "bytes")
PORT = 9090
"""Of the Thrift gateway, where a connection names none."""
STRATEGIES: Mapping[str, Strategy] = {
    "upsert": Strategy(Promise.IDEMPOTENT, "by key, 1,000 rows at a time, after the decision", "1,000 rows at a time")
}
MOST_BUCKETS = 1_000
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class HBaseSink(TemplateSink):
    """Rows of a pipeline into a table of HBase, over its Thrift gateway.

    Args:
        table: the table, with its namespace unless that is the default one: "shop:orders".
        row_key: template of the row key, with columns in braces: "{id}". The last row of a key counts.
        conn_id: the Airflow connection of type `hbase`. All sinks of one connection are one participant.
        family: the column family of all columns that `columns` does not name; each is its own qualifier. None: every
            column must be in `columns` or in the key.
        columns: where columns go: {"name": "f:n"}.
        encoding: "text", or "bytes": numbers in the big-endian form of HBase's class `Bytes`. Row keys are always text.
        salt: number of buckets that row keys are spread over by a prefix such as `07:`. 0: no prefix.
        change_column: the column with the kind of change, which is not written. None: no deletes.
        strategy: "upsert", the only one.
        shared: other pipelines write into this table, too, and their sinks declare it as well.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    row_key: str
    conn_id: str = "hbase_default"
    family: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "text"
    salt: int = 0
    change_column: str | None = None
    strategy: str = "upsert"
    shared: bool = False

    kind: ClassVar[str] = "hbase"
    template: ClassVar[str] = "row_key"
    strategies: ClassVar[Mapping[str, Strategy]] = STRATEGIES

    def __post_init__(self) -> None:
        self._check_types()
        check_type("columns", self.columns, Mapping, 'Give a dict: {"name": "family:qualifier"}.', of="HBaseSink")
        self._check_choices(encoding=ENCODINGS)
        if not 0 <= self.salt <= MOST_BUCKETS or self.salt == 1:
            raise self._invalid("salt", self.salt, f"Give 2 to {MOST_BUCKETS} buckets, or 0 for no prefix.")
        if self.family is None and not self.columns:
            raise self._invalid("family", None, 'Give family="f" for all columns, or columns={"name": "f:n"}.')
        if self.family is not None and not is_template(self.family):
            self._check_family("family", self.family)
        self._check_columns()
        if not is_template(self.table):
            self._check_table()
        self._check_template()

    def _check_table(self) -> None:
        if not re.fullmatch(rf"([A-Za-z0-9_]+:)?{_NAME}", self.table):
            raise self._invalid(
                "table", self.table, "Give a name of letters, digits, '_', '-' and '.': namespace:table."
            )
        if self.table.rpartition(":")[2] == LEDGER:
            raise self._invalid("table", self.table, f"Name another table: {LEDGER} is the sink's own.")

    def _check_family(self, argument: str, family: str) -> None:
        if not family or family.startswith(".") or re.search(r"[\x00-\x1f\x7f:/]", family):
            raise self._invalid(
                argument, family, "A family is not empty, begins with no '.', and has neither ':' nor '/'."
            )

    def _check_columns(self) -> None:
        for column, cell in self.columns.items():
            if not isinstance(column, str) or not isinstance(cell, str) or ":" not in cell:
                raise self._invalid("columns", cell, 'Give each column as {"name": "family:qualifier"}.')
            self._check_family("columns", cell.partition(":")[0])
        if len(set(self.columns.values())) < len(self.columns):
            raise self._invalid("columns", dict(self.columns), "Give each column a cell of its own.")
        if self.change_column in self.columns:
            raise self._invalid("columns", self.change_column, "Leave change_column out: it is not written.")

    @property
    def families(self) -> Sequence[str]:
        """Return the column families that it writes."""
        named = [cell.partition(":")[0] for cell in self.columns.values()]
        return sorted({*named, *([self.family] if self.family is not None else [])})

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in a text."""
        refuse_jinja(self.table, self.row_key, self.family)
        self._check_table()
        self._check_key()
        table = self.table.removeprefix("default:")  # one table has one name
        return {**self._settings(), "table": table, "columns": dict(self.columns)}
