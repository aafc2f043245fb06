"""What the declared sources are, kept by name beside their positions: another source cannot continue at them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.state.location_files import KINDS_FILE, keep, note
from airflow_ft.spark.state.locations import SparkLocation

_KEPT = ("kind", "data_source", "options")
"""The options only of custom sources: other kinds have rules of their own for what they read."""

log = logging.getLogger("airflow_ft.spark")


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
        if _what(old) != _what(now):
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
        was, options = old.get("options", {}), now.get("options", {})
        if changed := sorted(key for key in {*was, *options} if was.get(key) != options.get(key)):
            text = (
                "source %s continues at its position, but its options changed: %s. If it reads other data now, give it"
                " another name"
            )
            log.warning(text, name, ", ".join(changed))


def keep_kinds(location: SparkLocation, request: StageRequest, names: Sequence[str]) -> None:
    """Note the job's sources in an attempt's location. Sources that are left out keep their notes."""
    before: dict[str, Any] = note(location.uri, KINDS_FILE) or {}
    found = {**before, **_kinds(request, names)}
    if found != before:
        keep(location.uri, KINDS_FILE, found)


def _kinds(request: StageRequest, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what is kept of each declared source that the job reads."""
    declared = {name: request.sources[name] for name in names if name in request.sources}
    kept = {name: _KEPT if "data_source" in each else _KEPT[:1] for name, each in declared.items()}
    return {name: {key: each[key] for key in kept[name] if key in each} for name, each in declared.items()}


def _what(kept: Mapping[str, Any]) -> str:
    named = f" ({kept['data_source']})" if "data_source" in kept else ""
    return f"a source of kind {kept['kind']}{named}"
