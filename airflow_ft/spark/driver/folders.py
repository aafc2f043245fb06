"""Look at the folder of a source before Spark reads it: the place as Hadoop resolves it, and the names of its files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError, JobError, StageError
from airflow_ft.sources.files import FileSource
from airflow_ft.sources.names import (
    GLOB,
    finds,
    is_pattern,
    literal_prefixes,
    local,
    local_folders,
    look,
    scheme,
    some,
)
from airflow_ft.spark.driver.planned import colon_error
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.location_files import PATHS_FILE, keep, note
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_ft.sources import Source
    from airflow_ft.spark.state.locations import SparkLocation

_TABLES = {"_delta_log": "Delta Lake", ".hoodie": "Hudi"}
"""By a folder in its own: formats whose files are not all part of the table."""
_WRITTEN_BY_SPARK = "_spark_metadata"

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
        log.warning("source %s: %s cannot be checked: %s", name, source.path, error.java_exception.getMessage())
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
                f"the path of source {name!r} is ambiguous: {source.path!r} is a pattern, and {prefix!r} also exists"
                " under this name. Spark would read what the pattern matches.",
                code="path_ambiguous",
                remedy=f"Rename {prefix!r} so that no name on the path contains one of {GLOB}. Or write a pattern that"
                " is not also the name of a file or folder.",
                source=name,
                path=source.path,
                existing=prefix,
            )
    if is_pattern(source.path):
        return place
    if not files.exists(declared):
        raise StageError(
            f"source {name!r} reads {place}{_declared(source.path, place)}, which does not exist.",
            code="folder_missing",
            remedy="Create the folder or correct the path. If a mount is missing, mount it again: a retry then reads"
            f" it.{_hint(source.path, place)}",
            source=name,
            path=place,
        )
    if files.getFileStatus(declared).isFile():
        raise ConfigurationError(
            f"the path of source {name!r} is a file: {place}.",
            code="path_invalid",
            remedy=f"Give the folder: {source.path.rstrip('/').rpartition('/')[0]!r}. To read only that file, add"
            f' options={{"pathGlobFilter": "{source.path.rstrip("/").rpartition("/")[2]}"}}.',
            source=name,
            path=place,
        )
    for marker, table in _TABLES.items() if source.format == "parquet" else ():
        if files.exists(java_path(declared, marker)):
            raise ConfigurationError(
                f"source {name!r} reads {place}, which is a table of {table}. Its folder also has files with rows that"
                " were removed, written again or never committed.",
                code="path_invalid",
                remedy="Read the table in the job (`spark.readStream`), or by a CustomSource. Or give another folder.",
                source=name,
                path=place,
            )
    if files.exists(java_path(declared, _WRITTEN_BY_SPARK)):
        text = "source %s: a stream of Spark has written %s, so only files that its %s lists are read"
        log.warning(text, name, place, _WRITTEN_BY_SPARK)
    return place


def refuse_other_folders(location: SparkLocation, sources: Sequence[Source | None]) -> None:
    """Note the paths of file sources, which are in Spark's order, in an attempt's location.

    Raises:
        JobError: a path was changed to one that finds none of the files that its source has read.
    """
    if not any(isinstance(source, FileSource) for source in sources):
        return
    before: dict[str, str] = note(location.uri, PATHS_FILE) or {}
    now: dict[str, str] = {}
    names, offsets = location.sources(), location.offsets(location.batch)
    for index, source in enumerate(sources):
        if not isinstance(source, FileSource):
            continue
        now[names[index]] = source.path
        last = source_log.last_id(offsets[index]) if index < len(offsets) else None
        if last is None or before.get(names[index], source.path) == source.path:
            continue
        read = source_log.all_entries(filesystem(location.uri), location.uri, str(index), last)
        places = [source_log.place(each["path"], encoded=True) for each in read]
        if places and not any(finds(source.path, place) for place in places):
            raise other_folder(source.path, places[-1])
    keep(location.uri, PATHS_FILE, {**before, **now})


def other_folder(path: str, read: str) -> JobError:
    """Return the error for a source that has read files outside of the path that is declared now."""
    return JobError(
        f"a source reads {path}, but it has read {read}, which is not below that folder.",
        code="folder_changed",
        remedy="Declare the former folder again. Or declare the new one under another name in sources={...}: then all"
        " its files are read, and the position in the old one is kept. Or read a folder that contains both.",
        path=path,
        before=read,
    )


def _declared(path: str, place: str) -> str:
    return "" if path.rstrip("/") == place.rstrip("/") else f" (declared as {path})"


def _hint(path: str, place: str) -> str:
    if scheme(path) or scheme(place) == "file":
        return ""
    return (
        f" A path without a scheme is in Hadoop's default file system (fs.defaultFS in HADOOP_CONF_DIR), here"
        f" {scheme(place)}. For a folder of this machine, write file://{path}."
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
    try:
        found = look(local_folders(path), encoding=encoding, recursive=source.is_recursive)
    except OSError as error:  # of a machine where the driver does not see what Spark's workers see
        log.warning("source %s: %s cannot be checked: %s", name, path, error.strerror)
        return
    if found.hidden:
        text = "source %s: Spark never reads names that begin with '_' or '.' or end with '._COPYING_': %s"
        log.warning(text, name, some(found.hidden))
    if found.nested:
        text = "source %s: Spark does not read subfolders (unless they are named name=value): %s"
        log.warning(text, name, some(found.nested))
    if "pathglobfilter" in map(str.lower, source.options):  # which may leave these out
        return
    if found.foreign:
        raise JobError(
            f"source {name!r}: Java decodes file names as {encoding} and would silently skip {some(found.foreign)}.",
            code="file_name_unfit",
            remedy="Rename it in UTF-8."
            if encoding.upper() == "UTF-8"
            else "Run Airflow's workers with the environment variable LC_ALL=C.UTF-8, or rename the file.",
            source=name,
            encoding=encoding,
            paths=sorted(found.foreign),
        )
    if found.colons:
        raise colon_error(found.colons)
