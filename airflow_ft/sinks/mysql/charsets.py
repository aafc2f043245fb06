"""Which characters a column's character set holds, as the server itself converts them.

Asked by sending every character of the basic plane there and back, a fiftieth of a second for each character set of a
table that is not one of Unicode. Python's tables would differ from the server's in some characters (its latin1 is
Windows' cp1252, its swe7 lacks '@').
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import flags, offsets, scalar
from airflow_ft.sinks.mysql.session import Session

ALL = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030", "binary"})
BASIC_PLANE = frozenset({"utf8mb3", "utf8", "ucs2"})
_END_OF_PLANE = 0x10000
_SURROGATES = range(0xD800, 0xE000)
_PIECE = 8192  # characters a statement: few enough for the smallest max_allowed_packet that is in use


@dataclass(frozen=True, slots=True, eq=False)
class Repertoire:
    """The characters of the basic plane that a character set holds; it holds none of the others."""

    held: npt.NDArray[np.bool_]

    def lacks(self, array: pa.Array) -> pa.Array:
        """Return which texts have a character that it does not hold; nulls have none."""
        text = array.cast(pa.large_string())
        if text.null_count:
            text = text.fill_null(scalar("", text.type))
        ends = offsets(text)
        data = bytes(memoryview(text.buffers()[2] or b"")[ends[0] : ends[-1]])
        points = np.frombuffer(data.decode().encode("utf-32-le"), np.uint32)
        lacking = ~self.held[np.minimum(points, _END_OF_PLANE)]
        before = np.concatenate([[0], np.cumsum(lacking)])
        stops = np.cumsum(np.frombuffer(pc.utf8_length(text).buffers()[1], np.int64, len(text)))
        starts = np.concatenate([[0], stops[:-1]])
        return flags(before[stops] > before[starts]) if len(text) else flags(np.zeros(0, np.bool_))


def repertoires(session: Session, charsets: Iterable[str | None]) -> Mapping[str, Repertoire]:
    """Return the repertoires of charsets that lack characters. `charsets` are as information_schema names them."""
    wanted = {charset for charset in charsets if charset is not None} - ALL
    return {charset: _read(session, charset) for charset in sorted(wanted)}


def _read(session: Session, charset: str) -> Repertoire:
    held = np.zeros(_END_OF_PLANE + 1, np.bool_)
    if charset in BASIC_PLANE:
        held[:_END_OF_PLANE] = True
        return Repertoire(held)
    plane = [point for point in range(_END_OF_PLANE) if point not in _SURROGATES]
    for start in range(0, len(plane), _PIECE):
        points = plane[start : start + _PIECE]
        given = "".join(map(chr, points))
        sql = f"SELECT CONVERT(CONVERT(_utf8mb4 x'{given.encode().hex()}' USING {charset}) USING utf8mb4)"
        back = str(session.value(sql))
        if len(back) != len(given):
            raise AssertionError(f"{charset} gave back {len(back)} characters for {len(given)}")
        held[points] = [one == other for one, other in zip(back, given, strict=True)]
    return Repertoire(held)
