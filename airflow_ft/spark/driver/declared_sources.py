"""The declared sources of an attempt: by their places in the job's query, and which of them begin to be read."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_ft.sources import KafkaSource, Source, source_from_json
from airflow_ft.spark.driver.inputs import told_apart
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.beginnings import Beginnings
from airflow_ft.spark.state.source_changes import SourceChange, known_sources


def declared_source(request: StageRequest, name: str) -> Source | None:
    """Return the source of that name; None: the job has opened it by itself."""
    declared = request.sources.get(name)
    return None if declared is None else source_from_json(declared)


def sources_by_place(request: StageRequest, names: Sequence[str]) -> dict[str, Source | None]:
    """The sources in Spark's order, told apart. None: the job has opened it by itself."""
    return {told: declared_source(request, name) for told, name in zip(told_apart(names), names, strict=True)}


def unfrozen_sources(request: StageRequest) -> set[str]:
    """The names of declared sources of which no attempt has kept yet where they begin."""
    frozen, new = Beginnings.of(request), request.sources.keys() - known_sources(request.base)
    return {name for name in new if request.begins_anew or not frozen.has(name)}


def sources_to_freeze(request: StageRequest, names: Sequence[str], change: SourceChange | None) -> dict[int, str]:
    """The declared Kafka sources that have no position yet, by their places; where they begin is to be frozen."""
    if request.begins_anew:
        return {}
    added = {} if change is None else change.added
    new = dict(enumerate(names)) if request.base is None else added
    return {index: name for index, name in new.items() if isinstance(declared_source(request, name), KafkaSource)}
