"""The target tables as the system catalogs describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.base.columns import Misfits, TableColumn
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
       refuses, allowed, format_type(type, modifier)
FROM found JOIN pg_type t ON t.oid = type LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.typtype <> 'd' ORDER BY attnum
"""


# A table with the partitions below it, at any depth. Not by pg_partition_tree: it locks each of them, and a transaction
# that is prepared would keep those locks. Children of a plain table get none of its rows.
_TREE = """
WITH RECURSIVE tree AS (
    SELECT oid, relnamespace, relname, relkind, relpersistence FROM pg_class WHERE oid = to_regclass(%s)
    UNION ALL
    SELECT c.oid, c.relnamespace, c.relname, c.relkind, c.relpersistence
    FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid JOIN pg_class c ON c.oid = i.inhrelid
    WHERE tree.relkind = 'p'
)"""
_TABLE = f"""{_TREE}, leaves AS (
    SELECT tree.*, format('%%I.%%I', nspname, relname) AS sql FROM tree JOIN pg_namespace n ON n.oid = relnamespace
    WHERE relkind <> 'p' AND tree.oid <> to_regclass(%s)
)
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, row_security_active(c.oid),
       array(SELECT t.tgname::text FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal
             AND t.tgenabled <> 'D' AND t.tgtype & 4 = 4 ORDER BY 1),
       array(SELECT sql FROM leaves WHERE relkind = 'f' ORDER BY 1),
       array(SELECT sql FROM leaves WHERE relpersistence = 'u' ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
_LEAVING_OUT = f"""{_TREE}
SELECT EXISTS (SELECT FROM tree JOIN pg_trigger ON tgrelid = tree.oid WHERE NOT tgisinternal AND tgenabled <> 'D')
    OR EXISTS (SELECT FROM tree JOIN pg_rewrite ON ev_class = tree.oid)
    OR EXISTS (SELECT FROM tree WHERE row_security_active(oid))
"""

# Sequences that fill a column left out; those of identity columns ask for no privilege.
SEQUENCES = """
SELECT DISTINCT a.attname::text AS name, s.oid::regclass::text AS sequence, s.oid
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
JOIN pg_depend p ON (p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid)
    OR (p.classid = 'pg_type'::regclass AND p.objid = a.atttypid AND d.oid IS NULL)
JOIN pg_class s ON p.refclassid = 'pg_class'::regclass AND s.oid = p.refobjid AND s.relkind = 'S'
WHERE a.attrelid = to_regclass({table}) AND NOT a.attisdropped AND a.attidentity = ''
"""
_NOTIFYING = f"""{_TREE}
SELECT DISTINCT t.tgname::text, p.oid::regprocedure::text FROM tree JOIN pg_trigger t ON t.tgrelid = tree.oid
JOIN pg_proc p ON p.oid = t.tgfoid
WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 4 = 4
    AND p.prosrc ~* '\\m(notify|pg_notify|temp|temporary)\\M'
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Column(TableColumn):
    """A column of a target.

    `type`: its type ("int4"). `element`: that of an array's elements ("": no array). `sort`: "b" base, "e" enum, "r"
    range, ... `declared`: its type as in CREATE TABLE. `modifier`: the server's own form of lengths and digits (-1:
    none). `must`: rows have to fill it. `refuses` values: it is computed, or an identity that is ALWAYS. `allowed`:
    this user may write it. `base`: a domain's base type, else as declared.
    """

    type: str
    sort: str
    element: str
    modifier: int
    declared: str
    not_null: bool
    fills_itself: bool
    refuses: bool
    allowed: bool
    base: str

    @property
    def must(self) -> bool:
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


def _folded(name: str) -> str:
    """In lower case as PostgreSQL folds it in UTF-8: ASCII letters only, so "Ä" stays another letter than "ä"."""
    return name.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Table:
    """A target; `columns` by name. `guarded`: row-level security is active for us.

    `unlogged` says, in SQL, what of it a crash empties: the table itself, or partitions.
    """

    name: TableName
    columns: Mapping[str, Column]
    unlogged: tuple[str, ...]
    guarded: bool
    triggers: tuple[str, ...]
    is_partitioned: bool = False
    oid: int = 0

    def column(self, name: str) -> Column | None:
        """The column of that name; else the one that PostgreSQL means by it without quotes."""
        return self.columns.get(name) or self.columns.get(_folded(name))

    def columns_of(self, names: Iterable[str], sink: str = "") -> list[Column]:
        """The columns of these names. UnfitTargetError: one is gone."""
        found = {name: self.column(name) for name in names}
        if missing := [name for name, column in found.items() if column is None]:
            what = f"table {self.name} no longer has the column {missing[0]!r}."
            remedy = f"Add the column {missing[0]!r} to table {self.name} again. The staged rows wait for it."
            raise Misfits(str(self.name), sink).of_table(what, "column_missing", remedy, column=missing[0])
        return [column for column in found.values() if column is not None]


def read_table(session: Session, name: TableName, sink: str) -> Table:
    """Reads a target. UnfitTargetError when it is not there, or it or a partition of it takes no rows of its own."""
    found = session.rows(_TABLE, (name.sql,) * 3)
    if not found:
        remedy = (
            "If the table exists, name its schema (`schema.table`), or grant USAGE on it. A name that was created"
            " without quotes is in lower case. Otherwise create it:"
        )
        raise Misfits(str(name), sink).no_table(remedy)
    oid, schema, relation, kind, persistence, guarded, triggers, foreign, unlogged = found[0]
    table = TableName(schema, relation)
    if kind not in ("r", "p") or persistence == "t":
        what = f"{name} is {'a temporary table' if persistence == 't' else _KINDS.get(kind, 'not a table')}."
        remedy = "Set table= of the sink to an ordinary or partitioned table."
        raise Misfits(str(name), sink).of_table(what, "table_unsupported", remedy)
    if foreign:
        what = f"partition {foreign[0]} of table {table} is a foreign table. Its server commits before or after this"
        what += " one, or not at all."
        remedy = f"Run `ALTER TABLE ... DETACH PARTITION {foreign[0]}`, or deliver into a table without foreign"
        remedy += " partitions."
        raise Misfits(str(table), sink).of_table(what, "table_unsupported", remedy, partition=foreign[0])
    columns = {row[0]: Column(*row) for row in session.rows(_COLUMNS, (oid,))}
    emptied = (*([table.sql] if persistence == "u" else []), *unlogged)
    return Table(table, columns, emptied, guarded, tuple(triggers), kind == "p", oid)


def not_granted(name: TableName, privileges: Sequence[str], sink: str = "") -> SinkAccessError:
    """Return the error for privileges on a table that the connection's user lacks."""
    remedy = f"Run `GRANT {', '.join(privileges)} ON {name.sql} TO ...` for the connection's user."
    return Misfits(str(name), sink).not_granted(privileges, remedy)


def may_leave_out(session: Session, table: Table) -> bool:
    """Return whether anything could silently drop rows of a statement: triggers, rules, row-level security.

    Call it after that statement: its lock keeps others from adding any.
    """
    return bool(session.value(_LEAVING_OUT, (table.name.sql,)))


def closed_sequences(session: Session, table: Table) -> list[tuple[str, str]]:
    """Columns whose default takes a number from a sequence that this user may not use; and that sequence."""
    found = session.rows(
        f"WITH filling AS MATERIALIZED ({SEQUENCES.format(table='%s')}) SELECT name, sequence FROM filling"
        " WHERE NOT has_sequence_privilege(oid, 'USAGE') AND NOT has_sequence_privilege(oid, 'UPDATE') ORDER BY 1",
        (table.name.sql,),
    )
    return [(row[0], row[1]) for row in found]


def unpreparable(session: Session, table: Table) -> list[tuple[str, str]]:
    """Triggers, and their functions, whose text has what no transaction that is prepared may have done."""
    return [(row[0], row[1]) for row in session.rows(_NOTIFYING, (table.name.sql,))]
