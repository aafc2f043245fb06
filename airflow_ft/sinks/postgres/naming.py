"""Names of PostgreSQL objects: quoted by one function, tables read from what a DAG author writes. Light to import."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_ft.core.errors import ConfigurationError

MAX_BYTES = 63  # the server cuts longer names off, with a notice

_PART = r'"(?:[^"]|"")+"|[^".]+'
_TABLE = re.compile(rf"(?:(?P<schema>{_PART})\.)?(?P<name>{_PART})")


def quoted(name: str) -> str:
    """As an identifier of SQL, letter by letter."""
    return '"' + name.replace('"', '""') + '"'


def check_name(what: str, name: object) -> str:
    """Returns `name` when the server can have an object of that name; else ConfigurationError."""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= MAX_BYTES or "\0" in name or name != name.strip():
        raise ConfigurationError(
            f"{name!r} cannot be the name of a {what}.",
            remedy=f"give 1 to {MAX_BYTES} bytes without blanks around them.",
        )
    return name


@dataclass(frozen=True, slots=True)
class TableName:
    """A table, in a named schema or (schema "") where the connection's search path leads."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Reads `orders`, `shop.orders` or, with odd characters, '"my.schema"."my""table"'. ConfigurationError.

        A name counts letter by letter: what was created as `Orders` without quotes is `orders`.
        """
        match = _TABLE.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ConfigurationError(
                f"{text!r} does not name a table.",
                remedy="write 'table' or 'schema.table', a part with a dot or a quote in double quotes.",
            )
        schema, name = (_plain(part) for part in match.group("schema", "name"))
        if schema:
            check_name("schema", schema)
        return cls(schema, check_name("table", name))

    @property
    def sql(self) -> str:
        """Quoted, for a statement."""
        return f"{quoted(self.schema)}.{quoted(self.name)}" if self.schema else quoted(self.name)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


def _plain(part: str | None) -> str:
    if part is None:
        return ""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part
