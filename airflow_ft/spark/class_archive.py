"""An archive of the classes that Spark drivers load: the JVM maps it, instead of loading and verifying them each time.

Half of what a short driver costs is loading classes (docs/performance.md). `make` runs a driver that does what every
stage does, and lets its JVM write down what it has loaded (application class data sharing, JDK 13 and later). Drivers
use the file that fits their Java and their Spark, if it is there (`find`); the JVM itself checks again whether it fits,
and goes on without if not.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import ConfigurationError, StageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
NONE = "none for this Java and this Spark: with one, made by `airflow ft class-archive`, drivers start faster"
_DUMP = "-XX:ArchiveClassesAtExit"
_USE = "-XX:SharedArchiveFile"

log = logging.getLogger(__name__)


def java() -> Path | None:
    """The Java program that spark-submit starts: of $JAVA_HOME, else of the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else shutil.which("java")
    return Path(found) if found else None


def find(folder: str, spark: Path) -> Path | None:
    """The archive for this machine's Java and the Spark in `spark`; None where there is none, or no `folder`."""
    try:
        file = _file(folder, spark) if folder else None
        return file if file is not None and _is_trusted(file) else None
    except (OSError, UnicodeDecodeError):  # there is none, or it is not for this user: drivers do without
        return None


def options(folder: str, spark: Path, conf: Mapping[str, str]) -> str:
    """The options of the driver's JVM that use the archive; "" where there is none, or one is being made."""
    found = find(folder, spark)
    return f"{_USE}={found}" if found and _DUMP not in conf.get(JAVA_OPTIONS, "") else ""


def mention(folder: str, java_options: str) -> None:
    """A JVM starts with these options: tells what an archive would bring, when they name none. No `folder`: nothing."""
    if folder and _USE not in java_options:
        log.info("class archive: %s", NONE)


def make(folder: str, spark: Path, conf: Mapping[str, str], jars: Sequence[str], log: Callable[[str], None]) -> Path:
    """Writes the archive, in about half a minute and 200 MB, and returns where it is. An older one is replaced.

    `conf` and `jars` are those of the pipelines: other class paths are other archives. Raises ConfigurationError
    (no Java, or a folder whose name or rights do not do) and StageError (the driver failed, or wrote none).
    """
    target = _file(folder, spark)
    if target is None:
        raise ConfigurationError("there is no java here.", remedy="install a Java runtime, or set JAVA_HOME.")
    if shlex.quote(str(target)) != str(target) or ":" in str(target):
        raise ConfigurationError(
            f"the JVM takes no such path in its options: {target}.", remedy="set [airflow_ft] class_archives."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".") as private:
            fresh = Path(private) / target.name
            # What cannot be archived (signed jars, generated classes) is not worth a thousand lines of warnings.
            dump = f"{conf.get(JAVA_OPTIONS, '')} {_DUMP}={fresh} -Xlog:disable -Xlog:all=error:stderr".lstrip()
            _run(Path(private), {**conf, JAVA_OPTIONS: dump}, jars, log)
            if not fresh.exists() or not any(_head(fresh)):
                raise StageError(
                    "the driver has ended, and its JVM wrote no archive.",
                    remedy="see its lines above; it takes a HotSpot JVM of version 13 or later, and some 200 MB.",
                )
            fresh.chmod(0o644)
            with fresh.open("rb") as written:
                os.fsync(written.fileno())
            fresh.replace(target)  # whole, or not there: a JVM that maps a part of one would crash
    except OSError as error:
        raise ConfigurationError(
            f"the archive cannot be written to {target.parent}: {error.strerror}.",
            remedy="name a folder in [airflow_ft] class_archives that this user may write to.",
        ) from error
    return target


def _file(folder: str, spark: Path) -> Path | None:
    """Named by what it depends on: the build of Java, and the jars of Spark."""
    program = java()
    if program is None:
        return None
    real = program.resolve()
    release, jars = real.parents[1] / "release", spark / "jars"
    known = [str(real), str(jars)]
    known += [release.read_text()] if release.is_file() else []
    known += [f"{jar.name} {jar.stat().st_size}" for jar in sorted(jars.glob("*.jar"))]
    return Path(folder) / f"spark-{hashlib.sha256(chr(0).join(known).encode()).hexdigest()[:16]}.jsa"


def _is_trusted(file: Path) -> bool:
    """The JVM takes what is in it for verified: nobody else may have written it."""
    found = file.stat()
    return found.st_uid in (0, os.getuid()) and not found.st_mode & 0o022


def _head(file: Path) -> bytes:
    """What the JVM writes last: nothing but zeros while it is at work, or when it was ended."""
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
    from airflow_ft.core.lease import Worker
    from airflow_ft.core.model import ParticipantPlan, Pipeline, RunKey
    from airflow_ft.core.ports import Participant
    from airflow_ft.core.steps import Context
    from airflow_ft.sources import FileSource
    from airflow_ft.spark.request import StageRequest
    from airflow_ft.spark.stage import stage_step
    from airflow_ft.store import open_store

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
