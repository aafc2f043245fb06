"""SQLite, as the registry knows it. It comes with Python."""

from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="sqlite",
    title="SQLite",
    package=__package__,
    preload=("airflow_ft.sinks.sqlite.participant",),
)
