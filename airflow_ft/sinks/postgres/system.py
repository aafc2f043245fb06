"""PostgreSQL, as the registry knows it. Its client comes with this distribution."""

from airflow_ft.sinks.postgres.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="postgres",
    title="PostgreSQL",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    shares=True,
    clients=("psycopg2",),
    extra="postgres",
    preload=("airflow_ft.sinks.postgres.participant",),
    conn_type="postgres",
)
