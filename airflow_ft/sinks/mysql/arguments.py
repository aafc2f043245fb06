"""Arguments for PyMySQL, from an Airflow connection."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_ft.clients.foreign_connections import refuse_unread, require_type
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.mysql.limits import Limits

_TEXTS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password")
_FLAGS = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")


def flag(value: Any, *, default: bool) -> bool:
    """Reads a setting of the extra."""
    if value is None:
        return default
    return value if isinstance(value, bool) else str(value).strip().lower() in ("1", "true", "yes", "on")


def arguments(info: ConnectionInfo, limits: Limits, local_infile: bool) -> dict[str, Any]:
    """Return what PyMySQL is called with. `charset` of the connection is ignored: the sink needs utf8mb4."""
    require_type(info, "mysql")
    extra = info.extra
    given: dict[str, Any] = {
        "host": info.host or "localhost",
        "port": info.port or 3306,
        "user": info.login or None,
        "password": info.password.encode(),  # servers keep a hash of its UTF-8; PyMySQL would encode it as latin-1
        "database": info.schema or None,
        "charset": "utf8mb4",
        "autocommit": True,
        "local_infile": local_infile,
        "connect_timeout": limits.connect,
        "read_timeout": limits.login,  # until the session is set up: `WireConnection.wait_for_answers`
        "write_timeout": limits.login,
        "program_name": "airflow-ft",
    }
    if extra.get("unix_socket"):
        given["unix_socket"] = str(extra["unix_socket"])
    refuse_unread(info, ("ssl", "ssl_mode", *_TEXTS, *_FLAGS))
    return given | _tls(extra, info.conn_id)


def _tls(extra: Mapping[str, Any], conn_id: str) -> dict[str, Any]:
    """`ssl` (a mapping, or JSON text of one: ca, capath, cert, key, cipher, check_hostname, verify_mode), `ssl_ca`,
    `ssl_cert`, `ssl_key`, `ssl_verify_cert`, `ssl_verify_identity`, `ssl_disabled`, and `ssl_mode` in MySQL's words.
    """
    given = {key: extra[key] for key in _TEXTS if extra.get(key)}
    for key in _FLAGS:
        if key in extra:
            given[key] = flag(extra[key], default=False)
    settings = extra.get("ssl")
    mode = str(extra.get("ssl_mode") or "").upper()
    try:
        if isinstance(settings, str):
            settings = json.loads(settings)
        if settings is not None and not isinstance(settings, (Mapping, bool)):
            raise ValueError("it is neither a mapping nor true or false")
        if settings is False or mode == "DISABLED" or given.get("ssl_disabled"):
            return {"ssl_disabled": True}
        # Without an authority PyMySQL would take a certificate for any host.
        by_name = given.get("ssl_verify_identity") and "ssl_ca" not in given
        if settings or by_name or mode in ("REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"):
            named = {key.removeprefix("ssl_"): value for key, value in given.items() if not key.startswith("ssl_ver")}
            mapping = dict(settings) if isinstance(settings, Mapping) else {}
            has_authority = bool(mapping.keys() & {"ca", "capath"})
            if given.get("ssl_verify_identity") is False:
                mapping.setdefault("check_hostname", False)
            if given.get("ssl_verify_identity"):
                mode = "VERIFY_IDENTITY"
            elif given.get("ssl_verify_cert") and not mode.startswith("VERIFY"):
                if has_authority and mode != "REQUIRED":
                    mapping.setdefault("check_hostname", True)  # as without `ssl_verify_cert`
                mode = "VERIFY_CA"
            if mapping and "ssl_ca" in given and mode != "VERIFY_IDENTITY" and not has_authority:
                mapping.setdefault("check_hostname", False)  # as without a mapping: `ssl_ca` verifies no name
            return {"ssl": _context(named | mapping, mode)}
        if mode not in ("", "PREFERRED"):
            raise ValueError(f"ssl_mode {mode!r} is not one of MySQL's")
        for key in ("ssl_ca", "ssl_cert", "ssl_key"):  # PyMySQL would not name the file
            if key in given:
                Path(str(given[key])).open("rb").close()
        if "ssl_ca" in given and not mode:  # as MySQL's own clients; PyMySQL would take any certificate
            given.setdefault("ssl_verify_cert", True)
    except (ValueError, OSError) as error:  # OSError: a certificate that cannot be read
        raise SinkAccessError(
            f"the TLS settings in the connection's extra cannot be used: {error}.",
            code="connection_invalid",
            remedy=f"Correct 'ssl' in the extra of connection {conn_id}: a mapping with ca, cert, key, cipher,"
            " check_hostname.",
            participant=conn_id,
            setting="ssl",
        ) from error
    return given


def _context(settings: Mapping[str, Any], mode: str) -> ssl.SSLContext:
    """Return a TLS context.

    Without a CA the server's certificate is not verified, as with MySQL's REQUIRED. If the name must be verified, the
    system's authorities are used.
    """
    file, folder = settings.get("ca"), settings.get("capath")
    context = ssl.create_default_context(cafile=file, capath=folder)
    if hasattr(ssl, "VERIFY_X509_STRICT"):  # certificates that MySQL makes for itself do not pass it
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    verify = settings.get("verify_mode")
    by_name = flag(settings.get("check_hostname"), default=mode == "VERIFY_IDENTITY")
    if mode == "VERIFY_IDENTITY" and not by_name:
        raise ValueError("check_hostname is false, and another setting asks to verify the server's name")
    verified = mode.startswith("VERIFY") or by_name or (bool(file or folder) and mode != "REQUIRED")
    if verify is not None:
        verified = str(verify).lower() not in ("none", "0", "false", "no", "cert_none")
        if not verified and (by_name or mode.startswith("VERIFY")):
            raise ValueError(f"another setting needs a verified certificate, and verify_mode is {verify!r}")
    identity = settings.get("check_hostname", mode != "VERIFY_CA")
    context.check_hostname = verified and flag(identity, default=True)
    context.verify_mode = ssl.CERT_REQUIRED if verified else ssl.CERT_NONE
    if settings.get("cert"):
        context.load_cert_chain(settings["cert"], settings.get("key"), settings.get("key_password"))
    if settings.get("cipher"):
        context.set_ciphers(settings["cipher"])
    return context
