"""What a Cassandra cluster and a table must be, and the columns that fit."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import pyarrow as pa
from cassandra.cluster import Session

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.base.failures import shown
from airflow_ft.sinks.base.requirements import ASK_SECONDS, Finding, Requirement
from airflow_ft.sinks.cassandra import table as tables
from airflow_ft.sinks.cassandra.privileges import lacking, require_creation
from airflow_ft.sinks.cassandra.replicas import shortages
from airflow_ft.sinks.cassandra.server import (
    address,
    check_nodes,
    documents_exist,
    keyspace_exists,
    keyspace_of,
    opened,
    translated,
)
from airflow_ft.sinks.cassandra.spec import DOCUMENTS, CassandraSink


def required(pipeline: str, plan: ParticipantPlan, connection: ConnectionInfo) -> Generator[Requirement]:
    """Yield what must be there before `prepare`: nodes that forget nothing, the tables, and permissions on them.

    Raises:
        SinkUnavailableError, SinkAccessError: the cluster cannot be asked now.
    """
    asking, own = translated(connection, participant=plan.name), keyspace_of(connection)
    with opened(connection, ASK_SECONDS, participant=plan.name) as session:
        yield Requirement("server", asking(partial(_server, session, plan, connection)))
        yield Requirement("ledger", asking(partial(_ledger, session, connection)))
        yield Requirement("replicas", asking(partial(_replicas, session, plan, connection)))
        for name, sink in CassandraSink.all_of(plan).items():
            keyspace, table = sink.place(own)
            if keyspace_exists(session, keyspace):  # else the server's requirement has said so
                look = partial(_table, session, connection, keyspace, table)
                yield Requirement(f"table {sink.table}", asking(look), name)


def _server(session: Session, plan: ParticipantPlan, connection: ConnectionInfo) -> Finding:
    own, sinks = keyspace_of(connection), CassandraSink.all_of(plan).values()
    unsafe = any(sink.allow_unsafe_durability for sink in sinks)
    found = check_nodes(session, address(connection), [own, *(sink.place(own)[0] for sink in sinks)], unsafe=unsafe)
    risks = shown(found["unsafe"])
    ledger = "" if documents_exist(session, own) else f"; the first `prepare` creates {own}.{DOCUMENTS}"
    text = f"Cassandra {found['cassandra']} at {address(connection)}" + (f", although {risks}" if risks else "")
    return Finding(text + ledger)


def _ledger(session: Session, connection: ConnectionInfo) -> Finding:
    """Try the permissions on the sink's own table, or the one to create it.

    The server's requirement says whether it is there, and whether the keyspace is.
    """
    own = keyspace_of(connection)
    if not documents_exist(session, own):
        if keyspace_exists(session, own):
            require_creation(session, connection, own)
        return Finding()
    ledger = tables.read_table(session, own, DOCUMENTS)
    return Finding(problems=[error for _, error in lacking(session, connection, ledger)])


def _replicas(session: Session, plan: ParticipantPlan, connection: ConnectionInfo) -> Finding:
    """Compare keyspaces with the nodes, by tables that exist."""
    own = keyspace_of(connection)
    wanted = [(own, DOCUMENTS, "QUORUM")]
    wanted += [(*sink.place(own), sink.consistency) for sink in CassandraSink.all_of(plan).values()]
    there = []
    for keyspace, name, level in wanted:
        with suppress(SinkAccessError, UnfitTargetError):  # another requirement says it
            there.append((tables.read_table(session, keyspace, name), level))
    found = list(shortages(session, address(connection), there))
    return Finding(
        problems=[error for error, confirmed in found if confirmed],
        warnings=[(error.what, error.remedy) for error, confirmed in found if not confirmed],
    )


def _table(session: Session, connection: ConnectionInfo, keyspace: str, name: str) -> Finding:
    table = tables.read_table(session, keyspace, name)
    text, warnings = f"exists, with the primary key {', '.join(table.key)}", list(tables.warnings(table))
    problems = []
    for permission, error in lacking(session, connection, table):
        if permission == "MODIFY":
            problems.append(error)
        else:  # deliveries read no rows
            warnings.append((f"`airflow ft verify` cannot read it: {error.what}", error.remedy))
    return Finding(text, problems, warnings)


def schema_problems(
    plan: ParticipantPlan, connection: ConnectionInfo, schemas: Mapping[str, pa.Schema]
) -> Sequence[AirflowFtError]:
    """Return why rows with these columns do not fit."""
    sinks = CassandraSink.all_of(plan)
    problems: list[AirflowFtError] = []
    with opened(connection, ASK_SECONDS, participant=plan.name) as session:
        for name, schema in schemas.items():
            table = tables.read_table(session, *sinks[name].place(keyspace_of(connection)))
            problems += tables.schema_problems(sinks[name], table, schema, name) if schema.names else ()
    return problems
