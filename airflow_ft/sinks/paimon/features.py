"""The options of a Paimon table: beside which of them can rows be added as plain files of a snapshot?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.sinks.paimon.buckets import KINDS
from airflow_ft.sinks.paimon.columns import name_of

APPEND = -1
"""The `bucket` of a table whose rows go into any file."""
NEWEST = 3
"""The newest version of schemas and snapshots (Paimon 0.9 to 2.1)."""
_ALLOWED: Mapping[str, tuple[str, ...]] = {
    "type": ("table",),
    "branch": ("main",),
    "file.format": ("parquet",),
    "manifest.format": ("avro",),
    "deletion-vectors.enabled": ("false",),
    "row-tracking.enabled": ("false",),
    "data-evolution.enabled": ("false",),
    "changelog-producer": ("none",),
    "query-auth.enabled": ("false",),
    "chain-table.enabled": ("false",),
    "primary-key.nullable": ("false",),
    "bucket-function.type": ("default",),
}
"""Options that change what a writer has to write, with the values beside which this sink writes."""
_MAY_NOT = (
    "data-file.path-directory", "data-file.external-paths", "blob-field", "video-frame-field", "blob-descriptor-field",
    "blob-view-field", "vector-field", "file.format.per.level", "variant.shreddingSchema",
)  # fmt: skip
"""Options that a table may not have at all."""


def unfit(what: str, **fields: Any) -> UnfitTargetError:
    """Return the error for a table that only other writers can write."""
    remedy = "Deliver into a table without it, and copy the rows from there with Spark or Flink."
    return UnfitTargetError(
        f"{what}, which this sink does not support.", code="table_unsupported", remedy=remedy, **fields
    )


def unsupported(schema: Mapping[str, Any]) -> Iterator[UnfitTargetError]:
    """Yield what keeps rows from being added to a table with this schema, as its file has it."""
    options: Mapping[str, str] = schema.get("options") or {}
    version = int(schema.get("version", 1))
    if version > NEWEST:
        yield unfit(f"the table's schema has version {version}", setting="version", version=version)
    if schema.get("primaryKeys"):
        yield unfit(f"the table has the primary key {', '.join(schema['primaryKeys'])}", setting="primary-key")
    if (bucket := options.get("bucket", str(APPEND))) != str(APPEND):
        if not bucket.isdigit() or int(bucket) == 0:
            yield unfit(f"the table has the option bucket = {bucket}", setting="bucket")
        else:
            yield from _unsupported_key(schema, bucket_key(options))
    for name, value in options.items():
        if value.lower() not in _ALLOWED.get(name, (value.lower(),)) or name in _MAY_NOT:
            yield unfit(f"the table has the option {name} = {value}", setting=name)
        elif name.startswith("fields.") and name.endswith(".default-value"):
            yield unfit(f"the table has the option {name}", setting=name)


def bucket_key(options: Mapping[str, str]) -> list[str]:
    """Return the columns by which a table with these options divides its rows among buckets."""
    return [name.strip() for name in options.get("bucket-key", "").split(",") if name.strip()]


def _unsupported_key(schema: Mapping[str, Any], key: Sequence[str]) -> Iterator[UnfitTargetError]:
    kinds = {field["name"]: name_of(field["type"]) for field in schema["fields"]}
    if not key:
        yield unfit("the table has buckets without the option bucket-key", setting="bucket-key")
    for name in key:
        if kinds.get(name) not in KINDS:
            what = f"the table has the bucket key {name!r}, a column of {kinds.get(name)}"
            yield unfit(what, setting="bucket-key", column=name)
