"""A value of JSON is read only if it is exactly what was written; otherwise the row is malformed."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_ft.jobs.parsing import malformed_rows, parse_json, parsed_rows
from airflow_ft.protocol.errors import ConfigurationError
from tests.raising import raises

pytestmark = pytest.mark.spark
BAD = object()


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


WHOLE = {
    "0": 0,
    "-0": 0,
    "7": 7,
    "-7": -7,
    **dict.fromkeys(("1.0", "1e2", '"5"', '""', "true", "01", "+1", "1.", ".5", "0x1", "[1]", "{}", "NaN", "1 2"), BAD),
    "9" * 40: BAD,
    "9" * 3000: BAD,
}
MOMENTS = {
    '"2024-05-01 12:30:00"': _moment("2024-05-01T12:30:00+00:00"),
    '"2024-05-01T12:30"': _moment("2024-05-01T12:30:00+00:00"),
    '"2024-05-01"': _moment("2024-05-01T00:00:00+00:00"),
    '"2024-5-1 1:2:3"': _moment("2024-05-01T01:02:03+00:00"),
    '"2024-05-01T12:30:00.123456Z"': _moment("2024-05-01T12:30:00.123456+00:00"),
    '"2024-05-01T12:30:00.1234560+02:00"': _moment("2024-05-01T10:30:00.123456+00:00"),
    '"2024-05-01 12:30:00 Europe/Paris"': _moment("2024-05-01T10:30:00+00:00"),
    '"9999-12-31 23:59:59.999999"': _moment("9999-12-31T23:59:59.999999+00:00"),
    **dict.fromkeys(
        (
            "1691241070000",
            "1691241070",
            "1.5",
            '"1691241070"',
            '"12:30"',
            '"T12:30"',
            '"2024"',
            '"2024-05"',
            '"2024-05-01T12"',
            '"2024-05-01T"',
            '"2024-05-01 12:30:00.1234567"',
            '"2024-05-01 12:30:00."',
            '"2024-05-01 12:30:00 rest"',
            '"2024-05-01 12:30:00 BST"',  # Java's short name for the time of Dhaka
            '"2024-05-01 12:30:00Z rest"',
            '"2024-02-30 00:00:00"',
            '"2024-05-01 24:00:00"',
            '"2024-05-01 12:60"',
            '"2024-05-01 12:30:60"',
            '"2024-03-31 02:30:00 Europe/Paris"',  # clocks pass over it
            '"10000-01-01 00:00:00"',
            '"0000-01-01 00:00:00"',
            '"-2024-05-01 00:00:00"',
            '"24-05-01 00:00:00"',
            '"2024-05-01 12:30:00+25:00"',
            '" 2024-05-01 12:30:00"',
            '"today"',
            '"epoch"',
            '"٢٠٢٤-05-01 12:30:00"',
            '""',
            "true",
            "{}",
        ),
        BAD,
    ),
}
DATES = {
    '"2024-02-29"': date(2024, 2, 29),
    '"2024-2-9"': date(2024, 2, 9),
    '"0001-01-01"': date(1, 1, 1),
    **dict.fromkeys(
        (
            '"2023-02-29"',
            '"2024-02-30"',
            '"2024-02-29 rest"',
            '"2024-02-29T12:30:00"',
            '"2024-02-29 "',
            '"2024-02"',
            '"2024"',
            "19782",
            '"19782"',
            '"20240229"',
            '"01/02/2024"',
            '"12024-01-05"',
            '"today"',
            '""',
        ),
        BAD,
    ),
}
CASES: dict[str, dict[str, Any]] = {
    "tinyint": {**WHOLE, "127": 127, "-128": -128, "128": BAD, "200": BAD, "-129": BAD},
    "smallint": {**WHOLE, "32767": 32767, "32768": BAD, "-32768": -32768, "-32769": BAD},
    "int": {**WHOLE, "2147483647": 2147483647, "2147483648": BAD, "-2147483649": BAD},
    "bigint": {**WHOLE, "9223372036854775807": 2**63 - 1, "9223372036854775808": BAD, "-9223372036854775809": BAD},
    "decimal(12,2)": {
        "2.55": Decimal("2.55"),
        "2.5": Decimal("2.50"),
        "2.550": Decimal("2.55"),
        '"2.55"': Decimal("2.55"),
        "1e2": Decimal(100),
        "1E-2": Decimal("0.01"),
        "-0": Decimal(0),
        "0e999999999": Decimal(0),
        "9999999999.99": Decimal("9999999999.99"),
        **dict.fromkeys(
            (
                "2.555",
                "0.001",
                "10000000000",
                "1e10",
                "1e999999999",
                "1e-999999999",
                "1e99999999999",
                "100e2147483647",
                '"1,234.50"',
                '"2,5"',
                '" 2.5"',
                '"2.5 "',
                '"+2.5"',
                '"02.5"',
                '"2.5d"',
                '"0x1"',
                '"NaN"',
                '""',
                "true",
                "[2.5]",
                "1" * 2000,
            ),
            BAD,
        ),
    },
    "decimal(38,5)": {
        "123456789012345678901234567890123.12345": Decimal("123456789012345678901234567890123.12345"),
        "123456789012345678901234567890123.123456": BAD,
        "1234567890123456789012345678901234": BAD,
    },
    "double": {
        "0.1": 0.1,
        "-0.0": -0.0,
        "1e308": 1e308,
        "5e-324": 5e-324,
        "0.12345678901234567890": 0.12345678901234568,
        "9007199254740992": 2.0**53,
        "12345": 12345.0,
        '"NaN"': math.nan,
        '"Infinity"': math.inf,
        '"-Infinity"': -math.inf,
        "0e999": 0.0,
        **dict.fromkeys(
            ("9007199254740993", "1e400", "-1e400", "1e-400", '"0.1"', '"1e400"', '""', "NaN", "Infinity"), BAD
        ),
        **dict.fromkeys(("-Infinity", "true", "1.", ".1", "1e", '"nan"', "1f", "9" * 2000), BAD),
    },
    "float": {
        "0.1": struct.unpack("f", struct.pack("f", 0.1))[0],
        "16777216": 16777216.0,
        '"NaN"': math.nan,
        **dict.fromkeys(("16777217", "1e39", "1e-60", '"0.1"'), BAD),
    },
    "boolean": {
        "true": True,
        "false": False,
        **dict.fromkeys(('"true"', "1", "0", '""', "TRUE", "tru", "truely", "[]"), BAD),
    },
    "date": DATES,
    "timestamp": MOMENTS,
    "timestamp_ntz": {
        '"2024-05-01 12:30:00.5"': datetime(2024, 5, 1, 12, 30, 0, 500000),
        **dict.fromkeys(('"2024-05-01 12:30:00Z"', '"2024-05-01 12:30:00+02:00"', '"12:30"', "1691241070"), BAD),
    },
    "binary": {
        '"AQI="': b"\1\2",
        '""': b"",
        **dict.fromkeys(('"AQI"', '"AQJ="', '"AQI=="', '"AQ I="', '"A"', '"***"', '"AQI=\\n"', "1", "[1]"), BAD),
    },
    "interval day to second": {
        "\"INTERVAL '1 02:03:04.5' DAY TO SECOND\"": timedelta(days=1, hours=2, minutes=3, seconds=4.5),
        **dict.fromkeys(("\"INTERVAL '1 02:03:04.1234567' DAY TO SECOND\"", '"soon"', '""', "5"), BAD),
    },
    "string": {
        '"x"': "x",
        '""': "",
        '"null"': "null",
        '"\\u00e9\\n\\/\\"\\\\"': 'é\n/"\\',
        '"\\ud83d\\ude00"': "😀",
        '"😀"': "😀",
        '"\\u0000"': "\0",
        "12345678901234567890.12345": "12345678901234567890.12345",
        "1.50": "1.50",
        "-0": "-0",
        "1E400": "1E400",
        "true": "true",
        '{"a" : [1.50, "\\u00e9"] }': '{"a" : [1.50, "\\u00e9"] }',
        "[ ]": "[ ]",
        **dict.fromkeys(
            ('"\\ud800"', '"\\ude00\\ud83d"', '"a\tb"', '"\\x"', '"\\u12"', '"\\u00g0"', "'x'", "x", '"x', ""), BAD
        ),
        **dict.fromkeys(('{"a":}', "[1,]", "{,}", '{"a":1,}', "/**/1", "1//", "[1}", "nul", "nulll", "\u00a01"), BAD),
        "[" * 3000 + "]" * 3000: BAD,
        "[" * 100 + "]" * 100: "[" * 100 + "]" * 100,
    },
    "varchar(2)": {'"ab"': "ab", '"😀😀"': "😀😀", '"abc"': BAD, "123": BAD, "12": "12"},
    "char(2)": {'"a"': "a", '"abc"': BAD},
    "array<tinyint>": {"[]": [], "[1, null]": [1, None], "[1,200]": BAD, "1": BAD, "[1": BAD, "[1,,2]": BAD, "{}": BAD},
    "map<string,int>": {
        "{}": {},
        '{"a":1,"b":null}': {"a": 1, "b": None},
        **dict.fromkeys(('{"a":1,"a":2}', '{"a":1,"\\u0061":2}', '{"a":1.5}', "{a:1}", '{"a":1 "b":2}', "[]"), BAD),
    },
    "struct<a:int,b:struct<c:date>>": {
        '{"a":1,"b":{"c":"2024-02-29"}}': (1, (date(2024, 2, 29),)),
        '{"z":[{"a":1,"a":2}]}': (None, None),
        **dict.fromkeys(
            ('{"a":1,"a":1}', '{"b":{"c":"2024-02-30"}}', '{"b":{"c":null,"c":null}}', '{"b":[]}', '"x"'), BAD
        ),
    },
    "array<struct<a:map<string,array<decimal(3,1)>>>>": {
        '[{"a":{"x":[1.5,null]}}]': [({"x": [Decimal("1.5"), None]},)],
        '[{"a":{"x":[1.5,2.55]}}]': BAD,
    },
}


def _plain(value: Any) -> Any:
    """Return a row in a form to compare: tuples for structs, moments in UTC."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    return value


def _read(spark: SparkSession, ddl: str, texts: Sequence[bytes | str | None]) -> list[Any]:
    """Return the value of each text, by `v`; BAD: malformed."""
    rows = [(index, text.encode() if isinstance(text, str) else text) for index, text in enumerate(texts)]
    frame = spark.createDataFrame(rows, "n int, value binary")
    batch = parse_json(frame, ddl, keep=["n"], on_malformed="keep")
    shown = F.col("v").cast("string") if ddl.endswith("v timestamp") else F.col("v")
    found = {row.n: _plain(row.v) for row in parsed_rows(batch).select("n", shown.alias("v")).collect()}
    bad = {bytes(row.raw) for row in malformed_rows(batch).collect()}
    assert bad == {raw for index, raw in rows if index not in found}
    return [found.get(index, BAD) for index in range(len(rows))]


def _same(found: Any, expected: Any, kind: str) -> bool:
    if expected is BAD or found is BAD:
        return found is expected
    if kind == "timestamp" and expected is not None:
        return bool(datetime.fromisoformat(found).replace(tzinfo=UTC) == expected)
    if isinstance(expected, float):
        return struct.pack("d", found) == struct.pack("d", expected) or (math.isnan(found) and math.isnan(expected))
    return bool(type(found) is type(expected) and found == expected) or (
        isinstance(expected, tuple) and found == expected
    )


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("kind", CASES)
def test_a_value_counts_only_if_it_is_what_was_written(spark: SparkSession, kind: str) -> None:
    cases = {**CASES[kind], "null": None}
    found = _read(spark, f"v {kind}", [f'{{"v": {text}}}' for text in cases])
    wrong = {
        text: (value, expected)
        for (text, expected), value in zip(cases.items(), found, strict=True)
        if not _same(value, expected, kind)
    }
    assert not wrong


@pytest.mark.parametrize("kind", ["int", "string", "map<string,int>"])
def test_a_field_that_must_not_be_null_is_there(spark: SparkSession, kind: str) -> None:
    texts = ['{"v":null}', "{}", '{"V":1}', '{"v":{}}' if kind.startswith("map") else '{"v":1}']
    assert [value is BAD for value in _read(spark, f"v {kind} NOT NULL", texts)] == [True, True, True, False]


WHOLE_TEXTS: list[str | bytes] = [
    '{"v":1},"row":{"v":2}',
    '{"v":1}}',
    '{"v":1}]',
    '{"v":1},"airflow_ft_end":1',
    '{"v":1},',
    '{"v":1};',
    '{"v":1}\0',
    '{"v":1}{"v":2}',
    '{"v":1}//',
    '\ufeff{"v":1}',
    '\u00a0{"v":1}',
    "{'v':1}",
    "{v:1}",
    '{"v":1,}',
    '{,"v":1}',
    '{"v":1,"v":2}',
    '{"v":1,"\\u0076":2}',
    '{"v"}',
    '{"v":}',
    '{"x":[1,],"v":1}',
    '{"x":"\\ud8","v":1}',
    '{"x":NaN,"v":1}',
    b'{"x":"\xff","v":1}',
    b'{"x":"\xed\xa0\x80","v":1}',  # half a character, as UTF-8 does not write it
    b'{"x":"\xc0\x80","v":1}',
    '{"v":1}'.encode("utf-16"),
    '[{"v":1}]',
    "",
    "null",
]


def test_a_text_is_one_object_from_its_beginning_to_its_end(spark: SparkSession) -> None:
    good = ['{"v":1}', ' \t\r\n{ "v" : 1 } ', '{"x":{"v":2},"v":1}', '{"x":"}","v":1}', '{"X":1,"V":2,"v":1}']
    found = _read(spark, "v int", [*good, *WHOLE_TEXTS])
    assert found[: len(good)] == [1] * len(good)
    assert [text for text, value in zip(WHOLE_TEXTS, found[len(good) :], strict=True) if value is not BAD] == []


def test_the_reason_names_the_field_and_not_its_value(spark: SparkSession) -> None:
    frame = spark.createDataFrame([('{"a":{"b":[1,777]}}',)], "value string")
    (row,) = malformed_rows(parse_json(frame, "a struct<b:array<tinyint>>", on_malformed="keep")).collect()
    assert row.reason == "not one JSON object of the declared schema: field a.b[] is no exact tinyint"


@pytest.mark.parametrize("kind", ["variant", "map<int,string>"])
def test_a_type_that_json_cannot_hold_exactly_is_refused(spark: SparkSession, kind: str) -> None:
    frame = spark.createDataFrame([("{}",)], "value string")
    with raises(ConfigurationError, "source_schema_invalid") as caught:
        parse_json(frame, f"v {kind}")
    assert caught.error and "v " + kind.partition("<")[0] in caught.error.fields["reason"]


NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=4).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(json.dumps),
    st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


@settings(
    max_examples=3 if os.environ.get("THOROUGH") else 1,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(NUMBERS, min_size=300, max_size=300), st.lists(st.text(max_size=8), min_size=100, max_size=100))
def test_numbers_and_texts_come_through_as_python_reads_them(
    spark: SparkSession, numbers: list[str], texts: list[str]
) -> None:
    for kind, least, most in (("tinyint", -128, 127), ("int", -(2**31), 2**31 - 1), ("bigint", -(2**63), 2**63 - 1)):
        for text, value in zip(numbers, _read(spark, f"v {kind}", [f'{{"v":{n}}}' for n in numbers]), strict=True):
            fits = text.lstrip("-").isdigit() and least <= int(text) <= most
            assert value == int(text) if fits else value is BAD, (kind, text)
    for text, value in zip(numbers, _read(spark, "v decimal(20,6)", [f'{{"v":{n}}}' for n in numbers]), strict=True):
        exact = Decimal(text)
        fits = abs(exact) < 10**14 and exact == exact.quantize(Decimal("0.000001"))
        assert value == exact if fits else value is BAD, text
    for text, value in zip(numbers, _read(spark, "v string", [f'{{"v":{n}}}' for n in numbers]), strict=True):
        assert value == text
    for text, value in zip(numbers, _read(spark, "v double", [f'{{"v":{n}}}' for n in numbers]), strict=True):
        assert value is BAD or struct.pack("d", value) == struct.pack("d", float(text)), text
    for ascii in (True, False):
        written = [json.dumps({"v": text}, ensure_ascii=ascii) for text in texts]
        assert _read(spark, "v string", written) == texts
