"""`prepare`: plans what is staged, and asks one participant for its vote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.core import steps
from airflow_ft.core.arguments import check_text
from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.planning import plan_delivery
from airflow_ft.core.ports import HoldingSinkSpec, SinkSpec
from airflow_ft.operators.arguments import check_checkpointing, check_places, check_sinks
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.confirm import checkpoint_settings
from airflow_ft.templates import rebuild, spec_fields

if TYPE_CHECKING:
    from airflow.sdk import Context


class PrepareOperator(CheckpointOperator):
    """Asks one participant whether it can take every staged checkpoint's rows; nothing becomes visible.

    Args:
        participant: the Airflow connection that is asked.
        sinks: all sinks of the pipeline by name (the plan is one for all of them).
        commit_point: the connection whose own transaction decides; None: the first ATOMIC one declared.
        checkpointing: how many checkpoints are delivered as one.

    The other arguments are those of `CheckpointOperator`. Result: {"numbers": {number: state}}.
    """

    template_fields: Sequence[str] = (
        *CheckpointOperator.template_fields,
        "participant",
        "sinks",
        "commit_point",
        "checkpointing",
    )
    template_fields_renderers = {"sinks": "json", "checkpointing": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(
        self,
        *,
        participant: str,
        sinks: Mapping[str, SinkSpec],
        commit_point: str | None = None,
        checkpointing: CheckpointConfig | Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_text("participant", participant)
        check_sinks(sinks)
        check_places(commit_point=commit_point)
        check_checkpointing(checkpointing)
        if checkpointing is None or isinstance(checkpointing, CheckpointConfig):  # else it may still contain Jinja
            check_holding(sinks, checkpointing or CheckpointConfig())
        self.participant = participant
        self.sinks = {name: spec_fields(sink) for name, sink in sinks.items()}
        self._sink_classes: dict[str, type[SinkSpec]] = {name: type(sink) for name, sink in sinks.items()}
        self.commit_point = commit_point
        self.checkpointing = checkpoint_settings(checkpointing)

    def step(self, run: steps.Context, context: Context) -> Any:
        """Plans and votes; a refusal aborts the checkpoint and rewinds the pipeline."""
        sinks = rebuild(self._sink_classes, self.sinks)
        delivery = plan_delivery(sinks, self.commit_point)
        config = CheckpointConfig.from_json(self.checkpointing)
        check_holding(sinks, config)
        prepared = steps.prepare_step(run, delivery, config, self.participant)
        for reason in delivery.reasons:
            self.log.info("plan: %s", reason)
        return {"numbers": {str(checkpoint.number): checkpoint.state.value for checkpoint in prepared}}


def check_holding(sinks: Mapping[str, SinkSpec], config: CheckpointConfig) -> None:
    """ConfigurationError, naming the sink, when one cannot hold its rows as long as a checkpoint may take."""
    for name, sink in sinks.items():
        if isinstance(sink, HoldingSinkSpec):
            try:
                sink.check_checkpointing(config)
            except ConfigurationError as error:
                error.located(sink=name)
                raise
