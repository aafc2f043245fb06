"""The link from a task to the pipeline's page."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

PAGE = "/plugin/airflow-ft"


class PipelineLink(BaseOperatorLink):
    """Opens the page of the task's pipeline: its newest checkpoints, their states and plans."""

    name = "Checkpoints"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Path on the API server; "" when the pipeline is not known."""
        pipeline = getattr(operator, "pipeline", "")
        return f"{PAGE}?pipeline={quote(pipeline)}" if pipeline else ""
