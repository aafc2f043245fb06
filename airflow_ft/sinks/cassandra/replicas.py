"""Replicas of a keyspace, compared with the nodes: an acknowledgement may need more of them than there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from cassandra import ConsistencyLevel, InvalidRequest, Unauthorized, Unavailable
from cassandra.cluster import Session
from cassandra.query import SimpleStatement

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.sinks.base.failures import shown
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.cassandra.table import Table

_SIMPLE, _BY_DATACENTER = "SimpleStrategy", "NetworkTopologyStrategy"
_FACTOR = "replication_factor"


def shortages(
    session: Session, server: str, wanted: Iterable[tuple[Table, str]]
) -> Iterator[tuple[UnfitTargetError, bool]]:
    """Yield an error for each keyspace that has too few nodes for a table and its consistency level.

    The second value says whether a node has confirmed it: what the cluster lists may not be all of its nodes.
    """
    local, *peers = (
        str(row.data_center or "")
        for place in ("local", "peers")
        for row in session.execute(f"SELECT data_center FROM system.{place}")
    )
    nodes = Counter([local, *peers])
    seen: set[str] = set()
    for table, level in wanted:
        query = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
        row = session.execute(query, (table.keyspace,)).one()
        found = row and needed(dict(row.replication), nodes, level, local)
        if found and table.keyspace not in seen and (confirmed := _unavailable(session, table, level)) is not False:
            if confirmed:
                seen.add(table.keyspace)
            yield _error(server, table.keyspace, dict(row.replication), nodes, level, local, found), bool(confirmed)


def _copies(replication: Mapping[str, str]) -> dict[str, int]:
    """Return the replicas in each datacenter, or in "" for all; none where they are counted in another way."""
    kind = replication.get("class", "").rpartition(".")[2]
    try:
        if kind == _SIMPLE:
            return {"": int(replication[_FACTOR])}
        if kind == _BY_DATACENTER:
            return {name: int(count) for name, count in replication.items() if name != "class" and int(count)}
    except (KeyError, ValueError):  # transient replicas, such as 3/1
        pass
    return {}


def needed(replication: Mapping[str, str], nodes: Mapping[str, int], level: str, local: str) -> int:
    """Return how many replicas must acknowledge if these nodes are too few for that; 0: they suffice, or are unknown.

    `nodes` counts them by datacenter ("": one that is unknown). `local` is the datacenter of LOCAL_QUORUM.
    """
    copies = _copies(replication)
    if not copies or "" in nodes:
        return 0
    if "" in copies:
        groups = [[""]]
    elif level == "EACH_QUORUM":
        groups = [[name] for name in copies]
    else:
        groups = [[local]] if level == "LOCAL_QUORUM" else [[*copies]]
    for group in groups:
        total = sum(copies.get(name, 0) for name in group)
        there = sum(min(copies.get(name, 0), nodes.get(name, 0) if name else sum(nodes.values())) for name in group)
        if there < (wanted := total if level == "ALL" else total // 2 + 1):
            return wanted
    return 0


def _unavailable(session: Session, table: Table, level: str) -> bool | None:
    """Return whether a read at this level finds too few nodes; None: it cannot be tried."""
    key = ", ".join(map(quoted, table.partition))
    query = f"SELECT {quoted(table.key[0])} FROM {table.cql} WHERE token({key}) = 0"
    try:
        session.execute(SimpleStatement(query, consistency_level=ConsistencyLevel.name_to_value[level]))
    except Unavailable:
        return True
    except (InvalidRequest, Unauthorized):
        return None
    return False


def _error(
    server: str,
    keyspace: str,
    replication: Mapping[str, str],
    nodes: Mapping[str, int],
    level: str,
    local: str,
    wanted: int,
) -> UnfitTargetError:
    copies = _copies(replication)
    if "" in copies:
        kind, fitting = _SIMPLE, {_FACTOR: min(copies[""], sum(nodes.values()))}
    else:
        kept = (copies.keys() & nodes.keys()) | ({local} if level == "LOCAL_QUORUM" else set()) or {local}
        kind = _BY_DATACENTER
        fitting = {name: min(copies.get(name, 3), nodes[name]) for name in sorted(kept)}
    options = "".join(f", '{name}': {count}" for name, count in fitting.items())
    has = {name or _FACTOR: str(count) for name, count in copies.items()}
    return UnfitTargetError(
        f"Cassandra at {server} has too few nodes for keyspace {keyspace}. It wants replicas: {shown(has)}."
        f" {level} needs {wanted} of them. Nodes by datacenter:"
        f" {shown({name: str(count) for name, count in nodes.items()})}.",
        code="replicas_behind",
        remedy="Start more nodes. Or run"
        f" `ALTER KEYSPACE {quoted(keyspace)} WITH replication = {{'class': '{kind}'{options}}};`.",
        server=server,
        keyspace=keyspace,
        replicas=has,
        nodes=dict(nodes),
    )
