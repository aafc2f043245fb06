"""Login and password of a connection's fields: the same for sources, sinks and the second client."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.clients.kafka.client import KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError
from airflow_ft.sinks.kafka.kafka_python import client_settings
from airflow_ft.sources.kafka_options import kafka_options
from tests.raising import raises


def of(login: str = "me", password: str = "hunter2", **extra: Any) -> ConnectionInfo:
    names = {name.replace("__", "."): value for name, value in extra.items()}
    return ConnectionInfo("k", "kafka", host="h", port=9, login=login, password=password, extra=names)


def test_login_fields_apply_to_source_sink_and_second_client() -> None:
    for mechanism in ({}, {"sasl__mechanism": "PLAIN"}, {"sasl__mechanisms": "PLAIN"}):
        connection = of(security__protocol="sasl_plaintext", **mechanism)
        settings = KafkaSettings.from_connection(connection)
        assert settings.common["bootstrap.servers"] == "h:9"
        assert (settings.common["sasl.username"], settings.common["sasl.password"]) == ("me", "hunter2")
        assert (settings.common.get("sasl.mechanism") or settings.common["sasl.mechanisms"]) == "PLAIN"
        second = client_settings(settings)
        assert (second["sasl_plain_username"], second["sasl_plain_password"]) == ("me", "hunter2")
        assert second["sasl_mechanism"] == "PLAIN"
        java = kafka_options(connection)
        assert java["kafka.sasl.mechanism"] == "PLAIN"
        assert 'username="me" password="hunter2"' in java["kafka.sasl.jaas.config"]


def test_the_extra_takes_precedence_over_the_login_fields() -> None:
    given = {"sasl.username": "you", "sasl.password": "other"}
    connection = of(security__protocol="SASL_SSL", sasl__mechanism="SCRAM-SHA-512", **given)
    assert KafkaSettings.from_connection(connection).common.items() >= given.items()
    assert 'username="you" password="other"' in kafka_options(connection)["kafka.sasl.jaas.config"]
    assert "sasl.username" not in KafkaSettings.from_connection(of()).common
    assert "sasl.password" not in KafkaSettings.from_connection(of(security__protocol="SSL")).common
    kerberos = of(security__protocol="SASL_SSL", sasl__mechanism="GSSAPI")
    assert "sasl.password" not in KafkaSettings.from_connection(kerberos).common


@pytest.mark.parametrize(("login", "password", "lacks"), [("me", "", "password"), ("", "x", "user name")])
def test_an_incomplete_login_is_named_for_source_and_sink(login: str, password: str, lacks: str) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        connection = of(login, password, sasl__mechanism=mechanism, security__protocol="SASL_SSL")
        with raises(SinkAccessError, "connection_invalid", setting=lacks):
            KafkaSettings.from_connection(connection)
        with raises(ConfigurationError, "connection_invalid", setting=lacks):
            kafka_options(connection)
    for other in ({"sasl__mechanism": "GSSAPI"}, {"sasl__jaas__config": "mine required;"}):
        kafka_options(of(login, password, security__protocol="SASL_SSL", **other))


def test_brokers_are_found_under_each_name() -> None:
    connection = of(metadata__broker__list="a:1,b:2")
    assert KafkaSettings.from_connection(connection).common["bootstrap.servers"] == "a:1,b:2"
    assert kafka_options(connection)["kafka.bootstrap.servers"] == "a:1,b:2"


def test_how_long_a_transaction_may_take_is_read_from_the_extra() -> None:
    assert KafkaSettings.from_connection(of()).transaction_timeout == 600_000
    assert KafkaSettings.from_connection(of(transaction__timeout__ms="5000")).transaction_timeout == 5_000
    with raises(SinkAccessError, "connection_invalid", setting="transaction.timeout.ms"):
        KafkaSettings.from_connection(of(transaction__timeout__ms="soon"))
