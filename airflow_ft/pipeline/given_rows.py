"""Rows as a program gives them: tables in memory, folders of Parquet, DataFrames of PySpark."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime
from itertools import product
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.buckets import is_bucket
from airflow_ft.protocol.arguments import shown, wrong
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    ExternalRowsError,
    JobError,
    SealError,
    StageError,
)
from airflow_ft.protocol.numbers import count_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_ft.spark.private import KeptFolder
    from airflow_ft.wal.incoming import ParquetRows, Rows
    from airflow_ft.wal.writer import SegmentFolder

_REMEDY = (
    "Give a DataFrame of PySpark, pandas or Polars, a table of PyArrow, the result of DuckDB, or the path of a folder"
    " with Parquet files."
)
_DATETIMES = ("has dates and datetimes", "Make all of them datetimes.", "rows_unreadable")
_CHANGED = (
    ({"nanoseconds"}, "has times with nanoseconds", "Round them to microseconds.", "value_not_exact"),
    (
        {"local", "instant"},
        "has times with and without a time zone",
        "Give all of them one, or none.",
        "rows_unreadable",
    ),
    ({"date", "local"}, *_DATETIMES),
    ({"date", "instant"}, *_DATETIMES),
    ({"date", "datetime64"}, *_DATETIMES),
    ({"text", "bytes"}, "has text and bytes", "Encode the text, or decode the bytes.", "rows_unreadable"),
)
"""By kinds of values in one place: what Arrow changes without an error, and how to correct it."""

_SINGLE = (str, bytes, bytearray, memoryview, date, int, float)


class GivenRows:
    """Rows by sink, read as often as a step is retried. What can be read once is read into memory here.

    Raises:
        ConfigurationError: these are no rows, or those of a sink are missing.
    """

    def __init__(self, rows: object, sinks: Collection[str]) -> None:
        self._given: dict[str, Any] = {}
        self._folder = ""
        if isinstance(rows, str | PathLike):
            self._folder = _location(fspath(rows))
        elif isinstance(rows, Mapping):
            _require_all(rows, sinks)
            self._given = {name: _taken(f"rows[{name!r}]", rows[name]) for name in sinks}
        elif len(sinks) == 1:
            self._given = {name: _taken("rows", rows) for name in sinks}
        else:
            raise _of_which_sink(sinks)
        self._sinks = tuple(sinks)

    def open(self, folder: SegmentFolder) -> Mapping[str, Rows]:
        """Return the rows by sink. Spark computes a DataFrame now, into a folder beside that of the segment.

        Raises:
            ExternalRowsError: rows cannot be read, or a table has values that Arrow has no type for.
        """
        from airflow_ft.wal.incoming import ParquetRows
        from airflow_ft.wal.incoming_files import sink_folders

        if self._folder:
            found = sink_folders(self._folder, self._sinks)
            return {sink: _located(sink, ParquetRows, location) for sink, location in found.items()}
        return {sink: _located(sink, _opened, given, folder, sink) for sink, given in self._given.items()}

    def columns(self) -> Mapping[str, pa.Schema]:
        """Return the columns by sink, without computing rows. Leaves out sinks whose columns cannot be known so."""
        from airflow_ft.wal.incoming_files import sink_folders

        given = self._given
        found: dict[str, pa.Schema] = {}
        with suppress(AirflowFtError):
            given = given or sink_folders(self._folder, self._sinks)
        for sink, rows in given.items():
            with suppress(AirflowFtError):
                if (schema := _schema_of(rows)) is not None:
                    found[sink] = schema
        return found


def _schema_of(given: Any) -> pa.Schema | None:
    from airflow_ft.spark.arrow_types import arrow_schema
    from airflow_ft.wal.incoming import ParquetRows

    if isinstance(given, ExternalRowsError):
        return None
    if isinstance(given, str):
        return ParquetRows(given).schema
    return arrow_schema(given.schema.jsonValue()) if _is_spark(given) else given.schema


def _opened(given: Any, folder: SegmentFolder, sink: str) -> Rows:
    from airflow_ft.wal.incoming import ParquetRows, TableRows

    if isinstance(given, ExternalRowsError):
        raise given
    if isinstance(given, str):
        return ParquetRows(given)
    return _computed(given, folder, sink) if _is_spark(given) else TableRows(given)


def _located(sink: str, make: Any, *arguments: Any) -> Any:
    try:
        return make(*arguments)
    except (ExternalRowsError, JobError, StageError) as error:
        raise error.located(sink=sink) from error.__cause__


def _taken(argument: str, given: object) -> Any:
    """Return it as a location, a table of Arrow or a DataFrame of Spark, whichever it is.

    An ExternalRowsError is returned: it is raised when the decision log knows the position (I10).
    """
    if isinstance(given, str | PathLike):
        return _location(fspath(given))
    try:
        return given if _is_spark(given) else _table(argument, given)
    except ExternalRowsError as error:
        return error


def _location(path: str) -> str:
    """A URI as it is, and a path as an absolute one."""
    return path if "://" in path or path.startswith("file:") else str(Path(path).absolute())


def _is_spark(given: object) -> bool:
    return any(
        kind.__module__.startswith("pyspark.sql") and kind.__name__ == "DataFrame" for kind in type(given).__mro__
    )


def _table(argument: str, given: object) -> pa.Table:
    import pyarrow as pa

    if isinstance(given, pa.Table):
        return given
    libraries = {kind.__module__.partition(".")[0] for kind in type(given).__mro__}
    is_pandas = "pandas" in libraries and hasattr(given, "columns")
    if not is_pandas and not hasattr(given, "__arrow_c_stream__") and not isinstance(given, pa.RecordBatch):
        raise wrong(argument, shown(given), _REMEDY)
    if "polars" in libraries:
        _refuse_objects(argument, given)
    try:
        if is_pandas:
            table = pa.Table.from_pandas(given, preserve_index=_has_index(argument, given))
            _refuse_changed_values(argument, given, table.schema)
            return table
        return pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else pa.table(given)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ExternalRowsError(
            f"{argument} cannot be made a table of Arrow: {str(error).splitlines()[0].rstrip('.')}.",
            code="rows_unreadable",
            remedy="Give each column one type. Cast types that Arrow lacks, such as Int128 of Polars.",
            argument=argument,
        ) from error


def _refuse_objects(argument: str, frame: Any) -> None:
    """Raise ExternalRowsError for objects of Python in Polars, such as UUIDs: it gives Arrow their addresses."""
    for name, kind in zip(getattr(frame, "columns", ()), getattr(frame, "dtypes", ()), strict=True):
        if str(kind) == "Object":
            raise _unfit(argument, name, "has objects of Python, which no sink can store", "Cast it to text.")


def _refuse_changed_values(argument: str, frame: Any, schema: pa.Schema) -> None:
    """Raise ExternalRowsError for values in columns of objects that Arrow changes without an error."""
    columns = [frame.iloc[:, number] for number in range(len(frame.columns))]
    levels = [frame.index.get_level_values(number) for number in range(frame.index.nlevels)]
    for field, values in zip(schema, columns + levels, strict=False):  # those of the index come last, or not at all
        if values.dtype.kind != "O" or not re.search("date32|timestamp|binary", str(field.type)):
            continue
        found: dict[tuple[object, ...], set[str]] = {}
        for place, value in _leaves(values):
            found.setdefault(place, set()).add(_kind(value))
        for kinds, (changed, what, remedy, code) in product(found.values(), _CHANGED):
            if changed <= kinds:
                raise _unfit(argument, field.name, what, remedy, code)


def _leaves(values: Any, place: tuple[object, ...] = ()) -> Iterator[tuple[tuple[object, ...], Any]]:
    """Yield the values in lists and dictionaries, each with the keys of the dictionaries around it."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _leaves(value, (*place, key))
    elif isinstance(values, _SINGLE) or not isinstance(values, Iterable):
        yield place, values
    else:
        for value in values:
            if isinstance(value, _SINGLE):  # most are, and a generator for each takes long
                yield place, value
            else:
                yield from _leaves(value, place)


def _kind(value: Any) -> str:
    if isinstance(value, datetime):
        if value != value:  # NaT
            return ""
        return "nanoseconds" if getattr(value, "nanosecond", 0) else "local" if value.tzinfo is None else "instant"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    return "text" if isinstance(value, str) else "date" if isinstance(value, date) else type(value).__name__


def _unfit(argument: str, column: object, what: str, remedy: str, code: str = "rows_unreadable") -> ExternalRowsError:
    return ExternalRowsError(f"{argument} {what}.", code=code, column=str(column), remedy=remedy, argument=argument)


def _has_index(argument: str, frame: Any) -> bool:
    """Return whether the index of a DataFrame of pandas has values of its own, which become columns."""
    if all(name is not None for name in frame.index.names):
        return True
    if frame.index.nlevels == 1 and frame.index.inferred_type in ("integer", "empty"):
        return False  # positions, as each filter leaves them
    raise ExternalRowsError(
        f"{argument} has an index without a name, so its values belong to no column.",
        code="rows_unreadable",
        remedy="Call reset_index() to make it columns, or reset_index(drop=True).",
        argument=argument,
    )


def _computed(frame: DataFrame, folder: SegmentFolder, sink: str) -> ParquetRows:
    """The rows of a DataFrame, which Spark writes once. SealError when files lack rows.

    Raises:
        JobError: the program must be corrected. StageError: a retry may succeed.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from airflow_ft.spark.driver.failures import as_error
    from airflow_ft.spark.driver.staging import fixed_conf
    from airflow_ft.spark.driver.types import check_types
    from airflow_ft.wal.filesystem import filesystem
    from airflow_ft.wal.incoming import ParquetRows

    private = _private_folder(frame) if is_bucket(folder.root) else None
    location = folder.files.uri(folder.beside, sink) if private is None else f"{private.path.as_uri()}/rows"
    observation = Observation()
    try:
        check_types(frame.schema, sink)  # with Spark Connect, the plan is analysed here
        observed = frame.observe(observation, F.count(F.lit(1)).alias("rows"))
        # Else Spark may cut times and shift old days, or keep rows of two computations after it lost executors.
        with fixed_conf(frame.sparkSession, "spark.sql.parquet.", "spark.sql.shuffle."):
            observed.write.parquet(filesystem(location).hadoop_path(location))
    except (PySparkException, Py4JError) as error:
        raise as_error(error, folder.pipeline, folder.pipeline) from error
    rows, counted = ParquetRows(location), int(observation.get["rows"])
    rows.keeps = private
    if rows.count != counted:
        raise SealError(
            f"Spark counted {count_text(counted, 'row')}, but its files have {rows.count}.",
            sink=sink,
            remedy="Check the disk of wal_root. Nothing was published: the next attempt computes the rows again.",
            counted=counted,
            found=rows.count,
        )
    return rows


def _private_folder(frame: DataFrame) -> KeptFolder:
    """Return a folder of this machine for what the program's own Spark writes, which has no keys of the bucket.

    Raises:
        ConfigurationError: Spark writes on other machines.
    """
    from airflow_ft.spark.private import GIVEN, KeptFolder
    from airflow_ft.spark.request import is_local

    master = frame.sparkSession.conf.get("spark.master", "") or ""
    if ".connect." in type(frame).__module__ or not is_local(master):
        raise ConfigurationError(
            f"wal_root is in a bucket, and the Spark of this program works on other machines ({master or 'Connect'}).",
            code="log_in_bucket",
            remedy="Write the rows into a folder with frame.write.parquet(...), and give that folder:"
            " s3://CONNECTION@BUCKET/FOLDER.",
            value=master,
        )
    return KeptFolder(GIVEN)


def _require_all(rows: Mapping[Any, object], sinks: Collection[str]) -> None:
    missing = [name for name in sinks if name not in rows]
    unknown = [str(name) for name in rows if name not in sinks]
    if missing or unknown:
        raise ConfigurationError(
            f"rows has {', '.join(map(str, rows)) or 'nothing'}, and the sinks are {', '.join(sinks)}.",
            code="rows_missing" if missing else "rows_of_no_sink",
            remedy="Give rows for each sink by its name. A table without rows delivers nothing.",
            missing=missing,
            unknown=unknown,
        )


def _of_which_sink(sinks: Collection[str]) -> ConfigurationError:
    names = ", ".join(f'"{name}": ...' for name in sinks)
    return ConfigurationError(
        "the pipeline has several sinks, but it is not known which rows go where.",
        code="rows_missing",
        remedy=f"Give rows for each sink: {{{names}}}.",
        missing=list(sinks),
        unknown=[],
    )
