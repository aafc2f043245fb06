"""Types of Spark's state as text, from its schemas (JSON), and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Fields = Mapping[str, Any]
"""Types of fields by their names: text, or of a structure its fields. Order as in the schema."""
# Spark's names of types in JSON where SQL has others.
_SQL_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


def of_json(schema: Mapping[str, Any]) -> Fields:
    """The fields of a structure, of its schema as JSON."""
    return {each["name"]: _of_json(each["type"]) for each in schema["fields"]}


def differences(before: Fields, after: Fields, within: str = "") -> str:
    """Return what has changed, field by field: `n int -> bigint, note string added`."""
    found = []
    for name, old in before.items():
        if name not in after:
            found.append(f"{within}{name} {_text(old)} is gone")
        elif isinstance(old, dict) and isinstance(after[name], dict):
            found.append(differences(old, after[name], f"{within}{name}."))
        elif old != after[name]:
            found.append(f"{within}{name} {_text(old)} -> {_text(after[name])}")
    found += [f"{within}{name} {_text(new)} added" for name, new in after.items() if name not in before]
    return ", ".join(each for each in found if each)


def lost(before: Fields, after: Fields, within: str = "") -> Iterator[str]:
    """The fields that are gone, with their types."""
    for name, old in before.items():
        if name not in after:
            yield f"{within}{name} {_text(old)}"
        elif isinstance(old, dict) and isinstance(after[name], dict):
            yield from lost(old, after[name], f"{within}{name}.")


def _of_json(data: Any) -> Any:
    if isinstance(data, str):
        return _simple(data)
    if data["type"] == "struct":
        return of_json(data)
    if data["type"] == "array":
        return _collection([_of_json(data["elementType"])])
    if data["type"] == "map":
        return _collection([_of_json(data["keyType"]), _of_json(data["valueType"])])
    return str(data["type"])


def _collection(parts: list[Any]) -> Any:
    """An array of one type, or a map of two; with structures in it, these are looked into as fields are."""
    names = ["key", "value"][-len(parts) :] if len(parts) > 1 else ["element"]
    if any(isinstance(each, dict) for each in parts):
        return dict(zip(names, parts, strict=True))
    return f"{'map' if len(parts) > 1 else 'array'}<{','.join(parts)}>"


def _text(found: Any) -> str:
    if isinstance(found, dict):
        return f"struct<{','.join(f'{name}:{_text(each)}' for name, each in found.items())}>"
    return str(found)


def _simple(name: str) -> str:
    return _SQL_NAMES.get(name, name)
