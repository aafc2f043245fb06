"""Requirements of an upsert on its table: one unique key that identifies rows, and a column for the version."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from airflow_ft.protocol.errors import AirflowFtError, DeclinedError, SinkAccessError, UnfitTargetError
from airflow_ft.sinks.arrow import is_text
from airflow_ft.sinks.base.changes import missing_in_rows, missing_kind
from airflow_ft.sinks.base.columns import Misfits
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Table, not_granted
from airflow_ft.sinks.postgres.encoding import TEXTS
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink


def key_problems(session: Session, sink: PostgresSink, table: Table, schema: pa.Schema) -> Iterator[AirflowFtError]:
    """Yield what speaks against changing rows of this table by key."""
    name, misfits = table.name, Misfits(str(table.name))
    keys = [column for key in sink.key_columns if (column := table.column(key)) is not None]
    sent = {column.name for source in schema.names if (column := table.column(source)) is not None}
    unique = session.rows(
        "SELECT array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid"
        " AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]) ORDER BY 1), EXISTS (SELECT FROM"
        " generate_subscripts(i.indcollation, 1) AS n JOIN pg_attribute a ON a.attrelid = i.indrelid"
        " AND a.attnum = i.indkey[n] JOIN pg_collation own ON own.oid = a.attcollation JOIN pg_collation other"
        " ON other.oid = i.indcollation[n] WHERE own.oid <> other.oid"
        " AND NOT (own.collisdeterministic AND other.collisdeterministic)), i.indimmediate FROM pg_index i"
        " WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid"
        " AND i.indpred IS NULL AND i.indexprs IS NULL",
        (name.sql,),
    )
    listed = ", ".join(map(quoted, sink.key_columns))
    fitting = [column.name for column in keys if column.not_null]
    unknown = [key for key in sink.key_columns if table.column(key) is None]
    yield from (misfits.no_such_key(key, [*table.columns]) for key in unknown)
    usable = [names for names, _, immediate in unique if immediate]
    is_key = len(fitting) == len(sink.key_columns) and sorted(fitting) in usable
    if not is_key and not unknown:
        remedy = f"Run `ALTER TABLE {name.sql} ADD PRIMARY KEY ({listed})`, or set key_columns= to such a key."
        yield misfits.no_key(sink.key_columns, f"{remedy} A key that is DEFERRABLE does not count.")
    if is_key and not all(immediate for names, _, immediate in unique if names == sorted(fitting)):
        why = "beside its key. The server refuses ON CONFLICT for these columns."
        remedy = "Drop that constraint, or create it again as NOT DEFERRABLE."
        yield _index_unfit(name, sink, "a DEFERRABLE unique constraint", why, remedy)
    if any(differs for names, differs, immediate in unique if immediate and names == sorted(fitting)):
        why = "with another collation than its columns. A change of one key could overwrite the row of another."
        yield _index_unfit(name, sink, "a unique index", why, "Drop that index, or create it again without COLLATE.")
    for column in keys:
        if column.name not in sent:
            yield missing_in_rows(column.name, "key_columns", schema.names)
    version = table.column(sink.version_column or "")
    if version is None or version.type != "int8" or version.refuses:
        added = f"ADD COLUMN {quoted(sink.version_column or '')} bigint NOT NULL DEFAULT 0"
        remedy = f"Run `ALTER TABLE {name.sql} {added}`."
        yield misfits.no_version(sink.version_column or "", version is not None, remedy)
    elif version.name in sent:
        yield misfits.reserved(version.name, version.name, f"Drop the column {version.name!r} in the job.")
    if change := sink.change_column:
        if change not in schema.names:
            yield missing_kind(change, schema.names)
        elif not is_text(schema.field(change).type):
            yield DeclinedError(
                f"column {change!r}, which change_column= names, is {schema.field(change).type} and not text.",
                code="column_unfit",
                remedy=f"Cast the column {change!r} to string in the job.",
                column=change,
            )
    lacking = session.value(
        "SELECT array(SELECT what FROM unnest(%s) AS what WHERE NOT has_table_privilege(%s, what))",
        ([*sink.privileges], name.sql),
    )
    if not session.value("SELECT has_database_privilege(current_database(), 'TEMPORARY')"):
        yield SinkAccessError(
            "the connection's user may not create temporary tables.",
            code="privilege_missing",
            remedy="Run `GRANT TEMPORARY ON DATABASE ... TO ...` for the connection's user.",
            privileges=["TEMPORARY"],
        )
    if lacking:
        yield not_granted(name, lacking)


def key_types(session: Session, sink: PostgresSink, table: Table) -> list[list[str]]:
    """Return, by column, what makes keys equal: the kind of text (citext ignores case), and a collation by which
    different texts may be equal. Another length, or more bytes for an integer, changes nothing here.
    """
    keys = [column for key in sink.key_columns if (column := table.column(key)) is not None]
    collations = session.rows(
        "SELECT a.attname::text, format('%%I.%%I', n.nspname, c.collname) FROM pg_attribute a"
        " JOIN pg_collation c ON c.oid = a.attcollation JOIN pg_namespace n ON n.oid = c.collnamespace"
        " WHERE a.attrelid = %s::regclass AND a.attname = ANY (%s) AND NOT c.collisdeterministic",
        (table.name.sql, [column.name for column in keys]),
    )
    found: dict[str, str] = {row[0]: row[1] for row in collations}
    kinds = {column.name: column.kind if column.kind in TEXTS - {"varchar", "text"} else "" for column in keys}
    return [[column.name, kinds[column.name], found.get(column.name, "")] for column in keys]


def _index_unfit(table: TableName, sink: PostgresSink, index: str, why: str, remedy: str) -> UnfitTargetError:
    return UnfitTargetError(
        f"{table} has {index} on ({', '.join(sink.key_columns)}) {why}",
        code="key_unfit",
        remedy=remedy,
        table=str(table),
        key_columns=list(sink.key_columns),
    )
