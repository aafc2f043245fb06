"""The little SQL that the sink speaks to its ledger, compiled into Python: the statements are those of the product.

Understood are SELECT (columns or MAX), INSERT (with ON DUPLICATE KEY UPDATE of nothing), UPDATE and DELETE on one
table with a condition of comparisons, AND, OR and parentheses. Anything else raises NotImplementedError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

Row = dict[str, Any]
Values = Sequence[Any]

_TABLE = r"(?P<table>(?:`\w+`\.)?`\w+`)"
_SELECT = re.compile(
    rf"SELECT (?P<what>.+?) FROM {_TABLE} WHERE (?P<where>.+?)(?P<lock> FOR UPDATE| FOR SHARE| LOCK IN SHARE MODE)?"
)
_INSERT = re.compile(
    rf"INSERT INTO {_TABLE} \((?P<columns>.+?)\) VALUES \((?P<values>.+)\)"
    r"(?P<ignore> ON DUPLICATE KEY UPDATE (?P<same>\w+) = (?P=same))?"
)
_UPDATE = re.compile(rf"UPDATE {_TABLE} SET (?P<sets>.+?) WHERE (?P<where>.+)")
_DELETE = re.compile(rf"DELETE FROM {_TABLE} WHERE (?P<where>.+)")
_TOKEN = re.compile(r"([a-z_]+)|(%s)|'([^']*)'|(\d+)|(<=|>=|<>|=|<|>)|([(),])|([A-Z_]+)|\s+")
_WORDS = {"AND": " and ", "OR": " or ", "IN": " in "}


@dataclass(frozen=True)
class Statement:
    """A compiled statement. `where` and `values` take (row, arguments)."""

    verb: str
    table: str
    where: Callable[[Mapping[str, Any], Values], bool] | None = None
    columns: tuple[str, ...] = ()
    values: Callable[[Mapping[str, Any], Values], tuple[Any, ...]] | None = None
    lock: bool = False
    shared: bool = False
    ignore: bool = False
    maximum: bool = False


@cache
def parse(sql: str) -> Statement:
    """Compiles a statement once."""
    text = " ".join(sql.split())
    if match := _SELECT.fullmatch(text):
        what = match["what"]
        lock = match["lock"] or ""
        return Statement(
            "SELECT",
            match["table"],
            _compile(match["where"], 0),
            _names(what),
            lock=bool(lock),
            shared="SHARE" in lock,
            maximum=what.startswith("MAX("),
        )
    if match := _INSERT.fullmatch(text):
        values = _compile(f"({match['values']},)", 0)
        return Statement("INSERT", match["table"], None, _names(match["columns"]), values, ignore=bool(match["ignore"]))
    if match := _UPDATE.fullmatch(text):
        names, contents = zip(*(part.split(" = ", 1) for part in _split(match["sets"])), strict=True)
        given = match["sets"].count("%s")
        return Statement(
            "UPDATE",
            match["table"],
            _compile(match["where"], given),
            tuple(names),
            _compile(f"({', '.join(contents)},)", 0),
        )
    if match := _DELETE.fullmatch(text):
        return Statement("DELETE", match["table"], _compile(match["where"], 0))
    raise NotImplementedError(f"the model does not speak: {text}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z_]+", text))


def _split(text: str) -> list[str]:
    """At the commas outside of parentheses."""
    parts, depth, begin = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    return [*parts, text[begin:].strip()]


def _compile(expression: str, first: int) -> Callable[..., Any]:
    """The expression as a function of (row, arguments); its placeholders begin with argument `first`."""
    python: list[str] = []
    place, argument, is_list = 0, first, False
    while place < len(expression):
        match = _TOKEN.match(expression, place)
        if match is None:
            raise NotImplementedError(f"the model does not speak: {expression[place:]}")
        column, parameter, text, number, operator, sign, word = match.groups()
        if column is not None:
            python.append(f"r[{column!r}]")
        elif parameter:
            python.append(f"a[{argument}]")
            argument += 1
        elif text is not None:
            python.append(repr(text))
        elif sign == ")" and is_list:
            python.append(",)")  # of one member, too
            is_list = False
        elif number or sign:
            python.append(number or sign)
        elif operator:
            python.append({"=": "==", "<>": "!="}.get(operator, operator))
        elif word:
            python.append(_WORDS[word])
            is_list = is_list or word == "IN"
        place = match.end()
    compiled: Callable[..., Any] = eval(f"lambda r, a: {''.join(python)}", {})
    return compiled
