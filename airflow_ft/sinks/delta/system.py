"""Delta Lake, as the registry knows it. It needs no connection, but in S3 a table may name one."""

from functools import partial

from airflow_ft.sinks.base.places import conn_id_of, lacking
from airflow_ft.sinks.delta.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="delta",
    title="Delta Lake",
    package=__package__,
    strategies=STRATEGIES,
    place="table",
    shares=True,
    clients=("deltalake",),
    extra="delta",
    lacking=lambda sink: lacking(getattr(sink, "table", "")),
    preload=("airflow_ft.sinks.delta.participant",),
    connects=False,
    conn_id=partial(conn_id_of, "table"),
    conn_type="aws",
)
