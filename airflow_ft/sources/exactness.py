"""Options of Spark's readers that are refused when a DAG is parsed.

They would lose rows, or change values, of JSON and CSV; or they are misspelt, and Spark would skip them.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from airflow_ft.protocol.arguments import is_template
from airflow_ft.protocol.errors import ConfigurationError

EXACT = ("json", "csv")
"""Formats that are read exactly (`airflow_ft.jobs.exact`)."""
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
_USUAL = (
    "charToEscapeQuoteEscaping", "columnNameOfCorruptRecord", "comment", "compression", "dateFormat", "delimiter",
    "emptyValue", "encoding", "escape", "header", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "latestFirst",
    "lineSep", "locale", "maxCachedFiles", "maxCharsPerColumn", "maxColumns", "maxFileAge", "mergeSchema", "mode",
    "modifiedAfter", "modifiedBefore", "multiLine", "nanValue", "negativeInf", "nullValue", "pathGlobFilter",
    "positiveInf", "quote", "recursiveFileLookup", "sep", "timestampFormat", "timestampNTZFormat", "timeZone",
    "wholetext",
)  # fmt: skip
"""Options of Spark's readers of files, to recognise a misspelt one. Spark knows more, and skips unknown ones."""
_LOCALES = ("en-us", "en_us", "en")


def unsafe(option: str, why: str, remedy: str) -> ConfigurationError:
    """Return the error for an option with which rows would be lost or changed."""
    what = f"option {option} of FileSource is not allowed: {why}"
    return ConfigurationError(what, code="option_unsafe", remedy=remedy, option=option)


def refuse_misspelt(options: Mapping[str, Any]) -> None:
    """ConfigurationError for a name that is nearly one of Spark's options, which Spark would skip without an error."""
    usual = {name.lower(): name for name in _USUAL}
    for name in options:
        if name.lower() not in usual and (close := get_close_matches(name.lower(), usual, 1, cutoff=0.85)):
            raise ConfigurationError(
                f"FileSource has the option {name!r}, which Spark does not know and would skip.",
                code="option_unknown",
                remedy=f"Did you mean {usual[close[0]]}?",
                option=name,
            )


def _refuse_encoding(given: Mapping[str, str]) -> None:
    """ConfigurationError for an encoding of texts: Spark would look for the separator in it, and convert nothing."""
    for name in ("encoding", "charset"):
        if (encoding := given.get(name, "UTF-8")).lower().replace("-", "") not in ("utf8", "usascii"):
            raise ConfigurationError(
                f"option {name}={encoding!r} of FileSource is not allowed for text: Spark would keep the bytes as they"
                " are, as if they were UTF-8.",
                code="option_unsafe",
                remedy='Write the files in UTF-8. Or read them with format="csv", one string column, quote="" and a sep'
                " that no line has.",
                option=name,
                value=encoding,
            )


def refuse_inexact(format: str, schema: str, options: Mapping[str, Any]) -> None:
    """ConfigurationError for what would read something else than was written. `options`: by names in lower case."""
    given = {name: str(value) for name, value in options.items() if not is_template(value)}
    if format == "text":
        _refuse_encoding(given)
    if format not in EXACT:
        return
    mode = given.get("mode", _FAILFAST)
    if mode.upper() not in (_FAILFAST, _PERMISSIVE):
        raise ConfigurationError(
            f"mode {mode} of FileSource is not allowed: Spark would drop malformed rows without an error."
            if mode.upper() == "DROPMALFORMED"
            else f"mode of FileSource is {mode!r}.",
            code="option_unsafe" if mode.upper() == "DROPMALFORMED" else "argument_invalid",
            remedy="Remove it: a record that cannot be read then fails the run. Or keep such records, with"
            ' options={"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"} and a column `broken string`.',
            option="mode",
            value=mode,
        )
    column = given.get("columnnameofcorruptrecord", "_corrupt_record")
    if mode.upper() == _PERMISSIVE and column.lower() not in schema.lower():
        raise ConfigurationError(
            f"mode PERMISSIVE needs a column {column} in the schema. Without it, a malformed record is a row of nulls.",
            code="argument_invalid",
            remedy=f"Add `{column} string` to the schema, and route these rows in `split`. Or remove the mode.",
            argument="schema",
            column=column,
        )
    for name in _OF_JSON if format == "json" else ("enforceSchema",):
        if given.get(name.lower(), "false").lower() != "false":
            raise unsafe(
                name,
                "Spark could read other values than were written.",
                "Remove it, and write the files so that they can be read without it.",
            )
    if (locale := given.get("locale", "en-US")).lower() not in _LOCALES:
        raise ConfigurationError(
            f"option locale={locale!r} of FileSource is not allowed: numbers and dates are read as en-US writes them.",
            code="option_unsafe",
            remedy="Remove it. Declare such columns as string, and convert them in the job.",
            option="locale",
            value=locale,
        )
