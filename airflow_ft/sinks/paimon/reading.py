"""All rows of one version of a table, also those of other writers and of former schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_ft.protocol.errors import SinkAccessError, WalCorruptError
from airflow_ft.sinks.paimon.binary_row import decoded
from airflow_ft.sinks.paimon.manifests import Record, unreadable
from airflow_ft.sinks.paimon.place import SCHEMAS
from airflow_ft.sinks.paimon.table import Version

_BATCH = 10_000


def batches(version: Version | None, names: Sequence[str], more: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yield the rows with these columns of the newest schema. A column that a file lacks is left out.

    `more` are columns that are in each file and in no schema.
    """
    if version is None or version.schema is None:
        return
    ids = {field["name"]: field["id"] for field in version.schema["fields"]}
    schemas: dict[int, Mapping[int, str]] = {}
    for entry in version.manifests.live(version.manifests.listed(version.snapshot)):
        file = entry["_FILE"]
        number = int(file["_SCHEMA_ID"])
        if number not in schemas:
            schemas[number] = _names_of(version, number)
        there = {schemas[number][ids[name]]: name for name in names if ids[name] in schemas[number]}
        there |= {name: name for name in more}
        yield from _rows(version, path_of(version, entry), int(file["_ROW_COUNT"]), there)


def path_of(version: Version, entry: Record) -> str:
    """Return the URI of an entry's file."""
    file, partitions = entry["_FILE"], version.partitions
    if file.get("_EXTERNAL_PATH"):
        return str(file["_EXTERNAL_PATH"])
    folder = partitions.folder(decoded(entry["_PARTITION"], partitions.kinds))
    return version.place.uri(*f"{folder}bucket-{entry['_BUCKET']}/{file['_FILE_NAME']}".split("/"))


def _names_of(version: Version, number: int) -> Mapping[int, str]:
    """Return the names of a schema's columns by their ids, which renaming keeps."""
    schema = version.place.record(SCHEMAS, number)
    if schema is None:
        raise unreadable(version.place.uri(SCHEMAS, f"{SCHEMAS}-{number}"), FileNotFoundError())
    return {field["id"]: field["name"] for field in schema["fields"]}


def _rows(version: Version, uri: str, rows: int, there: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    if not uri.endswith(".parquet"):
        what = f"{uri} is not a Parquet file, and this sink reads no others."
        remedy = "Compact the table with file.format = parquet, or compare it with Spark."
        raise SinkAccessError(what, code="table_unsupported", remedy=remedy, path=uri)
    try:
        opened = version.place.files.open(uri)
    except WalCorruptError as error:
        raise unreadable(uri, error) from error
    with opened:
        file: Any = pq.ParquetFile(opened)
        found = [name for name in file.schema_arrow.names if name in there]
        if not found:
            yield pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""])
            return
        for batch in file.iter_batches(batch_size=_BATCH, columns=found, use_threads=False):
            yield batch.rename_columns([there[name] for name in batch.schema.names])
