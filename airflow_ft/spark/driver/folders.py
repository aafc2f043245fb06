"""Look at the folder of a source before Spark reads it: the place as Hadoop resolves it, and the names of its files."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import ConfigurationError, JobError, StageError
from airflow_ft.sources.names import (
    GLOB,
    is_pattern,
    literal_prefixes,
    local,
    local_folders,
    look,
    scheme,
)
from airflow_ft.spark.driver.listing import some
from airflow_ft.spark.driver.planned import colon_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_ft.sources.files import FileSource

log = logging.getLogger("airflow_ft.spark")


def check_folder(spark: SparkSession, name: str, source: FileSource) -> None:
    """Refuse what Spark would silently read differently than its author wrote; log what it leaves out.

    Raises:
        ConfigurationError: the path is a pattern, and also the name of a folder; or it is a file.
        StageError: the folder is not there.
        JobError: a file has a name that Spark cannot read.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    try:
        place = _look(spark, name, source)
    except Py4JJavaError as error:  # Spark says it in its own words, if it is still so
        log.warning("source %s: %s could not be looked at: %s", name, source.path, error.java_exception.getMessage())
        return
    path = local(place)
    if path is not None:
        _look_at_names(spark, name, source, path)


def _look(spark: SparkSession, name: str, source: FileSource) -> str:
    """The path as Hadoop resolves it."""
    jvm: Any = spark._jvm
    java_path = getattr(jvm, "org.apache.hadoop.fs.Path")
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    declared = java_path(source.path)
    files = declared.getFileSystem(conf)
    place = str(files.makeQualified(declared).toString())
    for prefix in literal_prefixes(source.path):
        if files.exists(java_path(prefix)):
            raise ConfigurationError(
                f"the path of source {name!r} is ambiguous: {source.path!r} is a pattern, and {prefix!r} is also the"
                " name of something that is there. Spark would read what the pattern finds.",
                remedy=f"rename {prefix!r} so that no name on the path holds one of {GLOB}; or write a pattern that is"
                " nothing's name.",
            )
    if is_pattern(source.path):
        return place
    if not files.exists(declared):
        raise StageError(
            f"source {name!r} reads {place}{_declared(source.path, place)}, which is not there.",
            remedy="make the folder, or mend the path, if it is not just a mount that is away for a moment."
            f"{_hint(source.path, place)}",
        )
    if files.getFileStatus(declared).isFile():
        raise ConfigurationError(
            f"the path of source {name!r} is a file: {place}.",
            remedy=f"name the folder: {source.path.rstrip('/').rpartition('/')[0]!r}; with"
            f' options={{"pathGlobFilter": "{source.path.rstrip("/").rpartition("/")[2]}"}} only that file is read.',
        )
    return place


def _declared(path: str, place: str) -> str:
    return "" if path.rstrip("/") == place.rstrip("/") else f" (declared as {path})"


def _hint(path: str, place: str) -> str:
    if scheme(path) or scheme(place) == "file":
        return ""
    return (
        f" A path without a scheme belongs to Hadoop's default file system (fs.defaultFS in HADOOP_CONF_DIR), here"
        f" {scheme(place)}: write file://{path} for a folder of this machine."
    )


def unreadable_names(spark: SparkSession, source: FileSource) -> list[str]:
    """Local files of a source that Java leaves out in silence; they may have come while a stream runs."""
    jvm: Any = spark._jvm
    java_path = getattr(jvm, "org.apache.hadoop.fs.Path")(source.path)
    files = java_path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    path = local(str(files.makeQualified(java_path).toString()))
    if path is None or "pathglobfilter" in {option.lower() for option in source.options}:
        return []
    return look(local_folders(path), encoding=_encoding(spark)).foreign


def _encoding(spark: SparkSession) -> str:
    """By which Java decodes the names of local files."""
    jvm: Any = spark._jvm
    return str(getattr(jvm, "java.lang.System").getProperty("sun.jnu.encoding"))


def _look_at_names(spark: SparkSession, name: str, source: FileSource, path: str) -> None:
    encoding = _encoding(spark)
    options = {option.lower(): value for option, value in source.options.items()}
    try:
        found = look(
            local_folders(path),
            encoding=encoding,
            recursive=str(options.get("recursivefilelookup", "false")).lower() == "true",
        )
    except OSError as error:  # of a machine where the driver does not see what Spark's workers see
        log.warning("source %s: %s could not be looked at: %s", name, path, error.strerror)
        return
    if found.hidden:
        text = "source %s: names that begin with '_' or '.', or end with '._COPYING_', are never read: %s"
        log.warning(text, name, some(found.hidden))
    if found.nested:
        text = "source %s: folders in its folder are not read (unless they are named name=value): %s"
        log.warning(text, name, some(found.nested))
    if "pathglobfilter" in options:  # which may leave these out
        return
    if found.foreign:
        raise JobError(
            f"source {name!r}: Java decodes names as {encoding} here, and would leave out {some(found.foreign)}"
            " in silence.",
            remedy="rename it, in UTF-8."
            if encoding.upper() == "UTF-8"
            else "run Airflow's workers with the environment variable LC_ALL=C.UTF-8; or rename the file.",
        )
    if found.colons:
        raise colon_error(found.colons)
