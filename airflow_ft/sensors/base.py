"""Base of the sensors: one look at the decision log, then the triggerer. The first look fixes the point."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_ft.operators.failing import fail
from airflow_ft.operators.links import PipelineLink
from airflow_ft.operators.named import NamedArguments
from airflow_ft.pipeline.decision_log import check_store, open_configured_store, rendered_store
from airflow_ft.pipeline.runs import standard_utc
from airflow_ft.protocol.arguments import check_type, wrong
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, TransientError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from airflow_ft.store.decision_log import DecisionLog

_KEPT = "airflow_ft_gate"
"""First part of the key under which Airflow keeps the point that the first look fixed."""
_OUTAGE = "airflow_ft_outage"
"""Key under which Airflow keeps whether the log has an outage that has not ended."""


class GateSensor(BaseSensorOperator, metaclass=NamedArguments):
    """Base of the sensors. What opens one is final, so nothing is asked again after its trigger has fired.

    Args:
        store: as in `CheckpointedPipeline`.
        deferrable: wait in the triggerer, without a worker's slot, after one look; None: Airflow's default.
    """

    operator_extra_links = (PipelineLink(),)
    ui_color = "#e8f4ea"
    expanded_to_none: Sequence[str] = ()

    def __init__(self, *, store: str | None = None, deferrable: bool | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_type("deferrable", deferrable, bool, "Give True or False.", optional=True)
        self.store = self._written_store = check_store(store)
        self._has_looked = self._is_away = False
        self.deferrable = _deferrable_by_default() if deferrable is None else deferrable
        if self.deferrable and not self.poke_interval:
            remedy = "Give a number of seconds above 0, or deferrable=False."
            raise wrong("poke_interval", "0", remedy, why=", and the sensor is deferrable")

    def look(self, context: Context, store: DecisionLog) -> dict[str, Any] | None:
        """The result when it is open; None: closed."""
        raise NotImplementedError

    def trigger(self) -> BaseTrigger:
        """Return what waits for the same, after a first look."""
        raise NotImplementedError

    def log_opened(self, opened: dict[str, Any]) -> None:
        """Says in the log what has opened it, in the triggerer."""
        raise NotImplementedError

    def fixed(self, context: Context, make: Callable[[], dict[str, Any]], of: str = "") -> dict[str, Any]:
        """Return what `make` says at the first look; then the same again, over retries, deferral and rescheduling.

        `of`: the pipeline that the point belongs to. The task may be cleared after its name was corrected.
        """
        key = f"{_KEPT}_{of}" if of else _KEPT
        kept = context.get("task_state_store")
        if kept is not None and isinstance(text := kept.get(key), str):
            found: dict[str, Any] = json.loads(text)
            return found
        made = make()
        if kept is not None:
            kept.set(key, json.dumps(made), retention=timedelta(seconds=self.timeout) + timedelta(days=30))
        return made

    def poke(self, context: Context) -> PokeReturnValue:
        """Look at the decision log once. If the gate is closed and the sensor is deferrable, wait in the triggerer.

        TaskDeferred is no Exception. So Airflow's loop passes it on, and treats errors as `soft_fail` says. After
        a first look, the sensor waits through an outage of the log, as in the triggerer.
        """
        try:
            self._require_items()
            with closing(open_configured_store(rendered_store(self._written_store, self.store))) as store:
                opened = self.look(context, store)
        except AirflowFtError as error:
            has_waited = self._has_looked or context.get("task_reschedule_count")
            if not isinstance(error, TransientError) or not has_waited:
                fail(self.log, error, context)
            self._log_outage(context, error)
            return PokeReturnValue(is_done=False)
        self._log_outage(context, None)
        self._has_looked = True
        if opened is None and self.deferrable:
            self.defer(trigger=self.trigger(), method_name="execute_complete", timeout=timedelta(seconds=self.timeout))
        return PokeReturnValue(is_done=opened is not None, xcom_value=opened)

    def _log_outage(self, context: Context, error: AirflowFtError | None) -> None:
        """Log where an outage of the decision log begins and where it ends, not at each look. None: the log answers.

        In the mode "reschedule" each look is another process, so Airflow keeps that an outage was logged.
        """
        kept = context.get("task_state_store") if self.reschedule and context.get("task_reschedule_count") else None
        was_away = self._is_away if kept is None else bool(kept.get(_OUTAGE))
        if was_away is (error is not None):
            return
        if error is not None:
            self.log.warning("the decision log did not answer; the sensor looks again until it does: %s", error)
        else:
            self.log.info("the decision log answers again")
        self._is_away = error is not None
        if kept is not None:
            kept.set(_OUTAGE, self._is_away)

    def _require_items(self) -> None:
        """ConfigurationError if `expand` has the item None for a condition: without one the sensor waits for less."""
        for name in self.expanded_to_none:
            if not {name, f"{name}_of_run"}.isdisjoint(self.template_fields):
                raise ConfigurationError(
                    f"{name} is None for this map index of {self.task_id}.",
                    code="template_without_value",
                    remedy=f"Give a value of {name} for each map index in `expand`, or leave the map index out.",
                    argument=name,
                    value="None",
                )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """The trigger's event is the result."""
        self.log_opened(event)
        return event


def given_time(name: str, value: datetime | str) -> datetime:
    """An argument that is a time with a zone, as of the standard library; ConfigurationError when it is none."""
    check_type(name, value, (datetime, str), "Give a datetime with a time zone, or its text in ISO 8601.")
    try:
        at = datetime.fromisoformat(value) if isinstance(value, str) else standard_utc(value)
    except ValueError:
        raise wrong(name, repr(value), "Give a time in ISO 8601, such as 2026-01-02T03:00:00+00:00.") from None
    if at is None or at.tzinfo is None or (isinstance(value, datetime) and value.tzinfo is None):
        remedy = "Give a time with a time zone, such as 2026-01-02T03:00:00+00:00."
        raise wrong(name, repr(value), remedy, why=", without a time zone")
    return at.astimezone(UTC)


def _deferrable_by_default() -> bool:
    from airflow.sdk.configuration import conf

    return bool(conf.getboolean("operators", "default_deferrable", fallback=False))
