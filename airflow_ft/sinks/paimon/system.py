"""Apache Paimon, as the registry knows it. A table is a folder, so it needs no connection."""

from airflow_ft.sinks.paimon.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="paimon",
    title="Paimon",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    key="primary_key",
    shares=True,
    clients=("fastavro", "backports.zstd"),
    extra="paimon",
    preload=("airflow_ft.sinks.paimon.participant",),
    connects=False,
)
