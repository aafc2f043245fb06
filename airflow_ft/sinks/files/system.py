"""Files, as the registry knows them. They need no connection, but in S3 a folder may name one."""

from functools import partial

from airflow_ft.sinks.base.places import conn_id_of, lacking
from airflow_ft.sinks.files.spec import STRATEGIES
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="files",
    title="files",
    package=__package__,
    strategies=STRATEGIES,
    place="folder",
    lacking=lambda sink: lacking(getattr(sink, "folder", "")),
    preload=("airflow_ft.sinks.files.participant",),
    connects=False,
    conn_id=partial(conn_id_of, "folder"),
    conn_type="aws",
)
