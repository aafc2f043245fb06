"""MySQL and MariaDB, as the registry knows them."""

from airflow_ft.sinks.mysql.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="mysql",
    title="MySQL, MariaDB",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    shares=True,
    clients=("pymysql",),
    preload=("airflow_ft.sinks.mysql.participant",),
    conn_type="mysql",
)
