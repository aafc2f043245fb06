"""The asset of a pipeline: updated when checkpoints are confirmed, so that other DAGs can be scheduled by it (I9)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from airflow_ft.core.config import check_name
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.templates import without_jinja

if TYPE_CHECKING:
    from airflow.sdk import Asset, AssetAlias

SCHEME = "airflow-ft"


def pipeline_asset(pipeline: str) -> Asset:
    """The asset `airflow-ft://<pipeline>`, equal to what `Asset("airflow-ft://<pipeline>")` makes.

    An event carries extra = {"pipeline", "number" (the newest confirmed number), "numbers", "rows"}. Events are sent
    at least once: a consumer that must not act twice compares the number.
    """
    from airflow.sdk import Asset

    return Asset(f"{SCHEME}://{check_name('pipeline', pipeline)}")


def declared_asset(pipeline: str, suffix: object = None) -> Asset | AssetAlias:
    """What a task that confirms checkpoints declares as its outlet, when the DAG is parsed.

    The asset of the pipeline; when its name is known only by rendering, the alias "airflow-ft://shop-*" of
    `pipeline="shop"` with a suffix, or of "shop-{{ ... }}". An event goes to the pipeline's own asset in both cases: a
    DAG may be scheduled by `Asset("airflow-ft://shop-de")`, or by the alias.
    """
    from airflow.sdk import AssetAlias

    name = without_jinja(pipeline) if suffix is None else f"{without_jinja(pipeline)}-*"
    return pipeline_asset(pipeline) if name == pipeline else AssetAlias(f"{SCHEME}://{name}")


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's check of an asset URI with our scheme: a pipeline's name and nothing else."""
    if uri.path not in ("", "/") or uri.query:
        raise ValueError(f"{SCHEME}:// is followed by the name of a pipeline and nothing else")
    try:
        check_name("pipeline", uri.netloc)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return uri._replace(path="/")
