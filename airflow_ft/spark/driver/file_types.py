"""The types of columns in Parquet and ORC files are compared with those that a source declares, before they are read.

Spark reads a column as the declared type as well as it can: Parquet's 200 as tinyint is -56, ORC's 2.555 as
decimal(12,2) is 2.56, and what does not fit in ORC is null. So a column may have the declared type or a narrower one
that is part of it. A column that a file lacks is null.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.driver.listing import all_relations
from airflow_ft.spark.driver.plan_facts import items, kind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType, StructType

_FORMATS = {"ParquetFileFormat": "Parquet", "OrcFileFormat": "ORC"}
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "string": ("binary",),
    "date": ("timestamp_ntz",),
}
MOST_FILES = 200
"""Files with columns of several types that are looked at one by one; each takes a job of Spark."""
_UTC = ("utc", "z", "gmt", "etc/utc", "+00:00")


def check_file_types(spark: SparkSession, plan: Any, pipeline: str = "") -> None:
    """JobError when files of a plan (of the JVM) have a column that cannot be read exactly as it is declared."""
    from pyspark.sql.types import StructType

    for relation, _ in all_relations(plan):
        name = _FORMATS.get(kind(relation.fileFormat()))
        if name is None or not relation.location().allFiles().size():
            continue
        declared = StructType.fromJson(_json(relation.dataSchema()))
        is_utc = str(spark.conf.get("spark.sql.session.timeZone")).lower() in _UTC
        schemas = map(StructType.fromJson, _schemas(spark, relation, name, pipeline))
        wrong = list(dict.fromkeys(each for schema in schemas for each in _unfit(declared, schema, name, is_utc)))
        if wrong:
            roots = ", ".join(path.toString() for path in items(relation.location().rootPaths().take(3)))
            raise JobError(
                f"{name} files of {roots} have other types than the source declares: {'; '.join(wrong)}. Spark could"
                " change values.",
                code="file_types_unfit",
                pipeline=pipeline,
                remedy="Declare these columns in the source's schema with the types of the files, and cast them in the"
                " job.",
                format=name,
                columns=wrong,
            )


def _schemas(spark: SparkSession, relation: Any, name: str, pipeline: str) -> list[Any]:
    """The schema of all files as JSON; of each file, where Spark cannot merge them (int in one, bigint in another)."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    files = relation.location().allFiles()
    options = relation.options().updated("mergeSchema", "true")

    def inferred(some: Any) -> Any:
        return relation.fileFormat().inferSchema(spark._jsparkSession, options, some)

    try:
        found = [inferred(files)]
    except Py4JJavaError as error:
        if "MERGE_SCHEMA" not in str(error.java_exception):
            raise  # a file that cannot be read: the reader names it in its error
        if files.size() > MOST_FILES:
            message = " ".join(str(error.java_exception.getMessage()).split())
            raise JobError(
                f"{name} files of one checkpoint have different types for the same column, and more than {MOST_FILES}"
                f" files are not compared one by one: {message}",
                code="file_types_unfit",
                pipeline=pipeline,
                remedy=f"Set max_files_per_trigger={MOST_FILES} for the source. Or write all files with one type.",
                format=name,
                files=int(files.size()),
            ) from None
        found = [inferred(files.slice(index, index + 1)) for index in range(files.size())]
    return [_json(each.get()) for each in found if each.isDefined()]


def _unfit(declared: StructType, in_files: StructType, format: str, is_utc: bool) -> Iterator[str]:
    names = [field.name.lower() for field in in_files.fields]
    by_position = bool(names) and all(name.startswith("_col") for name in names)  # Hive wrote ORC so
    for index, field in enumerate(declared.fields):
        place = index if by_position else names.index(field.name.lower()) if field.name.lower() in names else len(names)
        if place < len(names) and not _fits(in_files.fields[place].dataType, field.dataType, format, is_utc):
            kind = in_files.fields[place].dataType.simpleString()
            yield f"{field.name} is {kind} but declared {field.dataType.simpleString()}"


def _fits(found: DataType, declared: DataType, format: str, is_utc: bool) -> bool:
    """Return whether each value of the one type is one of the other, and Spark reads it so."""
    from pyspark.sql import types as T

    if isinstance(found, T.StructType) and isinstance(declared, T.StructType):
        return not list(_unfit(declared, found, format, is_utc))
    if isinstance(found, T.ArrayType) and isinstance(declared, T.ArrayType):
        return _fits(found.elementType, declared.elementType, format, is_utc)
    if isinstance(found, T.MapType) and isinstance(declared, T.MapType):
        pairs = ((found.keyType, declared.keyType), (found.valueType, declared.valueType))
        return all(_fits(one, other, format, is_utc) for one, other in pairs)
    have, want = found.simpleString(), declared.simpleString()
    if isinstance(found, T.StringType) and isinstance(declared, T.StringType):
        return True
    if isinstance(declared, T.DecimalType):
        whole, scale = declared.precision - declared.scale, declared.scale
        if isinstance(found, T.DecimalType):
            return found.precision - found.scale <= whole and found.scale <= scale
        return have in _DIGITS and _DIGITS[have] <= whole
    if {have, want} == {"timestamp", "timestamp_ntz"}:
        return format == "Parquet" and is_utc
    if (have, want) == ("binary", "string"):  # some write texts of Parquet without saying so
        return format == "Parquet"
    return have == want or want in _WIDER.get(have, ())


def _json(schema: Any) -> Any:
    return json.loads(schema.json())
