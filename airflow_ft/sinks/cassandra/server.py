"""A connection to Cassandra, what its errors mean, and what is required of the nodes."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    ProtocolVersion,
    Unauthorized,
    Unavailable,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, QueryExhausted, Session
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.policies import DCAwareRoundRobinPolicy, FallthroughRetryPolicy, RoundRobinPolicy, TokenAwarePolicy
from cassandra.protocol import ErrorMessage

from airflow_ft.clients.foreign_connections import invalid, refuse_misspelt, refuse_unread, require_type
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.protocol.lookup import did_you_mean
from airflow_ft.sinks.base.failures import ServerFault, unsafe_settings
from airflow_ft.sinks.base.sql_names import quoted
from airflow_ft.sinks.cassandra.lineage import PORT, hosts
from airflow_ft.sinks.cassandra.spec import DOCUMENTS

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
_THREADS = 16
"""Nodes that the driver connects to at a time. With its usual two, several nodes without an answer add up."""
_ALL_NODES = "all nodes"
_OLDEST = (4, 0)
_SAFE_SYNC = ("batch", "group")
_SAFE = {"commitlog_sync": " to batch or group on all nodes", "durable_writes": " to true"}
_UNKNOWN = "unknown"
_TLS_READ = ("ca_certs", "certfile", "keyfile", "check_hostname", "ciphers", "server_hostname")
_TLS_NAMES = (*_TLS_READ, "ssl_version", "cert_reqs")
"""Airflow's provider reads the last two. Here the certificate is always verified, with TLS 1.2 or newer."""
ERRORS = (DriverException, ErrorMessage, NoHostAvailable, QueryExhausted, ConnectionException, ConnectionBusy)
"""All that the driver raises."""


class _Brief(logging.Filter):
    """Shorten a failed connect to one line, unless debug messages are shown: the driver raises the same error."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.exc_info or logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
            return True
        if "Error connecting to" in str(record.msg):  # other nodes may answer
            record.msg, record.args = f"{record.getMessage().rstrip(':')}: {record.exc_info[1]}", None
            record.exc_info = None
        return "Control connection failed to connect" not in str(record.msg)


logging.getLogger("cassandra.cluster").addFilter(_Brief())


def address(connection: ConnectionInfo) -> str:
    """Return nodes, port and keyspace, for errors."""
    return f"{','.join(hosts(connection))}:{connection.port or PORT}/{connection.schema}"


def keyspace_of(connection: ConnectionInfo) -> str:
    """Return the connection's keyspace, where the sink has its own table. SinkAccessError: it names none."""
    if not connection.schema:
        remedy = "Set the keyspace in the connection's Schema."
        raise invalid(connection, "the connection names no keyspace.", remedy, "schema")
    return connection.schema


def _tls(connection: ConnectionInfo) -> ssl.SSLContext | None:
    refuse_unread(connection, ["ssl_options"])
    given = connection.extra.get("ssl_options")
    if not given:
        return None
    if isinstance(given, dict) and (odd := [name for name in given if name not in _TLS_NAMES]):
        what = f"the connection's ssl_options have unknown names: {', '.join(odd)}."
        remedy = f"{did_you_mean(odd[0], _TLS_NAMES)}Correct or remove them. The sink reads {', '.join(_TLS_READ)}."
        raise invalid(connection, what, remedy, "ssl_options")
    try:
        context = ssl.create_default_context(cafile=given.get("ca_certs"))
        context.check_hostname = bool(given.get("check_hostname", True))
        if given.get("certfile"):
            context.load_cert_chain(given["certfile"], given.get("keyfile"))
        if given.get("ciphers"):
            context.set_ciphers(given["ciphers"])
    except (OSError, AttributeError, TypeError) as error:
        what = f"the connection has ssl_options that cannot be used: {error}."
        remedy = "Name PEM files in ca_certs, certfile and keyfile, and OpenSSL's names in ciphers."
        raise invalid(connection, what, remedy, "ssl_options") from None
    return context


@contextmanager
def translated(connection: ConnectionInfo, **where: Any) -> Iterator[None]:
    """Raise errors of the driver as ours, with their place."""
    try:
        yield
    except ERRORS as error:
        raise failure(error, address(connection)).located(**where) from None


@contextmanager
def opened(connection: ConnectionInfo, seconds: float = _ANSWER_SECONDS, **where: Any) -> Iterator[Session]:
    """Connect for the block; `seconds` may pass until an answer.

    The driver repeats no request.

    Raises:
        SinkUnavailableError: no node answers, or can now.
        SinkAccessError: it refuses this login, or a statement of it.
        UnfitTargetError: it refuses a statement.
    """
    require_type(connection, "cassandra")
    refuse_misspelt(connection, ("datacenter", "ssl_options"))
    keyspace_of(connection)
    profile = ExecutionProfile(
        TokenAwarePolicy(DCAwareRoundRobinPolicy(local_dc=str(connection.extra.get("datacenter") or ""))),
        FallthroughRetryPolicy(),
        ConsistencyLevel.QUORUM,
        ConsistencyLevel.SERIAL,
        seconds,
    )
    login = PlainTextAuthProvider(connection.login, connection.password) if connection.login else None
    context = _tls(connection)
    name = connection.extra["ssl_options"].get("server_hostname") if context is not None else None
    with translated(connection, **where):
        cluster = Cluster(
            hosts(connection),
            connection.port or PORT,
            auth_provider=login,
            ssl_context=context,
            ssl_options={"server_hostname": name} if name else None,
            protocol_version=ProtocolVersion.V5,  # of 4.0 and newer; the driver would try others first
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=min(seconds, _CONNECT_SECONDS),
            control_connection_timeout=min(seconds, _CONNECT_SECONDS),
            executor_threads=_THREADS,
            schema_metadata_enabled=False,  # a server may have thousands of tables
            monitor_reporting_enabled=False,
        )
        try:
            yield _connected(cluster, connection)
        finally:
            cluster.shutdown()


def _connected(cluster: Cluster, connection: ConnectionInfo) -> Session:
    """Connect to all nodes, or `check_nodes` might miss some. SinkAccessError: the datacenter has no nodes."""
    try:
        return cluster.connect(wait_for_all_pools=True)
    except NoHostAvailable:
        wanted = connection.extra.get("datacenter")
        known = sorted({str(host.datacenter) for host in cluster.metadata.all_hosts() if host.datacenter})
        if not wanted or not known or wanted in known:
            raise
        what = f"the connection's datacenter is {wanted!r}, and the cluster has {', '.join(known)}."
        raise invalid(connection, what, "Correct datacenter in the extra of the connection.", "datacenter") from None


def failure(error: BaseException, server: str) -> AirflowFtError:
    """Return what is raised for an error of the driver, whose messages quote neither passwords nor rows."""
    found = error.errors if isinstance(error, NoHostAvailable) else None  # errors by host, or a list of hosts
    reasons = [*found.values()] if isinstance(found, dict) and found else [error]
    words = "; ".join(dict.fromkeys(f"{type(each).__name__} {each}".strip().rstrip(".") for each in reasons))
    if any(isinstance(each, AuthenticationFailed) for each in reasons):
        return ServerFault.LOGIN.error(f"Cassandra at {server}", words, server=server)
    if "protocol_version" in words:
        return _too_old(f"Cassandra at {server}: {words}", server)
    if isinstance(error, Unauthorized):
        return ServerFault.PRIVILEGE.error(f"Cassandra at {server}", words, server=server)
    if isinstance(error, InvalidRequest):
        return UnfitTargetError(
            f"Cassandra at {server} refuses a statement: {words}.",
            code="target_unfit",
            remedy="Correct the table, or the limit of the server that the message names.",
            server=server,
        )
    remedy = "Check that enough nodes run and that host and port of the connection are right."
    if any(isinstance(each, Unavailable) for each in reasons):
        remedy = (
            "Start the nodes that are down. If the keyspace has more replicas than the cluster has nodes,"
            " `airflow ft doctor` prints an ALTER KEYSPACE."
        )
    if "SSL" in words or "certificate" in words:
        remedy = "Correct ssl_options in the extra of the connection: give them if the nodes speak TLS, and only then."
    return ServerFault.SILENT.error(f"Cassandra at {server}", words, remedy, server=server)


def check_nodes(session: Session, server: str, keyspaces: Iterable[str], *, unsafe: bool) -> dict[str, Any]:
    """Return what the nodes of all datacenters say of themselves, for people.

    Nodes that are down, or to which the driver has no connection yet, are not asked.

    Raises:
        UnfitTargetError: a node is too old; or, unless `unsafe`, one may forget what it has acknowledged.
        SinkAccessError: there is no such keyspace.
    """
    durable = {keyspace: _durable(session, keyspace) for keyspace in dict.fromkeys(keyspaces)}
    if missing := [keyspace for keyspace, found in durable.items() if found is None]:
        raise _no_keyspace(missing, server)
    wrong: dict[str, str] = {}
    versions: set[str] = set()
    _connect_to_all(session)
    connected = session.get_pool_state()
    for host in session.cluster.metadata.all_hosts():
        version = str(host.release_version or "")  # "": it is not known yet
        if version and tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST:
            raise _too_old(f"the Cassandra node {host.address} has version {version}", server)
        versions |= {version} - {""}
        is_away = host.is_up is None and host not in connected  # the driver still tries to connect
        if host.is_up is not False and not is_away and (found := _commitlog_sync(session, host)) not in _SAFE_SYNC:
            wrong["commitlog_sync"] = found
    wrong |= {f"durable_writes of {keyspace}": "false" for keyspace, found in durable.items() if not found}
    if wrong and not unsafe:
        remedy = (
            f"Set {' and '.join(name + _SAFE[name.partition(' ')[0]] for name in wrong)}. Or give the sink"
            " allow_unsafe_durability=True, if replicas on other nodes are enough."
        )
        if _UNKNOWN in wrong.values():
            remedy = f"Grant SELECT ON TABLE system_views.settings, if the role lacks it. {remedy}"
        raise unsafe_settings(f"Cassandra at {server}", wrong, remedy, server=server)
    return {"cassandra": ", ".join(sorted(versions)), "unsafe": wrong}


def _too_old(what: str, server: str) -> UnfitTargetError:
    return UnfitTargetError(
        f"{what}. The sink needs Cassandra 4.0 or newer.", code="server_version", remedy="Upgrade it.", server=server
    )


def _connect_to_all(session: Session) -> None:
    """Connect to the nodes of other datacenters, too; those that cannot be reached count as down afterwards."""
    if _ALL_NODES not in session.cluster.profile_manager.profiles:
        with suppress(OperationTimedOut):  # a node without a connection is not known
            policy = RoundRobinPolicy()  # connects to all, but no request uses it
            session.cluster.add_execution_profile(_ALL_NODES, ExecutionProfile(policy), 2 * _CONNECT_SECONDS)


def _commitlog_sync(session: Session, host: Any) -> str:
    """Return the node's setting; `_UNKNOWN` if this user may not read it, or the node cannot be asked."""
    query = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'"
    try:
        row = session.execute(query, host=host).one()
    except (InvalidRequest, Unauthorized, NoHostAvailable):
        return _UNKNOWN
    return str(row.value).lower() if row is not None else _UNKNOWN


def _no_keyspace(missing: Sequence[str], server: str) -> SinkAccessError:
    """Return the error for keyspaces that do not exist."""
    created = " ".join(f"{keyspace_sql(keyspace)};" for keyspace in missing)
    return SinkAccessError(
        f"Cassandra at {server} has no keyspace {', '.join(missing)}.",
        code="database_missing",
        remedy=f"Run `{created}` with replicas as your cluster has nodes. Or correct the connection's Schema and the"
        " sink's table=.",
        server=server,
        keyspace=missing[0],
        keyspaces=list(missing),
    )


def _durable(session: Session, keyspace: str) -> bool | None:
    """Return `durable_writes` of a keyspace; None: there is no such keyspace."""
    query = "SELECT durable_writes FROM system_schema.keyspaces WHERE keyspace_name = %s"
    row = session.execute(query, (keyspace,)).one()
    return None if row is None else bool(row.durable_writes)


def keyspace_exists(session: Session, keyspace: str) -> bool:
    """Return whether there is a keyspace of this name."""
    return _durable(session, keyspace) is not None


def keyspace_sql(keyspace: str) -> str:
    """Return the statement that creates a keyspace, with as many replicas as are usual."""
    replication = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
    return f"CREATE KEYSPACE IF NOT EXISTS {quoted(keyspace)} WITH replication = {replication}"


def time_of(session: Session) -> int:
    """Return the time of a node: microseconds since 1970, a multiple of 1,000."""
    row = session.execute("SELECT toUnixTimestamp(now()) AS milliseconds FROM system.local").one()
    return int(row.milliseconds) * 1_000


def documents_exist(session: Session, keyspace: str) -> bool:
    """Return whether the sink's own table is there."""
    query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    return session.execute(query, (keyspace, DOCUMENTS)).one() is not None


def documents_sql(keyspace: str) -> str:
    """Return the statement that creates the sink's own table."""
    return (
        f'CREATE TABLE IF NOT EXISTS {quoted(keyspace)}."{DOCUMENTS}" (pipeline text, participant text, version bigint,'
        " document text, PRIMARY KEY ((pipeline, participant)))"
    )


def create_documents(session: Session, keyspace: str) -> None:
    """Create the sink's own table; the driver waits until all nodes know it."""
    session.execute(documents_sql(keyspace))
