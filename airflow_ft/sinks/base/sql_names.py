"""Names in SQL: quoted by one function, tables read from what a DAG author writes. Imports nothing heavy."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from airflow_ft.protocol.arguments import shown
from airflow_ft.protocol.errors import ConfigurationError

TABLES_FIRST = (
    "-- Create the tables of the sinks before the grants on them. `--dag FILE --tables` prints the statements."
    " A script without a DAG has them in the error of its run."
)
"""Comment of printed grants. They cannot create the tables: only the rows know the columns."""


def quoted(name: str, mark: str = '"') -> str:
    """As an identifier, letter by letter, whatever characters it has."""
    return mark + name.replace(mark, mark * 2) + mark


@dataclass(frozen=True, slots=True)
class TableName(ABC):
    """A table, in a named schema or (schema "") where the connection leads. A system says which names it can have."""

    schema: str
    name: str

    mark: ClassVar[str] = '"'
    """Stands around a part with odd characters."""
    odd: ClassVar[str] = "a part with a dot or a quote in double quotes"

    @staticmethod
    @abstractmethod
    def check(what: str, name: object) -> str:
        """Returns `name` when the server can have an object of that name; else ConfigurationError."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads `orders`, `shop.orders` or, with odd characters in double quotes, '"my.schema"."my""table"'.

        ConfigurationError for what is none.
        """
        mark = cls.mark
        part = f"({mark}(?:[^{mark}]|{mark * 2})+{mark}|[^{mark}.]+)"
        match = re.fullmatch(rf"(?:{part}\.)?{part}", text) if isinstance(text, str) else None
        if match is None:
            what = f"{shown(text)} does not name a table."
            remedy = f"Write 'table' or 'schema.table', {cls.odd}."
            raise ConfigurationError(what, code="name_invalid", remedy=remedy, value=text)
        schema, name = (
            each[1:-1].replace(mark * 2, mark) if each.startswith(mark) else each for each in match.groups("")
        )
        if schema:
            cls.check("schema", schema)
        return cls(schema, cls.check("table", name))

    def within(self, schema: str) -> Self:
        """The same table, with the connection's schema filled in where none was named."""
        return self if self.schema else type(self)(schema, self.name)

    @property
    def sql(self) -> str:
        """Quoted, for a statement."""
        return ".".join(quoted(part, self.mark) for part in (self.schema, self.name) if part)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name
