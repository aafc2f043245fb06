"""Drawers, rows by key in a SQLite file, as a sink: for DAG authors, and for the registry."""

from dataclasses import dataclass
from typing import ClassVar

from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.key_template import TemplateSink
from airflow_ft.sinks.base.settings import refuse_jinja
from airflow_ft.sinks.registry import Strategy, System

STRATEGIES = {"upsert": Strategy(Promise.IDEMPOTENT, "by key, after the decision", "1,000 rows at a time")}


@dataclass(frozen=True, kw_only=True)
class DrawerSink(TemplateSink):
    """Write rows by key into a drawer of the SQLite file that is the host of the connection.

    `key` is a template, such as "{customer}:{id}". `change_column` has the kind of change; None: all rows are written.
    """

    drawer: str
    key: str
    conn_id: str
    change_column: str | None = None
    strategy: str = "upsert"
    shared: bool = False

    kind: ClassVar[str] = "drawer"
    template: ClassVar[str] = "key"
    strategies: ClassVar[dict[str, Strategy]] = STRATEGIES

    def __post_init__(self):
        self._check_types()
        self._check_choices()
        self._check_template()

    def settings(self):
        refuse_jinja(self.drawer, self.key)
        self._check_key()
        return self._settings()


SYSTEM = System(
    kind="drawer",
    title="Drawers",
    package="drawer_for_airflow.sink",
    strategies=STRATEGIES,
    conn_type="sqlite",
    place="drawer",
    shares=True,
    preload=("drawer_for_airflow.sink",),
)
