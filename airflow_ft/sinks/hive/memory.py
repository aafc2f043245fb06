"""The sink's memory of a pipeline: a chain of partitions without rows, each of which is named once and never dropped.

A partition named by the number 7 holds the seventh document (`airflow_ft.sinks.base.document`) in its parameters. To
replace that document is to add number 8. The metastore adds a partition once, and several in one request or none. So
the request is a compare-and-set, and the partitions with the rows of a checkpoint go into it. A request that arrives
late names a number that is there.

Hive 3 ignores `expected_parameter_value`, so a parameter of the table could not do it. Numbers have no gaps, so the
newest is found by halving. Of old ones only the name is kept.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

from airflow_ft.protocol.errors import StoreBehindSinkError
from airflow_ft.sinks.base.document import DocumentLedger

_NAME = "memory-"
_PARAMETER = "airflow_ft.memory."
_PART = 3_500  # characters: a parameter has 4,000 in some of the metastore's databases
_AT_ONCE = 64
_HIGHEST = 40  # as a power of two
_NEXT = 8

Look = Callable[[Collection[int]], Mapping[int, Any]]
"""Returns those partitions of some numbers that there are."""


class Ledger(DocumentLedger):
    """The document of one number."""

    def __init__(self, text: str | None, where: str, number: int) -> None:
        super().__init__(text, where)
        self.number = number


def value_of_rows(group: str, number: int) -> str:
    """Return the value of partitions with the rows of a checkpoint; a group has 127 characters at most, a value 256."""
    return f"{group}/{number}"


def value_of_memory(group: str, number: int) -> str:
    """Return the value of the partition that holds a document."""
    return f"{group}/{_NAME}{number}"


def is_memory(value: str) -> bool:
    """Return whether a partition of such a value holds a document, and so no rows."""
    return value.rpartition("/")[2].startswith(_NAME)


def packed(text: str) -> dict[str, str]:
    """Return a document as parameters, in letters that every database of a metastore holds."""
    data = base64.b64encode(zlib.compress(text.encode())).decode()
    return {f"{_PARAMETER}{at // _PART}": data[at : at + _PART] for at in range(0, len(data), _PART)}


def unpacked(parameters: Mapping[str, str], where: str) -> str | None:
    """Return the document in parameters; None: it was removed, since there are newer ones.

    Raises:
        StoreBehindSinkError: it cannot be read.
    """
    names = [f"{_PARAMETER}{each}" for each in range(sum(name.startswith(_PARAMETER) for name in parameters))]
    if not names:
        return None
    try:
        return zlib.decompress(base64.b64decode("".join(parameters[name] for name in names))).decode()
    except (KeyError, ValueError, zlib.error) as error:
        what = f"{where} is damaged: {error}."
        remedy = "Restore the metastore from a backup. Compare table and decision log before you resume."
        raise StoreBehindSinkError(what, code="ledger_damaged", remedy=remedy) from error


def newest(look: Look, seen: int = 0) -> tuple[int, Any]:
    """Return the highest number, and its partition; (0, None): there is none. `seen`: one that was there."""
    base, there = 0, None
    if seen:
        found = look(range(seen, seen + _NEXT))
        if seen in found:
            base, there = _last_without_gap(found, seen)
            if base < seen + _NEXT - 1:
                return base, there
    found = look([base + 2**power for power in range(_HIGHEST)])
    if base + 1 not in found:
        return base, there
    low = max(found)
    there, high = found[low], base + (low - base) * 2
    while high - low > 1:
        asked = range(low + max(1, (high - low) // _AT_ONCE), high, max(1, (high - low) // _AT_ONCE))
        found = look(asked)
        if found:
            low = max(found)
            there = found[low]
        high = next((each for each in asked if each > low), high)
    return low, there


def _last_without_gap(found: Mapping[int, Any], number: int) -> tuple[int, Any]:
    while number + 1 in found:
        number += 1
    return number, found[number]
