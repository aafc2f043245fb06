"""The effective settings of a pipeline, including defaults, and the origin of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_ft.pipeline.spec import defaults
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import ConfigurationError

from . import answers

_APART = ("checkpointing", "spark_conf", "configured", "job_source")


def settings_of(spec: Mapping[str, Any]) -> list[answers.Setting]:
    """Return the settings of `PipelineSpec.to_json`, by the names of its arguments."""
    configured, usual = set(spec.get("configured", ())), defaults()
    chosen = {
        *(f"checkpointing.{name}" for name in spec.get("checkpointing", ())),
        *(f"spark_conf.{name}" for name in spec.get("spark_conf", ())),
        *(name for name, value in spec.items() if name not in usual or value != usual[name]),
    }
    return [
        {
            "name": name,
            "value": value,
            "origin": "[airflow_ft]" if name in configured else "the pipeline" if name in chosen else "default",
        }
        for name, value in _each(spec)
    ]


def _each(spec: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in _checkpointing(spec).items():
        yield f"checkpointing.{name}", value
    for name, value in spec.get("spark_conf", {}).items():
        yield f"spark_conf.{name}", value
    yield from ((name, value) for name, value in spec.items() if name not in _APART)


def _checkpointing(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    given: Mapping[str, Any] = spec.get("checkpointing", {})
    try:
        return CheckpointConfig.from_json(given).effective(streaming=bool(spec.get("streaming")))
    except ConfigurationError:  # another version wrote it, with settings that this one does not know
        return given
