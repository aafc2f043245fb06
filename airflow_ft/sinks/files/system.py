"""Files, as the registry knows them. They need no connection."""

from airflow_ft.sinks.files.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="files",
    title="files",
    package=__package__,
    strategies=STRATEGIES,
    preload=("airflow_ft.sinks.files.participant",),
    connects=False,
)
