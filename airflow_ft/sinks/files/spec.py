"""`FilesSink`, with which a DAG author delivers files into a folder. Imports nothing heavy: DAG files import it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from airflow_ft.protocol.argument_names import by_name
from airflow_ft.protocol.arguments import check_text, check_type, is_template
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.protocol.secrets import safe_uri
from airflow_ft.sinks.base.places import (
    check_bucket,
    check_sink,
    is_late,
    is_object_store,
    name_of,
    settings_of,
)
from airflow_ft.sinks.base.settings import refuse_unknown
from airflow_ft.sinks.registry import Strategy

FORMATS: Mapping[str, Sequence[str]] = {
    "parquet": ("lz4", "none", "snappy", "zstd", "gzip"),
    "csv": ("none", "gzip"),
    "json": ("none", "gzip"),
}
"""The formats, and how each can be compressed; what comes first is the default."""
STRATEGIES: Mapping[str, Strategy] = {
    "rename": Strategy(
        Promise.TWO_PHASE, "a hidden folder, written before the decision, then renamed", "all at once, as one folder"
    ),
    "copy": Strategy(
        Promise.TWO_PHASE,
        "in S3: hidden objects, written before the decision, then copied by the store",
        "file by file, each as a whole; the checkpoint's marker comes when all are there",
    ),
}
LARGEST = 5 << 30
"""Bytes of a file that S3 copies in one request."""
_LARGEST_IN_S3 = 4 << 30
_SCHEMES = ("/", "file:///", "hdfs://", "s3://")


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSink:
    """Rows of a pipeline as files in a folder, which belongs to this pipeline alone. No Airflow connection is needed.

    The rows of a checkpoint become visible as one folder, `checkpoint=0000000042`, in one step; in S3 file by file.

    Args:
        folder: an absolute path, a `file:///` URI, or `hdfs://NAMENODE:PORT/PATH`, which all tasks reach under that
            name. Or `s3://BUCKET/FOLDER`, also `s3://CONNECTION@BUCKET/FOLDER` with an Airflow connection of type
            `aws`.
        format: "parquet", "csv" (with a header), or "json" (lines, each an object).
        partition_by: columns whose values name folders inside that of a checkpoint, `country=DE`, as Hive has it.
        compression: "none", "gzip"; of Parquet also "lz4", "snappy", "zstd". "": that of the log's files (lz4), which
            then become the sink's without a copy; CSV and JSON are not compressed.
        file_bytes: size in bytes at which a file ends. Files of the log under an eighth of it are merged.
        success_file: an empty file `_SUCCESS` lies in the folder of each checkpoint.
        name: of the participant and its tasks. "": derived from the folder. Required where the folder contains Jinja.

    Raises:
        ConfigurationError: at construction, for what cannot work.
    """

    folder: str
    format: str = "parquet"
    partition_by: Sequence[str] = ()
    compression: str = ""
    file_bytes: int = 128 << 20
    success_file: bool = False
    name: str = ""

    meant: ClassVar[Mapping[str, str]] = {
        "conn_id": 'Remove conn_id. Only a folder in S3 has a connection: folder="s3://CONNECTION@BUCKET/FOLDER".'
    }
    kind: ClassVar[str] = "files"
    conn_id: ClassVar[str] = ""
    promise: ClassVar[Promise] = STRATEGIES["rename"].promise

    def __post_init__(self) -> None:
        for name in ("folder", "format", "compression", "name"):
            check_text(name, getattr(self, name), of="FilesSink")
        check_type("success_file", self.success_file, bool, "Give True or False.", of="FilesSink")
        check_sink(self, "folder", "files")
        if hidden := [column for column in self.partition_by if column[0] in "._"]:
            what = f"names {hidden[0]!r}, but readers skip folders that begin with '.' or '_'"
            raise _invalid("partition_by", hidden[0], what, "Rename the column in the job.")
        self._check_folder()
        self._check_format()

    def _check_folder(self) -> None:
        if self.is_late:
            return
        if not self.folder.startswith(_SCHEMES):
            remedy = "Give an absolute path, a file:/// URI, hdfs://NAMENODE:PORT/PATH, or s3://BUCKET/FOLDER."
            raise self._path_invalid("is not a folder that this sink supports", remedy)
        if not re.sub(r"^(file|hdfs|s3)://[^/]*", "", self.folder).strip("/"):
            raise self._path_invalid("is the root of a file system", "Name a folder in it.")
        if is_object_store(self.folder):
            check_bucket(self.folder)
            if self.file_bytes > _LARGEST_IN_S3:  # a file ends only after it has become that large
                what = (
                    f"is {self.file_bytes}, but must be at most {_LARGEST_IN_S3} in S3: files grow a little beyond it,"
                    f" and S3 copies at most {LARGEST} bytes"
                )
                raise _invalid("file_bytes", self.file_bytes, what, "Give 128 << 20, for example: 128 MB.")

    def _path_invalid(self, what: str, remedy: str) -> ConfigurationError:
        folder = safe_uri(self.folder)
        return ConfigurationError(
            f"{folder!r} {what}.", code="path_invalid", remedy=remedy, argument="folder", path=folder
        )

    def _check_format(self) -> None:
        if is_template(self.format) or is_template(self.compression):
            return
        if self.format not in FORMATS:
            raise _invalid("format", self.format, f"is {self.format!r}", f"Use one of {', '.join(FORMATS)}.")
        if self.compression and self.compression not in FORMATS[self.format]:
            raise ConfigurationError(
                f"FilesSink cannot compress {self.format} by {self.compression!r}.",
                code="argument_invalid",
                remedy=f"Use one of {', '.join(FORMATS[self.format])}.",
                argument="compression",
                value=self.compression,
            )

    @property
    def strategy(self) -> str:
        """Return how rows become visible: "rename", in an object store "copy"."""
        return "copy" if is_object_store(self.folder) else "rename"

    @property
    def is_late(self) -> bool:
        """Return whether the folder is known only in a run."""
        return is_late(self.folder)

    @property
    def participant(self) -> str:
        """The name, or one made from the folder. It is the same in all runs."""
        return self.name or name_of("files", self.folder)

    def at_least_once(self) -> Promise:
        """REDO: it is prepared and published in one go, and still arrives once."""
        return Promise.REDO

    def settings(self) -> Mapping[str, Any]:
        """Plain JSON for the plan. ConfigurationError while Jinja is left in one of them."""
        return settings_of(self, self.folder, self.format, self.compression)

    @classmethod
    def from_settings(cls, name: str, settings: Mapping[str, Any]) -> FilesSink:
        """The sink that a plan holds. ConfigurationError when the plan knows settings that this release does not."""
        refuse_unknown(settings, {field.name for field in fields(cls)} - {"name"})
        found = dict(settings)
        if is_object_store(str(found.get("folder", ""))) and found.get("file_bytes", 0) > _LARGEST_IN_S3:
            found["file_bytes"] = _LARGEST_IN_S3  # older releases accepted more
        return cls(name=name, **found)


def _invalid(argument: str, value: object, what: str, remedy: str) -> ConfigurationError:
    what = f"{argument} of FilesSink {what}."
    return ConfigurationError(what, code="argument_invalid", remedy=remedy, argument=argument, value=value)
