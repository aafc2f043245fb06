"""Fields of Airflow's trigger form for a run, and a pipeline that uses them: `pipeline_params`, `by_params`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.arguments import is_template, shown
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import FULL_REFRESH, PARAMS, FromSavepoint
from airflow_ft.protocol.model import CheckpointingMode
from airflow_ft.sources.kafka import FORM_START

if TYPE_CHECKING:
    from airflow_ft.pipeline.spec import PipelineSpec

_LIMITS = ("max_offsets_per_trigger", "max_files_per_trigger")
_BYTES = "max_bytes_per_trigger"
_START = "starting_offsets"
_STARTS = (
    r"^(|earliest|latest|group_offsets"
    r"|\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{1,6})?)?"
    r"(Z|[+-]([01]\d|2[0-3]):?[0-5]\d))$"
)
"""Values that the form takes for `starting_offsets`: a word, or a time of ISO 8601 with a zone; "": as the DAG says."""


def pipeline_params() -> dict[str, Any]:
    """Return the fields of Airflow's trigger form for a run of a pipeline: `DAG(params=pipeline_params())`.

    Give the pipeline `from_params=True`, and it uses them. A field that is left empty changes nothing. They are: dry
    run, rewind, full refresh, the size of a checkpoint (records of Kafka, files), where a pipeline that never ran
    begins to read Kafka, and those of `savepoint_params`.
    """
    from airflow.sdk import Param

    from airflow_ft.operators.savepoint import flag, savepoint_params
    from airflow_ft.pipeline.dry_run import dry_run_params

    about_rewind = "Discards staged rows that are not decided, and computes them again. Delivered rows stay."
    about_refresh = (
        "Reads all sources from their beginning, without state. Works only with sinks that replace rows by key. In"
        " other sinks the rows would appear twice, so the run is refused."
    )
    about_start = (
        "Where a new pipeline or a full refresh starts: earliest, latest, group_offsets, or a time with a time zone."
        " A full refresh refuses latest and group_offsets. Other runs continue where the last one ended."
    )
    about_limit = "Maximum for each checkpoint and source. Empty: as the DAG says."
    most: dict[str, Any] = {"type": ["null", "integer"], "minimum": 1, "description": about_limit}
    return {
        **dry_run_params(),
        "rewind": flag("Rewind", about_rewind),
        FULL_REFRESH: flag("Full refresh", about_refresh),
        _LIMITS[0]: Param(None, title="Records in a checkpoint", **most),
        _LIMITS[1]: Param(None, title="Files in a checkpoint", **most),
        _START: Param(
            None, type=["null", "string"], pattern=_STARTS, title="Start in Kafka at", description=about_start
        ),
        **savepoint_params(),
    }


_FIELDS = ("dry_run", "rewind", FULL_REFRESH, *_LIMITS, _START, *PARAMS)
"""All fields of `pipeline_params`, `dry_run_params` and `savepoint_params`."""
_ASKED = ("dry_run", "rewind", FULL_REFRESH)
"""Fields of the form that a run must not pass over."""


def check_form(spec: PipelineSpec, params: Mapping[str, Any], *, used: bool) -> None:
    """Refuse a DAG whose form has the fields of `pipeline_params` that its pipeline does not use, and the reverse."""
    own = [spec.dry_run is False, spec.rewind is False, spec.from_savepoint is None]
    if not used and all(own) and all(name in params for name in _ASKED):
        raise ConfigurationError(
            "the DAG's form has the fields of pipeline_params, but the pipeline would ignore them: a dry run would"
            " deliver.",
            code="form_unused",
            remedy="Add from_params=True to CheckpointedPipeline, or remove params=pipeline_params() from the DAG.",
            pipeline=spec.pipeline,
        )
    if used and not any(name in params for name in pipeline_params()):
        raise ConfigurationError(
            "from_params is True, but the DAG's form has none of the fields of pipeline_params.",
            code="form_unused",
            remedy="Add params=pipeline_params() to the DAG, or remove from_params.",
            pipeline=spec.pipeline,
        )


def refuse_misspelled(declared: Collection[str], given: Collection[str], pipeline: str) -> None:
    """ConfigurationError for a key of a run that is a field of the form, misspelled: Airflow passes over it.

    A run with {"dryrun": true} would deliver. Other unknown keys are left alone: another task may read them.

    Args:
        declared: names of the DAG's params.
        given: the keys of the run's `conf`.
        pipeline: its name, for the error.
    """
    fields = [name for name in _FIELDS if name in declared]
    for key in sorted(set(given) - set(declared)) if fields else ():
        if close := get_close_matches(str(key).lower().replace("-", "_"), fields, 1, 0.8):
            raise ConfigurationError(
                f"the run has the key {shown(key)}, which is not a parameter of its DAG. Nothing was changed.",
                code="argument_unknown",
                remedy=f"Write {close[0]!r} instead. If another task reads {shown(key)}, declare it in the params.",
                pipeline=pipeline,
                argument=str(key),
                close=close[0],
            )


def by_params(spec: PipelineSpec) -> PipelineSpec:
    """The pipeline with Jinja for the fields of `pipeline_params`, where its author has written none himself.

    What the author says counts where the form says nothing. Nothing is rendered of a mapping of offsets, and with mode
    AT_MOST_ONCE the form cannot say where to begin.
    """
    starts_from_scratch = spec.is_rendered and spec.config.mode is CheckpointingMode.AT_MOST_ONCE
    changes: dict[str, Any] = {"sources": {n: _source(s, starts_from_scratch) for n, s in spec.sources.items()}}
    for name in ("dry_run", "rewind"):
        if getattr(spec, name) is False:
            changes[name] = f"{{{{ params.get({name!r}, False) }}}}"
    if spec.from_savepoint is None and not starts_from_scratch and not spec.is_external:
        changes["from_savepoint"] = FromSavepoint.from_params()
    return replace(spec, **changes)


def _source(source: Any, starts_from_scratch: bool) -> Any:
    changes = {name: _param(name, getattr(source, name)) for name in _LIMITS if _takes_param(source, name)}
    if _LIMITS[1] in changes and (most := getattr(source, _BYTES, None)) is not None and _takes_param(source, _BYTES):
        changes[_BYTES] = f"{{{{ '' if params.get({_LIMITS[1]!r}) else {most!r} }}}}"  # Spark takes one of them
    start = getattr(source, _START, None)
    if isinstance(start, str | datetime) and _takes_param(source, _START) and not starts_from_scratch:
        start = start.isoformat() if isinstance(start, datetime) else start
        changes[_START] = f"{FORM_START}{start!r} }}}}"
    return replace(source, **changes) if changes else source


def _takes_param(source: Any, name: str) -> bool:
    return hasattr(source, name) and not is_template(getattr(source, name))


def _param(name: str, usual: str | int | None) -> str:
    return f"{{{{ params.get({name!r}) or {usual or ''!r} }}}}"
