"""The asset of a pipeline: updated when checkpoints are confirmed, so that other DAGs can be scheduled by it (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from airflow_ft.core.config import check_name
from airflow_ft.core.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Asset

SCHEME = "airflow-ft"


def pipeline_asset(pipeline: str) -> Asset:
    """The asset `airflow-ft://<pipeline>`, equal to what `Asset("airflow-ft://<pipeline>")` makes.

    An event carries extra = {"pipeline", "number" (the newest confirmed number), "numbers", "rows"}. Events are sent
    at least once: a consumer that must not act twice compares the number.
    """
    from airflow.sdk import Asset

    return Asset(f"{SCHEME}://{check_name('pipeline', pipeline)}")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's check of an asset URI with our scheme: a pipeline's name and nothing else."""
    if uri.path not in ("", "/") or uri.query:
        raise ValueError(f"{SCHEME}:// is followed by the name of a pipeline and nothing else")
    try:
        check_name("pipeline", uri.netloc)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return uri._replace(path="/")
