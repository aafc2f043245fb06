"""Values that the names of partition folders hold (`k=200`), compared with the types of their columns.

Spark casts such a value as well as it can: 200 as tinyint is -56, 2.555 as decimal(12,2) is 2.56, and 2024 as date is
the first of January. So a value counts only if its column holds exactly what the folder's name says.

For a column that the source does not declare, Spark chooses a type that fits all folders: 01234 becomes the number
1234. The source asks for no number, so there only a text counts that the number has itself. Or two digits, such as 01,
as folders of months, days and hours have them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_WHOLE = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?[0-9]{1,100}(\.[0-9]{1,100})?([eE][+-]?[0-9]{1,4})?")
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_ZONE = r"(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?|[A-Za-z]+/[A-Za-z_/+-]+))?"
_PADDED = re.compile("0[0-9]")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.[0-9]{1,6}0*)?)?(?P<zone>" + _ZONE + "))?"
)


def inexact(
    places: Iterable[str], kinds: Mapping[str, str], declared: Collection[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yield (folder, column, type) where a folder on the path of a file names a value that its column cannot hold.

    Args:
        places: of the files.
        kinds: the types of the columns of partitions, as Spark writes them in SQL.
        declared: names of columns, in lower case, whose types the source declares; None: it declares all.
    """
    known = {name.lower(): (name, kind) for name, kind in kinds.items()}
    for folder in dict.fromkeys(place.rpartition("/")[0] for place in places):
        for each in reversed(folder.split("/")):
            column, equals, value = each.partition("=")
            if not equals:
                break
            name, kind = known.get(_unescaped(column).lower(), (column, "string"))
            text = _unescaped(value)
            is_chosen = declared is not None and name.lower() not in declared
            if value != _NULL and not (_holds(kind, text) and (not is_chosen or _shows(kind, text))):
                yield folder, name, kind


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _holds(kind: str, text: str) -> bool:
    if (bits := _BITS.get(kind)) is not None:
        return _WHOLE.fullmatch(text) is not None and -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1)
    if (found := _DECIMAL.fullmatch(kind)) is not None:
        return _NUMBER.fullmatch(text) is not None and _fits(Decimal(text), int(found[1]), int(found[2]))
    test = _TESTS.get(kind)
    return test is None or test(text)


def _shows(kind: str, text: str) -> bool:
    """Return whether a number that the column holds is written like this, too."""
    if kind in _BITS or _DECIMAL.fullmatch(kind):
        return _PADDED.fullmatch(text) is not None or (_WHOLE.fullmatch(text) is not None and str(int(text)) == text)
    return kind not in ("double", "float") or text in (shown := repr(float(text)), shown.removesuffix(".0"))


def _fits(number: Decimal, precision: int, scale: int) -> bool:
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    text = "".join(map(str, digits)).lstrip("0")
    kept = text.rstrip("0")
    exponent += len(text) - len(kept)
    return not kept or (-exponent <= scale and len(kept) + exponent <= precision - scale)


def _is_float(text: str) -> bool:
    if text.lower() in ("nan", "infinity", "-infinity"):
        return True
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def _is_small_float(text: str) -> bool:
    return _is_float(text) and not (math.isfinite(float(text)) and abs(float(text)) > 3.4028235677973366e38)


def _is_moment(text: str, *, with_time: bool = True, with_zone: bool = True) -> bool:
    found = _MOMENT.fullmatch(text)
    if found is None or (found[4] and not with_time) or (found["zone"] and not with_zone):
        return False
    try:
        datetime(*(int(part or 0) for part in found.groups()[:6]))  # type: ignore[arg-type]  # noqa: DTZ001
    except ValueError:
        return False
    return True


_TESTS: Mapping[str, Callable[[str], bool]] = {
    "double": _is_float,
    "float": _is_small_float,
    "boolean": lambda text: text.lower() in ("true", "false"),
    "date": lambda text: _is_moment(text, with_time=False),
    "timestamp": _is_moment,
    "timestamp_ntz": lambda text: _is_moment(text, with_zone=False),
}
