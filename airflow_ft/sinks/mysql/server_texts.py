"""Questions about texts that only the server can answer, so they are asked before the decision.

- Which characters a column's character set holds (`Repertoire`). The server converts every character of the basic
  plane there and back, a fiftieth of a second for each character set of a table that is not one of Unicode. Python's
  tables would differ from the server's in some characters (its latin1 is Windows' cp1252, its swe7 lacks '@').
- Whether a text is JSON, a UUID or an address (`Question`). Needed where a row that the server refuses could not be
  declined any more: under `upsert`, and where another sink carries the commit point. Elsewhere the delivering
  transaction finds it, and nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from airflow_ft.sinks.arrow import flags, numbers, offsets, scalar
from airflow_ft.sinks.mysql.catalog import Column, Table, information_schema
from airflow_ft.sinks.mysql.failures import Meaning, meaning
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


_JSON = "JSON_VALID(%s)"
_VALID: Mapping[str, str] = {
    "json": _JSON,
    "uuid": "CAST(%s AS UUID) IS NOT NULL",
    "inet4": "CAST(%s AS INET4) IS NOT NULL",
    "inet6": "CAST(%s AS INET6) IS NOT NULL",
}
_VALUES = 500  # a statement
_BYTES = 256 << 10  # likewise


@dataclass(frozen=True, slots=True)
class Question:
    """Asks the server of each text whether the column takes it, on connections of its own that do not stay open."""

    open: Callable[[], Session]
    expression: str

    def refused(self, array: pa.Array) -> pa.Array:
        """Return which texts the server would refuse; nulls are not. May raise `pymysql.err.MySQLError`."""
        encoded = array.cast(pa.large_string()).dictionary_encode()
        texts = encoded.dictionary.to_pylist()
        wrong: list[bool] = []
        with closing(self.open()) as session:
            largest = session.max_allowed_packet // 2
            while len(wrong) < len(texts):
                some = self._some(texts[len(wrong) : len(wrong) + _VALUES], largest)
                wrong += self._wrong(session, some)
        places = encoded.indices.fill_null(scalar(len(texts), encoded.indices.type))
        return flags(np.array([*wrong, False], np.bool_)[numbers(places)])

    def _wrong(self, session: Session, texts: list[str]) -> list[bool]:
        try:
            row = session.row(f"SELECT {', '.join([self.expression] * len(texts))}", texts)
        except pymysql.err.MySQLError as error:  # MySQL does not answer for JSON that is nested too deeply
            if meaning(error) is not Meaning.ROWS:
                raise
            return [True] if len(texts) == 1 else [self._wrong(session, [text])[0] for text in texts]
        assert row is not None
        return [not valid for valid in row]

    @staticmethod
    def _some(texts: list[str], largest: int) -> list[str]:
        """As many as go into one statement, one at least."""
        size, count = 0, 0
        while count < len(texts) and (not count or size + len(texts[count]) * 4 <= min(_BYTES, largest)):
            size += len(texts[count]) * 4
            count += 1
        return texts[:count]


def questions(session: Session, table: Table, open_session: Callable[[], Session]) -> Mapping[str, Question]:
    """Return what has to be asked of texts, by the column's name."""
    found = {column.name: _VALID[column.type] for column in table.columns.values() if column.type in _VALID}
    if session.is_mariadb:  # JSON is a LONGTEXT with a constraint there
        found |= {column.name: _JSON for column in table.columns.values() if _is_json(session, table, column)}
    return {name: Question(open_session, expression) for name, expression in found.items()}


def _is_json(session: Session, table: Table, column: Column) -> bool:
    if column.type != "longtext":
        return False
    about = ("CONSTRAINT_SCHEMA", "TABLE_NAME")
    checks = information_schema(session, table.name, "CHECK_CONSTRAINTS", "CONSTRAINT_NAME, CHECK_CLAUSE", about=about)
    clauses = (str(clause).lower() for name, clause in checks if str(name).lower() == column.name.lower())
    return any(clause.startswith("json_valid(") for clause in clauses)
