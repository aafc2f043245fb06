"""Can a source be read, and how long will what was not read yet still be there? Reads only, and consumes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_ft.clients.hadoop import LOCAL, default_file_system
from airflow_ft.protocol.connections import ConnectionResolver
from airflow_ft.protocol.doctor import Check, Examination
from airflow_ft.protocol.numbers import count_text
from airflow_ft.sources import Source
from airflow_ft.sources.custom import CustomSource
from airflow_ft.sources.files import FileSource
from airflow_ft.sources.kafka import KafkaSource
from airflow_ft.sources.names import (
    GLOB,
    Names,
    is_pattern,
    literal_prefixes,
    local,
    local_folders,
    look,
    scheme,
    some,
)
from airflow_ft.sources.socket import SocketSource


def examine_source(name: str, source: Source, connections: ConnectionResolver) -> list[Check]:
    """The checks of one source."""
    exam = Examination(f"source {name}")
    if isinstance(source, FileSource):
        _files(exam, source)
    elif isinstance(source, SocketSource):
        exam.ok(
            "server", f"{source.host}:{source.port} was not contacted, because a connection may take lines from others"
        )
    elif isinstance(source, CustomSource):
        exam.ok("class", f"{source.data_source} was not checked: only the driver imports it")
    else:
        exam.attempt("connect", lambda: _topics(exam, name, source, connections))
    return exam.checks


def _files(exam: Examination, source: FileSource) -> None:
    path = local(source.path) if scheme(source.path) == "file" else source.path
    root = LOCAL if scheme(source.path) else default_file_system()
    if not root.startswith("file:") and path and local_folders(path):
        text = f"Spark looks for {path} on {root}, though this machine has such a folder"
        exam.warn("folder", text, f"For the folder of this machine, write file://{path}. Otherwise do nothing.")
        return
    if path is None or scheme(path) or not root.startswith("file:"):
        exam.warn("folder", f"{source.path} was not checked: only Spark can reach it", "Check the first run.")
        return
    if both := [prefix for prefix in literal_prefixes(path) if os.path.lexists(prefix)]:
        text = f"{path} is a pattern, and {both[0]} is also the name of an existing file or folder"
        exam.problem("folder", text, f"Rename it, so that no name on the path contains one of {GLOB}.")
        return
    found = local_folders(path)
    if not found:
        exam.problem("folder", f"{path} does not exist", "Create the folder, or correct the (absolute) path.")
    elif not all(os.access(each, os.R_OK) for each in found):
        exam.problem("folder", f"{path} cannot be read", "Let the user of the workers read it.")
    elif not is_pattern(path) and not Path(path).is_dir():
        exam.problem("folder", f"{path} is a file", "Name the folder that contains it.")
    else:
        try:
            names = look(found, recursive=source.is_recursive)
        except OSError as error:  # a folder of another user, a link to itself, or one that was removed meanwhile
            text = f"{error.filename} cannot be read: {error.strerror}"
            exam.problem("folder", text, "Let the user of the workers read it. Remove a link that leads to itself.")
        else:
            exam.ok("folder", f"{path} exists")
            _names(exam, names)


def _names(exam: Examination, found: Names) -> None:
    """Check the names of files: Spark leaves some out in silence, and cannot read others."""
    if found.hidden:
        text = f"Spark skips names that begin with '_' or '.', or end with '._COPYING_': {some(found.hidden)}"
        exam.warn("names", text, "Rename them if Spark is to read them. Otherwise do nothing.")
    if found.nested:
        text = f"Spark reads no subfolder, unless it is named name=value: {some(found.nested)}"
        exam.warn("folders", text, 'Use a pattern, such as path="/data/orders/*". Do nothing if Spark is to skip them.')
    if found.colons:
        exam.problem("names", f"Spark fails on names with ':': {some(found.colons)}", "Rename them.")
    if found.foreign:
        text = f"Spark silently skips names that are not UTF-8: {some(found.foreign)}"
        exam.problem("encoding", text, "Rename them in UTF-8.")
    if found.patterns:
        text = f"Spark may take these names for patterns, and then the run fails: {some(found.patterns)}"
        exam.warn("patterns", text, f"Rename them, so that they contain none of {GLOB}.")


def _topics(exam: Examination, name: str, source: KafkaSource, connections: ConnectionResolver) -> None:
    from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
    from airflow_ft.clients.kafka.topics import cluster_id, describe
    from airflow_ft.sources.setup import unreachable

    for error in unreachable({name: source}, connections):  # the client would ask for a minute
        raise error
    clients = KafkaClients(KafkaSettings.from_connection(source.connection(connections)))
    if not source.topics:
        cluster_id(clients)  # logs in
        exam.ok("topics", f"all that match {source.pattern!r}, present and future")
    for topic, found in describe(clients, source.topics).items():
        if found is None:
            exam.problem(
                "topics", f"{topic} does not exist, or this user may not see it", "Create it, or grant DESCRIBE."
            )
        elif found.leaderless:
            exam.problem(
                "topics",
                f"{topic}: {count_text(found.leaderless, 'partition has', 'partitions have')} no leader",
                "Start the missing brokers.",
            )
        elif not found.readable:
            exam.problem("topics", f"this user may not read {topic}", "Grant READ on the topic.")
        else:
            exam.ok("topics", f"{topic}, {count_text(found.partitions, 'partition')}")
