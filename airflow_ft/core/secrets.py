"""Which settings hold secrets, by their names; and plain data without them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SECRET = re.compile(r"(?i)secret|password|passwd|token|jaas|\.pem$|ssl\.key|credential|access\.?key")
HIDDEN = "***"


def without_secrets(value: Any) -> Any:
    """Plain data in which whatever a secret's name stands before is hidden."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if SECRET.search(str(name)) and isinstance(each, str) else without_secrets(each)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(each) for each in value]
    return value
