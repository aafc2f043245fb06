"""Would the tables take rows of these schemas? `prepare` judges by the same; asked before Spark computes any."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pyarrow as pa

from airflow_ft.core.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Column, Table, closed_sequences, read_table
from airflow_ft.sinks.postgres.encoding import fits
from airflow_ft.sinks.postgres.failures import telling
from airflow_ft.sinks.postgres.keys import key_misfits
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.proposal import type_of
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink


def misfits(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """See `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    sinks = PostgresSink.all_of(plan)
    with telling("reading the tables"), closing(Session(connection, Limits())) as session:
        for name, schema in schemas.items():
            found += misfits_of(session, sinks[name], schema, name)
    return found


def misfits_of(session: Session, sink: PostgresSink, schema: pa.Schema, name: str) -> Iterator[AirflowFtError]:
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
            remedy=f"ALTER TABLE {emptied} SET LOGGED; or PostgresSink(allow_unsafe_durability=True).",
            sink=name,
        )
    if table.guarded:
        yield SinkAccessError(
            f"row-level security of table {table.name} is active for the connection's user, and COPY does not know it.",
            remedy="give that user BYPASSRLS, or name a table without policies for it.",
            sink=name,
        )
    if not schema.names:  # the job returned nothing for this sink: there is nothing to judge
        return
    if sink.strategy == "upsert":
        for problem in key_misfits(session, sink, table, schema):
            yield problem.located(sink=name)
    own = {sink.change_column, sink.version_column} - {None}  # of the rows, and of the table
    seen: dict[str, str] = {}
    for field in (field for field in schema if field.name not in own):
        column = table.column(field.name)
        misfit = _misfit(table, field, column)
        if misfit is None and column is not None and (other := seen.setdefault(column.name, field.name)) != field.name:
            misfit = UnfitTargetError(
                f"{other!r} and {field.name!r} are one column of table {table.name}.", remedy="rename one in the job."
            )
        if misfit is not None:
            yield misfit.located(sink=name, column=field.name)
    for column in table.columns.values():
        if column.must and column.name not in seen and column.name not in own:
            yield UnfitTargetError(
                f"column {column.name!r} of table {table.name} is NOT NULL without a default, and the rows have none.",
                remedy="add it to the job's rows, or give it a default.",
                sink=name,
                column=column.name,
            )
    for left_out, sequence in closed_sequences(session, table):
        if left_out not in seen and left_out not in own:
            yield SinkAccessError(
                f"the connection's user may not use sequence {sequence}, which fills column {left_out!r} of table"
                f" {table.name}.",
                remedy=f"GRANT USAGE ON SEQUENCE {sequence} to it; or add the column to the job's rows.",
                sink=name,
                column=left_out,
            )


def _misfit(table: Table, field: pa.Field, column: Column | None) -> AirflowFtError | None:
    where = f"table {table.name}"
    if column is None:
        declared = type_of(field.type)
        return UnfitTargetError(
            f"{where} has no column {field.name!r}; it has: {', '.join(table.columns)}.",
            remedy=f"ALTER TABLE {table.name.sql} ADD COLUMN {quoted(field.name)} {declared}; or drop it in the job."
            if declared
            else "drop it in the job, or make a text of it: to_json(column).",
        )
    if column.refuses:
        return UnfitTargetError(
            f"column {column.name!r} of {where} is GENERATED ALWAYS: it takes no values.",
            remedy="drop it in the job, or make it GENERATED BY DEFAULT.",
        )
    if not fits(field.type, column):
        declared = type_of(field.type)
        other = f"declare the column as {declared}, or cast" if declared else "cast, or to_json(column),"
        return UnfitTargetError(
            f"{field.type} does not go into {column.declared} as it is.", remedy=f"{other} in the job."
        )
    if not column.allowed:
        return SinkAccessError(
            f"the connection's user may not write column {column.name!r} of {where}.",
            remedy=f"GRANT INSERT ON {table.name.sql} to it.",
        )
    return None
