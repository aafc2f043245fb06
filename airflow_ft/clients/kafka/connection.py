"""The fields of an Airflow connection as settings of Kafka's clients, and as names of topics. Imports no client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset

SERVERS = "bootstrap.servers"
_MECHANISMS = ("sasl.mechanism", "sasl.mechanisms")
_TAKE_A_PASSWORD = ("PLAIN", "SCRAM-")


def with_fields(connection: ConnectionInfo) -> dict[str, Any]:
    """The connection's extra (librdkafka's names), and from its fields what the extra does not say.

    Host and port become `bootstrap.servers`. Where `security.protocol` is one of SASL, login and password become
    `sasl.username` and `sasl.password`; `sasl.mechanism` is PLAIN then, unless the extra names one.
    """
    extra = dict(connection.extra)
    if servers := extra.pop("metadata.broker.list", None):
        extra.setdefault(SERVERS, servers)  # librdkafka's other name for it
    if not extra.get(SERVERS) and connection.host:
        extra[SERVERS] = f"{connection.host}:{connection.port or 9092}"
    if not is_sasl(extra):
        return extra
    named = [str(extra[name]) for name in _MECHANISMS if extra.get(name)]
    username, password = extra.get("sasl.username") or connection.login, extra.get("sasl.password")
    mechanism = named[0] if named else "PLAIN"
    if mechanism.upper().startswith(_TAKE_A_PASSWORD) and username:
        if not named:
            extra["sasl.mechanism"] = mechanism
        extra["sasl.username"] = username
        extra["sasl.password"] = password or connection.password
    return extra


def missing(settings: Mapping[str, Any]) -> str:
    """Return what settings of `with_fields` lack to log in by a password: "user name", "password", or ""."""
    if not is_sasl(settings) or "sasl.jaas.config" in settings:
        return ""
    mechanism = next((str(settings[name]) for name in _MECHANISMS if settings.get(name)), "")
    if not mechanism.upper().startswith(_TAKE_A_PASSWORD):
        return ""
    if not settings.get("sasl.username"):
        return "user name"
    return "" if settings.get("sasl.password") else "password"


_JAVA_PREFIXES = ("sasl.jaas.", "sasl.login.", "sasl.client.callback.", "ssl.truststore.")
_TRUST = ("ssl.ca.location", "ssl.ca.pem", "ssl.ca.certificate.stores")
_JAVA_CERTIFICATES = ("ssl.keystore.location", "ssl.keystore.certificate.chain", "ssl.keystore.key")
_CERTIFICATES = ("ssl.certificate.location", "ssl.certificate.pem")


def without_java(settings: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the settings of `with_fields` without those that only Java's client has, which Spark's reader uses.

    The second value names a removed setting that librdkafka needs a substitute for; "": there is none.
    """
    is_pkcs12 = str(settings.get("ssl.keystore.type", "PKCS12")).upper() == "PKCS12"
    keystore = str(settings.get("ssl.keystore.location", ""))
    is_java_store = bool(keystore) and (not is_pkcs12 or keystore.lower().endswith(".jks"))
    java = {name for name in settings if name.startswith(_JAVA_PREFIXES) or name == "ssl.keystore.type"}
    if is_java_store or not keystore:
        java |= {name for name in settings if name.startswith("ssl.keystore.")}
    left = {name: value for name, value in settings.items() if name not in java}
    lacking = ""
    logins = [name for name in sorted(java) if name.startswith("sasl.")]
    certificates = [name for name in _JAVA_CERTIFICATES if name in java]
    if logins and is_sasl(settings) and not _logs_in(left):
        lacking = min(logins, key=lambda name: name != "sasl.jaas.config")
    elif "SSL" in str(settings.get("security.protocol", "")).upper():
        trusted = [name for name in sorted(java) if name.startswith("ssl.truststore.")]
        if trusted and not any(left.get(name) for name in _TRUST):
            lacking = trusted[0]
        elif certificates and not any(left.get(name) for name in _CERTIFICATES):
            lacking = certificates[0]
    return left, lacking


def substitute(java: str) -> str:
    """Return the settings that librdkafka has in place of one that only Java's client has."""
    if java.startswith("sasl."):
        return "sasl.username and sasl.password, or sasl.oauthbearer.method"
    return "ssl.ca.location" if java.startswith("ssl.truststore.") else "ssl.certificate.location and ssl.key.location"


def _logs_in(settings: Mapping[str, Any]) -> bool:
    mechanism = next((str(settings[name]) for name in _MECHANISMS if settings.get(name)), "PLAIN").upper()
    if mechanism.startswith(_TAKE_A_PASSWORD):
        return not missing(settings) and bool(settings.get("sasl.username"))
    return mechanism != "OAUTHBEARER" or "oauth_cb" in settings or "sasl.oauthbearer.method" in settings


LOG_IN = "Fill in login and password of the connection, or sasl.username and sasl.password in its extra."


def is_sasl(settings: Mapping[str, Any]) -> bool:
    """Return whether clients with these settings log in."""
    return str(settings.get("security.protocol", "")).upper().startswith("SASL")


def servers(connection: ConnectionInfo) -> list[str]:
    """The servers that a connection names, as `host:port`."""
    named = str(connection.extra.get("bootstrap.servers") or connection.extra.get("metadata.broker.list") or "")
    found = [each.strip().rpartition("://")[2] for each in named.split(",") if each.strip()]
    return found or [f"{connection.host or 'localhost'}:{connection.port or 9092}"]


def topic(connection: ConnectionInfo, name: str) -> Dataset:
    """A topic, at the first server that its connection names: `kafka://host:9092`, `orders`."""
    server = f"kafka://{servers(connection)[0]}"
    return Dataset(server, name, f"{server}/{name}")
