"""Errors as the decision log keeps them: why a run or a delivery failed, and why a pipeline is HALTED."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

MOST_CHARACTERS = 2000
"""Characters of a stored message, and of a stored remedy."""
_ENDS_A_HALT = re.compile(r"airflow ft (?:adopt|in-doubt|resume)\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error: its class, its stable code, what happened, and what to do.

    Attributes:
        kind: the class of the error.
        code: its stable code (`AirflowFtError.code`); "": an error of another package.
        message: what happened, and where; without secrets.
        remedy: what to do; "": not known.
        dag_id, run_id, map_index: the run that failed; "" and -1: none, or not known.
        task_id: the task of that run; "": none, or a program.
        try_number: the try of that task; 0: none.
        at: microseconds since 1970, UTC, by the store's clock; 0: not stored yet.
        reason: the `AbortReason` or `HaltReason` that the error leads to; "": none.
    """

    kind: str
    code: str
    message: str
    remedy: str = ""
    dag_id: str = ""
    run_id: str = ""
    map_index: int = -1
    task_id: str = ""
    try_number: int = 0
    at: int = 0
    reason: str = ""

    @property
    def text(self) -> str:
        """The error as text: class, code and message; the remedy on a line of its own."""
        return error_text(self.kind, self.code, self.message, self.remedy)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the decision log, bounded in size."""
        return {name: shortened(value) if isinstance(value, str) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Failure:
        """The inverse. Fields that only a newer release knows are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


@dataclass(frozen=True, slots=True)
class Halt:
    """The error that halted a pipeline. It is kept whole: the message may hold statements to run.

    Attributes:
        reason: the `HaltReason`, or what a newer release wrote instead.
        code: the stable code of the error; "": a newer release wrote none.
        message: what happened, and where.
        remedy: what to do.
    """

    reason: str
    code: str
    message: str
    remedy: str

    @property
    def headline(self) -> str:
        """The state and the message, without code and remedy."""
        return f"HALTED ({self.reason}): {self.message}"

    @property
    def text(self) -> str:
        """The error as text: reason, code and message; the remedy on a line of its own."""
        return error_text(self.reason, self.code, self.message, self.remedy)


def halt_remedy(remedy: str, pipeline: str) -> str:
    """Return the remedy of the error that halted the pipeline, with the command that lets the pipeline continue."""
    if _ENDS_A_HALT.search(remedy):
        return remedy
    resume = f"run `airflow ft resume {pipeline}`."
    return f"{remedy} Then {resume}" if remedy else f"Remove the cause, then {resume}"


def error_text(name: str, code: str, message: str, remedy: str) -> str:
    """Return an error as text: its class or reason, its code ("": none) and message; the remedy on its own line."""
    return with_fix(f"{name} [{code}]: {message}" if code else f"{name}: {message}", remedy)


def with_fix(text: str, remedy: str) -> str:
    """Return the text with the remedy on a line of its own, if there is one."""
    return f"{text}\nFix: {remedy}" if remedy else text


def listed(texts: Iterable[str]) -> str:
    """Return each text on a new line, with its fix indented below it."""
    return "".join("\n" + text.replace("\nFix:", "\n   Fix:") for text in texts)


def shortened(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text, cut after `most` characters."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."
