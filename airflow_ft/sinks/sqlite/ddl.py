"""Read SQLite's own text: names folded as SQLite folds them, and the tokens of a CREATE TABLE statement."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""
    (?P<space>[\ \t\n\f\r]+ | --[^\n]* | /\*.*?(?:\*/|\Z))      # white space and comments
  | (?P<quoted>'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\])
  | (?P<word>[A-Za-z0-9_$\u0080-\U0010ffff]+)                   # keywords, plain names, numbers
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def fold(name: str) -> str:
    """Return `name` in lower case as SQLite compares names: only A to Z have a second form (`É` is not `é`)."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def words(sql: str) -> Iterator[str]:
    """Yield the tokens of a statement, folded, without comments; "" replaces a quoted name or text."""
    for token in _TOKEN.finditer(sql):
        if token.lastgroup != "space":
            yield "" if token.lastgroup == "quoted" else fold(token.group())


def conflict_clauses(sql: str) -> list[str]:
    """Return the resolution of each ON CONFLICT clause of a CREATE TABLE, in lower case (`replace`).

    ON is a keyword that cannot be a plain name, so the two words beside each other are always such a clause.
    """
    tokens = list(words(sql))
    triples = zip(tokens, tokens[1:], tokens[2:], strict=False)
    return [third for first, second, third in triples if (first, second) == ("on", "conflict")]
