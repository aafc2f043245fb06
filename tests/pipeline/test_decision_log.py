"""From a setting or a connection to the decision log's URL."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline.connections import connection_info
from airflow_ft.pipeline.decision_log import check_store, store_url
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError, StoreUnavailableError
from airflow_ft.sinks.postgres.session import Limits, _arguments
from airflow_ft.spark import private
from airflow_ft.store import open_store
from airflow_ft.store.url import parse_url
from tests.raising import raises


def connections(**fields: Any) -> Any:
    return lambda conn_id: ConnectionInfo(**{"conn_id": conn_id, "conn_type": "postgres", **fields})


@pytest.mark.parametrize("name", ["a%41", "what? #1 ö", "100%25"])
def test_any_home_holds_the_default_decision_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    store_url()  # Airflow itself refuses such a home when it is imported, unless its own settings name other paths
    home = tmp_path / name
    home.mkdir()
    monkeypatch.setenv("AIRFLOW_HOME", str(home))
    monkeypatch.delenv("AIRFLOW__AIRFLOW_FT__STORE", raising=False)
    with closing(open_store(store_url())) as store, closing(open_store(store.url)) as again:
        assert again.installation == store.installation
    assert (home / "airflow_ft" / "ft.db").exists()


def test_the_home_may_name_variables_as_airflows_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOM", "/srv/room")
    monkeypatch.setenv("AIRFLOW_HOME", "$ROOM/airflow")
    assert private.airflow_home() == Path("/srv/room/airflow")


def test_a_url_is_taken_as_it_is() -> None:
    assert store_url("sqlite:////a/ft.db") == "sqlite:////a/ft.db"


@pytest.mark.parametrize("setting", ["log", "conn:log"])
def test_a_connection_becomes_a_url_that_the_store_reads_back(setting: str) -> None:
    url = store_url(
        setting,
        connections(
            host="db.example",
            port=5433,
            login="us@er",
            password="p/w:d#?é",
            schema="ft",
            extra={"sslmode": "require", "cursor": "dictcursor", "airflow_ft_schema": "log"},
        ),
    )
    assert dict(parse_url(url).dsn) == {
        "host": "db.example",
        "port": "5433",
        "user": "us@er",
        "password": "p/w:d#?é",
        "dbname": "ft",
        "sslmode": "require",
        "schema": "log",
    }


def test_the_log_gets_the_tls_settings_that_a_sink_gets() -> None:
    extra = {
        "sslmode": "verify-full",
        "sslrootcert": "/ca.pem",
        "sslcrldir": "/crl",
        "sslpassword": "p@ss&word",
        "ssl_min_protocol_version": "TLSv1.3",
        "channel_binding": "require",
        "require_auth": "scram-sha-256",
        "options": "-c a=b",
    }
    found = parse_url(store_url("log", connections(extra=extra))).dsn
    assert found is not None and {name: found[name] for name in extra} == extra
    sink = _arguments(connections(extra=extra)("shop"), Limits())
    assert {name: sink[name] for name in extra} == extra


def test_a_tls_setting_that_libpq_does_not_know_is_refused() -> None:
    """Ignored, it would leave the connection without what was asked for."""
    with raises(ConfigurationError, "store_url_invalid"):
        open_store(store_url("log", connections(host="127.0.0.1", port=1, extra={"ssl_mode": "verify-full"})))


def test_another_kind_of_connection_is_refused() -> None:
    with raises(ConfigurationError, "connection_invalid", participant="shop", conn_type="mysql"):
        store_url("shop", connections(conn_type="mysql"))


@pytest.mark.parametrize("url", ["postgresql://me:planted-\udc80@db/ft", "postgresql://me:planted-%00@db/ft", None])
def test_an_unencodable_password_is_refused_and_never_shown(url: str | None) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_url(url or store_url("shop", connections(conn_type="postgres", password="planted-\udc80")))
    seen: BaseException | None = refused.value
    while seen is not None:
        assert "planted" not in repr(seen) + repr(vars(seen))
        seen = seen.__cause__


def test_a_connection_that_is_not_there_may_be_there_later() -> None:
    def missing(conn_id: str) -> ConnectionInfo:
        raise SinkAccessError("the Airflow connection is not defined.", participant=conn_id)

    with raises(StoreUnavailableError, "sink_access", conn_id="log"):
        store_url("log", missing)


def test_the_default_lies_in_airflows_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/srv/airflow")
    assert store_url() == "sqlite:////srv/airflow/airflow_ft/ft.db"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", "sqlite:////elsewhere/ft.db")
    assert store_url() == "sqlite:////elsewhere/ft.db"


class Row:
    """An Airflow connection."""

    conn_type, host, port, login, password, schema = "mysql", "h", "3306", "u", "secret-password", None
    extra = '{"a": 1, "token": "secret-token"}'


def test_a_connection_is_plain_data_and_shows_no_secret() -> None:
    info = connection_info("shop", Row())
    assert (info.conn_type, info.port, info.schema, info.extra["a"]) == ("mysql", 3306, "", 1)
    assert "secret" not in repr(info)


def test_an_invalid_connection_extra_is_refused_and_never_shown() -> None:
    row = Row()
    row.extra = "['secret-token'"
    with raises(ConfigurationError, "connection_invalid", participant="shop", fields=["extra"]) as caught:
        connection_info("shop", row)
    assert "secret" not in f"{caught.value} {vars(caught.value)}"


def test_a_password_is_refused_where_airflow_would_show_it() -> None:
    for harmless in (None, "log", "conn:log", "sqlite:////a/ft.db", "postgresql://us@host/db", "{{ var.value.store }}"):
        assert check_store(harmless) == harmless
    for open_one in ("postgresql://us:secret-word@host/db", "postgresql://us@host/db?x=1&password=secret-word"):
        with raises(ConfigurationError, "password_visible", argument="store") as caught:
            check_store(open_one)
        assert "secret-word" not in f"{caught.value} {vars(caught.value)}"
    for unreadable in ("postgresql://us:secret-word[x@host/db", "postgresql://us:secret-word\u2100@host/db"):
        with raises(ConfigurationError, "store_url_invalid") as caught:
            check_store(unreadable)
        assert "secret-word" not in f"{caught.value} {vars(caught.value)}" and caught.value.__suppress_context__
