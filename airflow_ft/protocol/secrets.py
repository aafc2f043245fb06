"""Which settings hold secrets, by their names; and plain data without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SOUND = (
    "secret|pass(?:word|wd|phrase)|pwd|token|credential"
    "|(?:access|account|api|auth|encryption|master|private|service|shared|signing|storage)[._-]?key"
)
SECRET = re.compile(rf"(?i){_SOUND}|jaas|\.pem$|ssl\.key|\.sas\b|\bsas\.")
HIDDEN = "***"
_WORDS = ("secret", "pass", "pwd", "token", "credential", "key")  # most lines of a log have none, and take no time
_LOGIN = re.compile(
    r"""(?:(?<=\bs3://)|(?<=\bs3[an]://))[^/\s:@]*:[^\s"']{1,500}(?=@)|(?<=://)[^/\s:@]*:[^/\s]+(?=@)"""
)
"""user:password@host. Keys of AWS contain slashes. The limit: a long text takes no longer than its length."""
_NAMED = re.compile(
    rf"""(?ix)
    (?P<of_an_object>(?:^|[{{,])\s*\\*["'])?  # elsewhere, as in prose, a quoted word after a colon may be anything
    (?<![\w./-])  # once for each name: a long text takes no longer than its length. After / it is a partition's column
    (?:[\w.-]{{0,100}}?(?:{_SOUND})[\w.-]{{0,100}} | (?<=[?&])key)
    (?:
        (?: \\*["']?\s*=\s*(?:\(+\s*)? | (?(of_an_object)\\*["']\s*:\s*|(?!)))
        (?:
            (?P<escape>\\{{1,16}}["'])(?P<escaped>(?:(?!(?P=escape))[^\n])+)  # a quoted text in a quoted text
            |(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\n])+)
        )
        |=(?!=|\(*\\{{0,16}}["'])(?P<plain>[^\s&;"']*[^\s&;"'`)])  # it may stand in brackets, or in code of Markdown
    )
    """
)


def without_secrets(value: Any) -> Any:
    """Return plain data with every value hidden that follows the name of a secret, also inside of a text."""
    if isinstance(value, Mapping):
        return {name: HIDDEN if _sounds(name) else without_secrets(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in value]
    if isinstance(value, str):
        text, lower = _LOGIN.sub(HIDDEN, value), value.lower()
        return _NAMED.sub(_hidden, text) if any(word in lower for word in _WORDS) else text
    return value


def safe_uri(uri: str) -> str:
    """Return the URI without its login, where keys may be, and without its query, where a signature may be."""
    place, _, query = uri.partition("?")
    if "@" in query:  # a signature, or the rest of a login
        return re.sub("//.*", "//...", place)
    return re.sub("//.*@", "//...@", place)


def secret_values(value: Any, *, is_secret: bool = False) -> set[str]:
    """Return the texts that `without_secrets` hides in plain data. `is_secret`: all that is in it."""
    if isinstance(value, Mapping):
        each_of = [secret_values(each, is_secret=is_secret or _sounds(name)) for name, each in value.items()]
        return set().union(*each_of)
    if isinstance(value, list | tuple):
        return set().union(*(secret_values(each, is_secret=is_secret) for each in value))
    if not isinstance(value, str):
        return {str(value)} if is_secret and value is not None and not isinstance(value, bool) else set()
    found = {login[0].partition(":")[2] for login in _LOGIN.finditer(value)}
    found |= {_value(each) for each in _NAMED.finditer(_LOGIN.sub("", value))}
    return found | ({value} if is_secret and value.lower() not in ("true", "false") else set())


def _sounds(name: object) -> bool:
    return SECRET.search(str(name)) is not None


def _value(found: re.Match[str]) -> str:
    return found[found.lastgroup or 0]


def _hidden(found: re.Match[str]) -> str:
    return found[0].removesuffix(_value(found)) + HIDDEN
