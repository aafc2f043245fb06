"""What must hold before Spark is started, or a sink is asked for anything: the log's folder, the sources, the sinks."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_ft.pipeline import settings
from airflow_ft.protocol.errors import ConfigurationError, SinkUnavailableError, StageError, together
from airflow_ft.sources import KafkaSource
from airflow_ft.sources.kafka import GROUP_OFFSETS

if TYPE_CHECKING:
    from airflow_ft.pipeline.resolved import SparkSettings
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.model import Former, ParticipantPlan
    from airflow_ft.protocol.participant import ParticipantFactory
    from airflow_ft.sources import Source
    from airflow_ft.store.decision_log import DecisionLog

log = logging.getLogger(__name__)


def require_beginnings(pipeline: str, sources: Mapping[str, Source]) -> None:
    """Raise ConfigurationError if a source would not be read again, but from its current end or a group's offsets."""
    for name, source in sources.items():
        if isinstance(source, KafkaSource) and (start := source.starting_offsets) in ("latest", GROUP_OFFSETS):
            what = f"source {name!r} starts at {start!r}, so a full refresh would read nothing again and may skip rows."
            remedy = f'Give starting_offsets="earliest", a time or offsets for source {name!r}.'
            raise ConfigurationError(
                what,
                code="full_refresh_impossible",
                remedy=remedy,
                pipeline=pipeline,
                source=name,
                value=start,
            )


def require_log(pipeline: str, root: str, store: DecisionLog | None = None) -> None:
    """Prove that the folder of the write-ahead log is the known one, and can be written, before Spark is started.

    `root` is that folder; without a `store` no new root is marked. StorageUnavailableError when its disk is away
    (`airflow_ft.wal.roots`); StageError where a local folder cannot be made or written.
    """
    from airflow_ft.wal import roots
    from airflow_ft.wal.filesystem import is_remote
    from airflow_ft.wal.local import local_path

    if store is None:
        roots.require(root)
    elif is_remote(root) or roots.is_remembered(store, root):  # then no folder is made here
        roots.claim(store, root)
    if is_remote(root):
        return
    folder = local_path(root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = error.strerror or type(error).__name__
    else:
        why = "" if os.access(folder, os.W_OK | os.X_OK) else os.strerror(errno.EACCES)
    if why:
        what = f"cannot write the write-ahead log to {folder}: {why}."
        remedy = (
            f"Make {folder} writable for the user who runs tasks. Or give another folder as wal_root or in"
            f" [{settings.SECTION}] wal_root. Nothing was computed yet."
        )
        raise StageError(what, code="folder_not_writable", pipeline=pipeline, remedy=remedy, path=str(folder))
    if store is not None:
        roots.claim(store, root)


def require_sources(
    pipeline: str, sources: Mapping[str, Source], connections: ConnectionResolver, spark: SparkSettings
) -> None:
    """StageError before Spark is started: no broker of a source accepts a connection, or a local folder is missing."""
    from airflow_ft.clients.hadoop import default_file_system
    from airflow_ft.sources.setup import missing_folders, unreachable
    from airflow_ft.spark.session.home import spark_defaults

    problems = list(unreachable(sources, connections))
    set_elsewhere = any(name in spark_defaults() for name in ("spark.master", "fs.defaultFS"))
    if (spark.master or spark.conf.get("spark.master", "local")).startswith("local") and not set_elsewhere:
        default = spark.conf.get("spark.hadoop.fs.defaultFS") or default_file_system()
        problems += missing_folders(sources, default)
    if problems:
        error = together(problems, "sources cannot be read")
        raise error.located(pipeline=pipeline)


def require_ready(
    pipeline: str,
    plans: Sequence[ParticipantPlan],
    connections: ConnectionResolver,
    former: Former | None,
    opener: ParticipantFactory,
    installation: str,
) -> None:
    """Raise all problems that keep the sinks from taking rows, as one error, before Spark is started.

    `former`: the pipeline that this one replaces in them. `opener` opens their participants, which must belong
    to this `installation`. An unavailable server is only logged, unless there are other problems: rows are
    staged meanwhile, and delivered later.
    """
    from airflow_ft.sinks.ready import lacking

    participants = [replace(each, former=former) for each in plans]
    problems = lacking(pipeline, participants, connections, opener, installation)
    if not problems:
        return
    error = together(problems, "things keep the sinks from taking rows")
    if all(isinstance(problem, SinkUnavailableError) for problem in problems):
        log.warning("%s Rows are staged meanwhile, and delivered when the sink answers again.", error)
        return
    error.remedy += " Nothing was computed yet."
    raise error.located(pipeline=pipeline)


def require_root(root: str) -> None:
    """StorageUnavailableError when the disk of the write-ahead log is away: no sink is asked for anything then."""
    from airflow_ft.wal import roots

    roots.require(root)
