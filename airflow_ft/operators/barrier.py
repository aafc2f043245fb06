"""`InjectBarrierOperator`: gives several pipelines a moment in common, for which a `BarrierSensor` can wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ft.operators.failing import fail
from airflow_ft.operators.links import PipelineLink
from airflow_ft.operators.named import NamedArguments
from airflow_ft.pipeline.barriers import check_pipelines
from airflow_ft.pipeline.decision_log import check_store, open_configured_store, rendered_store
from airflow_ft.pipeline.runs import refuse_test_run, task_of
from airflow_ft.pipeline.templates import require_filled
from airflow_ft.protocol.arguments import check_barrier, is_late_anywhere, is_template
from airflow_ft.protocol.errors import AirflowFtError

if TYPE_CHECKING:
    from airflow.sdk import Context


class InjectBarrierOperator(BaseOperator, metaclass=NamedArguments):
    """Puts a barrier into pipelines: everything that is in their sources now is before it.

    One write injects it into all of them, or into none, at one moment of the decision log's clock. A pipeline that the
    decision log does not know fails the task. It may be repeated: the first injection into a pipeline counts.

    Args:
        barrier: its id: a line of at most 250 characters that is no time, such as "closing-{{ ds }}".
        pipelines: the names of the pipelines, all in one decision log.
        store: as in `CheckpointedPipeline`.

    Result: {pipeline: the barrier's moment there, as ISO text}.
    """

    template_fields: Sequence[str] = ("barrier", "pipelines", "store")
    operator_extra_links = (PipelineLink(),)
    ui_color = "#e8f4ea"

    def __init__(self, *, barrier: str, pipelines: Sequence[str], store: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.barrier = self._written = barrier
        self.pipelines = pipelines
        self.store = self._written_store = check_store(store)
        if not is_template(barrier):
            check_barrier(barrier)
        if not is_late_anywhere(pipelines):
            check_pipelines(pipelines)

    def execute(self, context: Context) -> dict[str, str]:
        """Injects it, and says since when it is there."""
        try:
            refuse_test_run(context)
            check_pipelines(self.pipelines)
            require_filled("barrier", self._written, self.barrier)
            with closing(open_configured_store(rendered_store(self._written_store, self.store))) as store:
                found = store.inject(check_barrier(self.barrier), self.pipelines, task_of(context))
        except AirflowFtError as error:
            fail(self.log, error, context)
        for each in found:
            self.log.info("%s: barrier %s injected at %s", each.pipeline, each.id, each.injected_at.isoformat())
        return {each.pipeline: each.injected_at.isoformat() for each in found}
