"""The link from a task to the page of its pipeline, or of all pipelines."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_ft.protocol.arguments import is_late_anywhere

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

# Relative: the UI's pages name as their base where Airflow is served (`[api] base_url`), which may be below a path; a
# worker, which makes the link, need not know it.
PAGE = "plugin/airflow-ft"


class PipelineLink(BaseOperatorLink):
    """Opens the page of the task's pipeline: its newest checkpoints, their states and plans.

    For a task that has several pipelines (`BarrierSensor`) it opens the page of all of them.
    """

    name = "Checkpoints"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Path below that of the API server; "" when the pipeline is not known."""
        if getattr(operator, "pipelines", ()):
            return PAGE
        pipeline, suffix = getattr(operator, "pipeline", ""), getattr(operator, "suffix", None)
        if not isinstance(pipeline, str) or not pipeline or is_late_anywhere([pipeline, suffix]):
            return ""  # rendering has failed
        # A sensor that returns from the triggerer is rendered again, and has the two parts.
        name = pipeline if suffix is None else f"{pipeline}-{suffix}"
        return f"{PAGE}?pipeline={quote(name)}"
