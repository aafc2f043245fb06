"""JSON texts for columns that keep only one of equal keys, such as PostgreSQL's jsonb."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_ft.sinks.arrow import flags


class _Repeated(Exception):
    """An object has a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(pairs) > 1 and len({key for key, _ in pairs}) < len(pairs):
        raise _Repeated


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=len, parse_float=len)  # numbers are not needed


def with_repeated_keys(values: pa.Array) -> pa.Array:
    """Mark texts in which an object has a key twice. Text that is not JSON is left to the server."""
    found = np.zeros(len(values), np.bool_)
    for place, text in enumerate(values.cast(pa.large_binary()).to_pylist()):
        if text is not None and text.count(b":") > 1:
            found[place] = _is_repeated(text)
    return flags(found)


def _is_repeated(text: bytes) -> bool:
    try:
        _DECODER.decode(text.decode())
    except _Repeated:
        return True
    except (ValueError, RecursionError):
        pass
    return False
