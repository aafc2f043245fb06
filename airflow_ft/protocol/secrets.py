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
_LOGIN = re.compile(r"(?<=://)[^/\s:@]*:[^/\s]+(?=@)")  # user:password@host
_NAMED = re.compile(
    rf"""(?ix)
    (?<![\w.-])  # once for each name, so that a long text takes no longer than its length
    ([\w.-]{{0,100}}?(?:{_SOUND})[\w.-]{{0,100}} | (?<=[?&])key)
    (?:
        (\\*["']?\s*[=:]\s*) (?:(\\+["'])(?:(?!\3)[^\n])+ | (["'])(?:\\.|(?!\4)[^\\\n])+)  # quoted, and perhaps escaped
        |=(?!=|\\+["'])[^\s&;"']+
    )
    """
)


def without_secrets(value: Any) -> Any:
    """Return plain data with every value hidden that follows the name of a secret, also inside of a text."""
    if isinstance(value, Mapping):
        return {name: HIDDEN if SECRET.search(str(name)) else without_secrets(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in value]
    if isinstance(value, str):
        text, lower = _LOGIN.sub(HIDDEN, value), value.lower()
        return _NAMED.sub(_hidden, text) if any(word in lower for word in _WORDS) else text
    return value


def _hidden(found: re.Match[str]) -> str:
    name, between, escaped, plain = found.groups()
    return f"{name}{between or '='}{escaped or plain or ''}{HIDDEN}"
