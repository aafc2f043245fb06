"""Facets of a pipeline's tasks for OpenLineage, through `apache-airflow-providers-openlineage`: the extra
`openlineage`.

Imported only when that provider asks an operator, or can receive events. Everything is read from the decision log and
the write-ahead log: staged and confirmed checkpoints of a run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.openlineage.facet import (
    ColumnLineageDatasetFacet,
    Dataset,
    Fields,
    InputField,
    OutputDataset,
    OutputStatisticsOutputDatasetFacet,
    RunFacet,
    SchemaDatasetFacet,
    SchemaDatasetFacetFields,
)
from airflow.providers.openlineage.api import emit_dataset_lineage
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.facet_v2 import column_lineage_dataset

from airflow_ft.pipeline.connections import task_connections
from airflow_ft.pipeline.decision_log import open_configured_store
from airflow_ft.pipeline.lineage import Delivered, column_name, columns, delivered, destinations
from airflow_ft.pipeline.runs import run_of
from airflow_ft.protocol.column_lineage import ColumnLineage, Inputs
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.numbers import MOST_LISTED, Numbers
from airflow_ft.sources.lineage import datasets
from airflow_ft.wal import open_wal

if TYPE_CHECKING:
    from airflow_ft.operators.base import CheckpointOperator
    from airflow_ft.protocol.delivery_log import RunLog
    from airflow_ft.protocol.model import Checkpoint, RunKey
    from airflow_ft.wal.manifest import Manifest

log = logging.getLogger(__name__)

FACET = "airflow_ft_checkpoint"


def lineage(
    operator: CheckpointOperator, task_instance: Any, *, writes: bool, rows: bool = True
) -> OperatorLineage[Any, Any]:
    """Return inputs and the run facet `airflow_ft_checkpoint`; for a task that confirms (`writes`) also outputs.

    `rows`: include the row counts of the whole run. A failed try leaves them to the last try.
    """
    run = run_of({"ti": task_instance})
    read = _inputs(operator)
    inputs = [each for found in read.values() for each in found]
    with closing(open_configured_store(operator.store)) as store:
        try:
            made = store.run_checkpoints(operator.pipeline, run, MOST_LISTED)
        except KeyError:  # it has not run yet
            return OperatorLineage(inputs=inputs)
        confirmed = store.confirmed(operator.pipeline, run)
        delivered_to = delivered(store, operator.pipeline, confirmed, task_connections) if writes else ()
        numbers = confirmed.numbers.to_json() if writes else _numbers(made)
        newest = _newest(made, confirmed.numbers.last if writes else None)
        manifest = _manifest(newest)
        facet = {"pipeline": operator.pipeline, **numbers, **_of(store, operator.pipeline, run, newest, manifest)}
        if rows and numbers["count"] == len(counted := [each for each in made if each.is_confirmed or not writes]):
            segments = [each.segment for each in counted if each.segment is not None]
            facet |= {"rows": sum(s.total_rows for s in segments), "logBytes": sum(s.bytes for s in segments)}
    outputs = [_output(each, manifest, read, rows=rows) for each in delivered_to]
    return OperatorLineage(
        inputs=inputs, outputs=outputs, run_facets={FACET: RunFacet().with_additional_properties(**facet)}
    )


def together(found: Sequence[OperatorLineage[Any, Any]]) -> OperatorLineage[Any, Any]:
    """Return the inputs and outputs of several pipelines of one task, without the facets of a single one."""
    inputs = {(each.namespace, each.name): each for one in found for each in one.inputs}
    outputs = [each for one in found for each in one.outputs]
    return OperatorLineage(inputs=list(inputs.values()), outputs=outputs)


def emit_running(operator: CheckpointOperator, task_instance: Any, number: int) -> None:
    """Send a RUNNING event of a stream whose newest confirmed checkpoint is `number`; without rows, which the end
    sends.

    Only logs errors, as warnings.
    """
    try:
        read = _inputs(operator)
        run = run_of({"ti": task_instance})
        with closing(open_configured_store(operator.store)) as store:
            checkpoint = store.checkpoint(operator.pipeline, number)
            manifest = _manifest(checkpoint)
            delivered_to = destinations(checkpoint.plan, task_connections) if checkpoint.plan is not None else ()
            facet = {"pipeline": operator.pipeline, "last": number}
            facet |= _of(store, operator.pipeline, run, checkpoint, manifest)
        facets: dict[str, Any] = {FACET: RunFacet().with_additional_properties(**facet)}
        emit_dataset_lineage(
            inputs=[each for found in read.values() for each in found],
            outputs=[_output(each, manifest, read, rows=False) for each in delivered_to],
            task_instance=task_instance,
            additional_run_facets=facets,
            raise_on_error=True,
        )
    except Exception as error:  # of a transport, too: the stream continues
        log.warning("could not report checkpoint %d to OpenLineage: %s: %s", number, type(error).__name__, error)


def _inputs(operator: CheckpointOperator) -> Mapping[str, list[Dataset]]:
    """By source."""
    found: dict[str, list[Dataset]] = {}
    for name, source in operator.rendered().sources.items():
        try:
            read = datasets(source, task_connections)
            found[name] = [Dataset(namespace=each.namespace, name=each.name) for each in read]
        except AirflowFtError as error:
            log.warning("lineage omits source %s: %s", name, error)
    return found


def _numbers(made: Sequence[Checkpoint]) -> dict[str, Any]:
    return Numbers.of(each.number for each in made if each.segment is not None).to_json()


def _newest(made: Sequence[Checkpoint], number: int | None) -> Checkpoint | None:
    """The newest with rows; with a number, that one."""
    found = (each for each in reversed(made) if each.segment is not None and number in (None, each.number))
    return next(found, None)


def _manifest(checkpoint: Checkpoint | None) -> Manifest | None:
    """Return what was published; None: nothing, or it is pruned, or out of reach."""
    if checkpoint is None or checkpoint.segment is None:
        return None
    try:
        return open_wal().open(checkpoint.segment).manifest
    except (AirflowFtError, OSError) as error:
        log.warning("lineage omits the columns of checkpoint %d: %s", checkpoint.number, error)
        return None


def _of(
    store: RunLog, pipeline: str, run: RunKey, checkpoint: Checkpoint | None, manifest: Manifest | None
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


def _output(
    each: Delivered, manifest: Manifest | None, read: Mapping[str, list[Dataset]], *, rows: bool
) -> OutputDataset:
    facets: dict[str, Any] = {}
    content = manifest.sinks.get(each.sink) if manifest is not None else None
    if content is not None and (found := columns(each, content)):
        fields = [SchemaDatasetFacetFields(name=name, type=kind) for name, kind in found]
        facets["schema"] = SchemaDatasetFacet(fields=fields)
        if manifest is not None and (made_of := manifest.lineage.get(each.sink)) is not None:
            lineage = _columns_made_of(each, ColumnLineage.from_json(made_of), read)
            facets |= {"columnLineage": lineage} if lineage.fields or lineage.dataset else {}
    return OutputDataset(
        namespace=each.dataset.namespace,
        name=each.dataset.name,
        facets=facets,
        outputFacets={"outputStatistics": OutputStatisticsOutputDatasetFacet(rowCount=each.rows)} if rows else {},
    )


def _columns_made_of(
    of: Delivered, lineage: ColumnLineage, read: Mapping[str, list[Dataset]]
) -> ColumnLineageDatasetFacet:
    """By the names that the columns have in the sink; without those that it has not got, and that come from nowhere."""
    found = ((column_name(of, column), _input_fields(inputs, read)) for column, inputs in lineage.columns.items())
    return ColumnLineageDatasetFacet(
        fields={name: Fields(inputFields=fields) for name, fields in found if name is not None and fields},
        dataset=_input_fields(lineage.rows, read),
    )


def _input_fields(inputs: Inputs, read: Mapping[str, list[Dataset]]) -> list[InputField]:
    """Return the input fields; a column of a source with several topics belongs to each of them."""
    uses: dict[tuple[str, str], list[column_lineage_dataset.Transformation]] = {}
    for each in sorted(inputs, key=lambda each: (each.source, each.column, each.how)):
        kind = "DIRECT" if each.how.is_direct else "INDIRECT"
        use = column_lineage_dataset.Transformation(type=kind, subtype=each.how.value)
        uses.setdefault((each.source, each.column), []).append(use)
    return [
        InputField(namespace=place.namespace, name=place.name, field=column, transformations=transformations)
        for (source, column), transformations in uses.items()
        for place in read.get(source, ())
    ]
