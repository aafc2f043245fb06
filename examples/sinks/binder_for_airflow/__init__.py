"""Binders, tables of Parquet files in a folder, as a sink: for DAG authors, and for the registry."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.places import check_path, check_sink, is_late, path_of
from airflow_ft.sinks.base.table_sink import TableSink
from airflow_ft.sinks.registry import Strategy, System


@dataclass(frozen=True, kw_only=True)
class BinderSink(TableSink):
    """Write rows into a binder, a folder. Without `create` the binder must be there."""

    table: str
    create: bool = True
    schema_evolution: bool = False
    shared: bool = False
    name: str = ""

    kind: ClassVar[str] = "binder"
    strategy: ClassVar[str] = "commit"
    promise: ClassVar[Promise] = Promise.ATOMIC

    def __post_init__(self):
        self._check_types()
        check_sink(self, "table", "orders")  # also: a table that is known only in a run needs a name
        if not is_late(self.table):
            check_path(self, "Give an absolute path.")

    @property
    def path(self):
        return path_of(self.table)


SYSTEM = System(
    kind="binder",
    title="Binders",
    package="binder_for_airflow.sink",
    strategies={"commit": Strategy(Promise.ATOMIC, "one version with the marker", "all at once: this decides")},
    connects=False,
    place="table",
    shares=True,
    preload=("binder_for_airflow.sink",),
)
