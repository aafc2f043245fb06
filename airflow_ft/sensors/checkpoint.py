"""`CheckpointSensor`: opens on confirmed checkpoints, never on the success of a task (I9)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.pipeline.obstacles import Obstacles
from airflow_ft.pipeline.runs import test_command
from airflow_ft.pipeline.templates import declared_name, no_suffix, require_value
from airflow_ft.protocol.arguments import check_text, is_template, whole_number
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import RunKey
from airflow_ft.sensors.base import GateSensor, given_time
from airflow_ft.sensors.implied import implied_gate, is_dry_run
from airflow_ft.triggers.checkpoint import CheckpointTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.store.decision_log import DecisionLog


class CheckpointSensor(GateSensor):
    """Waits until a pipeline's rows are proven to be in every sink.

    At most one condition. Without any it waits for everything that was there when its own DAG run's interval ended:
    see `implied_gate`. That point is fixed at the first look, and kept over retries, deferral and rescheduling.

    Args:
        pipeline: the pipeline's name.
        suffix: as in `CheckpointedPipeline`.
        number: wait until this checkpoint is confirmed (and every earlier one settled).
        dag_id: with `run_id`: wait until all that this DAG run staged is confirmed.
        run_id: see `dag_id`.
        as_of: wait until everything that was in the sources at this time (datetime with a zone, or ISO text) is
            confirmed: a run that began to read at or after it has read to the end, and is delivered.
        after: wait until a checkpoint was confirmed at or after this time, with any rows. A late delivery of an
            earlier run's rows opens it too.
        store: as in `CheckpointedPipeline`.
        deferrable: wait in the triggerer, without a worker's slot, after one look.
        poke_interval, timeout, mode, soft_fail ...: as in every sensor; seconds between looks, and in all.

    Result: {"pipeline", "number": newest confirmed number}.
    """

    template_fields: Sequence[str] = (
        "pipeline",
        "suffix",
        "number",
        "dag_id_of_run",
        "run_id",
        "as_of",
        "after",
        "store",
    )

    def __init__(
        self,
        *,
        pipeline: str,
        suffix: Any = None,
        number: int | str | None = None,
        dag_id: str | None = None,
        run_id: str | None = None,
        as_of: datetime | str | None = None,
        after: datetime | str | None = None,
        store: str | None = None,
        deferrable: bool | None = None,
        poke_interval: timedelta | float = 10.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(store=store, deferrable=deferrable, poke_interval=poke_interval, **kwargs)
        self.pipeline, self.suffix = declared_name(pipeline, suffix)
        self._written = (self.pipeline, self.suffix)
        self._gate: Gate | None = None
        self._obstacles = Obstacles()
        if (dag_id is None) is not (run_id is None):
            raise ConfigurationError(
                "dag_id and run_id belong together, and one of them is missing.",
                code="argument_missing",
                remedy="Give both dag_id and run_id, or neither.",
                pipeline=pipeline,
                argument="dag_id" if dag_id is None else "run_id",
            )
        if sum(condition is not None for condition in (number, run_id, as_of, after)) > 1:
            raise ConfigurationError(
                "CheckpointSensor waits for one condition, and has several.",
                code="arguments_conflict",
                remedy="Give one of number, dag_id with run_id, as_of, or after. Use one sensor for each condition.",
                pipeline=pipeline,
            )
        for name, text in (("dag_id", dag_id), ("run_id", run_id)):
            check_text(name, text, optional=True, of="CheckpointSensor")
        if number is not None and not is_template(number):
            whole_number("number", number)
        for name, at in (("as_of", as_of), ("after", after)):
            if at is not None and not is_template(at):
                given_time(name, at)
        self.number = number
        self.dag_id_of_run = dag_id  # an operator's own dag_id is taken
        self.run_id = run_id
        self.as_of = as_of
        self.after = after
        self._given = {"number": number, "dag_id_of_run": dag_id, "run_id": run_id, "as_of": as_of, "after": after}

    def gate(self, context: Context, store: DecisionLog) -> Gate:
        """The condition, after rendering. ConfigurationError for text that is none, or if rendering gave no value.

        A declared condition without a value is no missing one: what a sensor without any waits for may come earlier.
        """
        for name, written in self._given.items():
            require_value(name.removesuffix("_of_run"), written, getattr(self, name))
        if self.number is not None:
            return Gate(number=whole_number("number", self.number))
        if self.dag_id_of_run is not None and self.run_id is not None:
            return Gate(run=RunKey(self.dag_id_of_run, self.run_id))
        if self.as_of is not None:
            return Gate(as_of=given_time("as_of", self.as_of))
        if self.after is not None:
            return Gate(after=given_time("after", self.after))
        name = self.pipeline
        return Gate.from_json(
            self.fixed(context, lambda: implied_gate(self, self._written, context, store, name).to_json(), name)
        )

    def look(self, context: Context, store: DecisionLog) -> dict[str, Any] | None:
        """Return the answer of the gate, and log what a person must do to open it."""
        if self._gate is None:
            if self._written[1] is not None and self.suffix is None:  # the name without one is another pipeline's
                raise no_suffix(self.pipeline, None)
            self.pipeline, self.suffix = declared_name(self.pipeline, self.suffix)
            check_name("pipeline", self.pipeline)
            self._gate = self.gate(context, store)
            self.log.info("waiting for %s", self._gate)
        opened = self._gate.is_open(store, self.pipeline)
        if opened is None:
            self._skip_in_dry_run(context)
            for each in self._obstacles.new(store, [self.pipeline]):
                self.log.warning("%s", each)
        return opened

    def _skip_in_dry_run(self, context: Context) -> None:
        """Raise AirflowSkipException if the run whose rows the sensor waits for is its own, and a dry run.

        A dry run confirms nothing.
        """
        run, own = self._gate.run if self._gate is not None else None, context.get("dag_run")
        if run is None or own is None or run != RunKey(own.dag_id, own.run_id):
            return
        if command := test_command(context):
            raise AirflowSkipException(f"`{command}` makes a dry run, which confirms nothing to wait for")
        if is_dry_run(self, self._written, context, self.pipeline):
            raise AirflowSkipException(f"{self.pipeline}: a dry run confirms nothing to wait for")

    def trigger(self) -> CheckpointTrigger:
        """Asks what the sensor asks."""
        assert self._gate is not None  # by the first look
        return CheckpointTrigger(
            pipeline=self.pipeline, gate=self._gate.to_json(), store=self.store, poll_interval=self.poke_interval
        )

    def log_opened(self, opened: dict[str, Any]) -> None:
        """Log the checkpoint that opened it; a confirmed checkpoint stays confirmed."""
        self.log.info("open: checkpoint %s is confirmed", opened["number"])
