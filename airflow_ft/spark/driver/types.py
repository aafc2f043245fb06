"""Types of Spark that no sink can take, found in a schema before anything is computed or written.

The log is Parquet, which has none of them. It would hold VARIANT's two binary parts, an interval as a bare number, and
the inside of a user-defined type. Every sink would deliver that as the value. Each is refused with the cast that keeps
the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import JobError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

# By `DataType.typeName()`; {} is the column.
_CASTS = {
    "variant": "to_json({}) as text, or variant_get({}, '$.name', 'bigint') for a part of it",
    "daytimeinterval": "cast({} as string), or a number: extract(day from {}), extract(hour from {}) ...",
    "yearmonthinterval": "cast({} as string), or a number: extract(year from {}), extract(month from {})",
    "interval": "cast({} as string)",
    "void": "cast({} as string), or the type that it is to have: a column of nothing but null has none",
    "udt": "columns of its own for what it holds (an ML vector: vector_to_array({}))",
    "geometry": "st_asbinary({})",
    "geography": "st_asbinary({})",
}


def refused(schema: StructType) -> Iterator[tuple[str, str, str]]:
    """Column, type as Spark writes it, and the cast that helps, of each column that no sink can take, however deep."""
    for item in schema.fields:
        for path, kind in _leaves(item.name, item.dataType):
            if cast := _CASTS.get(name_of(kind)):
                yield path, kind.simpleString(), cast.replace("{}", path)


def check_types(schema: StructType, sink: str = "") -> None:
    """JobError, naming all such columns at once."""
    found = list(refused(schema))
    if not found:
        return
    what = "; ".join(f"column {path} is of type {kind}" for path, kind, _ in found)
    raise JobError(
        f"no sink can store what the job returns: {what}. The write-ahead log has no such type.",
        code="type_unsupported",
        sink=sink,
        column=found[0][0] if len(found) == 1 else "",
        remedy=f"Cast in the job: {'; '.join(cast for _, _, cast in found)}.",
        types={path: kind for path, kind, _ in found},
    )


def name_of(kind: DataType) -> str:
    """A type's name without its parameters."""
    from pyspark.sql.types import UserDefinedType

    if isinstance(kind, UserDefinedType):
        return "udt"
    return kind.typeName()


def _leaves(path: str, kind: DataType) -> Iterator[tuple[str, DataType]]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        for item in kind.fields:
            yield from _leaves(f"{path}.{item.name}", item.dataType)
    elif isinstance(kind, ArrayType):
        yield from _leaves(f"{path}[]", kind.elementType)
    elif isinstance(kind, MapType):
        yield from _leaves(f"{path}[key]", kind.keyType)
        yield from _leaves(f"{path}[]", kind.valueType)
    else:
        yield path, kind
