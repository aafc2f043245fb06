"""Iceberg, as the registry knows it. A table names the connection of its catalog, and each table is a participant."""

from airflow_ft.sinks.base.table_sink import connection_of
from airflow_ft.sinks.iceberg.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="iceberg",
    title="Iceberg",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    shares=True,
    clients=("pyiceberg", "pyiceberg_core", "sqlalchemy"),
    extra="iceberg",
    preload=("airflow_ft.sinks.iceberg.participant",),
    connects=False,
    conn_id=connection_of,
    conn_type="iceberg",
)
