"""What the second client is told of a connection: everything that matters, or the name of what it cannot use."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.clients.kafka.client import KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.kafka.kafka_python import client_settings
from tests.raising import raises

SASL = {"security.protocol": "sasl_plaintext", "sasl.username": "me", "sasl.password": "hunter2"}


def translated(**extra: Any) -> dict[str, Any]:
    names = {name.replace("__", "."): value for name, value in extra.items()}
    connection = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": "a:1, b:2", **names})
    return client_settings(KafkaSettings.from_connection(connection))


def test_plain_text_needs_nothing_but_the_brokers() -> None:
    assert translated(client__id="x", socket__keepalive__enable=True, statistics__interval__ms=5) == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_a_password_is_handed_on(name: str) -> None:
    found = translated(**SASL, **{name: "SCRAM-SHA-512"})
    assert {key: value for key, value in found.items() if key != "bootstrap_servers"} == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "hunter2",
    }


def test_tls_verifies_unless_the_connection_says_otherwise() -> None:
    context = translated(security__protocol="SSL")["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    context = translated(security__protocol="SSL", ssl__endpoint__identification__algorithm="none")["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)
    context = translated(security__protocol="SSL", enable__ssl__certificate__verification="false")["ssl_context"]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_NONE, False)


@pytest.mark.parametrize(
    ("extra", "code", "setting"),
    [
        ({"security.protocol": "SASL_SSL"}, "connection_invalid", "sasl.mechanism=GSSAPI"),
        ({**SASL, "sasl.mechanism": "OAUTHBEARER"}, "connection_invalid", "sasl.mechanism=OAUTHBEARER"),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "/secret"},
            "connection_invalid",
            "ssl.keystore.location",
        ),
        (
            {**SASL, "sasl.mechanism": "PLAIN", "sasl.kerberos.keytab": "/secret"},
            "connection_invalid",
            "sasl.kerberos.keytab",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": "/not/there"}, "certificate_unreadable", None),
    ],
)
def test_what_the_second_client_cannot_use_is_refused_by_name(
    extra: dict[str, Any], code: str, setting: str | None
) -> None:
    with raises(SinkAccessError, code, setting=setting) as caught:
        translated(**extra)
    assert caught.error is not None
    for value in ("/secret", "hunter2", "/not/there"):
        assert value not in f"{caught.error} {caught.error.fields}"


def test_settings_that_the_protocol_does_not_use_do_not_matter() -> None:
    assert "ssl_context" not in translated(ssl__keystore__location="/secret", sasl__kerberos__keytab="/secret")


def test_a_key_without_its_password_gives_no_secret_away(tmp_path: Path) -> None:
    broken = tmp_path / "key.pem"
    broken.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n")
    with raises(SinkAccessError, "certificate_unreadable") as caught:
        translated(
            security__protocol="SSL",
            ssl__certificate__location=str(broken),
            ssl__key__location=str(broken),
            ssl__key__password="hunter2",
        )
    assert "hunter2" not in repr(caught.value) and caught.error is not None
    assert caught.error.__cause__ is None


@pytest.mark.parametrize("name", ["kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser"])
def test_the_second_client_logs_no_requests_and_no_settings(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger(name).debug("hunter2")
    logging.getLogger(name).info("connected")
    assert "hunter2" not in caplog.text
    assert "connected" in caplog.text
