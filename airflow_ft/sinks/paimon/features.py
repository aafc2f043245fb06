"""The options of a Paimon table: beside which of them can rows be added as plain files of a snapshot?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.errors import UnfitTargetError
from airflow_ft.sinks.base import table_columns
from airflow_ft.sinks.paimon.buckets import KINDS, Buckets, Layout
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
    "merge-engine": ("deduplicate",),
    **dict.fromkeys(("ignore-delete", "deduplicate.ignore-delete", "pk-clustering-override"), ("false",)),
    "data-file.thin-mode": ("false",),
    "query-auth.enabled": ("false",),
    "chain-table.enabled": ("false",),
    "primary-key.nullable": ("false",),
    "bucket-function.type": ("default",),
    "metadata.iceberg.storage": ("disabled",),
}
"""Options that change what a writer has to write, with the values beside which this sink writes."""
_MAY_NOT = (
    "data-file.path-directory", "data-file.external-paths", "blob-field", "video-frame-field", "blob-descriptor-field",
    "blob-view-field", "vector-field", "file.format.per.level", "variant.shreddingSchema",
    "sequence.field", "rowkind.field", "record-level.expire-time",
)  # fmt: skip
"""Options that a table may not have at all."""


def unfit(what: str, **fields: Any) -> UnfitTargetError:
    """Return the error for a table that only other writers can write."""
    remedy = "Deliver into a table without it, and copy the rows from there with Spark or Flink."
    return table_columns.unsupported(what, remedy, **fields)


def unsupported(schema: Mapping[str, Any]) -> Iterator[UnfitTargetError]:
    """Yield what keeps rows from being added to a table with this schema, as its file has it."""
    options: Mapping[str, str] = schema.get("options") or {}
    version = int(schema.get("version", 1))
    if version > NEWEST:
        yield unfit(f"the table's schema has version {version}", setting="version", version=version)
    bucket, layout = options.get("bucket", str(APPEND)), layout_of(schema)
    key = layout.primary_key
    if key and not set(layout.partition_by) <= set(key):
        yield unfit(f"the primary key {', '.join(key)} lacks a partition column", setting="primary-key")
    if key or bucket != str(APPEND):
        if not layout.buckets.count:
            yield unfit(f"the table has the option bucket = {bucket}", setting="bucket")
        else:
            yield from _unsupported_key(schema, [*layout.buckets.key, *key])
    for name, value in options.items():
        if value.lower() not in _ALLOWED.get(name, (value.lower(),)) or name in _MAY_NOT:
            yield unfit(f"the table has the option {name} = {value}", setting=name)
        elif name.startswith("fields.") and name.endswith(".default-value"):
            yield unfit(f"the table has the option {name}", setting=name)


def layout_of(schema: Mapping[str, Any]) -> Layout:
    """Return the layout of a table with this schema. It has no buckets if their number is none that is supported."""
    options: Mapping[str, str] = schema.get("options") or {}
    layout = Layout(schema.get("partitionKeys") or (), schema.get("primaryKeys") or ())
    bucket = options.get("bucket", "")
    if not bucket.isdigit() or int(bucket) == 0:
        return layout
    named = [name.strip() for name in options.get("bucket-key", "").split(",") if name.strip()]
    return replace(layout, buckets=Buckets(int(bucket), named or layout.trimmed_key))


def _unsupported_key(schema: Mapping[str, Any], key: Sequence[str]) -> Iterator[UnfitTargetError]:
    kinds = {field["name"]: name_of(field["type"]) for field in schema["fields"]}
    if not key:
        yield unfit("the table has buckets without the option bucket-key", setting="bucket-key")
    for name in dict.fromkeys(key):
        if kinds.get(name) not in KINDS:
            what = f"the table has the bucket key {name!r}, a column of {kinds.get(name)}"
            yield unfit(what, setting="bucket-key", column=name)
