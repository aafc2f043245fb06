"""Tables of a delivering transaction: locked against ALTER, and compared with the ones that were judged.

A vote judges columns and rows by a table's definition. A table may be altered before its rows are delivered, and
the server then converts values without an error: DOUBLE into FLOAT, VARCHAR into CHAR. So the transaction that delivers
first takes a metadata lock, then reads the definition, and compares its fingerprint with the vote's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pymysql

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, UnfitTargetError
from airflow_ft.protocol.model import Vote
from airflow_ft.sinks.mysql.catalog import computed, told_of
from airflow_ft.sinks.mysql.failures import Meaning, meaning
from airflow_ft.sinks.mysql.naming import TableName, quote
from airflow_ft.sinks.mysql.session import Session

_REMEMBERED = 64  # plans; more of them are open only where many checkpoints wait


def keep_table(session: Session, name: TableName) -> pymysql.err.MySQLError | None:
    """Take the table's metadata lock, which ALTER waits for until the open transaction ends.

    An INSERT without rows takes it, because INSERT may be the only privilege of this user. Returns the server's error
    where it refuses the statement: reading the table afterwards may name the reason better.
    """
    asked = "COLUMN_NAME, EXTRA, PRIVILEGES, IS_NULLABLE = 'NO' AND COLUMN_DEFAULT IS NULL"
    told = [
        (str(column), "insert" in str(privileges).lower(), bool(needed))
        for column, extra, privileges, needed in told_of(session, name, "COLUMNS", asked, "ORDER BY ORDINAL_POSITION")
        if not computed(str(extra or ""))
    ]
    granted = any(may for _, may, _ in told)  # privileges by way of a role may not show
    columns = [(column, needed) for column, may, needed in told if may or not granted]
    # MariaDB demands the columns without a default, though there is no row.
    named = [column for column, needed in columns if needed] or [column for column, _ in columns[:1]]
    if not named:
        return pymysql.err.OperationalError(1146, f"Table {name} does not exist, or has no column that can be written")
    listed, nulls = ", ".join(map(quote, named)), ", ".join(["NULL"] * len(named))
    try:
        session.run(f"INSERT INTO {name.sql} ({listed}) SELECT {nulls} FROM DUAL WHERE 1 = 0")
    except pymysql.err.MySQLError as error:
        if meaning(error) not in (Meaning.ACCESS, Meaning.ROWS):
            raise
        return error
    return None


class Judged:
    """Fingerprints of the tables that this process has judged, by plan digest and sink."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, set[str]]] = {}

    def add(self, digest: str, sink: str, fingerprint: str) -> None:
        """Remember that the rows of a plan fit a table of this shape."""
        self._known.setdefault(digest, {}).setdefault(sink, set()).add(fingerprint)
        while len(self._known) > _REMEMBERED:
            self._known.pop(next(iter(self._known)))

    def of(self, digest: str, sink: str, vote: Vote | None) -> set[str]:
        """Fingerprints for which the sink's rows were judged, by the vote or by this process."""
        return self._known.get(digest, {}).get(sink, set()) | _voted(vote, sink)


def _voted(vote: Vote | None, sink: str) -> set[str]:
    tables: Mapping[str, Any] = (vote.notes.get("tables") if vote is not None else None) or {}
    found = (tables.get(sink) or {}).get("fingerprint")
    return {str(found)} if found else set()


def unfit_since(error: AirflowFtError) -> AirflowFtError:
    """The error for rows that fitted when they were judged: the table changed, so a change of it helps."""
    if not isinstance(error, DeclinedError | UnfitTargetError):
        return error
    return UnfitTargetError(
        f"the table was changed after the vote, and no longer fits: {error.what}",
        code=error.code,
        remedy=f"Change the table so that it takes the staged rows. The next retry delivers them. {error.remedy}",
        sink=error.sink,
        column=error.column,
        row=error.row,
        **{**error.fields, "changed": True},
    )
