"""Refuse connections that no driver can use, before one of them tries.

They have another system's type, text that is not Unicode, a misspelled setting, or TLS settings that the sink does not
read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.lookup import closest

# Others, such as `generic` and those that a cloud's provider brings, may lead anywhere.
_LEAD_TO = {
    "aws": "S3",
    "iceberg": "Iceberg",
    "hive_metastore": "Hive",
    "hbase": "HBase",
    "cassandra": "Cassandra",
    "kafka": "Kafka",
    "mysql": "MySQL",
    "postgres": "PostgreSQL",
    "postgresql": "PostgreSQL",
    "redis": "Redis",
    "spark": "Spark",
    "sqlite": "SQLite",
}

_TLS = ("ssl", "tls", "use_ssl", "use_tls", "verify")
PROTECTION = (*_TLS, "auth", "kerberos", "sasl")
"""Beginnings of settings for TLS and a protected login."""


_SIMILAR, _APART = 0.75, 2
"""Least similarity of a misspelled name to the intended one (`difflib`), and most characters that one is longer."""


def invalid(connection: ConnectionInfo, what: str, remedy: str, *fields: str) -> SinkAccessError:
    """Return the error for a connection that cannot be used because of these fields."""
    return SinkAccessError(
        what, code="connection_invalid", remedy=remedy, participant=connection.conn_id, fields=list(fields)
    )


def require_type(connection: ConnectionInfo, wanted: str) -> None:
    """SinkAccessError when the type of an Airflow connection says that it does not lead to `wanted`, such as "mysql".

    A server of another kind would be asked in words that it does not know: it hangs up, or says nothing until a
    time-out. Also refuses what `require_text` refuses.
    """
    require_text(connection)
    here, there = _LEAD_TO.get(connection.conn_type.strip().lower()), _LEAD_TO[wanted]
    if here is not None and here != there:
        raise SinkAccessError(
            f"the Airflow connection has the type {connection.conn_type!r}, which is for {here} and not for {there}.",
            code="connection_invalid",
            remedy=f"Name a connection of type {wanted}, or correct the type of this one.",
            participant=connection.conn_id,
            fields=["conn_type"],
            conn_type=connection.conn_type,
        )


def refuse_misspelt(connection: ConnectionInfo, known: Collection[str], others: Collection[str] = ()) -> None:
    """Raise SinkAccessError for each name in the extra that is close to a `known` name, if the known one is missing.

    Other names are allowed: Airflow's providers and the client read more than the sink. So nothing else reports
    a misspelled name. `others`: names that are close to a known one, and mean something else.
    """
    given = [name for name, value in connection.extra.items() if value not in (None, "")]
    missing = set(known).difference(given)
    right = {*known, *others}
    if wrong := {name: close for name in given if name not in right and (close := _meant(name, missing))}:
        remedy = " ".join(f"Write {close} in place of {name}." for name, close in wrong.items())
        raise invalid(connection, f"the connection's extra has unknown settings: {', '.join(wrong)}.", remedy, *wrong)


def _meant(name: str, known: Collection[str]) -> str:
    """Return the known name that is closest to a misspelled one; "": none is close.

    The part before a dot must be equal: `hf.endpoint` is a setting of another storage, not a misspelled `s3.endpoint`.
    """
    first, dot, _ = name.lower().partition(".")
    alike = [each for each in known if each.lower().startswith(first + dot)] if dot else known
    return closest(name, (each for each in alike if abs(len(each) - len(name)) <= _APART), _SIMILAR)


def refuse_unread(connection: ConnectionInfo, read: Collection[str] = (), beginnings: tuple[str, ...] = _TLS) -> None:
    """Raise SinkAccessError for settings of the extra that begin so, are not empty, and are not among those `read`.

    If a misspelled name were dropped, login and rows would travel in the clear.
    """
    asked = [name for name, value in connection.extra.items() if value not in (None, False, "") and name not in read]
    if unread := [name for name in asked if name.lower().startswith(beginnings)]:
        supports_none = beginnings is PROTECTION
        supported = (
            "This sink supports neither TLS nor Kerberos." if supports_none else f"This sink reads {', '.join(read)}."
        )
        what = f"the connection's extra has settings that this sink does not read: {', '.join(unread)}."
        raise invalid(connection, what, f"Correct or remove them. {supported}", *unread)


def require_text(connection: ConnectionInfo) -> None:
    """SinkAccessError for a field that is no Unicode text, by its name: drivers fail on it, and quote it in the error.

    `UnicodeEncodeError` holds the whole text that it could not encode, which may be the password.
    """
    fields = {name: getattr(connection, name) for name in ("host", "login", "password", "schema")}
    extra = {f"extra {name!r}": value for name, value in connection.extra.items()}
    if wrong := [name for name, value in {**fields, **extra}.items() if not _is_text(value)]:
        what = f"the Airflow connection's {', '.join(wrong)} has a NUL or a broken character."
        remedy = "Enter it again as UTF-8 text. An environment variable may have been set in another encoding."
        raise invalid(connection, what, remedy, *wrong)


def _is_text(value: object) -> bool:
    """Return whether every text in a value of a connection can be sent."""
    if isinstance(value, Mapping):
        return all(map(_is_text, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    return not isinstance(value, str) or not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in value)
