"""Import the modules that a pipeline's tasks use, in the process that Airflow forks them from.

A task of Airflow is a fork of its executor's process: of the scheduler (LocalExecutor) or of Celery's worker. Tasks
inherit its imports; otherwise each of them imports clients and PyArrow itself. The plugin imports this module where
`[airflow_ft] preload` is set. Celery's worker loads no plugins: there it is one of Celery's `imports`. No client is
opened here. Sinks whose clients are not installed are left out. What cannot be imported is left to the tasks that need
it: it must not end the worker of all the others.
"""

import logging
from collections.abc import Iterator
from importlib import import_module

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.registry import System, own_systems, systems

log = logging.getLogger(__name__)


def _systems() -> list[System]:
    try:
        return systems()
    except ConfigurationError as error:
        log.warning("preload: only the clients of airflow-ft's own sinks: %s", error)
        return own_systems()


def _modules() -> Iterator[str]:
    for system in _systems():
        if not system.missing_clients():
            yield from system.preload


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
    *_modules(),
)

for _module in MODULES:
    try:
        import_module(_module)
    except Exception as error:
        log.warning("preload: %s cannot be imported: %s: %s", _module, type(error).__name__, error)
