"""Template of a row's key, such as "orders:{id}": texts, and columns in braces. Imported at DAG parse."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence

_COLUMN = re.compile(r"\{\{\s*(\w+)\s*\}\}")
Parts = Sequence[tuple[str, str | None]]
"""The texts of a template, each with the column behind it; None: there is none."""


def parts_of(template: str, invalid: Callable[[str], Exception]) -> Parts:
    """Return the parts of a template. `invalid` makes the error for one that cannot be read, from the remedy."""
    try:
        found = list(string.Formatter().parse(template))
    except ValueError as error:
        raise invalid(f"Use braces around columns only ({error}).") from None
    if any(spec or conversion for _, _, spec, conversion in found):
        raise invalid("Name columns only, without a format: {id}.")
    return [(text, column) for text, column, _, _ in found]


def refuse_double_braces(template: str, invalid: Callable[[str], Exception]) -> None:
    """Raise the error that `invalid` makes for a template that has its columns in Jinja's braces by mistake.

    That is one without a column in single braces, whose Jinja is nothing but single names.
    """
    single = _COLUMN.sub(r"{\1}", template)
    if single != template and "{{" not in single and "{%" not in single and "{" not in _COLUMN.sub("", template):
        raise invalid(f"Put single braces around columns: {single!r}. Double braces are Jinja.")


def columns_of(parts: Parts) -> Sequence[str]:
    """Return the columns that make the key."""
    return [column for _, column in parts if column]


def check_parts(parts: Parts, invalid: Callable[[str], Exception]) -> None:
    """Raise the error that `invalid` makes, unless the template can give each row a key of its own."""
    if not any(column for _, column in parts):
        raise invalid('Name at least one column in braces, such as "orders:{id}".')
    columns = [column for _, column in parts if column is not None]
    if "" in columns or len(set(columns)) < len(columns):
        raise invalid("Name each column once. A key contains no braces but those around columns.")
    if any(not text and index and column for index, (text, column) in enumerate(parts)):
        raise invalid('Put a text such as ":" between columns. Else two keys could be equal.')
