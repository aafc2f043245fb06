"""What a DAG author writes to deliver into a Paimon table. Imported at DAG parse, so it imports nothing heavy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.places import check_path, check_sink, is_late, keep_columns, path_of, unusable
from airflow_ft.sinks.base.settings import refuse_jinja
from airflow_ft.sinks.base.table_sink import TableSink
from airflow_ft.sinks.registry import Strategy

STRATEGIES: Mapping[str, Strategy] = {
    "commit": Strategy(
        Promise.ATOMIC, "one snapshot of the table, which the marker names", "all at once, as a snapshot: this decides"
    )
}
_DATABASE = ".db"
_MOST = 10_000
_NAME = re.compile(r"[^%/\s]+")


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class PaimonSink(TableSink):
    """Rows of a pipeline into one Paimon table of a filesystem catalog. No Airflow connection is needed.

    The rows of a checkpoint become one snapshot of the table, and the marker that proves them counts with it (ATOMIC).
    So the table can carry the commit point.

    Args:
        table: the table's folder WAREHOUSE/DATABASE.db/TABLE: an absolute path, or a `file:///` URI, which all tasks
            reach under that name.
        partition_by: the columns that a table which is made here is partitioned by. A table that is there has its own.
        buckets: how many buckets a table that is made here has. 0: none, or one if it has a primary key.
        bucket_key: the columns whose values divide its rows among them.
        primary_key: the columns of the table's primary key: the last row of a key counts. (): an append table.
        change_column: the column with the kind of change, which is not written. None: no deletes.
        schema_evolution: columns that the table lacks are added to it. Else they are refused.
        file_bytes: a file is ended when it has become that large. Files of the log under an eighth of it are put
            together.
        create: the first checkpoint of a pipeline creates a missing table, with the columns of the rows.
        shared: other pipelines deliver into this table, too, and their sinks declare it as well.
        name: of the participant; tasks are named by it. "": made of the folder. To be given where that contains Jinja.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    table: str
    partition_by: Sequence[str] = ()
    buckets: int = 0
    bucket_key: Sequence[str] = ()
    primary_key: Sequence[str] = ()
    change_column: str | None = None
    schema_evolution: bool = False
    file_bytes: int = 128 << 20
    create: bool = True
    shared: bool = False
    name: str = ""

    meant: ClassVar[Mapping[str, str]] = {"conn_id": "Remove conn_id: a Paimon table needs no connection."}
    kind: ClassVar[str] = "paimon"
    strategy: ClassVar[str] = "commit"
    promise: ClassVar[Promise] = STRATEGIES["commit"].promise

    def __post_init__(self) -> None:
        self._check_types()
        check_sink(self, "table", "orders")
        self._check_key()
        self._check_buckets()
        if not is_late(self.table):
            self._check_table()

    def _check_key(self) -> None:
        keep_columns(self, "primary_key")
        if not all(self.primary_key) or len(set(self.primary_key)) < len(self.primary_key):
            raise self._invalid("primary_key", list(self.primary_key), "Name each column once in primary_key.")
        beyond = [name for name in self.bucket_key if self.primary_key and name not in self.primary_key]
        lacking = [name for name in self.partition_by if self.primary_key and name not in self.primary_key]
        alone = self.change_column is not None and not self.primary_key
        whole = bool(self.primary_key) and set(self.primary_key) == set(self.partition_by)
        if beyond or lacking or alone or whole or self.change_column in self.primary_key:
            raise ConfigurationError(
                f"PaimonSink: partition_by, bucket_key or change_column do not go with primary_key"
                f" {list(self.primary_key)}.",
                code="arguments_conflict",
                remedy="Name all columns of partition_by and bucket_key in primary_key, which needs one more column."
                " change_column needs a primary key, and is not in it.",
                argument="primary_key",
            )

    def _check_buckets(self) -> None:
        keep_columns(self, "bucket_key")
        odd = [name for name in self.bucket_key if not name or "," in name or name in self.partition_by]
        if not 0 <= self.buckets <= _MOST or odd or len(set(self.bucket_key)) < len(self.bucket_key):
            remedy = f"Give 1 to {_MOST} buckets, and each column of bucket_key once. A partition column is none."
            argument, value = ("bucket_key", odd[0]) if odd else ("buckets", self.buckets)
            raise self._invalid(argument, value, remedy)
        if bool(self.buckets) != bool(self.bucket_key) and not self.primary_key:
            raise ConfigurationError(
                f"PaimonSink: buckets is {self.buckets}, and bucket_key is {list(self.bucket_key)}.",
                code="arguments_conflict",
                remedy="Give both of them, or neither.",
                argument="bucket_key",
            )

    def _check_table(self) -> None:
        check_path(self, "Give an absolute path or a file:/// URI of a file system that all tasks have mounted.")
        database, table = self.path.parent.name, self.path.name
        if not database.endswith(_DATABASE) or database == _DATABASE:
            remedy = "Give WAREHOUSE/DATABASE.db/TABLE, the folder in which a catalog looks for DATABASE.TABLE."
            raise unusable(self, "is not in the folder of a database", remedy)
        if not (_NAME.fullmatch(database) and _NAME.fullmatch(table)):
            raise unusable(self, "has a name with '%' or a blank", "Use letters, digits and '_' in DATABASE and TABLE.")

    @property
    def path(self) -> Path:
        """The table's folder."""
        return path_of(self.table)

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in one of them."""
        refuse_jinja(*self.bucket_key, *self.primary_key, self.change_column or "")
        lists = {"bucket_key": list(self.bucket_key), "primary_key": list(self.primary_key)}
        return {**TableSink.settings(self), **lists}
