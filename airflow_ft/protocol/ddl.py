"""Check a schema in DDL ("id bigint, at date") without Spark: an unknown type, a column without one, a bracket.

Refuses only what Spark refuses, too. Spark reads the rest of the grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from airflow_ft.protocol.errors import ConfigurationError

TYPES = (
    *("boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double"),
    *("decimal", "dec", "numeric", "date", "time", "timestamp", "timestamp_ntz", "timestamp_ltz", "interval"),
    *("string", "char", "character", "varchar", "binary", "variant", "void", "geometry", "geography"),
    *("array", "map", "struct"),
)
"""The first words of Spark's types."""
_USUAL = "string, int, bigint, double, decimal(12,2), boolean, date, timestamp, binary, array<int>, struct<a: int>"
_MEANT = {
    **dict.fromkeys(("str", "text", "uuid", "json", "jsonb", "object", "bytes"), "string"),
    **{"bool": "boolean", "datetime": "timestamp", "number": "decimal(38,0)", "int64": "bigint", "float64": "double"},
}
"""Types of other systems."""
_COLUMN = re.compile(r"\s*(`(?:[^`]|``)+`|\w+)(?:\s*:\s*|\s+)(\S.*)", re.DOTALL)
_WORD = re.compile(r"([A-Za-z_]\w*)\s*(.*)", re.DOTALL)
_CLOSES = {")": "(", ">": "<"}


def check_ddl(schema: str, of: str) -> None:
    """Raise ConfigurationError for a schema that Spark could not read. `of` has the argument: "FileSource"."""
    if "--" in schema or "/*" in schema:  # comments
        return
    for what, column, kind, remedy in _problems(schema):
        raise ConfigurationError(
            f"schema of {of}: {what}.",
            code="schema_invalid",
            remedy=remedy,
            argument="schema",
            column=column,
            type=kind,
        )


def _problems(columns: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield what is wrong, the column, its type, and the fix."""
    parts = _split(columns)
    if parts is None:
        yield "a bracket has no partner", "", "", "Write types such as decimal(12,2), array<int> or map<string, int>."
        return
    for part in parts:
        found = _COLUMN.fullmatch(part)
        if found is not None:
            yield from _of_type(found[2], found[1].strip("`"))
        elif not part.strip():
            yield "a comma has no column before or after it", "", "", "Remove the comma."
        elif re.fullmatch(r"\w+", name := part.strip()):
            yield "the column has no type", name, "", f"Write the name, a space and the type: {name} bigint."


def _of_type(text: str, column: str) -> Iterator[tuple[str, str, str, str]]:
    found = _WORD.match(text)
    if found is None:
        return
    word, rest = found[1].lower(), found[2].strip()
    if word not in TYPES:
        close = [_MEANT[word]] if word in _MEANT else get_close_matches(word, TYPES, 1)
        remedy = f"Did you mean {close[0]}?" if close else f"Spark's types are {_USUAL}, and others."
        yield f"Spark has no type {found[1]}", column, found[1], remedy
    elif rest.startswith("<") and (end := _end(rest)):
        inside = rest[1:end]
        if word == "struct":
            yield from _problems(inside) if inside.strip() else ()
        elif word in ("array", "map"):
            for part in _split(inside) or ():
                yield from _of_type(part.strip(), column)


def _end(text: str) -> int:
    """Return where the bracket at the beginning of a text ends; 0: nowhere."""
    depth = 0
    for at, character in enumerate(text):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if not depth:
            return at
    return 0


def _split(text: str) -> list[str] | None:
    """Return the parts between commas that are in no bracket and no quotes; None: brackets do not match."""
    parts, opened, quote = [""], list[str](), ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character in "(<":
            opened.append(character)
        elif character in _CLOSES and (not opened or opened.pop() != _CLOSES[character]):
            return None
        elif character == "," and not opened:
            parts.append("")
            continue
        parts[-1] += character
    return None if opened else parts
