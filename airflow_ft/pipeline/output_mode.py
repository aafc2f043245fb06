"""Warn of results that may change, by the output mode of the job, on their way into sinks that only append rows."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from airflow_ft.protocol.doctor import Check, Verdict
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.inline_job import InlineJob, assigned_text
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.sinks.registry import System, system

_APPENDED = {
    "update": "each checkpoint appends the changed rows again, and a key gets many rows",
    "complete": "each checkpoint appends the whole result again",
}
_FINAL = (
    'Or set output_mode = "append" and aggregate by windows with a watermark: each row is then final.'
    " Ignore this if each row is an event."
)


def declared_mode(job: object, file: str = "") -> str:
    """Return the output mode that the source of a job assigns; "": it shows none. Imports nothing.

    Args:
        job: an `InlineJob`, or "module" or "module:Name".
        file: the source of that module.
    """
    if isinstance(job, InlineJob):
        return job.output_mode
    if not isinstance(job, str) or not file.endswith(".py"):
        return ""
    with suppress(OSError, SyntaxError, ValueError):
        return assigned_text(ast.parse(Path(file).read_bytes()).body, "output_mode", job.partition(":")[2])
    return ""


def examine_mode(mode: str, participants: Iterable[ParticipantPlan]) -> list[Check]:
    """Return a warning for each sink that appends. The mode alone does not show whether rows change."""
    if mode not in _APPENDED:
        return []
    return [
        Check(
            f"sink {name}",
            "output mode",
            Verdict.WARNING,
            f"the job's output_mode is {mode!r}, and the sink only appends. If the job aggregates, {_APPENDED[mode]}",
            f"{remedy} {_FINAL}",
        )
        for name, remedy in _appending(participants)
    ]


def _appending(participants: Iterable[ParticipantPlan]) -> Iterator[tuple[str, str]]:
    """Yield each sink that only appends, with the fix."""
    for plan in participants:
        with suppress(ConfigurationError):  # the sink's own check reports a system that is not installed
            of = system(plan.kind)
            strategy = of.strategies.get(plan.strategy)
            if not of.by_key and (strategy is None or strategy.promise is not Promise.IDEMPOTENT):
                for name, settings in plan.sinks.items():
                    if not of.key or not settings.get(of.key):
                        yield name, _replacing(of)


def _replacing(of: System) -> str:
    if "upsert" in of.strategies:
        return (
            'Give the sink strategy="upsert" and the arguments that it needs (docs/jobs.md, "Sums and counts"), and its'
            " table a primary key: a row then replaces the one with its key."
        )
    if of.key:
        return f"Give the sink {of.key}=, which names the columns of the key."
    return "Deliver into a sink that replaces rows by key, such as one with strategy `upsert` (docs/sinks.md)."
