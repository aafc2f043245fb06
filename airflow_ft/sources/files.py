"""Folders of files as a source: new files are read once, in the order in which they were last modified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import bound, check_options, check_text, check_type, is_template
from airflow_ft.protocol.ddl import check_ddl
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sources.exactness import EXACT, refuse_inexact, refuse_misspelt, unsafe
from airflow_ft.sources.names import scheme
from airflow_ft.sources.plain import PlainSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_ft.protocol.connections import ConnectionInfo

_FORMATS = ("json", "csv", "parquet", "text", "orc")
_LEAVE_OUT = ("ignoreMissingFiles", "ignoreCorruptFiles")
_ANY_AGE = "100000000d"
"""Spark silently skips a file that is older than the newest one by more than this, also if that is from the future."""
DECLARED = "airflowftdeclared"
"""Option that is no reader's: the declared columns in lower case, as JSON. Spark chooses the types of others."""
_BOUNDS = {"maxFilesPerTrigger": "max_files_per_trigger", "maxBytesPerTrigger": "max_bytes_per_trigger"}


# `file` and what comes with Hadoop; the others have connectors for Hadoop, as jars.
_SCHEMES = (
    "file",
    "hdfs",
    "webhdfs",
    "swebhdfs",
    "viewfs",
    "s3a",
    "gs",
    "abfs",
    "abfss",
    "wasb",
    "wasbs",
    "oss",
    "cosn",
)
_INSTEAD = {"s3": "s3a", "s3n": "s3a"}


def _check_path(path: str) -> None:
    """ConfigurationError for a path that Spark would take for another one in each place, or cannot read."""
    of = scheme(path)
    if not of and not path.startswith("/"):
        raise _unfit(
            path,
            "a relative path: each process would look for it in another folder.",
            "Give an absolute path, or a URI such as file:///data/orders or hdfs://NAMENODE:PORT/PATH.",
        )
    if of and of not in _SCHEMES:
        instead = f"{_INSTEAD[of]}{path[len(of) :]}" if of in _INSTEAD else ""
        raise _unfit(
            path,
            f"but Hadoop has no file system for {of!r}.",
            f"Write {instead!r}." if instead else f"Give an absolute path, or one of {', '.join(_SCHEMES)}.",
        )
    place = urlsplit(path) if of else None
    if place is not None and of == "file" and place.netloc not in ("", "localhost"):
        raise _unfit(
            path,
            f"a folder of the machine {place.netloc!r}.",
            f"Write 'file:///{path.removeprefix('file://')}', with three slashes.",
        )
    if of and not path.partition(":")[2].startswith("/"):
        raise _unfit(path, "a relative path.", "Write an absolute path, such as file:///data/orders.")


def _unfit(path: str, why: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"path of FileSource is {path!r}, {why}", code="path_invalid", remedy=remedy, argument="path", path=path
    )


@by_name
@dataclass(frozen=True, kw_only=True)
class FileSource(PlainSource):
    """Files of one format in a folder.

    A file must appear in the folder complete (write it elsewhere and rename it), and never change. A file that is
    removed or changed before its checkpoint is published fails the stage, which is retried. A file is remembered
    without limit, unless the option `maxFileAge` is set: Spark ignores older files.

    Args:
        path: the folder; it may have wildcards.
        format: of Spark's reader: "json", "csv", "parquet", "text" or "orc".
        schema: the columns, as a DDL string: "id bigint, at date". Only "text" needs none.
        max_files_per_trigger: bounds a checkpoint. None: no bound. It may be Jinja.
        max_bytes_per_trigger: bounds a checkpoint in its place, by the sizes of its files. Files are read as a whole:
            a larger one is a checkpoint by itself.
        options: for Spark's reader. A record of JSON or CSV that does not hold exactly what the schema declares fails
            the job (docs/sources.md). `{"mode": "PERMISSIVE"}` keeps it as a row of nulls: then name a
            `columnNameOfCorruptRecord`, have that column in the schema, and route those rows in `split`. DROPMALFORMED
            is refused, and so are options that make readers guess (`allowSingleQuotes`, `enforceSchema`) or skip files
            (`ignoreMissingFiles`, `ignoreCorruptFiles`). So is `cleanSource`, because an unpublished checkpoint is
            read again.

    Raises:
        ConfigurationError: for what cannot work.
    """

    kind = "files"

    path: str
    format: str = "json"
    schema: str | None = None
    max_files_per_trigger: int | str | None = None
    max_bytes_per_trigger: int | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of = "FileSource"
        if not is_template(self.path):
            check_type("path", self.path, str, "Give the folder as text: str(path).", of=of)
        check_text("format", self.format, of=of)
        ddl = 'Give the columns as in SQL, such as schema="id bigint, at date".'
        if not is_template(self.schema):
            check_type("schema", self.schema, str, ddl, optional=True, of=of)
            if self.schema:
                check_ddl(self.schema, of)
        for name, what in (("max_files_per_trigger", "files"), ("max_bytes_per_trigger", "bytes")):
            object.__setattr__(self, name, bound(name, getattr(self, name), of, what))
        bounds = (self.max_files_per_trigger, self.max_bytes_per_trigger)
        if None not in bounds and not any(map(is_template, bounds)):
            raise ConfigurationError(
                "FileSource has both max_files_per_trigger and max_bytes_per_trigger, but Spark takes only one.",
                code="arguments_conflict",
                remedy="Remove one of them.",
                arguments=["max_files_per_trigger", "max_bytes_per_trigger"],
            )
        check_options(self.options, of)
        if not self.path:
            raise ConfigurationError(
                "FileSource needs the path of a folder.",
                code="argument_missing",
                remedy='Give path="/data/orders", for example.',
                argument="path",
            )
        if not is_template(self.path):
            _check_path(self.path)
        if not is_template(self.format) and self.format not in _FORMATS:
            raise ConfigurationError(
                f"format of FileSource is {self.format!r}.",
                code="argument_invalid",
                remedy=f"Use one of {', '.join(_FORMATS)}.",
                argument="format",
                value=self.format,
            )
        if not self.schema and self.format != "text":
            raise ConfigurationError(
                "FileSource needs a schema.", code="argument_missing", remedy=ddl, argument="schema"
            )
        refuse_misspelt(self.options)
        options = {name.lower(): value for name, value in self.options.items()}
        if str(options.get("cleansource", "off")).lower() != "off":
            raise unsafe(
                "cleanSource",
                "Spark would remove files before their rows are delivered.",
                "Remove files yourself, when their checkpoint is confirmed and its retention is over.",
            )
        for name in _LEAVE_OUT:
            if str(options.get(name.lower(), "false")).lower() != "false":
                raise unsafe(
                    name,
                    "Spark would skip missing or damaged files and count them as read.",
                    "Remove it. A file that cannot be read then fails the stage, which names the file.",
                )
        if str(options.get("filenameonly", "false")).lower() != "false":
            raise unsafe(
                "fileNameOnly",
                "Spark would read only the first of two files with the same name in different folders.",
                "Remove it. Spark then knows a file by its whole path.",
            )
        if not is_template(self.format) and not is_template(self.schema):
            refuse_inexact(self.format, self.schema or "", options)
        for option, name in _BOUNDS.items():
            if option.lower() in options:
                raise ConfigurationError(
                    f"option {option!r} of FileSource is reserved for airflow-ft.",
                    code="option_reserved",
                    remedy=f"Use the argument {name}.",
                    option=option,
                )

    @property
    def is_recursive(self) -> bool:
        """Return whether Spark also reads folders below the folder, under any name."""
        given = {name.lower(): value for name, value in self.options.items()}
        return str(given.get("recursivefilelookup", "false")).lower() == "true"

    def reader_options(self, *, streaming: bool = True) -> dict[str, str]:
        """All options of Spark's reader."""
        options: dict[str, str] = {}
        if self.format in ("json", "csv"):
            options["mode"] = "FAILFAST"  # else Spark turns a malformed record into nulls
        if streaming:
            options["maxFileAge"] = _ANY_AGE
            for option, name in _BOUNDS.items():
                if (most := getattr(self, name)) is not None:
                    options[option] = str(most)
        given = {name.lower() for name in self.options}
        return {**{name: value for name, value in options.items() if name.lower() not in given}, **self.options}

    def _declared(self) -> str:
        from pyspark.sql import types as T

        fields = cast("T.StructType", T.StructType.fromDDL(self.schema)) if self.schema else T.StructType()
        return json.dumps([name.lower() for name in fields.names])

    def read(
        self,
        spark: SparkSession,
        connection: ConnectionInfo | None = None,
        *,
        streaming: bool = True,
        tags: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """A streaming DataFrame of the folder, or a static one of the files that are there now."""
        reader: Any = spark.readStream if streaming else spark.read
        options = {**self.reader_options(streaming=streaming), **(tags or {}), DECLARED: self._declared()}
        if self.schema and self.format in EXACT:
            from airflow_ft.jobs.exact.files import load

            return load(spark, reader, self.format, self.schema, options, self.path)
        if self.schema:
            reader = reader.schema(self.schema)
        frame: DataFrame = reader.format(self.format).options(**options).load(self.path)
        return _filled(frame, self.schema) if self.schema else frame


def _filled(frame: DataFrame, ddl: str) -> DataFrame:
    """Return the rows, or fail at NULL in a column that is declared NOT NULL, which Spark passes over."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    checked = F.lit(True)
    fields = cast("T.StructType", T.StructType.fromDDL(ddl)).fields
    names = [each.name for each in fields if not each.nullable]
    for name in names:
        what = F.lit(f"[MALFORMED_RECORD_IN_PARSING] {name} is NOT NULL and has no value\nwhile reading file ")
        wrong = F.raise_error(F.concat(what, F.input_file_name(), F.lit(". "))).cast("boolean")
        checked = F.when(F.col(f"`{name}`").isNull(), wrong).otherwise(checked)
    return frame.where(checked) if names else frame
