"""Would the tables take rows of these schemas? `prepare` judges by the same; asked before Spark computes any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Column, Table, closed_sequences, read_table
from airflow_ft.sinks.postgres.encoding import fits
from airflow_ft.sinks.postgres.failures import telling
from airflow_ft.sinks.postgres.keys import key_problems
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.proposal import type_of
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """See `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    sinks = PostgresSink.all_of(plan)
    with telling("reading the tables"), closing(Session(connection, Limits())) as session:
        for name, schema in schemas.items():
            found += schema_problems_of(session, sinks[name], schema, name)
    return found


def schema_problems_of(session: Session, sink: PostgresSink, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
    """All that speaks against rows of this schema in the table of one sink."""
    try:
        table = read_table(session, TableName.parse(sink.table), name)
    except UnfitTargetError as error:
        yield error
        return
    yield from judged(session, sink, table, schema, name)


def judged(
    session: Session, sink: PostgresSink, table: Table, schema: pa.Schema, name: str
) -> Iterator[AirflowFtError]:
    """Judge a table as it was read."""
    for emptied in () if sink.allow_unsafe_durability else table.unlogged:
        what = f"table {table.name}" if emptied == table.name.sql else f"partition {emptied} of table {table.name}"
        yield UnfitTargetError(
            f"{what} is unlogged: a crash of the server empties it.",
            code="table_unlogged",
            remedy=f"Run `ALTER TABLE {emptied} SET LOGGED`, or set PostgresSink(allow_unsafe_durability=True).",
            sink=name,
            table=emptied,
        )
    if table.guarded:
        yield SinkAccessError(
            f"row-level security of table {table.name} applies to the connection's user, and COPY does not obey it.",
            code="row_security_active",
            remedy="Run `ALTER ROLE ... BYPASSRLS` for the connection's user, or choose a table without policies.",
            sink=name,
            table=str(table.name),
        )
    if not schema.names:  # the job returned nothing for this sink: there is nothing to judge
        return
    if sink.strategy == "upsert":
        for problem in key_problems(session, sink, table, schema):
            yield problem.located(sink=name)
    own = {sink.change_column, sink.version_column} - {None}  # of the rows, and of the table
    seen: dict[str, str] = {}
    for field in (field for field in schema if field.name not in own):
        column = table.column(field.name)
        schema_problem = _schema_problem(table, field, column)
        if (
            schema_problem is None
            and column is not None
            and (other := seen.setdefault(column.name, field.name)) != field.name
        ):
            schema_problem = UnfitTargetError(
                f"the columns {other!r} and {field.name!r} of the rows are one column of table {table.name}.",
                code="column_ambiguous",
                remedy="Rename one of them in the job.",
                table=str(table.name),
            )
        if schema_problem is not None:
            yield schema_problem.located(sink=name, column=field.name)
    for column in table.columns.values():
        if column.must and column.name not in seen and column.name not in own:
            yield UnfitTargetError(
                f"column {column.name!r} of table {table.name} is NOT NULL without a default, and the rows do not have"
                " it.",
                code="column_required",
                remedy=f"Add the column to the rows in the job, or run `ALTER TABLE {table.name.sql} ALTER"
                f" {quoted(column.name)} SET DEFAULT ...`.",
                sink=name,
                column=column.name,
                table=str(table.name),
            )
    for left_out, sequence in closed_sequences(session, table):
        if left_out not in seen and left_out not in own:
            yield SinkAccessError(
                f"the connection's user may not use sequence {sequence}, which fills column {left_out!r} of table"
                f" {table.name}.",
                code="privilege_missing",
                remedy=f"Run `GRANT USAGE ON SEQUENCE {sequence} TO ...` for the connection's user, or add the column"
                " to the rows in the job.",
                sink=name,
                column=left_out,
                table=str(table.name),
                sequence=sequence,
            )


def without_rows(session: Session, sink: PostgresSink, table: Table, name: str) -> Iterator[AirflowFtError]:
    """Yield what refuses rows with any columns."""
    yield from judged(session, sink, table, pa.schema([]), name)
    if sink.strategy == "upsert":
        needed = [*sink.key_columns, *([sink.change_column] if sink.change_column else [])]
        yield from key_problems(session, sink, table, pa.schema([(each, pa.string()) for each in needed]))
    elif not session.value("SELECT has_any_column_privilege(%s, 'INSERT')", (table.name.sql,)):
        yield SinkAccessError(
            f"the connection's user may not insert into table {table.name}.",
            code="privilege_missing",
            remedy=f"Run `GRANT INSERT ON {table.name.sql} TO ...` for the connection's user.",
            table=str(table.name),
            privileges=["INSERT"],
        )


def _schema_problem(table: Table, field: pa.Field, column: Column | None) -> AirflowFtError | None:
    where = f"table {table.name}"
    if column is None:
        declared = type_of(field.type)
        return UnfitTargetError(
            f"{where} has no column {field.name!r}. It has {', '.join(table.columns)}.",
            code="column_missing",
            remedy=f"Run `ALTER TABLE {table.name.sql} ADD COLUMN {quoted(field.name)} {declared}`, or drop the column"
            " in the job."
            if declared
            else f"Drop the column in the job, or convert it to text: `to_json({field.name})`.",
            table=str(table.name),
        )
    if column.refuses:
        return UnfitTargetError(
            f"column {column.name!r} of {where} is GENERATED ALWAYS and takes no values.",
            code="column_generated",
            remedy="Drop the column in the job, or declare it GENERATED BY DEFAULT AS IDENTITY.",
            table=str(table.name),
        )
    if not fits(field.type, column):
        declared = type_of(field.type)
        return UnfitTargetError(
            f"column {column.name!r} of {where} is {column.declared}, which does not hold {field.type} exactly.",
            code="column_unfit",
            remedy=f"Declare the column as {declared}, or cast in the job."
            if declared
            else f"Cast in the job, or convert to text: `to_json({field.name})`.",
            table=str(table.name),
            declared=column.declared,
            type=str(field.type),
        )
    if not column.allowed:
        return SinkAccessError(
            f"the connection's user may not insert into column {column.name!r} of {where}.",
            code="privilege_missing",
            remedy=f"Run `GRANT INSERT ON {table.name.sql} TO ...` for the connection's user.",
            table=str(table.name),
            privileges=["INSERT"],
        )
    return None
