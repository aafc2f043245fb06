"""The target tables as information_schema describes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import canonical_json
from airflow_ft.sinks.base.columns import Misfits, TableColumn
from airflow_ft.sinks.mysql.naming import TableName
from airflow_ft.sinks.mysql.session import Row, Session
from airflow_ft.sinks.mysql.session_settings import as_text

if TYPE_CHECKING:
    from airflow_ft.sinks.mysql.labels import Labels


VALID_DATE = "1970-01-02"
"""A default in place of a zero date, in each time zone."""
_ZERO_DATE = re.compile(r"'?\d{4}-(00|\d\d-00)")


def computed(extra: str) -> bool:
    """Return whether EXTRA of information_schema marks a column that the server computes."""
    extra = extra.upper().replace("DEFAULT_GENERATED", "")
    return "GENERATED" in extra or "VIRTUAL" in extra or "PERSISTENT" in extra


@dataclass(frozen=True, slots=True)
class Column(TableColumn):
    """A column of a target. `type` is the bare type ("bigint"), `full_type` as declared ("bigint(20) unsigned").

    `characters` and `octets` are set for strings and bytes, `precision` and `scale` for numbers, `fraction` (digits
    of a second) for times. `default` is None when the column has none. `character_bytes` is how many bytes a character
    of `charset` takes at most.
    """

    type: str
    full_type: str
    nullable: bool
    default: str | None
    extra: str
    characters: int | None
    octets: int | None
    precision: int | None
    scale: int | None
    fraction: int | None
    charset: str | None
    collation: str | None
    character_bytes: int | None

    @property
    def labels(self) -> Labels | None:
        """Return the labels of an ENUM or SET."""
        from airflow_ft.sinks.mysql.labels import Labels  # needs PyArrow, which a look at the server does without

        return Labels.parse(self.type, self.full_type)

    @property
    def unsigned(self) -> bool:
        """No values below zero."""
        return "unsigned" in self.full_type.lower()

    @property
    def generated(self) -> bool:
        """Computed by the server; refuses values."""
        return computed(self.extra)

    @property
    def must(self) -> bool:
        return not (self.nullable or self.default is not None or self.generated or self.automatic)

    @property
    def has_zero_default(self) -> bool:
        """The default is a date without month or day (0000-00-00). No strict server accepts it in CREATE TABLE."""
        return self.type in ("date", "datetime", "timestamp") and _ZERO_DATE.match(self.default or "") is not None

    @property
    def refuses_omission(self) -> bool:
        """MariaDB refuses each INSERT without such a column. MySQL, which shows no quotes, takes its default."""
        return self.has_zero_default and (self.default or "").startswith("'")

    @property
    def automatic(self) -> bool:
        """AUTO_INCREMENT: NULL would be replaced by a number."""
        return "AUTO_INCREMENT" in self.extra.upper()


@dataclass(frozen=True, slots=True)
class Table:
    """A target table; `columns` by lower-case name, as MySQL compares them; `key` are the primary key's columns.

    `triggers` are the names by event ("INSERT", "UPDATE", "DELETE").
    """

    name: TableName
    columns: Mapping[str, Column]
    key: Sequence[str]
    triggers: Mapping[str, Sequence[str]]

    def column(self, name: str) -> Column | None:
        """The column of that name, in any case of letters."""
        return self.columns.get(name.lower())

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of what the checks looked at, so that a later change shows."""
        described = [
            [c.name, c.full_type, c.nullable, c.default, c.extra, c.charset, c.collation, c.characters, c.octets,
             c.precision, c.scale, c.fraction]
            for c in self.columns.values()
        ]  # fmt: skip
        return hashlib.sha256(
            canonical_json(
                [described, list(self.key), {event: list(names) for event, names in self.triggers.items()}]
            ).encode()
        ).hexdigest()


def information_schema(
    session: Session,
    name: TableName,
    source: str,
    columns: str,
    more: str = "",
    about: tuple[str, str] = ("TABLE_SCHEMA", "TABLE_NAME"),
) -> list[Row]:
    """Return rows of information_schema for this table, which its columns `about` name; `more` ends the query.

    Its collation may ignore case where the server's file names do not.
    """
    rows = session.rows(
        f"SELECT {', '.join(about)}, {columns} FROM information_schema.{source}"
        f" WHERE {about[0]} = %s AND {about[1]} = %s {more}",
        (name.schema, name.name),
    )
    folded = session.variables.get("lower_case_table_names", "0") != "0"

    def same(schema: object, table: object) -> bool:
        found, wanted = (str(schema), str(table)), (name.schema, name.name)
        return tuple(map(str.lower, found)) == tuple(map(str.lower, wanted)) if folded else found == wanted

    return [row[2:] for row in rows if same(row[0], row[1])]


def whole_name(table: str, schema: str) -> TableName:
    """Return a sink's table with its schema, or else the connection's `schema`.

    Raises:
        SinkAccessError: neither names a schema.
    """
    found = TableName.parse(table).within(schema)
    if not found.schema:
        raise SinkAccessError(
            f"neither the connection nor the sink names the schema of table {found.name!r}.",
            code="argument_missing",
            remedy=f"Set the schema of the connection, or write 'schema.{found.name}' as table.",
            argument="table",
            table=found.name,
        )
    return found


def read_table(session: Session, name: TableName) -> Table:
    """Reads a target.

    UnfitTargetError when it is not there. SinkAccessError when it is no base table, or its engine has no transactions.
    """
    tables = information_schema(session, name, "TABLES", "TABLE_TYPE, ENGINE")
    if not tables:
        grant = f"GRANT SELECT, INSERT ON {name.sql} to the connection's user"
        raise Misfits(str(name)).no_table(f"If the table exists, run {grant}. Otherwise create it:")
    kind, engine = tables[0]
    if str(kind).upper() not in ("BASE TABLE", "SYSTEM VERSIONED") or str(engine).upper() != "INNODB":
        raise UnfitTargetError(
            f"{name} is a {str(kind).lower()} of engine {engine or 'none'}, which has no transaction for rows and"
            " marker.",
            code="table_unsupported",
            remedy=f"Name an InnoDB base table in the sink, or run ALTER TABLE {name.sql} ENGINE=InnoDB.",
            table=str(name),
            type=str(kind).lower(),
            engine=str(engine or ""),
        )
    charsets = "information_schema.CHARACTER_SETS s ON s.CHARACTER_SET_NAME = c.CHARACTER_SET_NAME"
    columns = information_schema(
        session,
        name,
        f"COLUMNS c LEFT JOIN {charsets}",
        "COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA, CHARACTER_MAXIMUM_LENGTH,"
        " CHARACTER_OCTET_LENGTH, NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, c.CHARACTER_SET_NAME,"
        " COLLATION_NAME, MAXLEN",
        "ORDER BY ORDINAL_POSITION",
    )
    primary = "AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"
    key = information_schema(session, name, "STATISTICS", "COLUMN_NAME", primary)
    about = ("EVENT_OBJECT_SCHEMA", "EVENT_OBJECT_TABLE")
    named = "EVENT_MANIPULATION, TRIGGER_NAME"
    triggers = information_schema(session, name, "TRIGGERS", named, "ORDER BY TRIGGER_NAME", about)
    described = [_column(row) for row in columns]
    by_event: dict[str, list[str]] = {}
    for event, trigger in triggers:
        by_event.setdefault(str(event).upper(), []).append(str(trigger))
    return Table(
        name,
        {column.name.lower(): column for column in described},
        [str(row[0]) for row in key],
        by_event,
    )


def _column(row: tuple[object, ...]) -> Column:
    name, kind, full, nullable, default, extra, characters, octets, precision, scale, fraction, *texts = row
    charset, collation, character_bytes = texts

    def number(value: object) -> int | None:
        return None if value is None else int(str(value))

    return Column(
        name=as_text(name),
        type=as_text(kind).lower(),
        full_type=as_text(full),
        nullable=as_text(nullable).upper() == "YES",
        default=None if default is None else as_text(default),
        extra=as_text(extra or ""),
        characters=number(characters),
        octets=number(octets),
        precision=number(precision),
        scale=number(scale),
        fraction=number(fraction),
        charset=None if charset is None else as_text(charset),
        collation=None if collation is None else as_text(collation),
        character_bytes=number(character_bytes),
    )
