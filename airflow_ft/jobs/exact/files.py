"""Files of JSON and CSV, read exactly: what `FileSource` returns for them.

Spark lists and decompresses the files and finds their lines; `Exact.java` makes values of them. Of CSV with `multiLine`
Spark finds the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_ft.jobs.exact import reader
from airflow_ft.jobs.uids import READ, tag
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_READ, _RECORD = "airflow_ft_read", "airflow_ft_record"
_LINE = "airflow_ft_line"  # no name that a folder of a partition has
_EMPTY = "\ufffdempty"  # no text has this character, which replaces invalid bytes; also in Exact.java
_OF_READERS = frozenset(("mode", "columnnameofcorruptrecord", "multiline", "encoding", "charset", "wholetext"))
"""Options of Spark's JSON and CSV readers that mean something else, or nothing, to its text reader."""


def load(spark: SparkSession, builder: Any, format: str, ddl: str, options: Mapping[str, str], path: str) -> DataFrame:
    """Return the rows of files in `path`. `builder`: of `spark.read` or `spark.readStream`.

    A record that does not match the schema exactly ends the query with an error that names the file. With the mode
    PERMISSIVE it becomes a row of nulls with the record in the column `columnNameOfCorruptRecord`.
    """
    from pyspark.sql import types as T

    given = {name.lower(): str(value) for name, value in options.items()}
    fields = cast("T.StructType", T.StructType.fromDDL(ddl))
    corrupt = given.get("columnnameofcorruptrecord") or spark.conf.get("spark.sql.columnNameOfCorruptRecord")
    kept = given["mode"].upper() == "PERMISSIVE"
    if kept and corrupt not in fields.names:
        raise ConfigurationError(
            f"the schema of a FileSource with mode PERMISSIVE has no column {corrupt} for malformed records.",
            code="source_schema_invalid",
            remedy=f"Add `{corrupt} string` to the schema. Or remove the mode: then a malformed record fails the run.",
            missing=corrupt,
        )
    read: Callable[..., DataFrame] = _texts
    if format == "csv":
        _refuse_nested(fields)
        is_sparks = _is_true(given, "multiline") or "unescapedquotehandling" in given
        read = _fields if is_sparks else partial(_texts, csv=True)
    frame = read(spark, builder, fields, corrupt if corrupt in fields.names else "", dict(options), given, path)
    return tag(frame, READ, "columns of the source")


def _is_true(given: Mapping[str, str], name: str) -> bool:
    return given.get(name, "false").lower() == "true"


def _refuse_nested(fields: StructType) -> None:
    from pyspark.sql import types as T

    nested = (T.ArrayType, T.MapType, T.StructType)
    if wrong := [field.name for field in fields.fields if isinstance(field.dataType, nested)]:
        raise ConfigurationError(
            f"a CSV file cannot hold arrays, maps or structs: {', '.join(wrong)}.",
            code="source_schema_invalid",
            remedy=f"Declare {', '.join(wrong)} as string, and convert in the job.",
            columns=wrong,
        )


def _texts(
    spark: SparkSession,
    builder: Any,
    fields: StructType,
    corrupt: str,
    options: dict[str, str],
    given: Mapping[str, str],
    path: str,
    *,
    csv: bool = False,
) -> DataFrame:
    """Return the rows of lines, or of whole files (JSON with `multiLine`)."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    encoding = given.get("encoding") or given.get("charset") or ""
    own = {name: value for name, value in options.items() if name.lower() not in _OF_READERS}
    if encoding and "linesep" in given:
        own["encoding"] = encoding  # in which the separator is written
    if _is_true(given, "multiline"):
        own["wholetext"] = "true"
    builder = builder.format("text").options(**own)
    text = T.StructType([T.StructField(_LINE, T.StringType())])
    lines = builder.schema(text).load(path)
    folders = [name for name in lines.columns if name != _LINE]
    named = set(map(_folding(spark), folders))
    declared = [field for field in fields.fields if _folding(spark)(field.name) in named]
    if declared:  # columns that the folders' names hold, such as day=2024-05-01
        lines = builder.schema(T.StructType([*text.fields, *declared])).load(path)
    typed = T.StructType([field for field in fields.fields if field not in declared and field.name != corrupt])
    settings = _settings(given, encoding)
    if csv:
        settings["options"] |= _dialect(spark, given)
    read = reader(spark, typed, "lines" if csv else "records", **settings)
    line = F.col(_LINE)
    kept = [F.col(f"`{name}`") for name in folders]
    made = lines.select(
        *kept,
        *([F.make_valid_utf8(line).alias(_RECORD)] if corrupt else []),
        read(line.cast("binary"), F.input_file_name()).alias(_READ),
    )
    rows = made.select(*kept, *([F.col(_RECORD)] if corrupt else []), F.explode(_READ).alias(_READ))
    return _columns(rows, fields, typed, corrupt, folders, F.col(_RECORD))


def _folding(spark: SparkSession) -> Callable[[str], str]:
    """Return what Spark does to names before it compares them."""
    return str if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower


def _dialect(spark: SparkSession, given: Mapping[str, str]) -> dict[str, str]:
    from pyspark.errors import PySparkException

    jvm: Any = spark._jvm
    separator = given.get("sep", given.get("delimiter", ","))
    of_csv = getattr(jvm, "org.apache.spark.sql.catalyst.csv.CSVExprUtils")
    try:
        separator = str(of_csv.toDelimiterStr(separator))  # which may be written as backslash and t
    except PySparkException as error:
        raise ConfigurationError(
            f"FileSource has the option sep={separator!r}, which Spark refuses: {error}",
            code="argument_invalid",
            remedy='Give a character or text, such as ";".',
            argument="sep",
            value=separator,
        ) from None
    return {"separator": separator, "casesensitive": str(spark.conf.get("spark.sql.caseSensitive"))}


def _fields(
    spark: SparkSession,
    builder: Any,
    fields: StructType,
    corrupt: str,
    options: dict[str, str],
    given: Mapping[str, str],
    path: str,
) -> DataFrame:
    """Return the rows of CSV fields, as Spark finds them."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    typed = T.StructType([field for field in fields.fields if field.name != corrupt])
    # The names of a header are compared with the schema, and a record with too many fields or too few is found.
    own = {**options, "enforceSchema": "false", "columnPruning": "false"}
    if "unescapedquotehandling" not in given:
        own["unescapedQuoteHandling"] = "RAISE_ERROR"
    if "escape" not in given:
        own["escape"] = given.get("quote", '"')  # as RFC 4180 has it
    if not given.keys() & {"emptyvalue", "nullvalue"}:
        own["emptyValue"] = _EMPTY  # else Spark takes "" for a null, as it does nothing between two commas
    texts = T.StructType([T.StructField(name, T.StringType()) for name in fields.names])
    found = builder.schema(texts).format("csv").options(**own).load(path)
    folders = [name for name in found.columns if name not in fields.names]
    read = reader(spark, typed, "fields", **_settings(given, ""))
    record = F.struct(*(F.col(f"`{name}`") for name in typed.names))
    others = [F.col(f"`{name}`") for name in (*folders, *([corrupt] if corrupt else []))]
    made = found.select(*others, record.alias(_RECORD), read(record, F.input_file_name()).alias(_READ))
    text = F.replace(F.to_csv(_RECORD), F.lit(_EMPTY), F.lit('""'))
    if corrupt:
        text = F.coalesce(F.col(f"`{corrupt}`"), text)
    return _columns(made, fields, typed, corrupt, folders, text, broken=corrupt)


def _settings(given: Mapping[str, str], encoding: str) -> dict[str, Any]:
    options = dict(given)
    options.pop("encoding", None)
    options.pop("fail", None)
    if encoding:
        options["encoding"] = encoding
    if given["mode"].upper() != "PERMISSIVE":
        options["fail"] = "true"
    return {"options": options, "zone": given.get("timezone", "")}


def _columns(
    rows: DataFrame,
    fields: StructType,
    typed: StructType,
    corrupt: str,
    folders: list[str],
    record: Any,
    broken: str = "",
) -> DataFrame:
    """The declared columns, and those of folders behind them.

    `record`: what the column `corrupt` gets of a malformed record. `broken`: a column that is
    not null for records that Spark itself could not divide into fields.
    """
    from pyspark.sql import functions as F

    reason = F.col(_READ).getField("reason")
    bad = reason.isNotNull() | F.col(f"`{broken}`").isNotNull() if broken else reason.isNotNull()
    made = []
    for field in fields.fields:
        if field.name == corrupt:
            column = F.when(bad, record)
        elif field.name in typed.names:
            column = F.col(_READ).getField("row").getField(field.name)
            column = F.when(~bad, column) if broken else column
        else:
            column = F.col(f"`{field.name}`")
        made.append(column.alias(field.name))
    fold = _folding(rows.sparkSession)
    known = set(map(fold, fields.names))
    rest = [F.col(f"`{name}`") for name in folders if fold(name) not in known]
    return rows.select(*made, *rest)
