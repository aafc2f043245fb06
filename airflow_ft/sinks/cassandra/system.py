"""Cassandra, as the registry knows it."""

from airflow_ft.sinks.cassandra.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="cassandra",
    title="Cassandra",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    by_key=True,
    shares=True,
    clients=("cassandra",),
    extra="cassandra",
    preload=("airflow_ft.sinks.cassandra.participant",),
    conn_type="cassandra",
)
