"""Text, bytes and nested values into their columns: whole, and in characters that the column has. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from airflow_ft.sinks.arrow import scalar
from airflow_ft.sinks.base import json_columns
from airflow_ft.sinks.mysql.catalog import Column
from airflow_ft.sinks.mysql.charsets import Repertoire
from airflow_ft.sinks.mysql.checks import Check, Rows

BLOBS = {"tinyblob", "blob", "mediumblob", "longblob"}
TEXTS = {"tinytext", "text", "mediumtext", "longtext"}
_WHOLE_MEMORY = 1 << 30  # bytes: no value is as large, so that nothing needs to be measured
_WIDER = {"utf16": 2, "utf16le": 2, "ucs2": 2, "utf32": 4, "gb18030": 2, "ujis": 2, "eucjpms": 2}
"""How many bytes one byte of UTF-8 can become at most; in all others it is one."""


def into_text(column: Column, repertoire: Repertoire | None) -> Sequence[Check]:
    """CHAR, VARCHAR and the TEXTs; `repertoire` when the column's character set does not hold every character."""
    checks: list[Check] = []
    if column.type in ("char", "varchar") and column.characters is not None:
        checks.append(_characters(column.characters, column))
    elif column.type in TEXTS and column.octets is not None:
        checks.append(_text_octets(column.octets, column))
    if repertoire is not None:
        checks.append(_repertoire(repertoire, column))
    if column.type == "char":
        checks.append(
            Check(
                "a text that ends in blanks, which CHAR drops", "no blanks at the end",
                "Use VARCHAR for the column, or trim in the job.",
                lambda a: pc.ends_with(a, " "), None, problem="blanks",
            )
        )  # fmt: skip
    return checks


def into_labels(column: Column) -> Sequence[Check]:
    """ENUM and SET: never the number of a label."""
    labels = column.labels
    assert labels is not None
    what = "a text with a part that is none of the labels" if labels.several else "a text that is none of the labels"
    return (
        Check(
            what, f"{labels} (letter by letter, whatever the collation)",
            "Correct the values in the job, or add the label to the column.", labels.unknown, None, named=True,
            problem="label",
        ),
    )  # fmt: skip


def into_json(kind: pa.DataType, column: Column, repertoire: Repertoire | None) -> Sequence[Check]:
    """Nested values, which become JSON text."""
    checks: list[Check] = []
    if json_columns.has_floats(kind):
        checks.append(
            Check(
                "a nested value with NaN or infinity, which JSON cannot hold", "finite numbers",
                "Make such values null in the job.", json_columns.not_finite, None, by_table=False,
                problem="nan",
            )
        )  # fmt: skip
    if json_columns.has_times(kind):
        checks.append(
            Check(
                "a nested date or time outside of the years 1 to 9999, whose text no other program reads",
                "years of four digits", "Make such values null in the job.", json_columns.beyond_years, None,
                by_table=False, problem="year",
            )
        )  # fmt: skip
    if column.type in TEXTS and column.octets is not None and column.octets < _WHOLE_MEMORY:
        checks.append(_of_json(_text_octets(column.octets, column)))
    if repertoire is not None:
        checks.append(_of_json(_repertoire(repertoire, column)))
    return checks


def into_bytes(column: Column) -> Sequence[Check]:
    """BINARY, VARBINARY and the BLOBs; text goes there as UTF-8."""
    limit = column.octets or 0
    checks = [_octets(limit, column)]
    if column.type == "binary":
        checks.append(
            Check(
                f"a value shorter than {limit} bytes, which BINARY pads", column.full_type,
                "Use VARBINARY for the column.",
                lambda a: pc.less(pc.binary_length(a), scalar(limit, pa.int64())), None, problem="padding",
            )
        )  # fmt: skip
    return checks


def _characters(limit: int, column: Column) -> Check:
    return Check(
        f"a text longer than {limit} characters", column.full_type, "Cut it in the job, or widen the column.",
        lambda a: pc.greater(pc.utf8_length(a), limit), lambda s: (s.max_characters or 0) > limit,
        problem="length",
    )  # fmt: skip


def _text_octets(limit: int, column: Column) -> Check:
    """The column counts the bytes of its own character set."""
    charset = column.charset or ""
    if column.character_bytes == 1:
        return _characters(limit, column)
    return _octets(limit // _WIDER.get(charset, 1), column, f" in {charset}" if charset in _WIDER else "")


def _octets(limit: int, column: Column, where: str = "") -> Check:
    return Check(
        f"a value longer than {limit} bytes{where and ' of UTF-8'}", f"{column.full_type}{where}",
        "Cut it in the job, or use a larger type for the column.",
        lambda a: pc.greater(pc.binary_length(a), limit), lambda s: (s.max_bytes or 0) > limit,
        problem="length",
    )  # fmt: skip


def _repertoire(repertoire: Repertoire, column: Column) -> Check:
    return Check(
        f"a character that {column.charset} does not have", f"{column.full_type} in {column.charset}",
        "Make the column utf8mb4, or replace the character in the job.", repertoire.lacks, None,
        problem="charset",
    )  # fmt: skip


def _of_json(check: Check) -> Check:
    """The check of the JSON text that the values become. What has none is looked for before."""
    offends: Rows = lambda values: check.offends(json_columns.encode(values, null=None))  # noqa: E731
    return replace(check, found=f"a nested value that becomes {check.found}", offends=offends, by_statistics=None)
