"""Import the modules that a pipeline's tasks use, in the process that Airflow forks them from.

A task of Airflow is a fork of its executor's process: of the scheduler (LocalExecutor) or of Celery's worker. Tasks
inherit its imports; otherwise each of them imports clients and PyArrow itself. The plugin imports this module where
`[airflow_ft] preload` is set. Celery's worker loads no plugins: there it is one of Celery's `imports`. No client is
opened here. Sinks whose clients are not installed are left out.
"""

from importlib import import_module

from airflow_ft.sinks.registry import systems

MODULES = (
    "pyarrow.parquet",
    "airflow_ft.operators.pipeline",
    "airflow_ft.operators.recover",
    "airflow_ft.sensors.checkpoint",
    "airflow_ft.store.postgres",
    "airflow_ft.store.sqlite",
    "airflow_ft.triggers.checkpoint",
    "airflow_ft.triggers.turn",
    "airflow_ft.wal.reader",
    "airflow_ft.wal.statistics",
    *(module for system in systems() if not system.missing_clients() for module in system.preload),
)

for _module in MODULES:
    import_module(_module)
