"""A connection to HBase's Thrift gateway, what its errors mean, and what it says of tables."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import thriftpy2
from thriftpy2.protocol import TCompactProtocol, TCyBinaryProtocol
from thriftpy2.protocol.cybin import ProtocolError  # type: ignore[attr-defined]
from thriftpy2.protocol.exc import TProtocolException
from thriftpy2.thrift import TClient, TException, TMessageType
from thriftpy2.transport import TCyBufferedTransport, TCyFramedTransport, TSocket, TTransportException

from airflow_ft.clients.foreign_connections import PROTECTION, invalid, refuse_misspelt, refuse_unread, require_type
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, UnfitTargetError
from airflow_ft.sinks.base.failures import ServerFault
from airflow_ft.sinks.hbase.spec import LEDGER, PORT
from airflow_ft.sinks.hbase.wire import BINARY, COMPACT, Wire

_API: Any = thriftpy2.load(str(files("happybase") / "Hbase.thrift"), "airflow_ft_hbase_thrift")
Mutation = _API.Mutation
HBaseError = _API.IOError

_NAMESPACES = b"hbase:namespace"
FAMILY = "f"
"""The family of the sink's own table."""
FOREVER = (-1, 2_147_483_647)
"""How HBase writes a TTL of cells that never expire."""
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 60.0
_REST_SECONDS = 20.0
"""The gateway closes a connection without requests, by default after 60 s. Reading a file may take longer."""
_TRANSPORTS = {"buffered": TCyBufferedTransport, "framed": TCyFramedTransport}
_PROTOCOLS = {"binary": (TCyBinaryProtocol, BINARY), "compact": (TCompactProtocol, COMPACT)}
_TRIES = ", exceptions:"
"""The end of an error's first line if the tries are listed below it."""
_CAUSE = re.compile(r"^Caused by: ([\w.$]+(?:: [\w.:-]+(?=$|,.*,\d))?)", re.MULTILINE)
"""The cause's class, and a table or namespace that its message begins with. The rest of it may quote a row key."""
_REGION = re.compile(r"([\w.:-]+),.*,\d{10,}(?:_\w+)?\.\w+\.?")
"""A region's name: the table, the row key at which the region begins, and more."""
_ROW = re.compile(r"[,:]? *(?:\w*Key(?:\(\))?=|\b(?:for |containing )?row(?:=|: | '| \S+$)| for KV out of range).*")
"""The rest of a line that quotes a row key."""
_DELETES = "hbase.hstore.time.to.purge.deletes"
_DELETES_MILLISECONDS = 86_400_000
"""HBase compares it with a delete's timestamp, given out before the rows: a checkpoint and its retries are shorter."""
_LONGEST = 200  # characters of an error of the gateway, which is a stack trace


class Client(TClient):
    """Thrift's client, which also sends requests whose bytes are there already.

    It connects again before a request if it has rested: the gateway may have closed the connection. No state depends
    on a connection.
    """

    def __init__(self, protocol: Any) -> None:
        super().__init__(_API.Hbase, protocol)
        self._used = time.monotonic()

    def mutate_rows(self, arguments: bytes) -> None:
        """Call `mutateRowsTs` with arguments in the connection's protocol (`airflow_ft.sinks.hbase.wire`)."""
        self._wake()
        self._oprot.write_message_begin("mutateRowsTs", TMessageType.CALL, self._seqid)
        self._oprot.trans.write(arguments)
        self._oprot.write_message_end()
        self._oprot.trans.flush()
        self._recv("mutateRowsTs")

    def _send(self, _api: str, **given: Any) -> None:
        self._wake()
        super()._send(_api, **given)

    def _recv(self, _api: str) -> Any:
        answer = super()._recv(_api)
        self._used = time.monotonic()
        return answer

    def _wake(self) -> None:
        if time.monotonic() - self._used >= _REST_SECONDS:
            channel = self._oprot.trans
            channel.close()
            channel.open()


def literal(text: str) -> str:
    """Return a text of the HBase shell, which is Ruby."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def namespace_of(table: str) -> str:
    """Return the namespace in the name of a table; "": the default one."""
    return table.rpartition(":")[0]


def creation(table: str, families: Sequence[str]) -> str:
    """Return the command of the HBase shell that creates a table for the sink."""
    return f"create {_with(table, families)}"


def alteration(table: str, families: Sequence[str]) -> str:
    """Return the command of the HBase shell that adds families, or gives existing ones what the sink needs."""
    return f"alter {_with(table, families)}"


def _with(table: str, families: Sequence[str]) -> str:
    settings = f"CONFIGURATION => {{'{_DELETES}' => '{_DELETES_MILLISECONDS}'}}"
    return ", ".join([literal(table), *(f"{{NAME => {literal(family)}, {settings}}}" for family in sorted(families))])


def address(connection: ConnectionInfo) -> str:
    """Return host and port of the gateway, for errors and lineage."""
    return f"{connection.host or 'localhost'}:{connection.port or PORT}"


def ledger_table(connection: ConnectionInfo) -> str:
    """Return the name of the sink's own table: in the namespace that the connection's schema names."""
    return f"{connection.schema}:{LEDGER}" if connection.schema else LEDGER


@contextmanager
def translated(connection: ConnectionInfo, table: str = "", **where: Any) -> Iterator[None]:
    """Raise errors of the gateway as ours, with their place. `table`: the one that the block asks for."""
    try:
        yield
    except AirflowFtError:  # also of the write-ahead log, and then an OSError
        raise
    except (TException, ProtocolError, OSError, EOFError) as error:
        raise failure(error, address(connection), table).located(**where) from None


@contextmanager
def opened(connection: ConnectionInfo, seconds: float = _ANSWER_SECONDS, **where: Any) -> Iterator[Client]:
    """Connect for the block; `seconds` may pass until an answer.

    This client repeats no request. The gateway repeats requests to region servers, which changes nothing: a cell of
    the same timestamp is the same cell, and the document is compared.

    Raises:
        SinkUnavailableError: the gateway or a region server does not answer, or cannot now.
        SinkAccessError: the connection is wrong, or a privilege is missing.
        UnfitTargetError: a table or family is missing.
    """
    require_type(connection, "hbase")
    refuse_misspelt(connection, ("transport", "protocol"))
    refuse_unread(connection, beginnings=PROTECTION)
    transport = _choice(connection, "transport", _TRANSPORTS)
    protocol, _ = _choice(connection, "protocol", _PROTOCOLS)
    answer, connect = int(seconds * 1000), int(min(seconds, _CONNECT_SECONDS) * 1000)
    make: Any = TSocket  # it has no types
    place = make(
        connection.host or "localhost", connection.port or PORT, socket_timeout=answer, connect_timeout=connect
    )
    channel = transport(place)
    with translated(connection, **where):
        channel.open()
        try:
            yield Client(protocol(channel, decode_response=False))
        finally:
            channel.close()


def is_framed(connection: ConnectionInfo) -> bool:
    """Return whether the gateway takes requests as frames, whose size it limits."""
    return bool(connection.extra.get("transport") == "framed")


def wire(connection: ConnectionInfo) -> Wire:
    """Return how rows are written for the gateway."""
    found: Wire = _choice(connection, "protocol", _PROTOCOLS)[1]
    return found


def _choice(connection: ConnectionInfo, name: str, known: Mapping[str, Any]) -> Any:
    given = connection.extra.get(name) or next(iter(known))
    if given not in known:
        what = f"the connection's {name} is {given!r}, and HBase's gateway has {' and '.join(known)}."
        raise invalid(connection, what, f"Correct {name} in the extra of the connection.", name)
    return known[given]


def failure(error: BaseException, server: str, table: str = "") -> AirflowFtError:
    """Return what is raised for an error of the gateway, whose messages quote no values. `table`: the one asked for."""
    trace = _text(getattr(error, "message", None)) or f"{error}"
    words = trace.strip().partition("\n")[0].rstrip(".")
    if words.endswith(_TRIES) and (cause := _CAUSE.search(trace)):
        words = f"{words.removesuffix(_TRIES)}: {cause[1]}".rstrip(".")
    words = _ROW.sub("", _REGION.sub(r"\1", words))[:_LONGEST] or type(error).__name__
    if "AccessDeniedException" in trace:
        return ServerFault.PRIVILEGE.error(f"HBase at {server}", words, server=server)
    if "NamespaceNotFoundException" in trace:
        found = re.search(r"NamespaceNotFoundException: (\w+)\s*$", trace, re.MULTILINE)
        return no_namespace(server, found[1] if found else words.rpartition(" ")[2])
    if is_no_table(error):
        return UnfitTargetError(
            f"HBase at {server} lacks a table: {words}.",
            code="table_missing",
            remedy="Create it; `airflow ft setup PIPELINE --print` shows the commands.",
            server=server,
        )
    if "NoSuchColumnFamilyException" in trace:
        return UnfitTargetError(
            f"a table of HBase at {server} lacks a family: {words}.",
            code="column_missing",
            remedy="Add the family; `airflow ft setup PIPELINE --print` shows the commands.",
            server=server,
        )
    if isinstance(error, TProtocolException | ProtocolError):
        return SinkAccessError(
            f"the server at {server} does not speak the Thrift protocol of the connection: {words}.",
            code="connection_invalid",
            remedy="Name HBase's Thrift gateway (version 1), with its transport and protocol in the extra.",
            server=server,
        )
    if isinstance(error, TTransportException | OSError | EOFError):
        remedy = (
            "Check that the gateway runs. Correct host and port of the connection, or transport and protocol in its"
            " extra."
        )
        return ServerFault.SILENT.error(f"the Thrift gateway of HBase at {server}", words, remedy, server=server)
    remedy = ""
    if table and ("NotServingRegionException" in trace or "TableNotEnabledException" in trace):
        remedy = (
            "Wait for the retry: after a restart, HBase opens regions one by one. If it fails too, look in the HBase"
            f" shell whether the table is enabled: is_enabled {literal(table)}."
        )
    return ServerFault.FAILED.error(f"HBase at {server}", words, remedy, server=server)


def no_namespace(server: str, name: str) -> SinkAccessError:
    """Return the error for a namespace of the sink's own table that does not exist."""
    return SinkAccessError(
        f"HBase at {server} has no namespace {name}.",
        code="database_missing",
        remedy=f"Run in the HBase shell: create_namespace {literal(name)}. Or correct the connection's schema.",
        server=server,
        namespace=name,
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def is_no_table(error: BaseException) -> bool:
    """Return whether an error of the gateway says that there is no such table."""
    return "TableNotFoundException" in _text(getattr(error, "message", None))


def families(client: TClient, table: str) -> Mapping[str, Any] | None:
    """Return the families of a table with their settings; None: there is no such table."""
    try:
        found = client.getColumnDescriptors(table.encode())
    except HBaseError as error:
        if not is_no_table(error):
            raise
        return None
    return {name.decode().rstrip(":"): each for name, each in found.items()}


def has_namespace(client: TClient, name: str) -> bool | None:
    """Return whether a namespace exists, by a table of HBase 2 itself: Thrift 1 does not say. None: it is not known."""
    try:
        usual, found = (client.getRow(_NAMESPACES, each.encode(), {}) for each in ("default", name))
    except HBaseError:  # HBase 3 has no such table; or the gateway's user may not read it
        return None
    return bool(found) if usual else None


def require_table(client: TClient, server: str, table: str, wanted: Sequence[str]) -> Mapping[str, int]:
    """Return the families among `wanted` whose cells expire, with their seconds.

    Raises:
        UnfitTargetError: the table or a family is missing, or the table is disabled.
    """
    found = families(client, table)
    if found is None:
        what, remedy = f"HBase at {server} has no table {table}", "Run in the HBase shell: "
        namespace = namespace_of(table)
        if namespace and not (exists := has_namespace(client, namespace)):
            what += f", {'or' if exists is None else 'and'} no namespace {namespace}"
            remedy += f"create_namespace {literal(namespace)}"
            remedy += (" (unless `list_namespace` shows it)" if exists is None else "") + ", then "
        what, remedy = f"{what}.", f"{remedy}{creation(table, wanted)}. Or correct the sink."
        raise UnfitTargetError(what, code="table_missing", remedy=remedy, table=table)
    if missing := [name for name in wanted if name not in found]:
        what = f"table {table} has no column family {', '.join(missing)}. It has: {', '.join(sorted(found))}."
        remedy = f"Run in the HBase shell: {alteration(table, missing)}. Or correct the sink."
        raise UnfitTargetError(what, code="column_missing", remedy=remedy, table=table, families=missing)
    if not client.isTableEnabled(table.encode()):
        what = f"table {table} is disabled."
        remedy = f"Enable it in the HBase shell: enable '{table}'."
        raise UnfitTargetError(what, code="table_unsupported", remedy=remedy, table=table)
    return {name: found[name].timeToLive for name in wanted if found[name].timeToLive not in FOREVER}


def require_ledger(client: TClient, server: str, table: str) -> bool:
    """Return whether the sink's own table is there. UnfitTargetError: it would forget what it holds."""
    if families(client, table) is None:
        return False
    if expiring := require_table(client, server, table, [FAMILY]):
        raise UnfitTargetError(
            f"table {table} of HBase at {server} forgets its cells after {expiring[FAMILY]} s. It holds heads and"
            " markers.",
            code="server_setting_unsafe",
            remedy=f"Run in the HBase shell: alter {literal(table)}, {{NAME => '{FAMILY}', TTL => 'FOREVER'}}.",
            table=table,
            settings={"TTL": expiring[FAMILY]},
        )
    return True


def make_ledger(client: TClient, connection: ConnectionInfo) -> bool:
    """Create the sink's own table where it is missing. Return False if it was there."""
    table = ledger_table(connection)
    if require_ledger(client, address(connection), table):
        return False
    try:
        client.createTable(table.encode(), [_API.ColumnDescriptor(name=FAMILY.encode(), maxVersions=1)])
    except _API.AlreadyExists:  # another process was faster
        pass
    except HBaseError as error:
        if "TableExistsException" not in _text(error.message):
            raise
    return True
