"""Demands of a session on its settings, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pymysql
import pytest

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.mysql import session_settings
from airflow_ft.sinks.mysql.limits import Limits
from tests.raising import raises

SHOWN = {
    "autocommit": "ON",
    "sql_mode": session_settings.SQL_MODE,
    "tx_isolation": "READ-COMMITTED",
    "sql_log_bin": "ON",
    "completion_type": "NO_CHAIN",
    "sql_select_limit": "18446744073709551615",
    "max_statement_time": "0.000000",
    "old_mode": "UTF8_IS_UTF8MB3",
    "idle_transaction_timeout": "0",
    "note_verbosity": "basic,explain",
}


class Answers:
    """Settings as a server shows and takes them; `fixed` ones it takes and keeps, `forbidden` ones it refuses."""

    def __init__(self, fixed: Sequence[str] = (), forbidden: Sequence[str] = (), **changed: str) -> None:
        self.values = SHOWN | changed
        self.fixed, self.forbidden = fixed, forbidden

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        if sql.startswith("SHOW"):
            return list(self.values.items())
        names = [name.removeprefix("@@SESSION.") for name in sql.removeprefix("SELECT ").split(", ")]
        return [tuple(self.values[name] for name in names)]

    def run(self, sql: str) -> None:
        name, value = sql.removeprefix("SET SESSION ").split(" = ")
        if name in self.forbidden:
            raise pymysql.err.OperationalError(1227, "Access denied; you need SUPER")
        if name not in self.fixed:
            self.values[name] = value.strip("'")

    def ensure(self) -> None:
        session_settings.ensure(self.rows, self.run, "10.11-test", Limits())


@pytest.mark.parametrize(
    ("name", "value"),
    [("sql_log_bin", "OFF"), ("max_statement_time", "1.500000"), ("old_mode", "NO_DUP_KEY_WARNINGS_WITH_IGNORE"),
     ("idle_transaction_timeout", "1"), ("note_verbosity", "explain")],
)  # fmt: skip
def test_what_only_some_servers_have_is_set_or_refused_by_name(name: str, value: str) -> None:
    given = Answers(**{name: value})
    given.ensure()
    given.ensure()
    for refusing in (Answers(fixed=[name], **{name: value}), Answers(forbidden=[name], **{name: value})):
        with raises(SinkAccessError, "server_setting_unsafe", setting=name, value=value):
            refusing.ensure()


def test_a_transaction_on_another_connection_is_refused() -> None:
    given = Answers(autocommit="0")
    session_settings.require(given.rows, "10.11-test", Limits(), autocommit=False)
    for name, value in (("autocommit", "ON"), ("sql_mode", "ANSI_QUOTES"), ("tx_isolation", "REPEATABLE-READ")):
        other = Answers(**{"autocommit": "0", name: value})
        with raises(SinkAccessError, "server_unsupported", setting=name, value=value):
            session_settings.require(other.rows, "10.11-test", Limits(), autocommit=False)
