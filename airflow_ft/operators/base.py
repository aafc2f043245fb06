"""What all operators share: the run as the core sees it, and errors as Airflow understands them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ft import settings
from airflow_ft.core import steps
from airflow_ft.core.arguments import check_text
from airflow_ft.core.config import check_name
from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.lease import Worker
from airflow_ft.core.model import RunKey
from airflow_ft.hooks.store import check_store, open_configured_store, participant_factory
from airflow_ft.links import PipelineLink
from airflow_ft.operators.failing import fail
from airflow_ft.runs import plain_utc, run_is_over
from airflow_ft.templates import is_template

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointOperator(BaseOperator):
    """Base of the pipeline's tasks.

    A `TerminalError` fails the task at once, a `TransientError` lets Airflow try again; both keep their message.

    Args:
        pipeline: the pipeline's name, its stable identity.
        store: decision log: a URL without a password, or the id of a PostgreSQL connection; None:
            `[airflow_ft] store`.
    """

    template_fields: Sequence[str] = ("pipeline", "store")
    operator_extra_links = (PipelineLink(),)
    ui_color = "#e8f4ea"

    def __init__(self, *, pipeline: str, store: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_text("store", store, optional=True)
        self.pipeline = pipeline
        self.store = check_store(store)
        if not is_template(pipeline):
            check_name("pipeline", pipeline)

    def execute(self, context: Context) -> Any:
        """Does the step; it may be repeated for ever (each step reads the state first)."""
        try:
            check_name("pipeline", self.pipeline)  # again, since both may have been templates
            check_store(self.store)
            with self.run_context(context) as run:
                return self.step(run, context)
        except AirflowFtError as error:
            fail(self.log, error)

    def step(self, run: steps.Context, context: Context) -> Any:
        """The task's own work; the result goes to XCom."""
        raise NotImplementedError

    @contextmanager
    def run_context(self, context: Context) -> Iterator[steps.Context]:
        """This task's run, with the decision log open for the duration of the block."""
        ti = context["ti"]
        task = f"{ti.dag_id}/{ti.run_id}/{ti.task_id}"
        if ti.map_index is not None and ti.map_index >= 0:
            task += f"[{ti.map_index}]"
        with closing(open_configured_store(self.store)) as store:
            yield steps.Context(
                store=store,
                pipeline=self.pipeline,
                run=RunKey(ti.dag_id, ti.run_id),
                participants=participant_factory(),
                worker=Worker(task=task, try_number=ti.try_number),
                interval_end=plain_utc(context.get("data_interval_end")),
                lease_seconds=settings.lease_seconds(),
                run_is_over=run_is_over,
            )
