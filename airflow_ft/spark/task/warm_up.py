"""Makes the archive of `airflow_ft.spark.session.class_archive`: runs a driver that does what every stage does.

Its JVM writes down what it has loaded (application class data sharing, JDK 13 and later).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import ParticipantPlan, Pipeline, RunKey
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.steps import Context
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.class_archive import DUMP, JAVA_OPTIONS, path_of
from airflow_ft.spark.task.stage import stage_step
from airflow_ft.store import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def make(folder: str, spark: Path, conf: Mapping[str, str], jars: Sequence[str], log: Callable[[str], None]) -> Path:
    """Writes the archive, in about half a minute and 200 MB, and returns where it is. An older one is replaced.

    `conf` and `jars` are those of the pipelines: other class paths are other archives. Raises ConfigurationError
    (no Java, or a folder whose name or rights do not do) and StageError (the driver failed, or wrote none).
    """
    target = path_of(folder, spark)
    if target is None:
        raise ConfigurationError(
            "this machine has no Java.", code="java_unfit", remedy="Install a JDK 17, or set JAVA_HOME."
        )
    if shlex.quote(str(target)) != str(target) or ":" in str(target):
        raise ConfigurationError(
            f"the JVM does not accept the path {target} in its options.",
            code="path_invalid",
            remedy="Set [airflow_ft] class_archives to a folder whose path has no spaces, colons or quotes.",
            path=str(target),
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".") as private:
            fresh = Path(private) / target.name
            # What cannot be archived (signed jars, generated classes) is not worth a thousand lines of warnings.
            dump = f"{conf.get(JAVA_OPTIONS, '')} {DUMP}={fresh} -Xlog:disable -Xlog:all=error:stderr".lstrip()
            _run(Path(private), {**conf, JAVA_OPTIONS: dump}, jars, log)
            if not fresh.exists() or not any(_head(fresh)):
                raise StageError(
                    "the driver ended, but its JVM wrote no class archive.",
                    code="class_archive_failed",
                    remedy="Look for the cause in the lines above. An archive needs a HotSpot JVM of version 13 or"
                    " later and about 200 MB of disk.",
                    path=str(target),
                )
            fresh.chmod(0o644)
            with fresh.open("rb") as written:
                os.fsync(written.fileno())
            fresh.replace(target)  # whole, or not there: a JVM that maps a part of one would crash
    except OSError as error:
        raise ConfigurationError(
            f"the class archive cannot be written to {target.parent}: {error.strerror}.",
            code="folder_not_writable",
            remedy="Set [airflow_ft] class_archives to a folder that this user may write to.",
            path=str(target.parent),
        ) from error
    return target


def _head(file: Path) -> bytes:
    """Return what the JVM writes last: only zeros while it runs, or if it was killed."""
    with file.open("rb") as opened:
        return opened.read(4)


class WarmUp:
    """A small job that makes Spark load what most jobs need: a stateful stream, from files into files."""

    def transform(self, spark: SparkSession, sources: Any) -> DataFrame:
        """Each item once."""
        from pyspark.sql import functions as F

        frame: DataFrame = sources["items"]
        text = F.upper(F.col("item"))
        return frame.dropDuplicates(["item"]).select(
            "number", text.alias("item"), F.col("number").cast("decimal(12,2)").alias("price"), F.current_timestamp()
        )


def _run(folder: Path, conf: Mapping[str, str], jars: Sequence[str], log: Callable[[str], None]) -> None:
    """A run of a pipeline of its own, in this folder; nothing is delivered."""
    source = FileSource(path=str(folder / "items"), schema="item string, number bigint", max_files_per_trigger=1)
    (folder / "items").mkdir()
    for name in ("a", "b"):
        (folder / "items" / f"{name}.json").write_text(f'{{"item": "{name}", "number": 1}}\n')
    store_url = f"sqlite:///{folder / 'ft.db'}"

    def no_sink(plan: ParticipantPlan) -> Participant:
        raise AssertionError(plan)

    def request(pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
        return StageRequest(
            pipeline=pipeline.name,
            run=context.run,
            epoch=epoch,
            attempt=attempt,
            store_url=store_url,
            wal_root=str(folder / "wal"),
            job=f"{__name__}:WarmUp",
            sources={"items": source.to_json()},
            sinks=("table",),
            master="local[2]",
            conf=conf,
            jars=tuple(jars),
        )

    with closing(open_store(store_url)) as store:
        context = Context(store, "class-archive", RunKey("class-archive", "run"), no_sink, Worker("class-archive", 1))
        stage_step(context, request, on_line=log)
