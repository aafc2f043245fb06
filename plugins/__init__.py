"""Airflow's page on checkpoints, and its API; installed as `airflow_ft.plugins`.

Workers load plugins too, so nothing here imports FastAPI before the API server asks for it.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_ft.pipeline import settings

WITHOUT_TASKS = {"api-server", "dag-processor", "triggerer"}
"""Commands of Airflow whose processes fork no task."""

try:
    if settings.preload() and not WITHOUT_TASKS.intersection(sys.argv[1:2]):
        import_module("airflow_ft.operators.preload")
except Exception:  # the page does without
    logging.getLogger(__name__).exception("[%s] preload: tasks import clients and PyArrow themselves", settings.SECTION)


class CheckpointsPlugin(AirflowPlugin):
    """A page, and tabs: pipelines, their checkpoints, and why each was planned as it was."""

    name = "airflow_ft"
    react_apps = [  # noqa: RUF012 - as Airflow declares it
        {
            "name": "Checkpoints",
            "bundle_url": "airflow-ft/page.js",
            "destination": "nav",
            "category": "browse",
            "url_route": "airflow-ft",
        },
        # Of the same name: Airflow loads a bundle once, and keeps what it finds by that.
        *(
            {
                "name": "Checkpoints",
                "bundle_url": "airflow-ft/page.js",
                "destination": destination,
                "url_route": f"airflow-ft-{destination}",
            }
            for destination in ("dag", "dag_run", "task_instance")
        ),
    ]

    @property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The application, made when the API server asks for it."""
        from .api import create_app

        return [{"app": create_app(), "url_prefix": "/airflow-ft", "name": "Checkpoints"}]
