"""`confirmed`: succeeds on proof alone (I9); what stands behind it in the DAG may rely on every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ft import settings
from airflow_ft.assets import declared_asset
from airflow_ft.core import steps
from airflow_ft.core.config import UNSET, CheckpointConfig
from airflow_ft.hooks.connections import task_connections
from airflow_ft.operators.arguments import check_checkpointing, check_places, check_sources, check_switches
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.recover import emit
from airflow_ft.templates import is_template, rebuild, spec_fields

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_ft.sources import Source


class ConfirmOperator(CheckpointOperator):
    """Fails unless every checkpoint that this run published is confirmed in every sink; then retains and prunes.

    Updates the pipeline's asset, unless the run had nothing to deliver. Gives the pipeline's turn to the next run.

    Args:
        sources: specifications by name: the consumer groups of `KafkaSource(group_id=...)` follow what is confirmed.
        checkpointing: how much is retained, and when what cannot be settled is QUARANTINED.
        wal_root: folder of the write-ahead log; None: `[airflow_ft] wal_root`.
        emit_asset: whether the asset is updated.

    The other arguments are those of `CheckpointOperator`.
    Result: {"numbers": [...], "latest": newest confirmed number of the pipeline, "rows": confirmed in this run,
    "set_aside": of these, rows by sink that the sink refused and a person has set aside (`airflow ft in-doubt`)}.
    """

    role = "confirmed"
    template_fields: Sequence[str] = (*CheckpointOperator.template_fields, "sources", "checkpointing", "wal_root")
    template_fields_renderers = {"sources": "json", "checkpointing": "json"}  # noqa: RUF012 - as Airflow declares it

    def __init__(
        self,
        *,
        sources: Mapping[str, Source] | None = None,
        checkpointing: CheckpointConfig | Mapping[str, Any] | None = None,
        wal_root: str | None = None,
        emit_asset: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_sources({} if sources is None else sources, required=False)
        check_checkpointing(checkpointing)
        check_places(wal_root=wal_root)
        check_switches(emit_asset=emit_asset)
        self.sources = {name: spec_fields(source) for name, source in (sources or {}).items()}
        self._source_classes: dict[str, type[Source]] = {name: type(s) for name, s in (sources or {}).items()}
        self.checkpointing = checkpoint_settings(checkpointing)
        self.wal_root = wal_root
        if emit_asset:
            self.add_outlets([declared_asset(self.pipeline, self.suffix)])

    def step(self, run: steps.Context, context: Context) -> Any:
        """Confirms; NotDeliveredError (which fails the task) says which numbers are not, and why."""
        from airflow_ft.sources.progress import GroupOffsets
        from airflow_ft.wal.retention import WalArchive

        config = CheckpointConfig.from_json(self.checkpointing)
        if config.quarantine_after is UNSET:
            config = replace(config, quarantine_after=settings.quarantine_after())
        archive = WalArchive(self.wal_root or settings.wal_root())
        progress = GroupOffsets(rebuild(self._source_classes, self.sources), task_connections)
        confirmation = steps.confirm_step(run, config, archive, progress)
        emit(self, context, confirmation.numbers, run)
        self.log.info(
            "confirmed in this run: %s (%s rows)",
            ", ".join(f"checkpoint {number}" for number in confirmation.numbers) or "nothing, since nothing was new",
            f"{confirmation.rows:,}",
        )
        for sink, aside in confirmation.set_aside.items():
            self.log.warning("confirmed without all rows: %s", aside.text(sink))
        return {
            "numbers": list(confirmation.numbers),
            "latest": confirmation.latest,
            "rows": confirmation.rows,
            "set_aside": {sink: aside.rows for sink, aside in confirmation.set_aside.items()},
        }


def checkpoint_settings(checkpointing: CheckpointConfig | Mapping[str, Any] | None) -> dict[str, Any]:
    """Plain data for a template field; validated here as far as it contains no Jinja."""
    if isinstance(checkpointing, CheckpointConfig):
        return checkpointing.to_json()
    given = dict(checkpointing or {})
    CheckpointConfig.from_json({name: value for name, value in given.items() if not is_template(value)})
    return given
