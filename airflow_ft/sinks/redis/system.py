"""Redis, as the registry knows it."""

from airflow_ft.sinks.redis.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="redis",
    title="Redis",
    package=__package__,
    strategies=STRATEGIES,
    place="key",
    by_key=True,
    shares=True,
    clients=("redis", "msgpack"),
    extra="redis",
    preload=("airflow_ft.sinks.redis.participant",),
    conn_type="redis",
)
