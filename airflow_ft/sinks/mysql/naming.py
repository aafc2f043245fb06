"""Names of MySQL objects. Imports nothing heavy."""

from __future__ import annotations

from typing import ClassVar

from airflow_ft.protocol.arguments import shown
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.base import sql_names

MAX_IDENTIFIER = 64  # characters: the limit of the server for databases, tables and columns


def quote(identifier: str) -> str:
    """An identifier as SQL text, whatever characters it contains."""
    return sql_names.quoted(identifier, "`")


def is_column_name(name: str) -> bool:
    """Return whether a column can have this name."""
    return 0 < len(name) <= MAX_IDENTIFIER and name == name.rstrip(" ") and "\0" not in name


def literal(text: str) -> str:
    """A text as SQL text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


class TableName(sql_names.TableName):
    """A table of a server, whose databases are its schemas."""

    __slots__ = ()
    mark: ClassVar[str] = "`"
    odd: ClassVar[str] = "a part with a dot or backtick in backticks"

    @staticmethod
    def check(what: str, name: object) -> str:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_IDENTIFIER or name != name.rstrip() or "\0" in name:
            raise ConfigurationError(
                f"{shown(name)} cannot be the name of a {what}.",
                code="name_invalid",
                remedy=f"Give a name of 1 to {MAX_IDENTIFIER} characters that does not end in a blank.",
                value=name,
                subject=what,
            )
        return name
