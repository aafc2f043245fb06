"""Base of operators that act on a pipeline for a person: the pipeline's name, its decision log and the requester."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_ft.operators.failing import fail
from airflow_ft.operators.links import PipelineLink
from airflow_ft.operators.named import NamedArguments
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.actions.names import READING
from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.decision_log import check_store, open_configured_store, participant_factory, rendered_store
from airflow_ft.pipeline.runs import asked_by, refuse_test_run, run_is_over, task_of
from airflow_ft.protocol.arguments import is_template, whole_number
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.lease import Worker

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.pipeline.actions.performing import Asked


class ActingOperator(BaseOperator, metaclass=NamedArguments):
    """Acts on a pipeline by its name, from any DAG.

    Args:
        pipeline: its name.
        store: as in `CheckpointedPipeline`.
    """

    template_fields: Sequence[str] = ("pipeline", "store")
    operator_extra_links = (PipelineLink(),)
    ui_color = "#e8f4ea"

    def __init__(self, *, pipeline: str, store: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.store = self._written_store = check_store(store)
        if not is_template(pipeline):
            check_name("pipeline", pipeline)

    def execute(self, context: Context) -> Any:
        """Does it; the result goes to XCom."""
        from airflow_ft.pipeline.actions.performing import perform  # parsing a DAG needs nothing of it

        try:
            check_name("pipeline", self.pipeline)
            rendered_store(self._written_store, self.store)
            asked = self.asked(context)
            if asked.action not in READING:
                refuse_test_run(context)
            return perform(self.actor(context, asked), asked, lambda: open_configured_store(self.store))
        except AirflowFtError as error:
            fail(self.log, error, context)

    def asked(self, context: Context) -> Asked:
        """Return the requested action, from rendered fields. Raises ConfigurationError."""
        raise NotImplementedError

    def actor(self, context: Context, asked: Asked) -> Actor:
        """Return the requester: the person who triggered the run. A task cannot ask back, so it logs its questions."""
        action = asked.action if asked.number is None else f"{asked.action} {asked.number}"
        return actor_of(self.log, context, action, asked.reason)


def actor_of(log: Any, context: Context, action: str, reason: str = "") -> Actor:
    """Return the person who triggered the run of a task that does `action`."""
    person = asked_by(context) + (f": {reason}" if reason else "")
    return Actor(
        signature=f"`{action}` by {person}",
        person=person,
        say=log.info,
        sure=lambda question: log.info(f"{question} Confirmed by {person}"),
        connections=task_connections,
        participants=participant_factory(),
        is_over=lambda run: not run.is_plain and run_is_over(run),
        worker=Worker(task=task_of(context), try_number=context["ti"].try_number),
        lease_seconds=settings.lease_seconds(),
    )


def number_of(value: Any) -> int | None:
    """A checkpoint's number, also as Jinja makes text of it; None where none is given. ConfigurationError."""
    if value is None or str(value).strip() in ("", "None"):
        return None
    return whole_number("checkpoint", value, least=1)


def check_number_given(value: Any) -> None:
    """ConfigurationError, when the DAG is parsed, for a checkpoint that is no number; a run may render it."""
    if not is_template(value):
        number_of(value)
