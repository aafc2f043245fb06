"""HBase, as the registry knows it."""

from airflow_ft.sinks.hbase.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="hbase",
    title="HBase",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    by_key=True,
    shares=True,
    clients=("happybase", "thriftpy2"),
    extra="hbase",
    preload=("airflow_ft.sinks.hbase.participant",),
    conn_type="hbase",
)
