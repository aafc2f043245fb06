"""What OpenLineage is told of a pipeline's tasks, by `apache-airflow-providers-openlineage`: the extra `openlineage`.

Imported when that provider asks an operator, and by nobody else. All of it is read from the decision log and the
write-ahead log: what a run has staged, and what is confirmed of it. Column lineage is left out: of which columns a job
makes which is in its code.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.openlineage.facet import (
    Dataset,
    OutputDataset,
    OutputStatisticsOutputDatasetFacet,
    RunFacet,
    SchemaDatasetFacet,
    SchemaDatasetFacetFields,
)
from airflow.providers.openlineage.extractors import OperatorLineage

from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.numbers import MOST_LISTED, Numbers
from airflow_ft.hooks.connections import task_connections
from airflow_ft.hooks.store import open_configured_store
from airflow_ft.lineage import Delivered, columns, delivered
from airflow_ft.runs import run_of
from airflow_ft.sources.lineage import datasets
from airflow_ft.wal import open_wal

if TYPE_CHECKING:
    from airflow_ft.core.model import Checkpoint, RunKey
    from airflow_ft.core.ports import Store
    from airflow_ft.operators.base import CheckpointOperator
    from airflow_ft.wal.manifest import Manifest

log = logging.getLogger(__name__)

FACET = "airflow_ft_checkpoint"


def lineage(operator: CheckpointOperator, task_instance: Any, *, writes: bool) -> OperatorLineage[Any, Any]:
    """Inputs, and the run facet `airflow_ft_checkpoint`; of a task that confirms (`writes`) the outputs, too."""
    run = run_of({"ti": task_instance})
    inputs = _inputs(operator)
    with closing(open_configured_store(operator.store)) as store:
        try:
            made = store.run_checkpoints(operator.pipeline, run, MOST_LISTED)
        except KeyError:  # it has not run yet
            return OperatorLineage(inputs=inputs)
        confirmed = store.confirmed(operator.pipeline, run)
        told = delivered(store, operator.pipeline, confirmed, task_connections) if writes else ()
        numbers = confirmed.numbers.told() if writes else _numbers(made)
        newest = _newest(made, confirmed.numbers.last if writes else None)
        manifest = _manifest(newest)
        facet = {"pipeline": operator.pipeline, **numbers, **_of(store, operator.pipeline, run, newest, manifest)}
        if numbers["count"] == len(counted := [each for each in made if each.is_confirmed or not writes]):
            segments = [each.segment for each in counted if each.segment is not None]
            facet |= {"rows": sum(s.total_rows for s in segments), "logBytes": sum(s.bytes for s in segments)}
    outputs = [_output(each, manifest) for each in told]
    return OperatorLineage(
        inputs=inputs, outputs=outputs, run_facets={FACET: RunFacet().with_additional_properties(**facet)}
    )


def _inputs(operator: CheckpointOperator) -> list[Dataset]:
    found: list[Dataset] = []
    for name, source in operator.rendered().sources.items():
        try:
            found += [Dataset(namespace=each.namespace, name=each.name) for each in datasets(source, task_connections)]
        except AirflowFtError as error:
            log.warning("lineage does not tell of source %s: %s", name, error)
    return found


def _numbers(made: Sequence[Checkpoint]) -> dict[str, Any]:
    return Numbers.of(each.number for each in made if each.segment is not None).told()


def _newest(made: Sequence[Checkpoint], number: int | None) -> Checkpoint | None:
    """The newest with rows; with a number, that one."""
    found = (each for each in reversed(made) if each.segment is not None and number in (None, each.number))
    return next(found, None)


def _manifest(checkpoint: Checkpoint | None) -> Manifest | None:
    """What was published; None: nothing, or it is pruned, or out of reach."""
    if checkpoint is None or checkpoint.segment is None:
        return None
    try:
        return open_wal().open(checkpoint.segment).manifest
    except (AirflowFtError, OSError) as error:
        log.warning("lineage does not tell the columns of checkpoint %d: %s", checkpoint.number, error)
        return None


def _of(
    store: Store, pipeline: str, run: RunKey, checkpoint: Checkpoint | None, manifest: Manifest | None
) -> dict[str, Any]:
    row = store.run(pipeline, run)
    mode = checkpoint.plan.mode.value if checkpoint is not None and checkpoint.plan is not None else None
    spec = (checkpoint.spec if checkpoint is not None else "") or (row.spec if row is not None else "")
    found = {
        "mode": mode,
        "epoch": manifest.epoch if manifest else None,
        "attempt": manifest.attempt if manifest else None,
        "spec": spec or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _output(each: Delivered, manifest: Manifest | None) -> OutputDataset:
    facets: dict[str, Any] = {}
    content = manifest.sinks.get(each.sink) if manifest is not None else None
    if content is not None and (found := columns(each, content)):
        fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in found]
        facets["schema"] = SchemaDatasetFacet(fields=fields)
    return OutputDataset(
        namespace=each.dataset.namespace,
        name=each.dataset.name,
        facets=facets,
        outputFacets={"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=each.rows)},
    )
