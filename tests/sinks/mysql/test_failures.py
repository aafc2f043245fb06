from __future__ import annotations

import pymysql
import pytest

from airflow_ft.core.errors import DeclinedError, SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.mysql.failures import Meaning, failure, meaning
from airflow_ft.sinks.mysql.fencing import lock_name
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.load import place


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (1062, Meaning.ROWS), (1048, Meaning.ROWS), (1264, Meaning.ROWS), (1406, Meaning.ROWS), (1452, Meaning.ROWS),
        (3819, Meaning.ROWS), (4025, Meaning.ROWS), (1644, Meaning.ROWS), (1366, Meaning.ROWS), (1690, Meaning.ROWS),
        (1205, Meaning.BUSY), (1213, Meaning.BUSY),
        (2003, Meaning.LOST), (2006, Meaning.LOST), (2013, Meaning.LOST), (1927, Meaning.LOST), (4031, Meaning.LOST),
        (1045, Meaning.ACCESS), (1142, Meaning.ACCESS), (1146, Meaning.ACCESS), (1290, Meaning.ACCESS),
        (1114, Meaning.UNAVAILABLE), (1021, Meaning.UNAVAILABLE), (1040, Meaning.UNAVAILABLE),
        (9999, Meaning.UNAVAILABLE),
    ],
)  # fmt: skip
def test_codes_are_sorted_by_what_can_be_done(code: int, expected: Meaning) -> None:
    assert meaning(pymysql.err.OperationalError(code, "x")) is expected


def test_only_statements_that_send_rows_are_declined() -> None:
    duplicate = pymysql.err.IntegrityError(1062, "Duplicate entry '3' for key 'PRIMARY'")
    assert isinstance(failure(duplicate, "sending", rows=True), DeclinedError)
    assert isinstance(failure(duplicate, "writing the marker"), SinkUnavailableError)
    assert isinstance(failure(pymysql.err.OperationalError(1045, "no"), "connecting", rows=True), SinkAccessError)


def test_places_are_read_from_messages() -> None:
    assert place("Out of range value for column 'a' at row 17") == ("a", 17)
    assert place("Incorrect string value: '\\xF0' for column `s`.`t`.`b` at row 2") == ("b", 2)
    assert place("Duplicate entry '3' for key 'PRIMARY'") == ("", 0)
    assert place("Column 'x' cannot be null") == ("x", 0)


def test_lock_names_fit_and_differ_in_every_part() -> None:
    ledger, other = Ledger("s", "p", "c"), Ledger("s", "p", "d")
    names = {
        lock_name(ledger, "i", (1, 2), "n"), lock_name(other, "i", (1, 2), "n"), lock_name(ledger, "j", (1, 2), "n"),
        lock_name(ledger, "i", (2, 2), "n"), lock_name(ledger, "i", (1, 3), "n"), lock_name(ledger, "i", (1, 2), "m"),
        lock_name(ledger, "i", (12, 2), "n"),
    }  # fmt: skip
    assert len(names) == 7 and all(len(name) <= 64 and name.isascii() for name in names)
