"""Imports what the tasks of a pipeline's group use, for the process that Airflow forks them from.

A task of Airflow is a fork of its executor's process: of the scheduler (LocalExecutor) or of Celery's worker. What that
one has imported, its tasks have; else each of them imports clients and PyArrow anew. The plugin imports this module
where `[airflow_ft] preload` is set.
No client is opened here.
"""

from importlib import import_module

from airflow_ft.sinks.kafka.spec import has_second_client

MODULES = (
    "confluent_kafka.admin",
    "pyarrow.parquet",
    "airflow_ft.operators.pipeline",
    "airflow_ft.operators.recover",
    "airflow_ft.sensors.checkpoint",
    "airflow_ft.sinks.kafka.participant",
    *(["airflow_ft.sinks.kafka.held"] if has_second_client() else []),
    "airflow_ft.sinks.mysql.participant",
    "airflow_ft.store.postgres",
    "airflow_ft.store.sqlite",
    "airflow_ft.triggers.checkpoint",
    "airflow_ft.triggers.turn",
    "airflow_ft.wal.reader",
    "airflow_ft.wal.statistics",
)

for _module in MODULES:
    import_module(_module)
