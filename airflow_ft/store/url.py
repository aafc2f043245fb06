"""The store's URL: taken apart without ever putting a part of it that may be the password into a message."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_ft.protocol.errors import ConfigurationError

_REMEDY = (
    "Write sqlite:////absolute/path/ft.db or postgresql://user:password@host:port/database. Percent-encode special"
    " characters in user and password (@ as %40, / as %2F, : as %3A, # as %23, ? as %3F)."
)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Either the path of a SQLite file, or the parameters of a PostgreSQL connection (its repr shows none)."""

    path: Path | None = None
    dsn: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_missing(self) -> bool:
        """Return whether it names a file that does not exist; False if that cannot be read."""
        with suppress(PermissionError):  # opening it reports that
            return self.path is not None and not self.path.exists()
        return False


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file, from which `parse_url` reads this path."""
    return f"sqlite:///{str(path).replace('%', '%25').replace('?', '%3F')}"


def parse_url(url: str) -> StoreUrl:
    """Takes the URL apart; ConfigurationError, which quotes nothing of it, when that cannot be done for certain."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise _refuse("it has no '://'")
    if scheme == "sqlite":
        if not rest.startswith("//") or len(rest) < 3 or "?" in rest:
            raise _refuse("for SQLite, it needs an absolute path and no parameters")
        return StoreUrl(path=Path(unquote(rest[1:])))
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg2"):
        raise _refuse("its scheme is neither sqlite nor postgresql")
    return StoreUrl(dsn=_parse_postgresql(url))


def _parse_postgresql(url: str) -> Mapping[str, str]:
    try:
        parts = urlsplit(url)
        host, port = _addresses(parts.netloc.rpartition("@")[2])
        user, password = parts.username, parts.password
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        # `from None`: urllib quotes what it could not read, which may be a piece of the password.
        raise _refuse("it cannot be parsed") from None
    if any("\ud800" <= character <= "\udfff" for character in url) or "%00" in url:
        raise _refuse("it has a character that cannot be encoded")  # the driver's error would quote it
    if "@" in parts.path or "@" in parts.query or parts.fragment:
        raise _refuse("its user or password has a special character that is not percent-encoded")
    given = {
        "host": host,
        "port": port,
        "user": unquote(user or ""),
        "password": unquote(password or ""),
        "dbname": unquote(parts.path.lstrip("/")),
    }
    return {**parameters, **{name: value for name, value in given.items() if value}}


def _addresses(listed: str) -> tuple[str, str]:
    """Return hosts and ports as libpq takes them: separated by commas, an empty port for the default one.

    A port behind hosts with an encoded comma (`a%2Cb:5433`) is the port of them all. ValueError: no such list.
    """
    each = [urlsplit(f"//{address}") for address in listed.split(",")]
    ports = ["" if one.port is None else str(one.port) for one in each]
    return ",".join(unquote(one.hostname or "") for one in each), ",".join(ports) if any(ports) else ""


def _refuse(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the URL of the decision log is not valid: {why}.", code="store_url_invalid", remedy=_REMEDY
    )
