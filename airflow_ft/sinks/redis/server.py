"""A connection to Redis, what its errors mean, and what is required of the server."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from airflow_ft.clients.foreign_connections import invalid, refuse_misspelt, refuse_unread, require_type
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, SinkAccessError, SinkUnavailableError, UnfitTargetError
from airflow_ft.sinks.base.failures import ServerFault, shown, unsafe_settings
from airflow_ft.sinks.redis.scripts import LACKING
from airflow_ft.sinks.redis.spec import OURS, RedisSink

PORT = 6379
_CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
_ASK_MS = 20
_MORE_THAN_THERE_ARE = 2**31 - 1
"""Replicas for WAIT. Fewer could have acknowledged the connection's last write before, and WAIT would ask none."""
_TLS = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
"""Fields of the connection's extra, as Airflow's Redis provider has them."""
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OF_PIPELINE = re.compile(r"Command # \d+ \(.*\) of pipeline caused error: ", re.DOTALL)
"""What the client puts before the server's words: the beginning of a command, which may have values of rows."""
_SPECIAL = re.compile(r"""[\s\0"'*?^\[\]\\]""")
"""Characters that would end or widen a pattern of an ACL. Each is replaced by `?`, which stands for any byte."""
_REMEDIES = {
    "NOREPLICAS": "Start the replicas, or lower min-replicas-to-write.",
    "MISCONF": "Free space on the disk of the server, or correct why it cannot write there.",
    "max number of clients": "Raise maxclients of the server, or close other connections.",
}
"""What a person has to do about errors that a retry meets again, by words of the server."""
_SETTINGS = ("appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy", "maxmemory")
_SAFE = {
    "appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no", "maxmemory-policy": "noeviction",
}  # fmt: skip
_UNKNOWN = "unknown"
_LOST = (
    "Check that the server runs, and that host and port of the connection are right. Set ssl in its extra if the server"
    " speaks TLS, and only then."
)


def address(connection: ConnectionInfo) -> str:
    """Return host, port and number of the database, for errors and lineage."""
    return f"{connection.host or 'localhost'}:{connection.port or PORT}/{database(connection)}"


def database(connection: ConnectionInfo) -> int:
    """Return the number of the database: extra `db`, else the schema, else 0. SinkAccessError: it is no number."""
    given = connection.extra.get("db", connection.schema or 0)
    try:
        return int(given)
    except (TypeError, ValueError):
        what = f"the connection's database is {given!r}, which is not a number."
        remedy = 'Give the number of the database in the extra: {"db": 0}.'
        raise invalid(connection, what, remedy, "db") from None


@contextmanager
def opened(connection: ConnectionInfo, seconds: float = ANSWER_SECONDS, **where: Any) -> Iterator[redis.Redis]:
    """Connect for the block; `seconds` may pass until an answer.

    The client repeats no command. After a lost answer the sink reads the document.

    Raises:
        SinkUnavailableError: the server does not answer, or cannot now.
        SinkAccessError: it refuses this login, or a command of it.
    """
    require_type(connection, "redis")
    refuse_misspelt(connection, ("db", "ssl", *_TLS))
    tls = _tls(connection)
    try:
        with closing(
            redis.Redis(
                host=connection.host or "localhost",
                port=connection.port or PORT,
                db=database(connection),
                username=connection.login or None,
                password=connection.password or None,
                socket_connect_timeout=min(seconds, _CONNECT_SECONDS),
                socket_timeout=seconds,
                retry=Retry(NoBackoff(), 0),
                **tls,
            )
        ) as client:
            yield client
    except AirflowFtError:  # also of the write-ahead log, and then an OSError
        raise
    except (redis.RedisError, OSError, UnicodeError) as error:  # UnicodeError: of the host's name
        raise failure(error, address(connection)).located(**where) from None


def _tls(connection: ConnectionInfo) -> dict[str, Any]:
    """Return the client's arguments for TLS; none without. SinkAccessError: a file of them is missing."""
    refuse_unread(connection, ("ssl", *_TLS))
    if connection.extra.get("ssl") is False:  # the form of Airflow's provider saves it with values for the others
        return {}
    given = {name: value for name in _TLS if (value := connection.extra.get(name)) not in (None, "")}
    missing = [name for name in _FILES if given.get(name) and not Path(str(given[name])).is_file()]
    if missing:
        what = f"the connection's {missing[0]} names {given[missing[0]]}, and there is no such file."
        raise invalid(connection, what, "Name a PEM file that all workers have.", *missing)
    return {"ssl": True, **given} if given or connection.extra.get("ssl") else {}


def failure(error: BaseException, server: str) -> AirflowFtError:
    """Return what is raised for an error of the client, without passwords and values of rows."""
    words = _OF_PIPELINE.sub("", f"{error}").strip().rstrip(".")
    refused = "invalid password" in words.lower() or "NOAUTH" in words or "WRONGPASS" in words
    if isinstance(error, redis.exceptions.AuthenticationError) or refused:
        if words.startswith("HELLO must be called with the client already authenticated"):
            words = "it asks for a password, and the connection has none"
        return ServerFault.LOGIN.error(f"Redis at {server}", words, server=server)
    in_script = any(each in words for each in ("user executing the script", "ACL failure in script"))  # Redis; Valkey
    if isinstance(error, redis.exceptions.NoPermissionError) or in_script:
        return ServerFault.PRIVILEGE.error(f"Redis at {server}", words, server=server)
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command" in words:  # of a script before 7.0
        what = f"Redis at {server} is out of memory: {words}."
        remedy = "Raise maxmemory or delete keys."
        return SinkUnavailableError(what, code="limit_reached", remedy=remedy, server=server)
    if isinstance(error, redis.exceptions.ReadOnlyError):
        return _replica(server)
    if "DB index is out of range" in words:
        return SinkAccessError(
            f"Redis at {server} has no such database: {words}.",
            code="connection_invalid",
            remedy='Give the number of a database in the extra of the connection, such as {"db": 0}.',
            server=server,
            fields=["db"],
        )
    is_lost = isinstance(error, redis.exceptions.ConnectionError | redis.exceptions.TimeoutError | OSError)
    remedy = next((each for what, each in _REMEDIES.items() if what in words), _LOST if is_lost else "")
    fault = ServerFault.SILENT if is_lost else ServerFault.FAILED
    return fault.error(f"Redis at {server}", words, remedy, server=server)


def check_server(client: redis.Redis, server: str, sinks: Collection[RedisSink]) -> dict[str, Any]:
    """Return what the server says of itself, for people.

    Raises:
        UnfitTargetError: it is a cluster; or it may forget what it has acknowledged, and no sink allows that.
        SinkUnavailableError: it is a replica, or too few replicas are connected.
        SinkAccessError: this user may not write the sinks' keys.
    """
    info = {**client.info("server"), **client.info("persistence"), **client.info("replication")}
    if client.info("cluster").get("cluster_enabled"):
        raise UnfitTargetError(
            f"Redis at {server} is a cluster, in which rows and marker lie on different nodes.",
            code="server_unsupported",
            remedy="Name a single primary.",
            server=server,
        )
    if info["role"] != "master":
        raise _replica(server)
    if wanted := wanted_replicas(sinks):
        if len(online := _acknowledged(info)) < wanted:
            raise _replicas_behind(server, wanted, online, "online")
        client.wait(0, 1)  # returns at once, unless this user may not wait
    for beginning in sorted({OURS, *beginnings(sinks)}):
        try:
            client.unlink(f"{beginning}{uuid.uuid4()}")  # changes nothing
        except redis.exceptions.NoPermissionError as error:
            words = f"{error} (keys that begin with {beginning!r})"
            raise ServerFault.PRIVILEGE.error(f"Redis at {server}", words, server=server) from None
    for sink in sinks:
        beginning = sink.parts[0][0]
        if lacking := client.eval(LACKING, 0, f"{beginning}{uuid.uuid4()}", *_commands(sink)):
            names = ", ".join(each.decode() for each in lacking)
            words = f"this user has no permissions to run {names} with keys that begin with {beginning!r}"
            raise ServerFault.PRIVILEGE.error(f"Redis at {server}", words, server=server)
    wrong = {} if info.get("aof_enabled") else {"appendonly": "no"}
    settings = _settings(client)
    if (found := settings.get("appendfsync", _UNKNOWN)) != _SAFE["appendfsync"]:
        wrong["appendfsync"] = found
    if settings.get("no-appendfsync-on-rewrite", "no") != "no":  # it also holds for `always`
        wrong["no-appendfsync-on-rewrite"] = settings["no-appendfsync-on-rewrite"]
    evicted = ("allkeys", "volatile") if any(sink.ttl_seconds for sink in sinks) else ("allkeys",)
    if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy", "").startswith(evicted):
        wrong["maxmemory-policy"] = settings["maxmemory-policy"]
    if wrong and not any(sink.allow_unsafe_durability for sink in sinks):
        remedy = (
            f"Set {shown({name: _SAFE[name] for name in wrong})}, also in redis.conf (CONFIG REWRITE). Or give the sink"
            " allow_unsafe_durability=True."
        )
        if _UNKNOWN in wrong.values():
            remedy = f"Grant +config|get, if the user lacks it. {remedy}"
        raise unsafe_settings(f"Redis at {server}", wrong, remedy, server=server)
    return {"redis": info.get("redis_version", "?"), "unsafe": wrong}


def _commands(sink: RedisSink) -> list[str]:
    """Return the commands that scripts call for rows of a sink."""
    of_value = ["HSET", "HDEL"] if sink.value == "hash" else ["SET"]
    lasting = ["EXPIRE"] if sink.ttl_seconds else ["PERSIST"] if sink.value == "hash" else []
    return ["TYPE", "UNLINK", *of_value, *lasting]


def beginnings(sinks: Iterable[RedisSink]) -> set[str]:
    """Return with what the keys of these sinks begin."""
    return {sink.parts[0][0] for sink in sinks}


def wanted_replicas(sinks: Iterable[RedisSink]) -> int:
    """Return how many replicas must acknowledge what these sinks write."""
    return max((sink.wait_replicas for sink in sinks), default=0)


@contextmanager
def replicated(client: redis.Redis, wanted: int, server: str) -> Iterator[None]:
    """Wait after the block until this many replicas have all that the server had then.

    Raises:
        SinkUnavailableError: it takes too long, or another server has become the primary since the block began.
    """
    if not wanted:
        yield
        return
    history = client.info("replication").get("master_replid")
    yield
    deadline = time.monotonic() + ANSWER_SECONDS
    written: int | None = None
    while True:
        info = client.info("replication")
        if info["role"] != "master":
            raise _replica(server)
        if info.get("master_replid") != history:
            what = (
                f"Redis at {server} began a new history of replication during the step: it was started again, failed"
                " over, or got its first replica."
            )
            remedy = "Do nothing: the retry looks at what it has."
            raise SinkUnavailableError(what, code="sink_unavailable", remedy=remedy, server=server)
        written = info["master_repl_offset"] if written is None else written
        if len(found := _acknowledged(info, written)) >= wanted:
            return
        if time.monotonic() > deadline:
            raise _replicas_behind(server, wanted, found, f"up to date after {ANSWER_SECONDS:g} s")
        client.wait(_MORE_THAN_THERE_ARE, _ASK_MS)  # asks all replicas; else they report once a second


def _acknowledged(info: Mapping[str, Any], written: int = 0) -> list[Mapping[str, Any]]:
    """Return the connected replicas that have at least this much of the replication stream."""
    replicas = [info[f"slave{i}"] for i in range(info["connected_slaves"]) if f"slave{i}" in info]
    return [each for each in replicas if each["state"] == "online" and each["offset"] >= written]


def _replicas_behind(server: str, wanted: int, found: Collection[Any], what: str) -> SinkUnavailableError:
    return SinkUnavailableError(
        f"Redis at {server} has {len(found)} of {wanted} wanted replicas {what} (wait_replicas={wanted}).",
        code="replicas_behind",
        remedy="Start or attach replicas, and look at their logs. The retry waits for them again. Lowering"
        " wait_replicas affects only later checkpoints.",
        server=server,
        wanted=wanted,
        found=len(found),
    )


def _settings(client: redis.Redis) -> dict[str, str]:
    """Return the settings that matter; none if this user may not read them."""
    found: dict[Any, Any] = {}
    try:
        for name in _SETTINGS:  # before 7.0 Redis takes one name
            found |= client.config_get(name)
    except redis.ResponseError:  # a managed server
        return {}
    return {str(name): str(value) for name, value in found.items()}


def _replica(server: str) -> SinkUnavailableError:
    what = f"Redis at {server} is a replica."
    remedy = "Name the primary in the connection. After a failover Airflow's retry finds the new one."
    return SinkUnavailableError(what, code="server_read_only", remedy=remedy, server=server)


def _any_bytes(found: re.Match[str]) -> str:
    return "?" * len(found[0].encode())


def rules(keys: Sequence[str]) -> str:
    """Return the rules of an ACL for a delivery into keys with these beginnings."""
    patterns = " ".join(f"~{_SPECIAL.sub(_any_bytes, beginning)}*" for beginning in (OURS, *keys))
    connecting = "+ping +select +info +config|get +wait"
    scripts = "+eval +evalsha +script|load"
    keys_and_values = "+get +set +hget +hmget +hset +hdel +expire +persist +unlink +type"
    return f"{patterns} {connecting} {scripts} {keys_and_values}"
