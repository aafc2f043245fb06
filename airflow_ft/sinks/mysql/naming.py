"""Names of MySQL objects: quoted by one function, tables read from what a DAG author writes. Imports nothing heavy."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_ft.core.errors import ConfigurationError

MAX_IDENTIFIER = 64  # characters: the limit of the server for databases, tables and columns

_PART = re.compile(r"`(?:[^`]|``)+`|[^`.]+")
_TABLE = re.compile(rf"(?:(?P<schema>{_PART.pattern})\.)?(?P<name>{_PART.pattern})")


def quote(identifier: str) -> str:
    """An identifier as SQL text, whatever characters it contains."""
    return "`" + identifier.replace("`", "``") + "`"


def check_identifier(what: str, name: object) -> str:
    """Returns `name` when the server can have an object of that name; else ConfigurationError."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_IDENTIFIER or name != name.rstrip() or "\0" in name:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {what}.",
            remedy=f"give 1 to {MAX_IDENTIFIER} characters, the last one not a blank.",
        )
    return name


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, in a named schema or (schema "") in the connection's."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Reads `orders`, `shop.orders` or, with odd characters, "`my.schema`.`my``table`". ConfigurationError."""
        match = _TABLE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(
                f"{text!r} does not name a table.",
                remedy="write 'table' or 'schema.table', a part with a dot or backtick in backticks.",
            )
        schema, name = (_plain(part) for part in match.group("schema", "name"))
        if schema:
            check_identifier("schema", schema)
        return cls(schema, check_identifier("table", name))

    def within(self, schema: str) -> TableName:
        """The same table, with the connection's schema filled in where none was named."""
        return self if self.schema else TableName(schema, self.name)

    @property
    def sql(self) -> str:
        """Quoted, for a statement."""
        return f"{quote(self.schema)}.{quote(self.name)}" if self.schema else quote(self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def _plain(part: str | None) -> str:
    if part is None:
        return ""
    return part[1:-1].replace("``", "`") if part.startswith("`") else part
