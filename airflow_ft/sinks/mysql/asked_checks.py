"""Texts that only the server can judge (JSON, UUID, INET), asked of it before the decision.

Needed where a row that it refuses could not be declined any more: under `upsert`, and where another sink
carries the commit point. Elsewhere the delivering transaction finds it, and nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pymysql

from airflow_ft.sinks.arrow import flags, numbers, scalar
from airflow_ft.sinks.mysql.catalog import Column, Table, told_of
from airflow_ft.sinks.mysql.failures import Meaning, meaning
from airflow_ft.sinks.mysql.session import Session

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
    told = told_of(session, table.name, "CHECK_CONSTRAINTS", "CONSTRAINT_NAME, CHECK_CLAUSE", about=about)
    clauses = (str(clause).lower() for name, clause in told if str(name).lower() == column.name.lower())
    return any(clause.startswith("json_valid(") for clause in clauses)
