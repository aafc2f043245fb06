"""Airflow's page on checkpoints, and its API; installed as `airflow_ft.plugins`.

Workers load plugins too, so nothing here imports FastAPI before the API server asks for it.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk.plugins_manager import AirflowPlugin

from airflow_ft import settings

if settings.preload():
    import airflow_ft.preload  # noqa: F401


class CheckpointsPlugin(AirflowPlugin):
    """A page in the navigation: pipelines, their newest checkpoints, and why each was planned as it was."""

    name = "airflow_ft"
    react_apps = [  # noqa: RUF012 - as Airflow declares it
        {
            "name": "Checkpoints",
            "bundle_url": "airflow-ft/page.js",
            "destination": "nav",
            "category": "browse",
            "url_route": "airflow-ft",
        }
    ]

    @property
    def fastapi_apps(self) -> list[Any]:  # type: ignore[override]
        """The application, made when the API server asks for it."""
        from .api import create_app

        return [{"app": create_app(), "url_prefix": "/airflow-ft", "name": "Checkpoints"}]
