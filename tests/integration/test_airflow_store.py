"""The decision log in an Airflow connection: a real PostgreSQL, found as a task and as a command finds it."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from airflow_ft.hooks.store import CheckpointStoreHook
from airflow_ft.pipeline.connections import server_connections, task_connections
from airflow_ft.pipeline.decision_log import open_configured_store
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.errors import StoreUnavailableError
from tools.servers import Database

pytestmark = [pytest.mark.server, pytest.mark.airflow]


def connection(database: Database, **changes: Any) -> str:
    server = database.server
    fields = {
        "conn_type": "postgres",
        "host": server.host,
        "port": server.port,
        "login": server.user,
        "password": server.password,
        "schema": database.name,
        "extra": json.dumps({"connect_timeout": 10, "airflow_ft_schema": "log", "cursor": "dictcursor"}),
    }
    return json.dumps({**fields, **changes})


@pytest.mark.parametrize("resolver", [task_connections, server_connections], ids=["task", "command"])
def test_a_connection_leads_to_the_log(
    resolver: ConnectionResolver, postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FT_LOG", connection(postgres_database))
    with closing(open_configured_store("conn:ft_log", resolver)) as store:
        store.register("orders")
        assert [row.name for row in store.pipelines()] == ["orders"]
    schemas = postgres_database.sql("SELECT schemaname FROM pg_tables WHERE tablename LIKE '%%pipeline%%'")
    assert set(schemas) == {("log",)}, "in the schema that the connection's extra names"


def test_the_configuration_names_it_for_everybody(postgres_database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FT_LOG", connection(postgres_database))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", "ft_log")
    with closing(CheckpointStoreHook().get_conn()) as store:
        assert store.url.startswith("postgresql://")
        assert "orders" not in [row.name for row in store.pipelines()]


def test_a_wrong_password_is_not_shown_and_may_be_mended(
    postgres_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FT_LOG", connection(postgres_database, password="secret-word"))
    with pytest.raises(StoreUnavailableError) as caught, closing(open_configured_store("ft_log")) as store:
        store.pipelines()
    assert "secret-word" not in f"{caught.value} {caught.value.fields}"


def test_an_undefined_connection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_NO_SUCH_LOG", raising=False)
    with pytest.raises(StoreUnavailableError) as refused:
        open_configured_store("conn:no_such_log")
    assert "no_such_log" in refused.value.headline
