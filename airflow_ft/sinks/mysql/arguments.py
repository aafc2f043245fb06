"""Arguments for PyMySQL, from an Airflow connection."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_ft.clients.foreign_connections import invalid, refuse_misspelt, refuse_unread, require_type
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.mysql.limits import Limits

_FILES = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password")
_IN_OBJECT = {"ca", "capath", "cert", "key", "key_password", "cipher"}
_MODES = ("PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
_OF_PYMYSQL = {"ssl_disabled": "DISABLED", "ssl_verify_cert": "VERIFY_CA", "ssl_verify_identity": "VERIFY_IDENTITY"}
"""Refused settings, and the `ssl_mode` with the same meaning."""
_OTHERS = ("sql_mode", "ssl_cipher", "ssl_crl", "ssl_capath", "ssl_crlpath")
"""Settings of MySQL's clients with names close to known ones."""


def flag(value: Any, *, default: bool) -> bool:
    """Reads a setting of the extra."""
    if value is None:
        return default
    return value if isinstance(value, bool) else str(value).strip().lower() in ("1", "true", "yes", "on")


def arguments(info: ConnectionInfo, limits: Limits, local_infile: bool) -> dict[str, Any]:
    """Return what PyMySQL is called with. `charset` of the connection is ignored: the sink needs utf8mb4."""
    require_type(info, "mysql")
    known = ("unix_socket", "local_infile", "pipelining", "ssl", "ssl_mode", *_FILES, *_OF_PYMYSQL)
    refuse_misspelt(info, known, _OTHERS)
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
    if other := [name for name in _OF_PYMYSQL if extra.get(name) not in (None, "")]:
        what = f"the connection's extra has {', '.join(other)}, which this sink does not read."
        modes = " or ".join(f"{_OF_PYMYSQL[name]} in place of {name}" for name in other)
        raise invalid(info, what, f"Remove it. To say what TLS verifies, set ssl_mode: {modes}.", *other)
    refuse_unread(info, ("ssl", "ssl_mode", *_FILES))
    return given | _tls(extra, info.conn_id)


def _tls(extra: Mapping[str, Any], conn_id: str) -> dict[str, Any]:
    """`ssl_mode` in MySQL's words, `ssl_ca`, `ssl_cert`, `ssl_key`, and `ssl`: true, false, or an object of files."""
    named = {name.removeprefix("ssl_"): extra[name] for name in _FILES if extra.get(name)}
    settings, mode = extra.get("ssl"), str(extra.get("ssl_mode") or "").upper()
    try:
        if isinstance(settings, str):
            settings = json.loads(settings)
        if settings is not None and not isinstance(settings, (Mapping, bool)):
            raise ValueError("ssl is neither an object nor true or false")
        if mode == "DISABLED" or (settings is False and not mode):
            return {"ssl_disabled": True}
        if mode and mode not in _MODES:
            raise ValueError(f"ssl_mode {mode!r} is not one of MySQL's")
        given = settings if isinstance(settings, Mapping) else {}
        own = {name: value for name, value in given.items() if value not in (None, "")}
        if unknown := sorted(own.keys() - _IN_OBJECT):
            raise ValueError(f"ssl has unknown settings: {', '.join(unknown)}")
        in_object = bool(own.keys() & {"ca", "capath"})
        if mode == "PREFERRED" and (in_object or (settings and "ca" in named)):
            raise ValueError("ssl_mode PREFERRED verifies nothing, but a certificate authority is given")
        if not mode and (in_object or (settings is True and "ca" in named)):
            mode = "VERIFY_IDENTITY"
        elif not mode and "ca" in named:  # as MySQL's own clients
            mode = "VERIFY_CA"
        used = named | own
        return {"ssl": _context(used, mode)} if used or settings or mode not in ("", "PREFERRED") else {}
    except (ValueError, OSError) as error:  # OSError: a certificate that cannot be read
        raise SinkAccessError(
            f"the TLS settings in the connection's extra cannot be used: {error}.",
            code="connection_invalid",
            remedy=f"Correct ssl_mode, ssl_ca, ssl_cert and ssl_key in the extra of connection {conn_id}, or ssl: an"
            " object with ca, capath, cert, key, key_password, cipher. ssl_mode VERIFY_CA or VERIFY_IDENTITY verifies"
            " the server.",
            participant=conn_id,
            setting="ssl",
        ) from error


def _context(settings: Mapping[str, Any], mode: str) -> ssl.SSLContext:
    """Return a TLS context. Without a certificate authority in the settings, those of the system verify the server."""
    for name in ("ca", "cert", "key"):  # `ssl` would not name the file
        if name in settings:
            Path(str(settings[name])).open("rb").close()
    context = ssl.create_default_context(cafile=settings.get("ca"), capath=settings.get("capath"))
    if hasattr(ssl, "VERIFY_X509_STRICT"):  # certificates that MySQL makes for itself do not pass it
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "VERIFY_IDENTITY"
    context.verify_mode = ssl.CERT_REQUIRED if mode.startswith("VERIFY") else ssl.CERT_NONE
    if "cert" in settings:
        context.load_cert_chain(settings["cert"], settings.get("key"), settings.get("key_password"))
    if "cipher" in settings:
        context.set_ciphers(settings["cipher"])
    return context
