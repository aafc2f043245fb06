"""Spark's files on a local path, without a process for each file.

Without its native library, which pyspark lacks, Hadoop starts processes: `chmod` for each new file and folder, and
`readlink` eight times for each file that Spark's logs rename. They take most of the time of a small micro-batch
(docs/performance.md). So, in a JVM that runs its tasks itself:

- Hadoop writes no checksum file (`.<name>.crc`) beside each file.
- Spark's logs and state are renamed by Hadoop's `FileSystem`, not by its `FileContext`.

Neither of these two is atomic on a local path: both look whether the name is free, and then call rename(2), which
replaces what is there. Between two writers of one location that would decide nothing. It need not, since a location
has one writer (`airflow_ft.spark.state.locations`). Where a file takes the place of another one (the state of a task
that is tried again), `FileContext` removes the old one first, and `FileSystem` leaves that to rename(2).

This holds only for Hadoop's own LocalFileSystem. With Hive's jars Spark's JVM uses Hive's file system by default. Its
`rename` refuses to replace a file, and Spark's manager then silently keeps the old one: state that does not belong to
the rows (I1). So `spark.hadoop.fs.file.impl` is set (`request.DEFAULT_CONF`). With another file system nothing is
changed, and settings that name both are refused.

A location may have been written with such checksums and be continued without them, or the other way round: Hadoop
compares where it finds one, and removes it when it replaces the file beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.request import HADOOPS_LOCAL
from airflow_ft.spark.state.sealing import Lacking
from airflow_ft.wal.filesystem import filesystem, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_REPLACING = (HADOOPS_LOCAL, "org.apache.hadoop.fs.RawLocalFileSystem")  # their `rename` replaces a file
_PACKAGES = ("org.apache.spark.sql.execution.streaming.checkpointing", "org.apache.spark.sql.execution.streaming")
_CODEC = "spark.sql.streaming.stateStore.compression.codec"
_NAME = "FileSystemBasedCheckpointFileManager"  # in the first package since 4.1, in the other one before


def spare_processes(spark: SparkSession, root: str) -> None:
    """Configure this JVM and session. Call it before a query starts that has its location below `root`.

    Keeps a manager that the user configured. On a cluster nothing is changed, because the file systems of executors
    are unknown.

    Raises:
        ConfigurationError: that manager would keep state that must be replaced.
    """
    jvm: Any = spark._jvm
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    files = jvm.org.apache.hadoop.fs.Path(filesystem(root).hadoop_path(root)).getFileSystem(conf)
    kind, named = str(files.getClass().getName()), str(conf.get(MANAGER) or "")
    if not is_remote(root) and kind not in _REPLACING and named.endswith(f".{_NAME}"):
        raise ConfigurationError(
            f"{MANAGER} is {named}, but the local file system is {kind}, which does not replace files. If Spark retried"
            " a task, it would keep the state of the first try, which does not match the rows.",
            code="spark_setting_unsafe",
            remedy=f"Remove {MANAGER} from spark_conf, or set spark.hadoop.fs.file.impl to {HADOOPS_LOCAL}. Nothing was"
            " computed yet.",
            setting=MANAGER,
            value=named,
            file_system=kind,
        )
    if not spark._jsc.sc().isLocal() or kind != HADOOPS_LOCAL:  # no class that is derived from it
        return
    files.setWriteChecksum(False)  # of the one that Hadoop keeps for the whole JVM
    if not named and (manager := _manager(jvm)):
        spark.conf.set(MANAGER, manager)


def lacking(spark: SparkSession, root: str) -> Lacking:
    """Return what gets no checksum from Hadoop; to be called after `spare_processes`."""
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    files = spark._jvm.org.apache.hadoop.fs.Path(filesystem(root).hadoop_path(root)).getFileSystem(conf)  # type: ignore[union-attr]
    is_spared = spark._jsc.sc().isLocal() and str(files.getClass().getName()) == HADOOPS_LOCAL
    if not is_spared or not str(conf.get(MANAGER) or "").endswith(f".{_NAME}"):
        return Lacking()
    return Lacking(logs=True, state=spark.conf.get(_CODEC, "lz4") == "zstd")


def _manager(jvm: Any) -> str:
    """The class as this Spark names it; "": it has none."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    for package in _PACKAGES:
        try:
            return str(jvm.java.lang.Class.forName(f"{package}.{_NAME}").getName())
        except Py4JJavaError:
            continue
    return ""
