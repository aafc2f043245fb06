"""Which settings hold secrets, by their names; and plain data without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SECRET = re.compile(
    r"(?i)secret|pass(word|wd|phrase)|token|jaas|\.pem$|ssl\.key|credential|(access|account|api|private|shared|signing)"
    r"[._-]?key|\.sas\b|\bsas\."
)
HIDDEN = "***"
_INLINE = (
    re.compile(r"(?<=://)[^/\s:@]*:[^/\s@]+(?=@)"),  # user:password@host
    re.compile(r"(?i)(?<=[=\s&?;\"'-])(\S*?(?:secret|pass(?:word|wd|phrase)|token|key)\w*=)[^\s&;\"']+"),
)


def without_secrets(value: Any) -> Any:
    """Return plain data with every value hidden that follows the name of a secret, also inside of a text."""
    if isinstance(value, Mapping):
        return {name: HIDDEN if SECRET.search(str(name)) else without_secrets(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in value]
    if isinstance(value, str):
        return _INLINE[1].sub(rf"\1{HIDDEN}", _INLINE[0].sub(HIDDEN, value))
    return value
