"""Types of Arrow, and those that the log has for them: the ones in which Spark writes Parquet. Sinks know no others.

Each keeps every value, as Spark does when it reads such a file. What has no such type is refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import ExternalRowsError

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_DIGITS = 38


def log_schema(schema: pa.Schema, instants: Collection[str] = (), file: str = "") -> pa.Schema:
    """Return the schema in the log's types, all columns nullable and without metadata.

    `instants`: columns of the Parquet type INT96, in which Spark stores instants. `file`: for messages.

    Raises:
        ExternalRowsError: a column has no type there, or two columns have one name.
    """
    import pyarrow as pa

    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise ExternalRowsError(
            "two columns have this name.",
            code="column_repeated",
            column=twice[0],
            remedy="Give each column its own name.",
            file=file,
        )
    fields = []
    for field in schema:
        if any(path.startswith(f"{field.name}.") for path in instants):
            raise _refused(field.name, field.type, file, "Set spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS")
        kind = pa.timestamp("us", tz="UTC") if field.name in instants else _log_type(field.name, field.type, file)
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _log_type(column: str, kind: pa.DataType, file: str) -> pa.DataType:
    import pyarrow as pa
    import pyarrow.types as t

    exact = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
    if kind in exact:
        return exact[kind]
    if t.is_dictionary(kind):
        return _log_type(column, kind.value_type, file)
    if t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind):
        return pa.string()
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind):
        return pa.binary()
    if t.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if t.is_date(kind):
        return pa.date32()
    if t.is_float16(kind):
        return pa.float32()
    if t.is_boolean(kind) or t.is_signed_integer(kind) or t.is_floating(kind):
        return kind
    if t.is_decimal(kind) and kind.precision <= _MOST_DIGITS and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", _log_type(f"{column}[]", kind.value_type, file)))
    if t.is_map(kind):
        key, item = (_log_type(f"{column}[]", each, file) for each in (kind.key_type, kind.item_type))
        return pa.map_(key, item)
    if t.is_struct(kind) and kind.num_fields == 0:
        raise _refused(column, kind, file, "Parquet has no struct without fields. Leave it out")
    if t.is_struct(kind):
        return pa.struct([pa.field(each.name, _log_type(f"{column}.{each.name}", each.type, file)) for each in kind])
    hint = "Give the column a type: it has nothing but null" if t.is_null(kind) else "Cast it to text or a number"
    raise _refused(column, kind, file, hint)


def with_plain_dictionaries(kind: pa.DataType) -> pa.DataType:
    """Return the type with strings instead of views in its dictionaries: Arrow cannot cast those of Polars."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_dictionary(kind):
        plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
        return pa.dictionary(kind.index_type, plain.get(kind.value_type, kind.value_type), kind.ordered)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(with_plain_dictionaries(kind.value_type))
    if t.is_map(kind):
        return pa.map_(with_plain_dictionaries(kind.key_type), with_plain_dictionaries(kind.item_type))
    if t.is_struct(kind):
        return pa.struct([each.with_type(with_plain_dictionaries(each.type)) for each in kind])
    return kind


def _refused(column: str, kind: pa.DataType, file: str, hint: str) -> ExternalRowsError:
    return ExternalRowsError(
        f"no sink can store a column of type {kind}. The write-ahead log has no such type.",
        code="type_unsupported",
        column=column,
        remedy=f"{hint} in your program.",
        file=file,
        type=str(kind),
    )
