"""Kinds of the declared sources, kept by name beside their positions.

A source of another kind cannot continue at such a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.location_files import KINDS_FILE, keep, note
from airflow_ft.spark.state.locations import SparkLocation, begins_at

_KEPT = ("kind", "data_source")
"""Without options: templates give them other values in each run."""


def refuse_other_kinds(request: StageRequest, names: Sequence[str]) -> None:
    """Compare the job's sources with those of the same names in the checkpoints it continues.

    Raises:
        ConfigurationError: one is of another kind, or of another class, so the position would mean something else.
    """
    if request.base is None:
        return
    before: Mapping[str, Any] = note(request.base.location, KINDS_FILE) or {}
    for name, now in _kinds(request, names).items():
        old = before.get(name, now)
        if _what(old) != _what(now) and not _has_begun_nowhere(request.base, name):
            raise ConfigurationError(
                f"source {name!r} is {_what(now)}, but its position in the checkpoints is that of {_what(old)}.",
                code="sources_changed",
                pipeline=request.pipeline,
                remedy="Declare the new source under another name in sources={...}: it starts at its beginning, and"
                " the position of the former one is kept. If a class was only moved or renamed, keep it importable"
                " under the former name, and declare that one.",
                source=name,
                before=_what(old),
                after=_what(now),
            )


def are_noted(request: StageRequest, names: Sequence[str]) -> bool:
    """Return whether the base has a note of each declared source, so that none is added.

    Notes are added to a copy only: if the job then fails, its author can go back to the former sources.
    """
    if request.base is None:
        return True
    noted: Mapping[str, Any] = note(request.base.location, KINDS_FILE) or {}
    return all(name in noted and _what(noted[name]) == _what(now) for name, now in _kinds(request, names).items())


def keep_kinds(location: SparkLocation, request: StageRequest, names: Sequence[str]) -> None:
    """Note the job's sources in an attempt's location. Sources that are left out keep their notes."""
    before: dict[str, Any] = note(location.uri, KINDS_FILE) or {}
    found = {**before, **_kinds(request, names)}
    if found != before:
        keep(location.uri, KINDS_FILE, found)


def _kinds(request: StageRequest, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what is kept of each declared source that the job reads."""
    declared = {name: request.sources[name] for name in names if name in request.sources}
    return {name: {key: each[key] for key in _KEPT if key in each} for name, each in declared.items()}


def _has_begun_nowhere(base: SparkPosition, name: str) -> bool:
    """Return whether the job of `base` read the source, and it has no position yet."""
    location = SparkLocation.of(base)
    places = dict(enumerate(location.offsets(base.batch)))
    for index, each in enumerate(location.sources()):
        if each == name:
            return index in places and places[index] is None and not begins_at(base.location, index)
    return False  # left out: its position is kept elsewhere


def _what(kept: Mapping[str, Any]) -> str:
    named = f" ({kept['data_source']})" if "data_source" in kept else ""
    return f"a source of kind {kept['kind']}{named}"
