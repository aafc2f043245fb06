"""Can a source be read, and how long will what was not read yet still be there? Reads only, and consumes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_ft.core.doctor import Check, Examination
from airflow_ft.core.ports import ConnectionResolver
from airflow_ft.sources import Source
from airflow_ft.sources.files import FileSource
from airflow_ft.sources.kafka import KafkaSource


def examine_source(name: str, source: Source, connections: ConnectionResolver) -> list[Check]:
    """The checks of one source."""
    exam = Examination(f"source {name}")
    if isinstance(source, FileSource):
        _files(exam, source)
    else:
        exam.attempt("connect", lambda: _topics(exam, source, connections))
    return exam.checks


def _files(exam: Examination, source: FileSource) -> None:
    path = source.path.removeprefix("file://")
    if "://" in path:
        exam.warn("folder", f"{path} is for Spark to reach: it was not looked at", "look at the first run.")
        return
    pattern = Path(path)
    found = list(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))) if pattern.anchor else []
    if not found:
        exam.problem("folder", f"there is nothing at {path}", "make the folder, or mend the path (an absolute one).")
    elif not all(os.access(each, os.R_OK) for each in found):
        exam.problem("folder", f"{path} may not be read", "let the user of the workers read it.")
    else:
        exam.ok("folder", f"{path} is there")


def _topics(exam: Examination, source: KafkaSource, connections: ConnectionResolver) -> None:
    from airflow_ft.sinks.kafka.client import KafkaClients, KafkaSettings
    from airflow_ft.sinks.kafka.topics import describe

    clients = KafkaClients(KafkaSettings.from_connection(connections(source.conn_id)))
    if not source.topics:
        describe(clients, [])
        exam.ok("topics", f"those that match {source.pattern!r}, whichever there will be")
    for topic, found in describe(clients, source.topics).items():
        if found is None:
            exam.problem("topics", f"{topic} does not exist, or may not be seen", "create it, or grant DESCRIBE.")
        elif found.leaderless:
            exam.problem("topics", f"{topic}: {found.leaderless} partitions have no leader", "bring the brokers back.")
        else:
            exam.ok("topics", f"{topic}, {found.partitions} partitions")
