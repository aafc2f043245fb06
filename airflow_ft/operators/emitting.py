"""The assets of a pipeline's tasks: what is declared when the DAG is parsed, and the events when rows are confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_ft.pipeline.assets import SCHEME, declared_asset, pipeline_asset, sink_assets, source_assets, tell_sinks
from airflow_ft.pipeline.connections import task_connections

if TYPE_CHECKING:
    from airflow.sdk import Asset, AssetAlias, Context

    from airflow_ft.operators.base import CheckpointOperator
    from airflow_ft.protocol import steps
    from airflow_ft.protocol.confirmed import Confirmed
    from airflow_ft.store.decision_log import DecisionLog


def declare_outlets(operator: CheckpointOperator) -> None:
    """The pipeline's asset, and those of its sinks, unless it says `emit_asset=False`."""
    if operator.spec.emit_asset:
        own = declared_asset(operator.pipeline, operator.suffix)
        operator.add_outlets([own, *dict.fromkeys(sink_assets(operator.spec).values())])


def declare_inlets(operator: CheckpointOperator) -> None:
    """The assets of the sources, unless it says `emit_asset=False`."""
    if operator.spec.emit_asset:
        operator.add_inlets(list(dict.fromkeys(source_assets(operator.spec))))


def emit(operator: CheckpointOperator, context: Context, run: steps.Context[DecisionLog], confirmed: Confirmed) -> None:
    """Name the confirmed numbers in the assets' events; assets without new rows are not updated.

    Airflow updates everything in `outlets` when a task succeeds, so a task without rows removes it, only in this
    process's copy. An alias represents an asset whose name is known only in a run.
    """
    from airflow.sdk import AssetAlias

    from airflow_ft.pipeline.lineage import delivered

    if not operator.spec.emit_asset:
        return
    asset = pipeline_asset(operator.pipeline)
    declared = sink_assets(operator.spec)
    silent: Sequence[Asset | AssetAlias]
    if not confirmed.numbers.count:
        silent = [asset, *declared.values()]
    else:
        extra = {"pipeline": operator.pipeline, "number": confirmed.numbers.last, **confirmed.told()}
        for outlet in operator.outlets:
            if outlet == asset:
                context["outlet_events"][outlet].extra = extra
            elif isinstance(outlet, AssetAlias) and outlet.name.startswith(f"{SCHEME}://"):
                context["outlet_events"][outlet].add(asset, extra=extra)
        found = delivered(run.store, run.pipeline, confirmed, task_connections)
        silent = tell_sinks(declared, found, operator.pipeline, confirmed, context["outlet_events"])
    operator.outlets = [outlet for outlet in operator.outlets if outlet not in silent]
