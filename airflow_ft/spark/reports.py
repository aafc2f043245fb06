"""Errors as plain data, for another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.core import errors
from airflow_ft.core.errors import AirflowFtError, StageError, StoreUnavailableError

_FIELDS = ("remedy", "pipeline", "checkpoint", "participant", "sink", "column", "row")


def describe_error(error: AirflowFtError) -> dict[str, Any]:
    """An error as plain data, for `rebuild_error` in another process."""
    return {
        "type": type(error).__name__,
        "what": error.what,
        "unanswered": getattr(error, "unanswered", False),
        **{name: getattr(error, name) for name in _FIELDS},
    }


def rebuild_error(data: Mapping[str, Any]) -> AirflowFtError:
    """The inverse of `describe_error`; an unknown type becomes StageError."""
    kind = getattr(errors, data["type"], StageError)
    error: AirflowFtError = kind.__new__(kind)
    AirflowFtError.__init__(error, data["what"], **{name: data[name] for name in _FIELDS if name in data})
    if isinstance(error, StoreUnavailableError):
        error.unanswered = data.get("unanswered", False)
    return error
