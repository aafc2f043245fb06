"""Names of PostgreSQL objects. Imports nothing heavy."""

from __future__ import annotations

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.base import sql_names

MAX_BYTES = 63  # the server cuts longer names off, with a notice


class TableName(sql_names.TableName):
    """A name counts letter by letter: what was created as `Orders` without quotes is `orders`."""

    __slots__ = ()

    @staticmethod
    def check(what: str, name: object) -> str:
        if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_BYTES or "\0" in name or name != name.strip():
            raise ConfigurationError(
                f"{name!r} is not a valid name of a {what} in PostgreSQL.",
                code="name_invalid",
                remedy=f"Give 1 to {MAX_BYTES} bytes, without NUL and without blanks at either end.",
                value=str(name),
            )
        return name
