"""Before Spark starts: commands for an administrator of topics and access lists, and brokers that cannot be reached."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from airflow_ft.clients.kafka.grants import USER, Grant, create_topic
from airflow_ft.clients.reaching import refusal
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.errors import AirflowFtError, StageError
from airflow_ft.protocol.lookup import did_you_mean
from airflow_ft.sources import Source
from airflow_ft.sources.files import FileSource
from airflow_ft.sources.kafka import KafkaSource
from airflow_ft.sources.names import is_pattern, local, scheme

_PLAIN = re.compile(r"(?:[\w-]|\\[.])*(?![*+?{])")
"""The beginning of a pattern that each name which it matches has."""
_SECONDS = 5.0
"""Seconds that a broker has to accept a connection. Spark reads what it answers."""
_ADDRESS = re.compile(r"\s*(?:\w+://)?\[?([\w.:%-]+?)\]?:(\d+)\s*")


def describe(source: Source, connections: ConnectionResolver) -> Iterator[str]:
    """Commands of Kafka's own tools for one source, to be reviewed and run. Nothing is asked of the brokers."""
    if not isinstance(source, KafkaSource):
        return
    from airflow_ft.clients.kafka.client import KafkaSettings

    settings = KafkaSettings.from_connection(source.connection(connections))
    user = str(settings.common.get("sasl.username") or USER)
    for grant in grants(source):
        yield grant.command(user)


def grants(source: KafkaSource) -> Sequence[Grant]:
    """Return the permissions that reading the source needs, and committing the offsets of its group."""
    read = ("Read", "Describe")
    topics = [Grant("topic", topic, read, "its records") for topic in source.topics]
    if source.pattern is not None:
        prefix = _prefix(source.pattern)
        topics = [Grant("topic", prefix or "*", read, "its records", is_prefix=bool(prefix))]
    group = [Grant("group", source.group_id, read, "its offsets")] if source.group_id else []
    return [*topics, *group]


def missing_topics(sources: Mapping[str, Source], connections: ConnectionResolver) -> Iterator[tuple[str, str, str]]:
    """Yield each topic that is missing or hidden: source, name, and the command that creates it.

    Brokers that cannot be asked are left out.
    """
    from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
    from airflow_ft.clients.kafka.topics import describe as describe_topics

    for name, source in sources.items():
        if not isinstance(source, KafkaSource) or not source.topics:
            continue
        try:
            if any(unreachable({name: source}, connections)):
                continue
            clients = KafkaClients(KafkaSettings.from_connection(source.connection(connections)))
            found = describe_topics(clients, source.topics)
        except AirflowFtError:  # the job reports it
            continue
        yield from ((name, topic, create_topic(topic)) for topic in source.topics if found[topic] is None)


def _prefix(pattern: str) -> str:
    """Return the beginning of all names that a pattern matches; "": it has none."""
    if "|" in pattern:
        return ""
    found = _PLAIN.match(pattern)
    return found[0].replace("\\.", ".") if found else ""


def unreachable(sources: Mapping[str, Source], connections: ConnectionResolver) -> Iterator[StageError]:
    """Yield an error for each list of servers of which none accepts a connection:
    Spark's client would try for a minute.

    An address that is not host and port is not checked. Raises what `KafkaSource.reader_options` does.
    """
    asked: dict[tuple[str, str], list[str]] = {}
    for name, source in sources.items():
        if isinstance(source, KafkaSource):
            servers = source.reader_options(source.connection(connections))["kafka.bootstrap.servers"]
            asked.setdefault((source.conn_id, servers), []).append(name)
    for (conn_id, servers), names in asked.items():
        if refusals := _refusals(servers.split(",")):
            which = f"source{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"
            yield StageError(
                f"no broker of {which} can be reached: {'; '.join(refusals)}.",
                code="server_unreachable",
                participant=conn_id,
                remedy=f"Start the brokers. Or correct the host and port of connection {conn_id!r}, or its"
                " bootstrap.servers.",
                sources=names,
                servers=servers,
            )


def missing_folders(sources: Mapping[str, Source], default: str) -> Iterator[StageError]:
    """Yield an error for each folder of this machine that is missing: a local Spark would find it only after its start.

    `default`: the file system of paths without a scheme, as Hadoop's `fs.defaultFS`. Patterns are not checked.
    """
    for name, source in sources.items():
        if not isinstance(source, FileSource) or is_pattern(source.path):
            continue
        is_here = bool(scheme(source.path)) or default.startswith("file:")
        path = local(source.path if scheme(source.path) else f"file:{source.path}") if is_here else None
        if path is None or os.path.lexists(path):
            continue
        folder = Path(path)
        is_listed = folder.parent.is_dir() and os.access(folder.parent, os.R_OK)
        beside = [str(each) for each in folder.parent.iterdir()] if is_listed else []
        yield StageError(
            f"source {name!r} reads file:{path}, which does not exist.",
            code="folder_missing",
            remedy=f"{did_you_mean(path, beside)}Create the folder or correct the path. If a mount is missing, mount it"
            " again: a retry then reads it. Nothing was computed yet.",
            source=name,
            path=f"file:{path}",
        )


def _refusals(servers: Sequence[str]) -> list[str]:
    """Return why each server cannot be reached. Empty: one can, or may be."""
    refusals = []
    for server in servers:
        address = _ADDRESS.fullmatch(server)
        if address is None:
            return []
        refused = refusal(address[1], int(address[2]), _SECONDS)
        if refused is None:
            return []
        refusals.append(refused)
    return refusals
