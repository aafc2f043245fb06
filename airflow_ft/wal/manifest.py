"""The manifest of a segment: a record of what was published, whose digest covers every byte.

It is written once, as canonical JSON. The digest is the SHA-256 of that text, which lists every Parquet file with its
own SHA-256. With the digest (from the store, the plan, or a sink's marker) a process can prove that rows are these
rows (I1).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.protocol.formats import refuse_newer
from airflow_ft.protocol.model import canonical_json
from airflow_ft.protocol.write_ahead_log import ColumnStatistics, WalFile

if TYPE_CHECKING:
    import pyarrow as pa

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class SinkContent:
    """The rows of one sink in a segment. `schema` is an Arrow schema as IPC bytes in base64.

    A sink for which the job returned nothing at all (an optional one) has no columns, no files and no rows.
    """

    schema: str
    files: tuple[WalFile, ...]
    statistics: Mapping[str, ColumnStatistics]

    @property
    def rows(self) -> int:
        """Rows over all files."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a sealed segment.

    `positions` are the source positions by source name, `{"start": ..., "end": ...}` in the source's own terms (Kafka:
    `{topic: {partition: offset}}`); start is None for the first batch. `lineage`, by sink, where known: the origin of
    its columns (`airflow_ft.protocol.column_lineage`, plain data).
    """

    pipeline: str
    number: int
    epoch: int
    attempt: int
    batch: int
    sinks: Mapping[str, SinkContent]
    positions: Mapping[str, Any]
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """Canonical JSON: equal manifests have equal text."""
        return canonical_json(
            {
                "format": FORMAT,
                "pipeline": self.pipeline,
                "number": self.number,
                "epoch": self.epoch,
                "attempt": self.attempt,
                "batch": self.batch,
                "positions": self.positions,
                "sinks": {
                    name: {
                        "schema": content.schema,
                        "columns": _columns_for_people(content.schema),
                        "files": [asdict(file) for file in content.files],
                        "statistics": {column: asdict(value) for column, value in content.statistics.items()},
                    }
                    for name, content in self.sinks.items()
                },
                **({"lineage": self.lineage} if self.lineage else {}),
            }
        )

    @classmethod
    def parse(cls, data: bytes, where: str) -> Manifest:
        """The inverse of `text`; WalCorruptError (naming `where`) when it is no manifest.

        ConfigurationError when a later release has written it.
        """
        try:
            value = json.loads(data)
            refuse_newer(where, value["format"], FORMAT)
            return cls(
                pipeline=value["pipeline"],
                number=value["number"],
                epoch=value["epoch"],
                attempt=value["attempt"],
                batch=value["batch"],
                positions=value["positions"],
                lineage=value.get("lineage", {}),
                sinks={
                    name: SinkContent(
                        schema=content["schema"],
                        files=tuple(WalFile(**file) for file in content["files"]),
                        statistics={c: ColumnStatistics(**s) for c, s in content["statistics"].items()},
                    )
                    for name, content in value["sinks"].items()
                },
            )
        except ConfigurationError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise WalCorruptError(
                f"{where} is not a manifest: {error}.",
                code="file_damaged",
                remedy=f"Restore {where} from a backup, or run `airflow ft rewind`.",
                path=where,
            ) from error


def digest(text: str | bytes) -> str:
    """SHA-256 (hex) of a manifest's text."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def encode_schema(schema: pa.Schema) -> str:
    """An Arrow schema as text, without the metadata of the file that it came from."""
    return base64.b64encode(schema.remove_metadata().serialize().to_pybytes()).decode()


@lru_cache(64)  # the segments of a plan have few
def decode_schema(text: str) -> pa.Schema:
    """The inverse of `encode_schema`."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _columns_for_people(schema: str) -> list[list[str]]:
    return [[field.name, str(field.type)] for field in decode_schema(schema)]
