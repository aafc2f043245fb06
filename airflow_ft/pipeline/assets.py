"""The asset of a pipeline, and those of the tables, topics and folders that it reads and writes.

They are updated when checkpoints are confirmed, so that other DAGs can be scheduled by them (I9), and Airflow's graph
of assets shows what comes from where. A DAG declares tables, topics and folders as aliases, `mysql:<connection>/shop`,
`files:/data/orders`, and their assets, `mysql://host:3306/shop/orders`, get the events. For connections are not looked
up when a DAG is parsed, and Airflow runs no task that declares an asset whose URI another DAG has given another name.
Aliases are the same for all pipelines, which connects those that write a topic with those that read it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from string import punctuation
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote

from airflow_ft.pipeline.templates import without_jinja
from airflow_ft.protocol.arguments import is_template
from airflow_ft.protocol.config import check_name
from airflow_ft.protocol.datasets import folder
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.registry import system
from airflow_ft.sources import FileSource
from airflow_ft.sources.lineage import places

if TYPE_CHECKING:
    from airflow.sdk import Asset, AssetAlias

    from airflow_ft.pipeline.lineage import Delivered
    from airflow_ft.pipeline.spec import PipelineSpec
    from airflow_ft.protocol.confirmed import Confirmed

SCHEME = "airflow-ft"

log = logging.getLogger(__name__)


def pipeline_asset(pipeline: str) -> Asset:
    """The asset `airflow-ft://<pipeline>`, equal to what `Asset("airflow-ft://<pipeline>")` makes.

    An event carries extra = {"pipeline", "number" (the newest confirmed number), "numbers", "count", "first", "last",
    "rows", "recovered", "recovered_rows", "set_aside"}, all but the first two as in the result of `ConfirmOperator`.
    Events are sent at least once, and one of `recover` names numbers that the result of its run counts, too. A consumer
    that must not act twice compares the numbers.
    """
    from airflow.sdk import Asset

    return Asset(f"{SCHEME}://{check_name('pipeline', pipeline)}")


def declared_asset(pipeline: str, suffix: object = None) -> Asset | AssetAlias:
    """Return what a task that confirms checkpoints declares as its outlet, when the DAG is parsed.

    The asset of the pipeline; when its name is known only by rendering, the alias "airflow-ft://shop-*" of
    `pipeline="shop"` with a suffix, or of "shop-{{ ... }}". An event goes to the pipeline's own asset in both cases: a
    DAG may be scheduled by `Asset("airflow-ft://shop-de")`, or by the alias.
    """
    from airflow.sdk import AssetAlias

    name = without_jinja(pipeline) if suffix is None else f"{without_jinja(pipeline)}-*"
    return pipeline_asset(pipeline) if name == pipeline else AssetAlias(f"{SCHEME}://{name}")


def sink_assets(spec: PipelineSpec) -> Mapping[str, AssetAlias]:
    """Return the outlets that a confirming task declares for each sink; omits sinks unknown to lineage."""
    found: dict[str, AssetAlias] = {}
    for name, sink in spec.sinks.items():
        of = system(sink.kind)
        target = of.target(sink)
        if target is not None and of.part("lineage") is not None:
            found[name] = _alias(sink.kind, sink.conn_id, target, in_folder=not of.connects)
    return found


def source_assets(spec: PipelineSpec) -> Sequence[AssetAlias]:
    """Return what a task that stages declares of its sources, as its inlets: topics and folders."""
    found: list[AssetAlias] = []
    for source in spec.sources.values():
        in_folder = isinstance(source, FileSource)
        kind = "files" if in_folder else "kafka"
        found += [_alias(kind, source.conn_id, place, in_folder=in_folder) for place in places(source)]
    return found


def _alias(kind: str, conn_id: str | None, place: str, *, in_folder: bool) -> AssetAlias:
    """The same for all who name that place; in ASCII, as Airflow wants it where its own database is MySQL."""
    from airflow.sdk import AssetAlias

    at = f"{without_jinja(conn_id)}/" if conn_id else ""
    target = folder(place).uri.removeprefix("file://") if in_folder and not is_template(place) else without_jinja(place)
    return AssetAlias(quote(f"{kind}:{at}{target}", safe=punctuation))


def emit_sink_events(
    declared: Mapping[str, AssetAlias],
    delivered: Sequence[Delivered],
    pipeline: str,
    confirmed: Confirmed,
    events: Any,
) -> list[AssetAlias]:
    """Writes the events of sinks that got rows into Airflow's `outlet_events`; returns the outlets that have none.

    An event's extra is {"pipeline", "sink", "number": the newest, "numbers", "count", "first", "last", "rows": of this
    sink}. If Airflow refuses an asset, a warning replaces the event: the rows are confirmed anyway.
    """
    from airflow.sdk import Asset

    updated: list[AssetAlias] = []
    for each in delivered:
        outlet = declared.get(each.sink)
        if outlet is None or not each.rows:
            continue
        numbers = confirmed.numbers
        extra = {
            "pipeline": pipeline,
            "sink": each.sink,
            "number": numbers.last,
            **numbers.to_json(),
            "rows": each.rows,
        }
        try:
            events[outlet].add(Asset(each.dataset.uri), extra=extra)
        except ValueError as error:  # by Airflow, or by the provider whose URI it is
            log.warning("the asset %s of sink %s is not updated: %s", each.dataset.uri, each.sink, error)
            continue
        updated.append(outlet)
    return [outlet for outlet in declared.values() if outlet not in updated]


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Airflow's check of an asset URI with our scheme: a pipeline's name and nothing else."""
    if uri.path not in ("", "/") or uri.query:
        raise ValueError(f"{SCHEME}:// is followed by the name of a pipeline and nothing else")
    try:
        check_name("pipeline", uri.netloc)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    return uri._replace(path="/")
