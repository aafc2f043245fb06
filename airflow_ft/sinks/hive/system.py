"""Hive, as the registry knows it. A table names the connection of its metastore, and each table is a participant."""

from airflow_ft.sinks.base.table_sink import connection_of
from airflow_ft.sinks.hive.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="hive",
    title="Hive",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    shares=True,
    clients=("thriftpy2",),
    extra="hive",
    preload=("airflow_ft.sinks.hive.participant",),
    connects=False,
    conn_id=connection_of,
    conn_type="hive_metastore",
)
