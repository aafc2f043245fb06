from __future__ import annotations

import ssl
from typing import Any

import certifi
import pymysql
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.mysql.arguments import arguments
from airflow_ft.sinks.mysql.limits import Limits
from tests.raising import raises


def given(**extra: object) -> dict[str, object]:
    info = ConnectionInfo("c", "mysql", host="db", login="me", password="secret-word", schema="shop", extra=extra)
    return arguments(info, Limits(), local_infile=True)


def test_a_password_is_sent_as_utf_8_as_the_server_keeps_it() -> None:
    assert given()["password"] == b"secret-word"
    info = ConnectionInfo("c", "mysql", password="pässwörd-密码")
    assert arguments(info, Limits(), local_infile=True)["password"] == "pässwörd-密码".encode()


def test_connection_extras_reach_the_driver() -> None:
    plain = given(charset="latin1")
    assert (plain["connect_timeout"], plain["read_timeout"]) == (10, 30)  # a login may ask LDAP
    assert plain["charset"] == "utf8mb4" and plain["port"] == 3306 and "ssl" not in plain
    assert given(unix_socket="/run/s")["unix_socket"] == "/run/s"
    assert given(ssl_mode="DISABLED")["ssl_disabled"] is given(ssl=False)["ssl_disabled"] is True
    assert given(ssl=False, ssl_mode="REQUIRED")["ssl"] is not None
    assert given(ssl_mode="REQUIRED")["ssl"] is not None
    assert "ssl" not in given(ssl={})
    assert given(ssl='{"cipher": "ECDHE-RSA-AES256-GCM-SHA384"}')["ssl"] is not None


@pytest.mark.parametrize(
    ("extra", "verified", "by_name"),
    [
        ({}, True, False),
        ({"ssl_mode": "VERIFY_CA"}, True, False),
        ({"ssl_mode": "VERIFY_IDENTITY"}, True, True),
        ({"ssl_mode": "PREFERRED"}, False, False),
        ({"ssl_mode": "REQUIRED"}, False, False),
        ({"ssl": {"cipher": "DEFAULT"}}, True, False),
        ({"ssl": {}}, True, False),
        ({"ssl": True}, True, True),
        ({"ssl": {"ca": certifi.where()}}, True, True),
        ({"ssl": {"ca": certifi.where()}, "ssl_mode": "VERIFY_CA"}, True, False),
        ({"ssl": {"cipher": "DEFAULT"}, "ssl_mode": "VERIFY_IDENTITY"}, True, True),
        ({"ssl": {"cipher": "DEFAULT"}, "ssl_mode": "REQUIRED"}, False, False),
    ],
)
def test_a_certificate_is_verified_by_the_named_authority(
    extra: dict[str, object], verified: bool, by_name: bool
) -> None:
    """As MySQL's own clients do it: an authority without a mode is VERIFY_CA."""
    driver: Any = pymysql.Connection(**given(ssl_ca=certifi.where(), **extra), defer_connect=True)
    assert (driver.ctx.verify_mode is ssl.CERT_REQUIRED, driver.ctx.check_hostname) == (verified, by_name)


@pytest.mark.parametrize(
    "extra",
    [
        {"ssl_mode": "verify_identity"},
        {"ssl_mode": "VERIFY_IDENTITY", "ssl": {"cipher": "DEFAULT", "ca": ""}},
        {"ssl_mode": "VERIFY_IDENTITY", "ssl": True},
    ],
)
def test_the_systems_authorities_verify_a_name_by_themselves(extra: dict[str, object]) -> None:
    """The driver would take a certificate for any host, or any certificate."""
    driver: Any = pymysql.Connection(**given(**extra), defer_connect=True)
    assert (driver.ctx.verify_mode, driver.ctx.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(
    "extra",
    [
        {"ssl": "no json"},
        {"ssl": {"check_hostname": False}},
        {"ssl_mode": "VERIFY_CA", "ssl": {"verify_mode": "none"}},
        {"ssl": {"ca": "/not/there"}},
        {"ssl_ca": "/not/there"},
        {"ssl_mode": "SOMETIMES"},
        {"ssl_mode": "PREFERRED", "ssl": {"ca": certifi.where()}},
        {"ssl_mode": "PREFERRED", "ssl": True, "ssl_ca": certifi.where()},
        {"ssl_mode": "PREFERRED", "ssl": {"cipher": "DEFAULT"}, "ssl_ca": certifi.where()},
        {"ssl": 3},
    ],
)
def test_tls_settings_that_cannot_work_are_named_without_secrets(extra: dict[str, object]) -> None:
    with raises(SinkAccessError, "connection_invalid", participant="c", setting="ssl") as refused:
        given(**extra)
    assert "secret-word" not in repr(refused.error) + repr(vars(refused.error))


@pytest.mark.parametrize("value", [True, False, "true", "false"])
@pytest.mark.parametrize(
    ("name", "mode"),
    [("ssl_disabled", "DISABLED"), ("ssl_verify_cert", "VERIFY_CA"), ("ssl_verify_identity", "VERIFY_IDENTITY")],
)
def test_names_of_pymysql_are_refused_for_those_of_mysql(name: str, mode: str, value: object) -> None:
    with raises(SinkAccessError, "connection_invalid", participant="c", fields=[name]) as refused:
        given(ssl_ca=certifi.where(), **{name: value})
    assert f"ssl_mode: {mode} in place of {name}" in refused.value.remedy
