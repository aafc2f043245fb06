from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.store import open_store
from airflow_ft.store.url import parse_url
from tests.raising import raises


def test_a_sqlite_url_names_an_absolute_path() -> None:
    assert parse_url("sqlite:////var/lib/my%20store/ft.db").path == Path("/var/lib/my store/ft.db")


def test_a_postgresql_url_is_taken_apart() -> None:
    url = "postgresql://ada:p%40ss%2Fw%3Aord@db.example:5433/airflow?connect_timeout=3&schema=ft&sslmode=require"
    assert parse_url(url).dsn == {
        "host": "db.example",
        "port": "5433",
        "user": "ada",
        "password": "p@ss/w:ord",
        "dbname": "airflow",
        "connect_timeout": "3",
        "schema": "ft",
        "sslmode": "require",
    }


@pytest.mark.parametrize(
    ("addresses", "host", "port"),
    [
        ("a:5432,b:5433", "a,b", "5432,5433"),
        ("a,b:5433", "a,b", ",5433"),  # as in libpq: the first one has the default port
        ("a%2Cb:5433", "a,b", "5433"),  # as an Airflow connection is written: one port for both
        ("[::1]:5432,b:5433", "::1,b", "5432,5433"),
        ("a,b", "a,b", None),
    ],
)
def test_a_url_may_name_several_hosts(addresses: str, host: str, port: str | None) -> None:
    dsn = parse_url(f"postgresql://ada:s%2Cme@{addresses}/ft?target_session_attrs=read-write").dsn
    assert (dsn["host"], dsn.get("port"), dsn["password"]) == (host, port, "s,me")
    assert dsn["target_session_attrs"] == "read-write"


def test_a_parsed_url_shows_no_secret() -> None:
    assert "sesame" not in repr(parse_url("postgresql://ada:sesame@host/db"))


@pytest.mark.parametrize(
    "url",
    [
        "ft.db",
        "sqlite://ft.db",
        "sqlite:///relative.db",
        "sqlite:///:memory:",
        "sqlite:////a.db?mode=memory",
        "mysql://ada:sesame@host/db",
        "postgresql://ada:ses/ame@host/db",
        "postgresql://ada:ses#ame@host/db",
        "postgresql://ada:ses?ame@host/db",
        "postgresql://ada:sesame@host:port/db",
        "postgresql://ada:sesame@host:5432,other:port/db",
        "postgresql://ada:sesame@host/db?sslmode",
        "postgresql://ada:ses]ame@[host/db",
    ],
)
def test_an_unusable_url_is_refused_without_quoting_it(url: str) -> None:
    with raises(ConfigurationError, "store_url_invalid") as caught:
        open_store(url)
    for piece in ("ses", "ada"):
        assert caught.error is not None and piece not in caught.error.what
    assert caught.value is not None and caught.value.__cause__ is None


@pytest.mark.parametrize(
    "parameters",
    [
        "sslmod=require",
        "require_auth=bogus",
        "require_auth=md5,md5",
        "ssl_min_protocol_version=1.2",
        "ssl_min_protocol_version=TLSv1.3&ssl_max_protocol_version=TLSv1.2",
        "sslcertmode=x",
        "sslrootcert=system&sslmode=require",
    ],
)
def test_wrong_parameters_of_a_client_are_no_outage(parameters: str) -> None:
    with raises(ConfigurationError, "store_url_invalid") as caught:
        open_store(f"postgresql://ada:sesame@127.0.0.1:1/db?{parameters}")
    assert caught.error is not None and "extra of its connection" in caught.error.remedy


def test_importing_the_store_imports_no_driver() -> None:
    import subprocess
    import sys

    code = "import sys, airflow_ft.store; print([m for m in ('sqlite3', 'psycopg2', 'airflow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
