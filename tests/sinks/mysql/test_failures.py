from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from airflow_ft.protocol.errors import DeclinedError, SinkAccessError, SinkUnavailableError
from airflow_ft.sinks.mysql.failures import Meaning, Unanswered, failure, meaning, meaning_of_rows
from airflow_ft.sinks.mysql.fencing import lock_name
from airflow_ft.sinks.mysql.ledger import Ledger
from airflow_ft.sinks.mysql.load import place, refusals
from airflow_ft.sinks.mysql.naming import TableName


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


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        (1205, "Lock wait timeout exceeded; try restarting transaction", Meaning.BUSY),
        (1205, "not this one", Meaning.ROWS),
        (1213, "Deadlock found when trying to get lock; try restarting transaction", Meaning.BUSY),
        (1053, "Server shutdown in progress", Meaning.LOST),
        (1317, "Query execution was interrupted", Meaning.LOST),
        (1969, "Query execution was interrupted (max_statement_time exceeded)", Meaning.UNAVAILABLE),
        (1021, "Disk full (/tmp); waiting for someone to free some space...", Meaning.UNAVAILABLE),
        (1114, "The table 'orders' is full", Meaning.UNAVAILABLE),
        (1030, "Got error 28 from storage engine", Meaning.UNAVAILABLE),
        (1226, "User 'me' has exceeded the 'max_updates' resource (current value: 5)", Meaning.ACCESS),
        (1290, "The MySQL server is running with the --read-only option", Meaning.ACCESS),
        (9001, "Max connect timeout reached while reaching hostgroup 0", Meaning.UNAVAILABLE),
        (2013, "Lost connection to MySQL server during query", Meaning.LOST),
        (1172, "Result consisted of more than one row", Meaning.ROWS),
        (1442, "Can't update table 'orders' in stored function/trigger", Meaning.ROWS),
        (3, "Error writing file '/tmp/ML1' (Errcode: 28 - No space left on device)", Meaning.UNAVAILABLE),
        (1197, "Multi-statement transaction required more than 'max_binlog_cache_size' bytes", Meaning.UNAVAILABLE),
        (1036, "Table 'orders' is read only", Meaning.UNAVAILABLE),
        (31001, "no", Meaning.ROWS),
    ],
)
def test_an_error_blames_the_rows_unless_it_is_the_servers(code: int, message: str, expected: Meaning) -> None:
    assert meaning_of_rows(pymysql.err.OperationalError(code, message)) is expected


@pytest.mark.parametrize(
    ("code", "state", "rows", "refused"),
    [
        (1062, "", False, True),  # known by its number
        (31001, "45000", False, True),  # raised by a user
        (1197, "45000", False, True),
        (31001, "HY000", True, True),  # of any number, while the server takes a statement without rows
        (1146, "42S02", True, True),
        (31001, "HY000", False, False),  # it does not: offline_mode, say
        (1146, "42S02", False, False),
        (4031, "HY000", False, False),  # the connection was ended
        (1159, "08S01", False, False),
        (1213, "40001", True, True),  # not in the server's own words
    ],
)
def test_an_unknown_error_blames_the_rows_if_the_server_works(code: int, state: str, rows: bool, refused: bool) -> None:
    error = pymysql.err.OperationalError(code, "not in these words")
    error.sqlstate = state
    target: Any = SimpleNamespace(table=SimpleNamespace(name=TableName("s", "orders")), sink="orders")
    file: Any = SimpleNamespace(path="1.parquet")
    with (
        pytest.raises(DeclinedError if refused else pymysql.err.OperationalError),
        refusals(target, file, 0, lambda: rows),
    ):
        raise error


@pytest.mark.parametrize(
    ("resource", "clause"),
    [("max_questions", "MAX_QUERIES_PER_HOUR"), ("max_updates", "MAX_UPDATES_PER_HOUR"),
     ("max_connections_per_hour", "MAX_CONNECTIONS_PER_HOUR"), ("max_user_connections", "MAX_USER_CONNECTIONS")],
)  # fmt: skip
def test_the_limit_that_is_used_up_is_named(resource: str, clause: str) -> None:
    text = f"User 'me' has exceeded the '{resource}' resource (current value: 1)"
    error = failure(pymysql.err.OperationalError(1226, text), "sending", rows=True)
    assert isinstance(error, SinkAccessError) and f"WITH {clause} 0" in error.remedy
    assert (error.code, error.fields["errno"]) == ("limit_reached", 1226)


@pytest.mark.parametrize("number", [1034, 1194, 1812, 1932, 3185])
def test_what_no_retry_mends_says_what_a_person_does(number: int) -> None:
    found = failure(pymysql.err.OperationalError(number, "broken"), "committing")
    other = failure(pymysql.err.OperationalError(9999, "unknown"), "committing")
    assert isinstance(found, SinkUnavailableError) and found.fields["errno"] == number
    assert found.remedy != other.remedy and ("CHECK TABLE" in found.remedy) is (number != 3185)


def test_only_statements_that_send_rows_are_declined() -> None:
    duplicate = pymysql.err.IntegrityError(1062, "Duplicate entry '3' for key 'PRIMARY'")
    assert isinstance(failure(duplicate, "sending", rows=True), DeclinedError)
    assert isinstance(failure(duplicate, "writing the marker"), SinkUnavailableError)
    assert isinstance(failure(pymysql.err.OperationalError(1045, "no"), "connecting", rows=True), SinkAccessError)


@pytest.mark.parametrize(
    ("number", "message", "code"),
    [
        (2003, "Can't connect to MySQL server", "server_unreachable"),
        (1045, "Access denied for user 'me'", "login_refused"),
        (1044, "Access denied for user 'me' to database 'shop'", "privilege_missing"),
        (1142, "INSERT command denied to user 'me'", "privilege_missing"),
        (1049, "Unknown database 'shop'", "database_missing"),
        (1146, "Table 'shop.orders' doesn't exist", "table_missing"),
        (1054, "Unknown column 'x'", "column_missing"),
        (1205, "Lock wait timeout exceeded", "lock_timeout"),
        (1114, "The table 'orders' is full", "disk_full"),
        (1030, "Got error 28 from storage engine", "disk_full"),
        (1030, "Got error 122 from storage engine", "sink_unavailable"),
        (1040, "Too many connections", "limit_reached"),
        (1290, "The MySQL server is running with the --read-only option", "server_read_only"),
        (1064, "You have an error in your SQL syntax", "sink_access"),
        (9001, "Max connect timeout reached", "sink_unavailable"),
    ],
)
def test_each_error_of_a_server_has_a_code_and_what_to_do(number: int, message: str, code: str) -> None:
    error = failure(pymysql.err.OperationalError(number, message), "connecting")
    assert (error.code, error.fields["errno"]) == (code, number)
    assert message in error.headline and error.remedy


def test_a_commit_without_an_answer_is_in_doubt() -> None:
    assert failure(Unanswered("gone"), "committing").code == "commit_in_doubt"


@pytest.mark.parametrize(
    ("number", "code"), [(1062, "row_refused"), (1452, "row_refused"), (1048, "null_refused"), (1406, "value_unfit")]
)
def test_refused_rows_have_a_code_by_what_is_wrong_with_them(number: int, code: str) -> None:
    error = failure(pymysql.err.IntegrityError(number, "no"), "sending", rows=True)
    assert isinstance(error, DeclinedError) and (error.code, error.fields["errno"]) == (code, number)


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
