"""Can a source be read, and how long will what was not read yet still be there? Reads only, and consumes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from airflow_ft.core.doctor import Check, Examination
from airflow_ft.core.ports import ConnectionResolver
from airflow_ft.sources import Source
from airflow_ft.sources.custom import CustomSource
from airflow_ft.sources.files import FileSource
from airflow_ft.sources.kafka import KafkaSource
from airflow_ft.sources.socket import SocketSource

_LOOKED_AT = 100_000  # names in a folder
_SHOWN = 3


def examine_source(name: str, source: Source, connections: ConnectionResolver) -> list[Check]:
    """The checks of one source."""
    exam = Examination(f"source {name}")
    if isinstance(source, FileSource):
        _files(exam, source)
    elif isinstance(source, SocketSource):
        exam.ok("server", f"{source.host}:{source.port} was not connected to: who connects may take lines from others")
    elif isinstance(source, CustomSource):
        exam.ok("class", f"{source.data_source} is for the driver to import: it was not looked at")
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
        _names(exam, islice((name for each in found for name in _names_in(each)), _LOOKED_AT))


def _names(exam: Examination, names: Iterable[str]) -> None:
    """What Spark makes of the names of files: some it takes for nobody's business, some it cannot read."""
    ignored, unreadable = [], []
    for name in names:
        if ":" in name:
            unreadable.append(name)
        elif _is_ignored(name):
            ignored.append(name)
    if ignored:
        text = f"Spark leaves out names that begin with '_' or '.', or end with '._COPYING_': {_some(ignored)}"
        exam.warn("names", text, "rename them, if they are to be read; else nothing.")
    if unreadable:
        exam.problem("names", f"Spark cannot read names with ':', and fails: {_some(unreadable)}", "rename them.")


def _names_in(path: Path) -> Iterator[str]:
    if path.is_dir():
        with os.scandir(path) as entries:
            yield from (entry.name for entry in entries)
    else:
        yield path.name


def _is_ignored(name: str) -> bool:
    """As Hadoop and Spark filter a folder; markers and checksums that programs leave are meant to be ignored."""
    if name == "_SUCCESS" or (name[0] == "." and name.endswith(".crc")):
        return False
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _some(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(sorted(names)[:_SHOWN]) + rest


def _topics(exam: Examination, source: KafkaSource, connections: ConnectionResolver) -> None:
    from airflow_ft.kafka.client import KafkaClients, KafkaSettings
    from airflow_ft.kafka.topics import describe

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
