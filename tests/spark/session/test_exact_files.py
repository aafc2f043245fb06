"""Files of JSON and CSV are read exactly: a record that is not what its schema declares fails the job, or is kept."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from airflow_ft.protocol.errors import ConfigurationError, JobError, StageError
from airflow_ft.sources import FileSource
from airflow_ft.spark.driver.failures import as_error
from tests.raising import raises

pytestmark = pytest.mark.spark


def _read(
    spark: SparkSession,
    folder: Path,
    format: str,
    schema: str,
    files: Mapping[str, str | bytes],
    *,
    streaming: bool = False,
    **options: Any,
) -> DataFrame:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    source = FileSource(path=str(folder), format=format, schema=schema, options=options)
    return FileSource.from_json(source.to_json()).read(spark, streaming=streaming)


def _rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=repr)


def _failure(frame: DataFrame) -> str:
    with pytest.raises(Exception) as caught:
        frame.collect()
    error = as_error(caught.value, "orders", "jobs.orders")
    assert isinstance(error, JobError), error
    return str(error)


TYPED = "n tinyint, d decimal(12,2), t timestamp_ntz, s string"
LINES = """{"n": 1, "d": 2.50, "t": "2024-05-01T12:30", "s": 1.50}

[{"n": 2}, {"n": 3, "s": "x"}]
[]
"""


def test_lines_of_json_are_objects_or_arrays_of_them(spark: SparkSession, tmp_path: Path) -> None:
    frame = _read(spark, tmp_path, "json", TYPED, {"a b.json": LINES})
    assert frame.columns == ["n", "d", "t", "s"]
    assert _rows(frame) == [
        (1, Decimal("2.50"), datetime(2024, 5, 1, 12, 30), "1.50"),
        (2, None, None, None),
        (3, None, None, "x"),
    ]
    names = frame.select("n").selectExpr("n", "_metadata.file_name").collect()
    assert {row.file_name for row in names} == {"a%20b.json"}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"n": 200}', "field n is no exact tinyint"),
        ('{"d": 2.555}', r"field d is no exact decimal\(12,2\)"),
        ('{"t": "12:30"}', "field t is no exact timestamp_ntz"),
        ('{"s": "\\ud800"}', "half a character"),
        ('{"n": 1} {"n": 2}', "not one JSON object"),
        ('{"n": 1, "n": 2}', "field n comes twice"),
        ('[{"n": 1}, {"n": 200}]', "field n"),
        ("{'n': 1}", "not one JSON object"),
    ],
)
def test_a_record_of_json_that_is_not_exact_fails_and_is_kept(
    spark: SparkSession, tmp_path: Path, record: str, reason: str
) -> None:
    files = {"x.json": f'{{"n": 1}}\n{record}\n'}
    failure = _failure(_read(spark, tmp_path, "json", TYPED, files))
    assert re.search(rf"cannot read file:\S+/x\.json: \[MALFORMED\S+ .*{reason}", failure), failure
    kept: dict[str, Any] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}
    frame = _read(spark, tmp_path, "json", f"{TYPED}, broken string", {}, **kept)
    assert _rows(frame) == [(1, None, None, None, None), (None, None, None, None, record)]


def test_json_over_several_lines(spark: SparkSession, tmp_path: Path) -> None:
    files = {"a.json": '\ufeff[\n {"n": 1},\n {"n":\n2}\n]\n', "b.json": '{"n":\n3}', "empty.json": ""}
    assert _rows(_read(spark, tmp_path, "json", "n int", files, multiLine="true")) == [(1,), (2,), (3,)]
    assert "not one JSON object" in _failure(
        _read(spark, tmp_path, "json", "n int", {"c.json": '{"n":4}\n{"n":5}'}, multiLine="true")
    )


def test_json_in_another_encoding(spark: SparkSession, tmp_path: Path) -> None:
    files = {"a.json": '{"s": "é"}\n{"s": "x"}\n'.encode("latin-1")}
    assert _rows(_read(spark, tmp_path, "json", "s string", files, encoding="ISO-8859-1")) == [("x",), ("é",)]
    assert "not UTF-8" in _failure(_read(spark, tmp_path, "json", "s string", {}))


def test_dates_in_a_pattern_are_what_the_pattern_writes(spark: SparkSession, tmp_path: Path) -> None:
    schema = "d date, t timestamp_ntz"
    given: dict[str, Any] = {"dateFormat": "dd/MM/yyyy", "timestampNTZFormat": "dd.MM.yyyy HH:mm:ss"}
    good = '{"d": "29/02/2024", "t": "01.05.2024 12:30:00"}\n'
    assert _rows(_read(spark, tmp_path, "json", schema, {"a.json": good}, **given)) == [
        (date(2024, 2, 29), datetime(2024, 5, 1, 12, 30))
    ]
    for wrong in ('{"d": "30/02/2024"}', '{"d": "1/2/2024"}', '{"d": "29/02/2024 "}', '{"t": "01.05.2024 24:00:00"}'):
        assert "is no exact" in _failure(_read(spark, tmp_path, "json", schema, {"a.json": wrong}, **given))


def test_a_part_of_a_pattern_may_be_optional(spark: SparkSession, tmp_path: Path) -> None:
    read = partial(_read, spark, tmp_path, "csv", "t timestamp_ntz", timestampNTZFormat="yyyy-MM-dd HH:mm:ss[.SSS]")
    rows = [datetime(2024, 5, 1, 12), datetime(2024, 5, 1, 12, 0, 0, 250_000)]
    good = {"a.csv": "2024-05-01 12:00:00\n2024-05-01 12:00:00.250\n"}
    assert _rows(read(files=good)) == [(row,) for row in rows]
    for wrong in ("2024-05-01 12:00:00.2500", "2024-05-01 12:00:60", "2024-02-30 12:00:00", "0000-05-01 12:00:00"):
        assert "is no exact" in _failure(read(files={"a.csv": f"{wrong}\n"})), wrong


PATTERNS = [
    ("timestamp", "yyyy-MM-dd'T'HH:mm:ssXXX", "2024-05-01T12:00:00+00:00"),
    ("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2024-05-01T12:00:00.5+00:00"),
    ("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2024-05-01T12:00:00.500+02:00"),
    ("timestamp", "yyyy-MM-dd HH:mm:ssXX", "2024-05-01 12:00:00+0000"),
    ("timestamp", "MM/dd/yyyy hh:mm a", "05/01/2024 01:30 pm"),
    ("timestamp", "M/d/yyyy H:mm", "05/01/2024 01:30"),
    ("timestamp", "yyyy-MM-dd HH:mm:ss.SSSSSS", "2024-05-01 12:00:00.123"),
    ("timestamp", "dd.MM.yyyy", "01.05.2024"),
    ("timestamp_ntz", "yyyy-MM-dd HH:mm:ss.SSS", "2024-05-01 12:00:00.5"),
    ("timestamp_ntz", "dd.MM.yyyy", "01.05.2024"),
    ("date", "dd-MMM-yyyy", "01-MAY-2024"),
    ("date", "d/M/yyyy", "01/05/2024"),
]
OPTIONS = {"date": "dateFormat", "timestamp": "timestampFormat", "timestamp_ntz": "timestampNTZFormat"}


def test_values_in_a_pattern_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    for at, (kind, pattern, text) in enumerate(PATTERNS):
        folder = tmp_path / str(at)
        folder.mkdir()
        frame = _read(spark, folder, "csv", f"at {kind}", {"a.csv": f"{text}\n"}, **{OPTIONS[kind]: pattern})
        of_spark = spark.read.schema(f"at {kind}").options(**{OPTIONS[kind]: pattern}).csv(str(folder))
        found = _rows(frame)
        assert found == _rows(of_spark) and found != [(None,)], (pattern, text)


def test_digits_without_a_separator_may_end_in_a_fraction(spark: SparkSession, tmp_path: Path) -> None:
    files = {"a.csv": "20240501120000250\n"}
    frame = _read(spark, tmp_path, "csv", "at timestamp_ntz", files, timestampNTZFormat="yyyyMMddHHmmssSSS")
    assert _rows(frame) == [(datetime(2024, 5, 1, 12, 0, 0, 250_000),)]


@pytest.mark.parametrize(
    ("kind", "pattern", "text"),
    [
        ("date", "yyyy-MM-dd[ HH:mm]", "2024-05-01 12:30"),
        ("timestamp", "yyyy-MM-dd mm", "2024-05-01 30"),
        ("timestamp", "yyyy-MM-dd HH:mm VV", "2024-03-31 02:30 Europe/Paris"),
        ("timestamp", "yyyy-MM-dd HH:mm:ss.SSSSSSSSS", "2024-05-01 12:00:00.123456789"),
        ("timestamp_ntz", "yyyy-MM-dd HH:mmXXX", "2024-05-01 12:30+00:00"),
    ],
)
def test_a_pattern_whose_parts_a_column_would_lose(
    spark: SparkSession, tmp_path: Path, kind: str, pattern: str, text: str
) -> None:
    frame = _read(spark, tmp_path, "csv", f"at {kind}", {"a.csv": f"{text}\n"}, **{OPTIONS[kind]: pattern})
    assert "is no exact" in _failure(frame)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_columns_that_folders_name(spark: SparkSession, tmp_path: Path, format: str) -> None:
    content = '{"n": 1, "day": "no"}\n' if format == "json" else "1\n"
    files = {f"day=007/kind=2/a.{format}": content}
    frame = _read(spark, tmp_path, format, "n int, day string", files)
    assert frame.columns == ["n", "day", "kind"] and _rows(frame) == [(1, "007", 2)]
    assert _rows(_read(spark, tmp_path, format, "n int, day int, kind string", {})) == [(1, 7, "2")]


def test_a_folder_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    assert _rows(_read(spark, tmp_path, "json", "n int", {"value=5/a.json": '{"n": 1}\n'})) == [(1, 5)]


CSV = "n tinyint, d decimal(12,2), f double, t timestamp_ntz, b boolean, s string"


def test_fields_of_csv(spark: SparkSession, tmp_path: Path) -> None:
    text = '007,2.5,0.1,2024-05-01 12:30:00,TRUE,"a, b"\n-1,"+1e2",NaN,,false,""\n,,,,,\n'
    assert repr(_rows(_read(spark, tmp_path, "csv", CSV, {"a.csv": text}))) == repr(
        [
            (-1, Decimal("100.00"), float("nan"), None, False, ""),
            (7, Decimal("2.50"), 0.1, datetime(2024, 5, 1, 12, 30), True, "a, b"),
            (None, None, None, None, None, None),
        ]
    )


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("n", value) for value in ("200", "1.0", " 1", "1 ", '""', "1x", "0x1", "--1")),
        *(("d", value) for value in ("2.555", '"1,234.5"', "1e99", "2.5d", "NaN")),
        *(("f", value) for value in ("1e400", "1d", "0x1p3", "inf")),
        *(("t", value) for value in ("12:30", "1691241070", "2024-05-01 12:30:00 x", "2024-05-01 12:30:00Z")),
        *(("b", value) for value in ("1", "yes", " true")),
    ],
)
def test_a_field_of_csv_that_is_not_exact_fails(spark: SparkSession, tmp_path: Path, field: str, value: str) -> None:
    names = [each.split()[0] for each in CSV.split(", ")]
    line = ",".join(value if name == field else "" for name in names)
    assert f"field {field} is no exact" in _failure(_read(spark, tmp_path, "csv", CSV, {"a.csv": f"{line}\n"}))


def test_a_record_of_csv_that_is_not_exact_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    text = "id,at,s\n1,2024-02-29,x\n2,2024-02-30,y\n3\n4,2024-02-29,x,more\n"
    kept: dict[str, Any] = {"header": "true", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}
    frame = _read(spark, tmp_path, "csv", "id tinyint, at date, s string, broken string", {"a.csv": text}, **kept)
    assert _rows(frame) == [
        (1, date(2024, 2, 29), "x", None),
        (None, None, None, "2,2024-02-30,y"),
        (None, None, None, "3"),
        (None, None, None, "4,2024-02-29,x,more"),
    ]
    assert _rows(frame.select("id").where("id IS NOT NULL")) == [(1,)]


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("line", ["1", "1,a,2", "1,a,"])
def test_a_record_with_another_number_of_fields_fails(spark: SparkSession, tmp_path: Path, line: str) -> None:
    frame = _read(spark, tmp_path, "csv", "id int, s string", {"a.csv": f"{line}\n"})
    assert "[MALFORMED_RECORD_IN_PARSING" in _failure(frame)
    assert "[MALFORMED_RECORD_IN_PARSING" in _failure(frame.select("id"))


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("header", ["b,a", "a", "a,b,c", "a,x"])
def test_a_header_that_is_not_the_schema_is_refused(spark: SparkSession, tmp_path: Path, header: str) -> None:
    line = ",".join("1" for _ in header.split(","))
    frame = _read(spark, tmp_path, "csv", "a int, b int", {"x.csv": f"{header}\n{line}\n"}, header="true")
    failure = _failure(frame)
    assert "header" in failure and "x.csv" in failure
    assert "header" in _failure(frame.select("b"))


@pytest.mark.parametrize("options", [{}, {"multiLine": "true"}])
def test_csv_that_is_no_text_fails(spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
    failure = _failure(_read(spark, tmp_path, "csv", "s string", {"a.csv": b"\xff\n"}, **options))
    assert "not UTF-8" in failure or "holds bytes that are no text" in failure
    (tmp_path / "a.csv").unlink()
    files = {"b.csv": "\xe9,x\n".encode("latin-1")}
    kept = {"encoding": "ISO-8859-1", **options}
    assert _rows(_read(spark, tmp_path, "csv", "s string, t string", files, **kept)) == [("\xe9", "x")]


def test_csv_fails_if_its_encoding_hides_the_line_ends(spark: SparkSession, tmp_path: Path) -> None:
    read = partial(_read, spark, format="csv", schema="s string")
    for number, (encoding, options) in enumerate((("UTF-16", {"lineSep": "\n"}), ("Cp037", {}))):
        text = {"a": "é\nx\n".encode(encoding)}
        assert "lineSep" in _failure(read(folder=tmp_path / f"{number}", files=text, encoding=encoding, **options))
    found = read(folder=tmp_path / "le", files={"a": "é\nx\n".encode("UTF-16LE")}, encoding="UTF-16LE", lineSep="\n")
    assert _rows(found) == [("x",), ("é",)]


@pytest.mark.parametrize("more", [{}, {"multiLine": "true"}], ids=["lines", "multiLine"])
def test_a_line_of_separators_or_spaces_is_a_record(spark: SparkSession, tmp_path: Path, more: dict[str, str]) -> None:
    """Spark passes by each line that has nothing but spaces and tabs."""
    read = partial(_read, spark, format="csv", **more)
    tabs, texts, numbers = (tmp_path / name for name in ("tabs", "texts", "numbers"))
    rows = _rows(read(folder=tabs, schema="x string, y int", files={"a": "a\t1\n\t\n\n"}, sep="\t"))
    assert rows == [("a", 1), (None, None)]
    assert _rows(read(folder=texts, schema="x string", files={"a": "a\n  \n\n"})) == [("  ",), ("a",)]
    if not more:
        assert _rows(read(folder=numbers, schema="x int", files={"a": "1\n  \n\n2\n"})) == [(1,), (2,)]


ODD = ['"', '""', 'a"b', '"a"', "C:\\", '\\"', "\\\\", "a,b", " a ", "\ufffd", "\ufffdempty", "'", "#", "\t", "-"]


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("options", [{}, {"multiLine": "true", "lineSep": "\r\n"}, {"sep": "\\t"}, {"header": "true"}])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_what_others_write_as_csv_is_read(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], quoting: Literal[0, 1]
) -> None:
    """As RFC 4180 says, which has no backslashes; Spark reads `"a""b"` with all of its quotes."""
    is_sparks = "multiLine" in options  # which cannot tell U+FFFD from bytes that are no text
    texts = [text for text in ODD if not (is_sparks and "\ufffd" in text)]
    rows = [(str(n), text, f"\r\n{text}\n" if is_sparks else text) for n, text in enumerate(texts)]
    made = io.StringIO(newline="")
    writer = csv.writer(made, quoting=quoting, delimiter="\t" if "sep" in options else ",")
    writer.writerows([("n", "s", "t"), *rows] if "header" in options else rows)
    frame = _read(spark, tmp_path, "csv", "n string, s string, t string", {"a.csv": made.getvalue()}, **options)
    assert _rows(frame) == sorted(rows, key=repr)


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize(
    ("text", "reason", "of_lines"),
    [
        ('1,"a\n2,b"\n', "a quote that is not closed", '1,"a'),
        ('1,"a\\"b"\n', "text behind a quoted field", '1,"a\\"b"'),
        ('1,"a" \n', "text behind a quoted field", '1,"a" '),
        ("1,\xff\n", "not UTF-8", "1,\ufffd"),
    ],
)
def test_a_quote_in_the_wrong_place_fails(
    spark: SparkSession, tmp_path: Path, text: str, reason: str, of_lines: str
) -> None:
    """Spark makes two rows of the first one."""
    files = {"a.csv": text.encode("latin-1")}
    assert reason in _failure(_read(spark, tmp_path, "csv", "n int, s string", files))
    kept: dict[str, Any] = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "broken"}
    rows = _rows(_read(spark, tmp_path, "csv", "n int, s string, broken string", {}, **kept))
    assert (None, None, of_lines) in rows


def test_several_lines_of_csv_with_a_stray_quote_fail(spark: SparkSession, tmp_path: Path) -> None:
    files = {"a.csv": '1,"a\\"b"\n'}
    assert "Unescaped quote" in _failure(_read(spark, tmp_path, "csv", "n int, s string", files, multiLine="true"))
    own = _read(spark, tmp_path, "csv", "n int, s string", {}, multiLine="true", escape="\\")
    assert _rows(own) == [(1, 'a"b')]


def test_options_of_csv(spark: SparkSession, tmp_path: Path) -> None:
    def read(text: str, schema: str = "a string, b string", **options: Any) -> list[tuple[Any, ...]]:
        return _rows(_read(spark, tmp_path, "csv", schema, {"a.csv": text}, **options))

    assert read('"a\\"b\\\\c\\d",x\n', escape="\\") == [('a"b\\c\\d', "x")]
    assert read('"a;;"b\n', sep=";;", quote="") == [('"a', '"b')]
    assert read("'a,b',c\n", quote="'") == [("a,b", "c")]
    assert read("# no\n\n  \na,b\n", comment="#") == [("a", "b")]
    assert read(' a , "b" \n', ignoreLeadingWhiteSpace="true", ignoreTrailingWhiteSpace="true") == [("a", "b")]
    assert read('NA,""\n', nullValue="NA") == [(None, "")]
    assert read('"",\n', emptyValue="none") == [("none", None)]
    assert read("a,b\r\nc,d\re,f") == [("a", "b"), ("c", "d"), ("e", "f")]
    assert read("a,b;c,d", lineSep=";") == [("a", "b"), ("c", "d")]
    assert read("A,B\nx,y\n", header="true") == [("x", "y")]
    assert read("x,y\n", unescapedQuoteHandling="STOP_AT_DELIMITER") == [("x", "y")]
    for wrong in ({"sep": ""}, {"escape": "ab"}):
        with pytest.raises(ConfigurationError):
            read("x,y\n", **wrong)


def test_the_header_of_each_file_is_known(spark: SparkSession, tmp_path: Path) -> None:
    files = {f"{n}.csv": "\n" * n + "a,b\n" + "".join(f"{n},{i:04}\n" for i in range(30)) for n in range(4)}
    files |= {"empty.csv": "", "header.csv": "a,b\n"}
    frame = _read(spark, tmp_path, "csv", "a string, b string", files, header="true")
    expected = sorted((str(n), f"{i:04}") for n in range(4) for i in range(30))
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    try:
        for size in ("1g", "50b"):  # all in one partition; several blocks of each file
            spark.conf.set("spark.sql.files.maxPartitionBytes", size)
            assert _rows(frame) == expected
            assert _rows(frame.union(frame).coalesce(1)) == sorted([*expected, *expected])
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", str(before))


def test_a_damaged_file_is_named(spark: SparkSession, tmp_path: Path) -> None:
    data = gzip.compress(b'{"n": 1}\n' * 1000)
    with pytest.raises(Exception) as caught:
        _read(spark, tmp_path, "json", "n int", {"a.json.gz": data[:-9]}).collect()
    error = as_error(caught.value, "orders", "jobs.orders")
    assert isinstance(error, StageError) and error.what.endswith("/a.json.gz")


def test_folders_of_a_new_column_are_met_by_the_next_try() -> None:
    error = as_error(Exception("assertion failed: Invalid batch: value#1 != value#2,day#3"), "orders", "jobs.orders")
    assert isinstance(error, StageError) and "add a column" in error.what


@pytest.mark.parametrize("format", ["json", "csv"])
def test_a_stream_of_files_is_read_exactly(spark: SparkSession, tmp_path: Path, format: str) -> None:
    good, bad = ('{"n": 1}\n', '{"n": 200}\n') if format == "json" else ("1\n", "200\n")
    frame = _read(spark, tmp_path / "in", format, "n tinyint", {"a": good}, streaming=True)
    assert frame.isStreaming

    def run() -> list[tuple[Any, ...]]:
        query = (
            frame.selectExpr("n", "_metadata.file_name AS f")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return _rows(spark.read.parquet(str(tmp_path / "out")))

    assert run() == [(1, "a")]
    (tmp_path / "in" / "b").write_text(bad)
    with raises(PySparkException) as caught:
        run()
    assert caught.value
    assert isinstance(as_error(caught.value, "orders", "jobs.orders"), JobError)
