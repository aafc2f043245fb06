"""Helpers for jobs: reading JSON so that no malformed row is lost or turned into nulls without a word.

    def transform(spark, sources):
        return parse_json(sources["orders"], "id bigint, amount decimal(12,2)", on_malformed="keep")

    def split(batch):
        return {"orders": parsed_rows(batch), "dead_letters": malformed_rows(batch)}

Without `on_malformed` the job fails at the first malformed row, and names where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from pyspark.sql import functions as F
from pyspark.sql import types as T

from airflow_ft.jobs.exact import reader
from airflow_ft.jobs.uids import PARSED, tag
from airflow_ft.protocol.ddl import check_ddl
from airflow_ft.protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MALFORMED = "_malformed"
_KAFKA = {"topic": "string", "partition": "int", "offset": "bigint"}
_READ = "airflow_ft_read"


def parse_json(
    frame: DataFrame,
    schema: str | T.StructType,
    column: str = "value",
    *,
    keep: Sequence[str] = (),
    on_malformed: Literal["fail", "keep"] = "fail",
) -> DataFrame:
    """Parse one JSON object per row into columns, after the columns named in `keep`.

    `column` is text or binary (UTF-8); `schema` a DDL string or StructType. Values must be exact. A row is malformed
    if it is null, not UTF-8, or not one JSON object (RFC 8259: no comments, single quotes or NaN), or if text follows
    the object. It is also malformed if a declared field or the key of a map occurs twice, or if a type cannot hold a
    value exactly. A field that is absent is null, and malformed if it is declared NOT NULL. One that is not declared
    is ignored. docs/jobs.md has a table of what each type takes.

    on_malformed: "fail" ends the job with a JobError that names topic, partition and offset. For other sources it names
    the beginning of the text. "keep" adds the column `_malformed`, null for good rows, else a struct of reason, topic,
    partition, offset and raw. See `parsed_rows` and `malformed_rows`.
    """
    if isinstance(schema, str):
        check_ddl(schema, "parse_json")
        schema = cast("T.StructType", T.StructType.fromDDL(schema))
    fields = schema
    if clash := sorted({*keep} & {*fields.names}) or sorted({*keep, *fields.names} & {MALFORMED}):
        raise ConfigurationError(
            f"parse_json would create two columns named {', '.join(clash)}.",
            code="column_repeated",
            remedy=f"Leave {clash[0]} out of keep=, or rename it in the schema.",
            columns=clash,
        )
    raw = F.col(column)
    text = raw.cast("string")
    read = frame.withColumn(_READ, reader(frame.sparkSession, fields, "value")(raw.cast("binary"), F.lit("")))
    parsed = F.col(_READ)
    reason = parsed["reason"]
    row = [parsed["row"].getField(name).alias(name) for name in fields.names]
    kept = [F.col(name) for name in keep]
    if on_malformed == "fail":
        # A filter, since Spark drops an unused column, and the check with it.
        checked = F.when(reason.isNull(), F.lit(True)).otherwise(F.raise_error(_message(frame, reason, text)))
        made = read.where(checked.cast("boolean")).select(*kept, *row)
    else:
        marker = F.struct(
            reason.alias("reason"),
            *(
                (F.col(name) if name in frame.columns else F.lit(None)).cast(kind).alias(name)
                for name, kind in _KAFKA.items()
            ),
            raw.cast("binary").alias("raw"),
        )
        made = read.select(*kept, *row, F.when(reason.isNotNull(), marker).alias(MALFORMED))
    return tag(made, PARSED, column)  # what state means does not depend on how it parses (`plan_meaning`)


def parsed_rows(batch: DataFrame) -> DataFrame:
    """The good rows of a batch that `parse_json(on_malformed="keep")` made, without the marker."""
    return batch.where(F.col(MALFORMED).isNull()).drop(MALFORMED)


def malformed_rows(batch: DataFrame) -> DataFrame:
    """The malformed rows of such a batch: reason, topic, partition, offset, raw (binary, as it was read)."""
    return batch.where(F.col(MALFORMED).isNotNull()).select(f"{MALFORMED}.*")


def _message(frame: DataFrame, reason: Column, text: Column) -> Column:
    if set(_KAFKA) <= set(frame.columns):
        where = F.concat(
            F.lit("topic "),
            F.col("topic"),
            F.lit(", partition "),
            F.col("partition").cast("string"),
            F.lit(", offset "),
            F.col("offset").cast("string"),
        )
    else:
        where = F.concat(F.lit("the row that begins with "), F.substring(F.coalesce(text, F.lit("NULL")), 1, 80))
    return F.concat(
        F.lit("malformed JSON ("),
        reason,
        F.lit(") at "),
        where,
        F.lit('; to keep such rows apart: parse_json(..., on_malformed="keep") and malformed_rows in split'),
    )
