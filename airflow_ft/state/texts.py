"""Parse values of keys as people type them: on a command line, on the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.state.rows import Kind, StateColumn, columns_of, decimal_of, kind_text

_NULL = "null"
_EXAMPLES = {
    "byte": "17",
    "short": "17",
    "integer": "17",
    "long": "17",
    "float": "1.5",
    "double": "1.5",
    "boolean": "true",
    "date": "2026-01-31",
    "timestamp": "2026-01-31T12:00:00Z",
    "timestamp_ntz": "2026-01-31T12:00:00",
    "binary": "00ff",
}


def key_of(columns: Sequence[StateColumn], texts: Sequence[str]) -> tuple[Any, ...]:
    """Return the values of a key's columns.

    `null` is null; quote a text that reads so. Times are as in ISO 8601, UTC if they name no zone; a struct (a window)
    is given in JSON.

    Raises:
        ConfigurationError: the number of texts is wrong, or one is no such value.
    """
    if len(columns) != len(texts):
        raise ConfigurationError(
            f"the key has the columns {', '.join(each.text for each in columns) or '(none)'}, but the number of"
            f" values is {len(texts)}.",
            code="key_invalid",
            remedy="Give one value for each column, in that order.",
            columns=[each.name for each in columns],
            count=len(texts),
        )
    return tuple(_value(column, text) for column, text in zip(columns, texts, strict=True))


def example(kind: Kind) -> str:
    """A text that `key_of` takes for a value of this type; "" for one that cannot be looked up."""
    if isinstance(kind, str):
        if kind.startswith("decimal("):
            return "0.5" if decimal_of(kind)[1] else "1"
        return _EXAMPLES.get(kind, "text")
    if kind["type"] != "struct":
        return ""
    parts = {each.name: example(each.kind) for each in columns_of(kind)}
    if not all(parts.values()):
        return ""
    written = ((name, part if part.startswith("{") else json.dumps(part)) for name, part in parts.items())
    return "{" + ", ".join(f"{json.dumps(name)}: {part}" for name, part in written) + "}"


def _value(column: StateColumn, text: str) -> Any:
    try:
        return None if text == _NULL else _parsed(column.kind, text)
    except (ValueError, InvalidOperation, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{text!r} is not a {kind_text(column.kind)}.",
            code="key_invalid",
            column=column.name,
            remedy=f"Give a value of type {kind_text(column.kind)}.",
            type=kind_text(column.kind),
        ) from error


def _parsed(kind: Any, text: str) -> Any:
    if not isinstance(kind, str):
        given = json.loads(text)
        columns = columns_of(kind)
        if kind["type"] != "struct" or set(given) != {each.name for each in columns}:
            raise ValueError(text)
        return {each.name: _of_json(each, given[each.name]) for each in columns}
    if kind in ("byte", "short", "integer", "long"):
        return int(text)
    if kind in ("float", "double"):
        return float(text)
    if kind == "boolean":
        return {"true": True, "false": False}[text.lower()]
    if kind == "date":
        return date.fromisoformat(text)
    if kind in ("timestamp", "timestamp_ntz"):
        at = datetime.fromisoformat(text)
        return at if kind == "timestamp_ntz" or at.tzinfo else at.replace(tzinfo=UTC)
    if kind.startswith("decimal("):
        return Decimal(text)
    if kind == "binary":
        return bytes.fromhex(text)
    quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return json.loads(text) if quoted else text


def _of_json(column: StateColumn, given: Any) -> Any:
    if given is None:
        return None
    return _value(column, given if isinstance(given, str) else json.dumps(given))
