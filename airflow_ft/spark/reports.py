"""Errors as plain data, for another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_ft.protocol import errors
from airflow_ft.protocol.errors import AirflowFtError, StageError

_FIELDS = ("code", "remedy", "pipeline", "checkpoint", "participant", "sink", "column", "row")
_PLAIN = (str, int, float, bool, type(None))


def describe_error(error: AirflowFtError) -> dict[str, Any]:
    """An error as plain data, for `rebuild_error` in another process."""
    own = {
        name: value
        for name, value in vars(error).items()
        if name not in ("what", "fields", *_FIELDS) and isinstance(value, _PLAIN)
    }
    return {
        "type": type(error).__name__,
        "what": error.what,
        "fields": {name: _plain(value) for name, value in error.fields.items()},
        "own": own,  # of its class, such as `unanswered`
        **{name: getattr(error, name) for name in _FIELDS},
    }


def rebuild_error(data: Mapping[str, Any]) -> AirflowFtError:
    """The inverse of `describe_error`; an unknown type becomes StageError."""
    kind = getattr(errors, data["type"], StageError)
    error: AirflowFtError = kind.__new__(kind)
    where = {name: data[name] for name in _FIELDS if name in data}
    AirflowFtError.__init__(error, data["what"], **where, **data.get("fields", {}))
    for name, value in data.get("own", {}).items():
        setattr(error, name, value)
    return error


def hidden(value: Any, hide: Callable[[str], str]) -> Any:
    """Return plain data without secrets in its texts."""
    if isinstance(value, dict):
        return {name: hidden(each, hide) for name, each in value.items()}
    if isinstance(value, list):
        return [hidden(each, hide) for each in value]
    return hide(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    return value if isinstance(value, _PLAIN) else str(value)
