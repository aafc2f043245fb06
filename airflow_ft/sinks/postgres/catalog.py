"""The target tables as the system catalogs describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_ft.core.errors import PROPOSED, UnfitTargetError
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Session

_KINDS = {"v": "a view", "m": "a materialised view", "f": "a foreign table", "i": "an index", "S": "a sequence"}

# Domains are followed down to what they are made of: their type and modifier count, and their NOT NULL and default.
_COLUMNS = """
WITH RECURSIVE found AS (
    SELECT a.attnum, a.attname, a.atttypid AS type, a.atttypmod AS modifier, a.attnotnull AS filled,
           a.atthasdef AS fills, a.attidentity <> '' AS numbered,
           a.attgenerated <> '' OR a.attidentity = 'a' AS refuses, format_type(a.atttypid, a.atttypmod) AS declared,
           has_column_privilege(a.attrelid, a.attnum, 'INSERT') AS allowed
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT attnum, attname, t.typbasetype, CASE WHEN modifier = -1 THEN t.typtypmod ELSE modifier END,
           filled OR t.typnotnull, fills OR t.typdefault IS NOT NULL, numbered, refuses, declared, allowed
    FROM found JOIN pg_type t ON t.oid = type WHERE t.typtype = 'd'
)
SELECT attname, t.typname, t.typtype::text, coalesce(e.typname, ''), modifier, declared, filled, fills OR numbered,
       refuses, allowed
FROM found JOIN pg_type t ON t.oid = type LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd' ORDER BY attnum
"""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a target: of type `type` ("int4"), an array of `element` unless that is "", a kind of `sort` ("b"
    base, "e" enum, "r" range, ...), as a person has `declared` it. `modifier` is the server's own form of lengths and
    digits (-1: none). `must`: rows have to fill it. `refuses` values: it is computed, or an identity that is ALWAYS.
    `allowed`: this user may write it.
    """

    name: str
    type: str
    sort: str
    element: str
    modifier: int
    declared: str
    not_null: bool
    fills_itself: bool
    refuses: bool
    allowed: bool

    @property
    def must(self) -> bool:
        """A row may not leave it out."""
        return self.not_null and not self.fills_itself and not self.refuses

    @property
    def kind(self) -> str:
        """The type of its values, which for an array are the elements."""
        return self.element or self.type

    @property
    def length(self) -> int | None:
        """Characters of a varchar or char; None: as many as there are."""
        return self.modifier - 4 if self.kind in ("varchar", "bpchar") and self.modifier >= 4 else None

    @property
    def scale(self) -> int | None:
        """Digits of a numeric behind the point, perhaps negative; None: all."""
        if self.kind != "numeric" or self.modifier < 4:
            return None
        return (((self.modifier - 4) & 0x7FF) ^ 0x400) - 0x400

    @property
    def fraction(self) -> int:
        """Digits of a second."""
        timed = self.kind in ("timestamp", "timestamptz", "time")
        return self.modifier if timed and self.modifier >= 0 else 6


@dataclass(frozen=True, slots=True)
class Table:
    """A target; `columns` by name. `unlogged`: a crash empties it. `guarded`: row-level security is active for us."""

    name: TableName
    columns: Mapping[str, Column]
    unlogged: bool
    guarded: bool
    triggers: tuple[str, ...]

    def column(self, name: str) -> Column | None:
        """The column of that name; else the one that PostgreSQL means by it without quotes."""
        return self.columns.get(name) or self.columns.get(name.lower())

    def columns_of(self, names: Iterable[str], sink: str = "") -> list[Column]:
        """The columns of these names. UnfitTargetError: one is gone."""
        found = {name: self.column(name) for name in names}
        if missing := [name for name, column in found.items() if column is None]:
            raise UnfitTargetError(
                f"table {self.name} has no column {missing[0]!r} any more.",
                remedy="bring it back: rows that are decided wait for it.",
                sink=sink,
            )
        return [column for column in found.values() if column is not None]


def read_table(session: Session, name: TableName, sink: str) -> Table:
    """Reads a target. UnfitTargetError when it is not there, or takes no rows of its own."""
    found = session.rows(
        "SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, row_security_active(c.oid),"
        " array(SELECT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal"
        " AND t.tgenabled <> 'D' AND t.tgtype & 4 = 4 ORDER BY 1)"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        (name.sql,),
    )
    if not found:
        raise UnfitTargetError(
            f"there is no table {name}, or this user may not see its schema.",
            remedy="create it, or name its schema; a name counts letter by letter, and what was created without quotes"
            f" is in lower case. {PROPOSED}",
            sink=sink,
        )
    oid, schema, table, kind, persistence, guarded, triggers = found[0]
    if kind not in ("r", "p") or persistence == "t":
        raise UnfitTargetError(
            f"{name} is {_KINDS.get(kind, 'no table of rows')}." if persistence != "t" else f"{name} is temporary.",
            remedy="name a table of rows.",
            sink=sink,
        )
    columns = {row[0]: Column(*row) for row in session.rows(_COLUMNS, (oid,))}
    return Table(TableName(schema, table), columns, persistence == "u", guarded, tuple(triggers))
