"""Requirements on a server and its tables, and their checks; see `airflow_ft.sinks.base.requirements`.

Without rows (`required`), and with their columns (`schema_problems`). `prepare` judges by the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial

import pyarrow as pa

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sinks.base.columns import Misfits
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement, ledger_finding
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.postgres.catalog import Column, Table, closed_sequences, not_granted, read_table
from airflow_ft.sinks.postgres.encoding import fits
from airflow_ft.sinks.postgres.failures import translated_errors
from airflow_ft.sinks.postgres.keys import key_problems
from airflow_ft.sinks.postgres.ledger import Ledger, ledger_of
from airflow_ft.sinks.postgres.naming import MAX_BYTES, TableName
from airflow_ft.sinks.postgres.proposal import type_of
from airflow_ft.sinks.postgres.session import Limits, Session
from airflow_ft.sinks.postgres.spec import PostgresSink

log = logging.getLogger(__name__)


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what the database must have before `prepare`, as a quick look finds it. Reads alone.

    Raises:
        SinkUnavailableError, SinkAccessError: the server cannot be asked now.
    """
    limits = Limits(connect=ASK_SECONDS, answer=ASK_SECONDS, margin=1)
    with translated_errors("checking the server"), closing(Session(connection, limits)) as session:
        yield from requirements_of(session, pipeline, plan)


def requirements_of(
    session: Session, pipeline: str, plan: ParticipantPlan, try_out: Callable[[Ledger], object] = lambda ledger: None
) -> Generator[Requirement]:
    """Yield them, as one session finds them. `try_out` may create a ledger that is missing, and undo it."""
    asking, sinks = translated_errors("checking the server"), PostgresSink.all_of(plan)
    unsafe = any(sink.allow_unsafe_durability for sink in sinks.values())
    yield Requirement("durability", asking(partial(_durability, session, unsafe, plan.strategy == "prepared")))
    yield Requirement("ledger", asking(partial(_ledger, session, pipeline, plan, sinks, try_out)))
    for name, sink in sinks.items():
        yield Requirement(f"table {sink.table}", asking(partial(_table, session, name, sink)), name)


def _durability(session: Session, unsafe: bool, prepares: bool) -> Finding:
    warnings = check_server(session, allow_unsafe_durability=unsafe, prepares=prepares)
    if not warnings:
        return Finding("acknowledged commits survive a crash, and the server takes writes")
    return Finding(warnings=[("; ".join(warnings), "Nothing, if you accept the loss: allow_unsafe_durability is set.")])


def _ledger(
    session: Session,
    pipeline: str,
    plan: ParticipantPlan,
    sinks: Mapping[str, PostgresSink],
    try_out: Callable[[Ledger], object],
) -> Finding:
    ledger = ledger_of(session, sinks, pipeline, plan.name)

    def creatable() -> None:
        ledger.require_creatable()
        try_out(ledger)

    return ledger_finding(ledger.exists(), ledger.schema, ledger.check, creatable, ledger.head)


def _table(session: Session, name: str, sink: PostgresSink) -> Finding:
    table = read_table(session, TableName.parse(sink.table), name)
    problems = list(without_rows(session, sink, table, name))
    firing = f"triggers fire for rows: {', '.join(table.triggers)}" if table.triggers else ""
    warnings = [(firing, "Check that they may.")] if firing else []
    return Finding(count_text(len(table.columns), "column"), problems, warnings, f"table {table.name}")


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return what speaks against each sink's schema; see `airflow_ft.sinks.fitting`."""
    found: list[AirflowFtError] = []
    sinks = PostgresSink.all_of(plan)
    with translated_errors("reading the tables"), closing(Session(connection, Limits())) as session:
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
    version = table.column(sink.version_column or "")
    own = {sink.change_column, sink.version_column, version and version.name} - {None}  # of the rows, and of the table
    seen: dict[str, str] = {}
    misfits = Misfits(str(table.name), name)
    for field in (field for field in schema if field.name not in own):
        column = table.column(field.name)
        schema_problem = _schema_problem(misfits, table, field, column)
        if (
            schema_problem is None
            and column is not None
            and (other := seen.setdefault(column.name, field.name)) != field.name
        ):
            what, remedy = misfits.ambiguous(other, field.name), "Rename one of them in the job."
            schema_problem = misfits.of_table(what, "column_ambiguous", remedy)
        if schema_problem is not None:
            yield schema_problem.located(sink=name, column=field.name)
    for column in table.columns.values():
        if column.must and column.name not in seen and column.name not in own:
            filled = f"ALTER TABLE {table.name.sql} ALTER {quoted(column.name)} SET DEFAULT ..."
            yield misfits.required(column.name, f"Add the column to the rows in the job, or run `{filled}`.")
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
        yield not_granted(table.name, ["INSERT"], name)


def _schema_problem(misfits: Misfits, table: Table, field: pa.Field, column: Column | None) -> AirflowFtError | None:
    if column is None and len(field.name.encode()) > MAX_BYTES:
        what = f"the name of column {field.name!r} is longer than {MAX_BYTES} bytes, so that no table can have it."
        remedy = f"Rename the column in the job: give it a name of at most {MAX_BYTES} bytes."
        return misfits.of_rows(what, "name_invalid", remedy, column=field.name)
    if column is None:
        declared = type_of(field.type)
        remedy = f"Drop the column in the job, or convert it to text: `to_json({field.name})`."
        if declared:
            added = f"ALTER TABLE {table.name.sql} ADD COLUMN {quoted(field.name)} {declared}"
            remedy = f"Run `{added}`, or drop the column in the job."
        return misfits.missing(field.name, field.name, table.columns, remedy)
    if column.refuses:
        remedy = "Drop the column in the job, or declare it GENERATED BY DEFAULT AS IDENTITY."
        return misfits.generated(field.name, column.name, remedy)
    if not fits(field.type, column):
        declared = type_of(field.type)
        remedy = f"Cast in the job, or convert to text: `to_json({field.name})`."
        if declared:
            remedy = f"Declare the column as {declared}, or cast in the job."
        return misfits.unfit(field.name, column.declared, str(field.type), remedy)
    if not column.allowed:
        return SinkAccessError(
            f"the connection's user may not insert into column {column.name!r} of table {table.name}.",
            code="privilege_missing",
            remedy=f"Run `GRANT INSERT ON {table.name.sql} TO ...` for the connection's user.",
            table=str(table.name),
            privileges=["INSERT"],
        )
    return None


def check_server(session: Session, *, allow_unsafe_durability: bool, prepares: bool) -> list[str]:
    """SinkAccessError for a server that cannot be relied on; returns warnings. `prepares`: by PREPARE TRANSACTION."""
    if session.value("SELECT pg_is_in_recovery()"):
        raise SinkAccessError(
            "the server is a standby and takes no writes.",
            code="server_read_only",
            remedy='Point the connection at the primary, or put "target_session_attrs": "read-write" into its extra.',
        )
    if session.value("SHOW transaction_read_only") == "on":
        raise SinkAccessError(
            "default_transaction_read_only is on for the connection's user, so the server takes no writes.",
            code="server_read_only",
            remedy="Reset it where it is set (`SELECT * FROM pg_db_role_setting`, or postgresql.conf), or use another"
            " user.",
            setting="default_transaction_read_only",
        )
    if prepares and int(session.value("SHOW max_prepared_transactions")) == 0:
        raise SinkAccessError(
            "max_prepared_transactions is 0, so the server cannot prepare transactions.",
            code="limit_reached",
            remedy="Run `ALTER SYSTEM SET max_prepared_transactions = 20` and restart the server (each standby needs at"
            " least the same number), or choose strategy 'local'.",
            setting="max_prepared_transactions",
        )
    unsafe = [name for name in ("fsync", "full_page_writes") if session.value(f"SHOW {name}") != "on"]
    if not unsafe:
        return []
    text = (
        f"{' and '.join(unsafe)} of the server {'is' if len(unsafe) == 1 else 'are'} off: a crash can lose rows or"
        " markers that the server has acknowledged"
    )
    if not allow_unsafe_durability:
        raise SinkAccessError(
            f"{text}.",
            code="server_setting_unsafe",
            remedy=f"Run `{'; '.join(f'ALTER SYSTEM SET {name} = on' for name in unsafe)}; SELECT pg_reload_conf()`, or"
            " accept the loss with PostgresSink(allow_unsafe_durability=True).",
            settings=unsafe,
        )
    log.warning("%s (allowed by allow_unsafe_durability)", text)
    return [text]
