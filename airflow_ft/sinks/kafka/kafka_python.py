"""Translate a connection's librdkafka settings for kafka-python, whose client sends the requests of `coordinator`.

Settings for the broker's address and our identity are translated or refused by name, never dropped: a client that
silently fell back to plain text would show the password.
"""

from __future__ import annotations

import logging
import ssl
from typing import Any

from airflow_ft.clients.kafka.client import KafkaSettings
from airflow_ft.protocol.errors import SinkAccessError

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "oauth_cb")
_TRUE = ("true", "t", "1", "yes", True)


class _NoDebug(logging.Filter):
    """Keeps back debug messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


# These write their configuration, and every request with its content, as debug messages: with the password in them.
for _name in ("kafka.admin.client", "kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_name).addFilter(_NoDebug())


def client_settings(settings: KafkaSettings) -> dict[str, Any]:
    """Arguments of `kafka.admin.KafkaAdminClient`.

    Raises:
        SinkAccessError: a setting that cannot be translated, by its name; or a certificate that cannot be loaded.
    """
    given = dict(settings.common)
    taken: dict[str, Any] = {"bootstrap_servers": [s.strip() for s in given["bootstrap.servers"].split(",")]}
    protocol = str(given.pop("security.protocol", "plaintext")).upper()
    taken["security_protocol"] = protocol
    if protocol in ("SSL", "SASL_SSL"):
        taken["ssl_context"] = _tls(given, settings.conn_id)
    if protocol.startswith("SASL_"):
        mechanism = str(given.pop("sasl.mechanism", given.pop("sasl.mechanisms", "GSSAPI"))).upper()
        if mechanism not in _MECHANISMS:
            raise _refused(settings.conn_id, f"sasl.mechanism={mechanism}", f"Use one of {', '.join(_MECHANISMS)}.")
        taken["sasl_mechanism"] = mechanism
        taken["sasl_plain_username"] = given.pop("sasl.username", "")
        taken["sasl_plain_password"] = given.pop("sasl.password", "")
    relevant = tuple(prefix for prefix in _SECURITY if protocol != "PLAINTEXT" or prefix == "security.")
    if left := sorted(name for name in given if name.startswith(relevant) and not _is_idle(name, protocol)):
        raise _refused(settings.conn_id, ", ".join(left), "Remove it from the connection.")
    return taken


def _is_idle(name: str, protocol: str) -> bool:
    """Return whether the protocol does not use the setting at all."""
    is_tls = name.startswith(("ssl.", "enable.ssl."))
    is_sasl = name.startswith(("sasl.", "enable.sasl.", "oauth_cb"))
    return (is_tls and "SSL" not in protocol) or (is_sasl and not protocol.startswith("SASL_"))


def _tls(given: dict[str, Any], conn_id: str) -> ssl.SSLContext:
    """The context for what librdkafka's ssl.* settings say; takes those that it knows out of `given`."""
    verify = str(given.pop("enable.ssl.certificate.verification", "true")).lower() in _TRUE
    names = str(given.pop("ssl.endpoint.identification.algorithm", "https")).lower() != "none"
    authority, pem = given.pop("ssl.ca.location", None), given.pop("ssl.ca.pem", None)
    certificate, key = given.pop("ssl.certificate.location", None), given.pop("ssl.key.location", None)
    password = given.pop("ssl.key.password", None)
    try:
        context = ssl.create_default_context(cafile=authority, cadata=pem)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password)
    except (OSError, ssl.SSLError, ValueError, TypeError) as error:
        raise SinkAccessError(
            f"the certificates of the connection cannot be loaded ({type(error).__name__}).",
            code="certificate_unreadable",
            remedy="Check ssl.ca.location, ssl.certificate.location and ssl.key.location. Each must name a PEM file.",
            participant=conn_id,
        ) from None  # the text may contain a path, or the cause the password
    context.check_hostname = verify and names
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    return context


def _refused(conn_id: str, setting: str, remedy: str) -> SinkAccessError:
    return SinkAccessError(
        f"strategy 'held' cannot use this connection: its second client, kafka-python, does not support {setting}.",
        code="connection_invalid",
        remedy=f'{remedy} Or use strategy="transaction", which needs no second client.',
        participant=conn_id,
        setting=setting,
    )
