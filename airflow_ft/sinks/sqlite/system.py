"""SQLite, as the registry knows it. It comes with Python."""

from airflow_ft.sinks.registry import System
from airflow_ft.sinks.sqlite.spec import STRATEGIES

SYSTEM = System(
    kind="sqlite",
    title="SQLite",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    shares=True,
    preload=("airflow_ft.sinks.sqlite.participant",),
    conn_type="sqlite",
)
