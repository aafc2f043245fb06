"""Options of Spark's readers that would lose rows, or change values, of JSON and CSV: refused when a DAG is parsed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.core.arguments import is_template
from airflow_ft.core.errors import ConfigurationError

EXACT = ("json", "csv")
"""Formats that are read exactly (`airflow_ft.spark.exact`)."""
_PERMISSIVE, _FAILFAST = "PERMISSIVE", "FAILFAST"
_OF_JSON = (
    "allowBackslashEscapingAnyCharacter",
    "allowComments",
    "allowNonNumericNumbers",
    "allowNumericLeadingZeros",
    "allowSingleQuotes",
    "allowUnquotedControlChars",
    "allowUnquotedFieldNames",
    "primitivesAsString",
)
"""Refused where they are true: files are read as RFC 8259 defines JSON."""
_LOCALES = ("en-us", "en_us", "en")


def refuse_inexact(format: str, schema: str, options: Mapping[str, Any]) -> None:
    """ConfigurationError for what would read something else than was written. `options`: by names in lower case."""
    if format not in EXACT:
        return
    given = {name: str(value) for name, value in options.items() if not is_template(value)}
    mode = given.get("mode", _FAILFAST)
    if mode.upper() not in (_FAILFAST, _PERMISSIVE):
        raise ConfigurationError(
            f"mode {mode} is refused: rows would be lost without an error (I10)."
            if mode.upper() == "DROPMALFORMED"
            else f"mode of FileSource is {mode!r}.",
            remedy="leave it out: a record that cannot be read then fails the run. Or keep such records, with"
            ' options={"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"} and a column `broken string`.',
        )
    column = given.get("columnnameofcorruptrecord", "_corrupt_record")
    if mode.upper() == _PERMISSIVE and column.lower() not in schema.lower():
        raise ConfigurationError(
            f"mode PERMISSIVE needs a column {column} in the schema: a malformed record is a row of nulls.",
            remedy=f"add `{column} string` to the schema, and route these rows in `split`; or leave out the mode.",
        )
    for name in _OF_JSON if format == "json" else ("enforceSchema",):
        if given.get(name.lower(), "false").lower() != "false":
            raise ConfigurationError(
                f"option {name} of FileSource is refused: values could be read as something else than was written.",
                remedy="leave it out, and write the files so that they can be read without it.",
            )
    if (locale := given.get("locale", "en-US")).lower() not in _LOCALES:
        raise ConfigurationError(
            f"option locale={locale!r} of FileSource is refused: numbers and dates are read as en-US writes them.",
            remedy="leave it out; declare such columns as string, and convert them in the job.",
        )
