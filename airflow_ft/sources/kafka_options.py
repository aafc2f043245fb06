"""Options of Spark's Kafka reader, from an Airflow connection, whose settings are named as in librdkafka."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.foreign_connections import require_type
from airflow_ft.clients.kafka.connection import LOG_IN, SERVERS, is_sasl, missing, with_fields
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_ft.protocol.connections import ConnectionInfo

# Settings of an Airflow connection that Spark's reader takes over under the same name; others (group.id, debug,
# callbacks, statistics ...) concern librdkafka or are forbidden by Spark.
_PASSED = ("bootstrap.servers", "security.protocol", "client.dns.lookup", "client.rack", "metadata.max.age.ms")
_PASSED_PREFIXES = ("sasl.", "ssl.", "request.timeout", "default.api.timeout", "reconnect.backoff", "retry.backoff")


def kafka_options(connection: ConnectionInfo) -> dict[str, str]:
    """The settings of an Airflow Kafka connection (librdkafka names, in its extra) as `kafka.` options of Spark.

    User name and password become a JAAS line; certificates in PEM files become PEM stores. Java's own settings
    (`sasl.jaas.config`, `ssl.truststore.location` ...) are passed on. ConfigurationError when no broker is named,
    SinkAccessError for a connection that leads elsewhere.
    """
    require_type(connection, "kafka")
    extra = {name: _text(value) for name, value in with_fields(connection).items()}
    if not extra.get(SERVERS):
        raise ConfigurationError(
            "the connection names no broker.",
            code="connection_invalid",
            participant=connection.conn_id,
            remedy=f'Add {{"bootstrap.servers": "HOST:PORT"}} to the extra of connection {connection.conn_id}.',
            setting=SERVERS,
        )
    if lacking := missing(extra):
        raise ConfigurationError(
            f"security.protocol of the connection needs a login, but the {lacking} is missing.",
            code="connection_invalid",
            participant=connection.conn_id,
            remedy=LOG_IN,
            setting=lacking,
        )
    options = {n: v for n, v in extra.items() if n in _PASSED or n.startswith(_PASSED_PREFIXES)}
    if "security.protocol" in options:
        options["security.protocol"] = options["security.protocol"].upper()
    _sasl(options, connection)
    _tls(options, connection)
    return {f"kafka.{name}": value for name, value in options.items()}


def _sasl(options: dict[str, str], connection: ConnectionInfo) -> None:
    mechanism = options.pop("sasl.mechanisms", None) or options.pop("sasl.mechanism", None)
    login, password = options.pop("sasl.username", ""), options.pop("sasl.password", "")
    if not is_sasl(options):
        return
    options["sasl.mechanism"] = mechanism = mechanism or "PLAIN"
    if "sasl.jaas.config" in options or mechanism == "GSSAPI":
        return
    if mechanism == "PLAIN":
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    elif mechanism.startswith("SCRAM-"):
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    else:
        raise ConfigurationError(
            f"the SASL mechanism {mechanism} needs settings of Java's client.",
            code="connection_invalid",
            participant=connection.conn_id,
            remedy=f"Add sasl.jaas.config to the extra of connection {connection.conn_id}.",
            setting="sasl.jaas.config",
        )
    options["sasl.jaas.config"] = f'{module} required username="{quoted(login)}" password="{quoted(password)}";'


def _tls(options: dict[str, str], connection: ConnectionInfo) -> None:
    authority = options.pop("ssl.ca.location", "")
    certificate, key = options.pop("ssl.certificate.location", ""), options.pop("ssl.key.location", "")
    certificate_pem, key_pem = options.pop("ssl.certificate.pem", ""), options.pop("ssl.key.pem", "")
    authority_pem = options.pop("ssl.ca.pem", "")
    if options.get("ssl.endpoint.identification.algorithm") == "none":
        options["ssl.endpoint.identification.algorithm"] = ""
    # Java's client refuses a store beside PEM. A store of its own goes first: the PEM file is for librdkafka then.
    trusts = options.keys() & {"ssl.truststore.location", "ssl.truststore.certificates"}
    if (authority or authority_pem) and not trusts:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = authority_pem or _file(authority, connection)
    has_store = options.keys() & {"ssl.keystore.location", "ssl.keystore.certificate.chain"}
    if (certificate or certificate_pem) and not has_store:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = certificate_pem or _file(certificate, connection)
        options["ssl.keystore.key"] = key_pem or _file(key, connection)
    # The rest of what librdkafka calls ssl.* has no meaning in Java.
    for name in [n for n in options if n.startswith("ssl.") and n.endswith((".location", ".pem")) and "store" not in n]:
        del options[name]


def _file(path: str, connection: ConnectionInfo) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{path!r} cannot be read: {error.strerror}.",
            code="certificate_unreadable",
            participant=connection.conn_id,
            remedy="Correct the ssl.*.location settings of the connection.",
            path=path,
        ) from error


def quoted(text: str) -> str:
    """Escape a text for use between quotes in a JAAS line."""
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
