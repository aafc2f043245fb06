"""`CheckpointSensor`: opens on confirmed checkpoints, never on the success of a task (I9)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_ft.checkpoints import Gate
from airflow_ft.core.config import check_name
from airflow_ft.core.errors import AirflowFtError, ConfigurationError
from airflow_ft.core.model import RunKey
from airflow_ft.hooks.store import check_store, open_configured_store
from airflow_ft.links import PipelineLink
from airflow_ft.operators.failing import fail
from airflow_ft.runs import plain_utc
from airflow_ft.templates import is_template
from airflow_ft.triggers.checkpoint import CheckpointTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class CheckpointSensor(BaseSensorOperator):
    """Waits until a pipeline's rows are proven to be in every sink.

    At most one condition; without any it is `after` the end of this run's data interval.

    Args:
        pipeline: the pipeline's name.
        number: wait until this checkpoint is confirmed (and every earlier one settled).
        dag_id: with `run_id`: wait until all that this DAG run staged is confirmed.
        run_id: see `dag_id`.
        after: wait until a checkpoint was confirmed at or after this time (datetime with a zone, or ISO text).
        store: as in `CheckpointedPipeline`.
        deferrable: wait in the triggerer, without a worker's slot, after one look.
        poke_interval, timeout, mode, soft_fail ...: as in every sensor; seconds between looks, and in all.

    Result: {"pipeline", "number": newest confirmed number}.
    """

    template_fields: Sequence[str] = ("pipeline", "number", "dag_id_of_run", "run_id", "after", "store")
    operator_extra_links = (PipelineLink(),)
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        pipeline: str,
        number: int | str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        after: datetime | str | None = None,
        store: str | None = None,
        deferrable: bool | None = None,
        poke_interval: timedelta | float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        if not is_template(pipeline):
            check_name("pipeline", pipeline)
        if (dag_id is None) is not (run_id is None):
            raise ConfigurationError("dag_id and run_id go together.", pipeline=pipeline)
        if sum(condition is not None for condition in (number, run_id, after)) > 1:
            raise ConfigurationError(
                "CheckpointSensor waits for one condition only.",
                remedy="give number, dag_id with run_id, or after; use several sensors for several conditions.",
                pipeline=pipeline,
            )
        self.pipeline = pipeline
        self.number = number
        self.dag_id_of_run = dag_id  # an operator's own dag_id is taken
        self.run_id = run_id
        self.after = after
        self.store = check_store(store)
        self.deferrable = _deferrable_by_default() if deferrable is None else deferrable

    def gate(self, context: Context) -> Gate:
        """The condition, after rendering. ConfigurationError for text that is none."""
        if self.number is not None:
            try:
                return Gate(number=int(self.number))
            except ValueError:
                raise ConfigurationError(f"number is {self.number!r}.", remedy="give a whole number.") from None
        if self.dag_id_of_run is not None and self.run_id is not None:
            return Gate(run=RunKey(self.dag_id_of_run, self.run_id))
        after = self.after if self.after is not None else context.get("data_interval_end")
        if after is None:
            raise ConfigurationError(
                "this run has no data interval to wait for.", remedy="give number, dag_id with run_id, or after."
            )
        if isinstance(after, str):
            try:
                after = datetime.fromisoformat(after)
            except ValueError:
                raise ConfigurationError(f"after is {after!r}.", remedy="give a time in ISO 8601.") from None
        if after.tzinfo is None:
            raise ConfigurationError(f"after is {after!r}, without a zone.", remedy="give a time with a zone.")
        return Gate(after=plain_utc(after))

    def poke(self, context: Context) -> PokeReturnValue:
        """One look at the decision log."""
        try:
            with closing(open_configured_store(check_store(self.store))) as store:
                opened = self.gate(context).is_open(store, self.pipeline)
        except AirflowFtError as error:
            fail(self.log, error)
        return PokeReturnValue(is_done=opened is not None, xcom_value=opened)

    def execute(self, context: Context) -> Any:
        """Looks once, then waits: in the triggerer when it is deferrable, else as every sensor does."""
        if not self.deferrable:
            return super().execute(context)
        found = self.poke(context)
        if found.is_done:
            return found.xcom_value
        gate = self.gate(context)
        self.log.info("waiting for %s", gate)
        self.defer(
            trigger=CheckpointTrigger(
                pipeline=self.pipeline, gate=gate.to_json(), store=self.store, poll_interval=self.poke_interval
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """What the trigger saw is final: a confirmed checkpoint stays confirmed."""
        self.log.info("open: checkpoint %s is confirmed", event["number"])
        return event


def _deferrable_by_default() -> bool:
    from airflow.sdk.configuration import conf

    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))
