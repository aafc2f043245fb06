"""What a job may return, and what is said when it returns something else or fails."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_ft.protocol.errors import JobError, SealError, StageError
from airflow_ft.protocol.model import RunKey, Segment
from airflow_ft.sources import FileSource
from airflow_ft.spark.driver import staging
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.inputs import Sources, named_positions, source_order, source_places
from airflow_ft.spark.driver.job import Job
from airflow_ft.spark.driver.plan_facts import never_adds_rows
from airflow_ft.spark.driver.staging import write_batch
from airflow_ft.spark.request import StageRequest
from airflow_ft.wal import open_wal
from airflow_ft.wal.statistics import Statistics
from tests.raising import raises
from tests.spark.sample_jobs import started

pytestmark = pytest.mark.spark
HERE = "tests.spark.sample_jobs"


def _request(folder: Path, **more: object) -> StageRequest:
    settings: dict[str, object] = {
        "pipeline": "orders",
        "run": RunKey("d", "r"),
        "epoch": 1,
        "attempt": 1,
        "store_url": "sqlite:////nowhere",
        "wal_root": str(folder),
        "job": f"{HERE}:Job",
        "sinks": ("orders",),
    }
    return StageRequest(**{**settings, **more})  # type: ignore[arg-type]


def _run(spark: SparkSession, folder: Path, fault: str) -> Segment:
    """What the runner does with a static job."""
    try:
        job = Job(f"{HERE}:Job", {"fault": fault})
        frame = job.transform(spark, Sources(spark, {}, {}))
        return write_batch(_request(folder), job, frame, 0, 1, {}).seal()
    except Exception as error:
        raise as_error(error, "orders", f"{HERE}:Job") from error


@pytest.mark.parametrize(
    ("fault", "code", "fields", "remedy"),
    [
        ("list", "job_result_invalid", {"returned": "list"}, 'sources["orders"]'),
        ("nothing", "job_result_invalid", {"returned": "NoneType"}, "`return`"),
        ("pandas", "job_result_invalid", {"returned": "pandas.DataFrame"}, "mapInPandas"),
        ("pandas on spark", "job_result_invalid", {"returned": "pyspark.pandas.DataFrame"}, "frame.to_spark()"),
        ("pandas split", "job_result_invalid", {"returned": "pandas.DataFrame"}, "createDataFrame"),
        ("dictionary", "job_result_invalid", {}, "split(batch)"),
        ("no columns", "job_result_invalid", {}, ""),
        ("two columns", "column_repeated", {"columns": ["n"]}, "withColumnRenamed"),
        ("unknown source", "source_unknown", {"source": "unknown", "declared": []}, "'unknown'"),
        ("missing sink", "split_unfit", {"missing": ["orders"], "unknown": []}, "orders"),
        ("unknown sink", "split_unfit", {"unknown": ["order"]}, "orders"),
        ("no dictionary", "job_result_invalid", {}, "{sink name: DataFrame}"),
        ("no frame", "job_result_invalid", {"returned": "int"}, 'sources["orders"]'),
    ],
)
def test_a_wrong_result_is_named(
    spark: SparkSession, tmp_path: Path, fault: str, code: str, fields: dict[str, Any], remedy: str
) -> None:
    with raises(JobError, code, pipeline="orders", **fields) as caught:
        _run(spark, tmp_path, fault)
    assert caught.error and remedy in caught.error.remedy


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unknown column", r"UNRESOLVED_COLUMN.*`missing`"),
        ("cast", "CAST_INVALID_INPUT"),
        ("udf", "ZeroDivisionError"),
        ("code", r"KeyError: 'no such customer: 4711' \(.*sample_jobs.py, line \d+, in"),
        ("split", r"ValueError: colour \(.*sample_jobs.py, line \d+, in split\)"),
    ],
)
def test_what_a_job_raises_is_shown_with_its_place(
    spark: SparkSession, tmp_path: Path, fault: str, message: str
) -> None:
    """In the words of Python and Spark."""
    with raises(JobError, "job_failed", pipeline="orders", job=f"{HERE}:Job") as caught:
        _run(spark, tmp_path, fault)
    assert caught.error and re.search(f"(?s){message}", caught.error.what)


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        ("query", "transform"),
        ("handled query", "transform"),
        ("query in a thread", "transform"),
        ("query of the JVM", "transform"),
        ("query split", "split"),
    ],
)
def test_a_query_that_a_job_starts_is_refused(spark: SparkSession, tmp_path: Path, fault: str, where: str) -> None:
    with raises(JobError, "query_in_job", function=where, job=f"{HERE}:Job") as caught:
        _run(spark, tmp_path, fault)
    assert caught.error and "sink" in caught.error.remedy and not spark.streams.active
    query = started(spark)  # what starts one outside of a job is not touched
    query.stop()


def test_what_is_not_the_jobs_fault_may_be_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "orders").write_text("a file where the folder should be")
    with raises(StageError, "query_failed", pipeline="orders"):
        _run(spark, tmp_path, "")


@pytest.mark.parametrize(
    ("name", "code", "fields"),
    [
        ("Missing", "job_missing", {"module": HERE, "name": "Missing"}),
        ("not_a_job", "job_invalid", {}),
        ("WrongMode", "job_invalid", {"value": "upsert"}),
    ],
)
def test_a_reference_that_is_no_job_is_refused(name: str, code: str, fields: dict[str, str]) -> None:
    with raises(JobError, code, job=f"{HERE}:{name}", **fields):
        Job(f"{HERE}:{name}", {})


def test_arguments_go_to_the_class_or_to_transform(spark: SparkSession) -> None:
    assert Job(f"{HERE}:unsplit", {"rows": 5}).transform(spark, Sources(spark, {}, {})).count() == 5
    assert Job(f"{HERE}:unsplit", {}).transform(spark, Sources(spark, {}, {})).count() == 1


@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        (f"{HERE}:Job", {"falt": ""}),
        (f"{HERE}:unsplit", {"row": 5}),
    ],
)
def test_arguments_that_the_job_does_not_take_are_named(
    spark: SparkSession, job: str, arguments: dict[str, Any]
) -> None:
    with raises(JobError, "job_invalid", job=job, arguments=list(arguments)) as caught:
        Job(job, arguments).transform(spark, Sources(spark, {}, {}))
    assert caught.error and repr(next(iter(arguments))) in caught.error.what and "job_args" in caught.error.remedy


def test_several_sinks_need_a_split(spark: SparkSession) -> None:
    job = Job(f"{HERE}:unsplit", {})
    with raises(JobError, "split_unfit", sinks=["a", "b"]):
        job.split(spark.range(1), ("a", "b"), ())
    assert list(job.split(spark.range(1), ("a",), ())) == ["a"]


def test_an_optional_sink_may_be_left_out(spark: SparkSession, tmp_path: Path) -> None:
    request = _request(tmp_path, optional_sinks=("dead_letters",))
    segment = write_batch(request, Job(f"{HERE}:Job", {}), spark.range(3), 0, 1, {}).seal()
    assert segment.rows == {"orders": 3, "dead_letters": 0}


def test_other_rows_than_spark_has_counted_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    written = write_batch(_request(tmp_path), Job(f"{HERE}:unsplit", {}), spark.range(4).repartition(2), 0, 1, {})
    first, *_ = sorted(tmp_path.rglob("part-*.parquet"))
    first.unlink()
    with raises(SealError, "seal_failed", checkpoint=1, counted={"orders": 4}) as caught:
        written.seal()
    assert caught.error and caught.error.fields["found"]["orders"] < 4


@pytest.mark.parametrize("few", [False, True])
def test_an_attempts_folder_is_written_once(spark: SparkSession, tmp_path: Path, few: bool) -> None:
    """I1: whoever comes second writes nothing into it, also between the first look and the writing."""
    job = Job(f"{HERE}:unsplit", {})
    write_batch(_request(tmp_path), job, spark.range(4), 0, 1, {}, few=few)
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    folder = str(tmp_path)  # another history's
    assert not list(tmp_path.rglob("_temporary")), "Spark's committer has removed its folders"
    with pytest.raises(StageError, check=lambda error: folder in error.what):
        write_batch(_request(tmp_path), job, spark.range(5), 0, 1, {}, few=few)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StageError, check=lambda error: folder in error.what):
        patch.setattr(staging, "refuse_another_history", lambda *_: None)
        write_batch(_request(tmp_path), job, spark.range(5), 0, 1, {}, few=few)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == files


@pytest.mark.parametrize("few", [False, True])
def test_values_are_exact_and_statistics_are_those_of_the_rows(spark: SparkSession, tmp_path: Path, few: bool) -> None:
    frame = spark.sql(
        """
        select * from values
          (1, 9223372036854775807L, 127Y, 32767S, 1.5D, float('nan'),
           cast(9999999999999999999999999999.0123456789 as decimal(38,10)), true, date '1000-01-01',
           timestamp '1000-01-01 00:00:00.000001 UTC', timestamp_ntz '1000-01-01 00:00:00.000001',
           unhex('00FF0A0D5C'), '', 'a', array(1, null), map('a', 1), named_struct('x', 1, 'y', 'z')),
          (2, -9223372036854775808L, -128Y, -32768S, double('-infinity'), float('1e-45'),
           cast(-0.0000000001 as decimal(38,10)), false, date '9999-12-31',
           timestamp '9999-12-31 23:59:59.999999 UTC', timestamp_ntz '9999-12-31 23:59:59.999999',
           unhex(''), '\\\\N\\t\\n𝄞', null, array(), map(), null),
          (3, null, null, null, double('nan'), null, null, null, null, null, null, null, null, null, null, null, null)
        as t(id, big, tiny, small, dbl, flt, dec, yes, day, at, local, raw, note, weird, arr, mp, st)
        """
    ).withColumnRenamed("weird", "we`ird na.me é")
    segment = write_batch(_request(tmp_path), Job(f"{HERE}:unsplit", {}), frame, 0, 1, {}, few=few).seal()
    reader = open_wal().open(segment)
    table = pa.Table.from_batches(
        (b for file in reader.files("orders") for b in reader.batches("orders", file)), reader.schema("orders")
    )
    types = {field.name: str(field.type) for field in table.schema}
    assert types["at"] == "timestamp[us, tz=UTC]" and types["local"] == "timestamp[us]"
    assert types["dec"] == "decimal128(38, 10)" and types["tiny"] == "int8" and types["day"] == "date32[day]"
    first, second, third = sorted(table.to_pylist(), key=lambda row: row["id"])
    assert str(first["at"]) == "1000-01-01 00:00:00.000001+00:00"
    assert str(first["local"]) == "1000-01-01 00:00:00.000001" and str(first["day"]) == "1000-01-01"
    assert str(second["at"]) == "9999-12-31 23:59:59.999999+00:00" and str(second["day"]) == "9999-12-31"
    assert (first["big"], second["big"]) == (2**63 - 1, -(2**63))
    assert str(first["dec"]) == "9999999999999999999999999999.0123456789"
    assert first["raw"] == b"\x00\xff\n\r\\" and second["raw"] == b""
    assert first["note"] == "" and second["note"] == "\\N\t\n𝄞" and third["note"] is None
    assert first["we`ird na.me é"] == "a"
    assert first["arr"] == [1, None] and first["mp"] == [("a", 1)] and first["st"] == {"x": 1, "y": "z"}
    whole = Statistics(table.schema)
    for batch in table.to_batches():
        whole.add(batch)
    assert reader.statistics("orders") == whole.columns()


@pytest.mark.parametrize(
    "value",
    [
        "cast(unhex('61FF') as string)",
        "array('a', null, cast(unhex('C3') as string))",
        "map('k', cast(unhex('FF') as string))",
        "map(cast(unhex('FF') as string), 1)",
        "named_struct('n', 1, 'in.ner', array(named_struct('text', cast(unhex('EDA080') as string))))",
    ],
)
@pytest.mark.parametrize("few", [False, True])
def test_text_that_is_not_utf8_is_refused_before_publishing(
    spark: SparkSession, tmp_path: Path, value: str, few: bool
) -> None:
    """A sink would find it only when it sends the rows, perhaps after another sink has committed."""
    frame = spark.sql(f"select 1 as id, {value} as note union all select 2, null")
    with pytest.raises(JobError) as caught:
        write_batch(_request(tmp_path), Job(f"{HERE}:unsplit", {}), frame, 0, 1, {}, few=few).seal()
    assert (caught.value.checkpoint, caught.value.sink, caught.value.column) == (1, "orders", "note")
    assert "UTF-8" in caught.value.what


EVERY_TYPE = """
    cast(1 as tinyint) a, cast(1 as smallint) b, 1 c, 1L d, cast(1.5 as float) e, 1.5D f, cast(1.25 as decimal(5,2)) g,
    cast(1.25 as decimal(15,2)) h, cast(1.25 as decimal(38,18)) i, true j, 'x' k, cast('x' as char(3)) l,
    cast('x' as varchar(3)) m, unhex('00') n, date '2026-01-01' o, timestamp '2026-01-01 01:02:03.456789 UTC' p,
    timestamp_ntz '2026-01-01 01:02:03.456789' q, 'x' collate UTF8_LCASE r, if(id % 2 = 0, id, null) s
"""


@pytest.mark.parametrize("columns", [EVERY_TYPE, "time '12:00:00.000250' t"], ids=["every type", "time"])
def test_the_log_holds_the_same_however_a_batch_was_written(spark: SparkSession, tmp_path: Path, columns: str) -> None:
    """Zone of the session and order of the rows included."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.sql(f"select id, {columns} from range(0, 1000, 1, 3)")
        found = []
        for attempt, ways in enumerate(({}, {"few": True}, {"few": True, "bounded": True}), 1):
            request = replace(_request(tmp_path), attempt=attempt)
            written = write_batch(request, Job(f"{HERE}:unsplit", {}), frame, 0, 1, {}, **ways)
            reader = open_wal().open(written.seal())
            files = reader.files("orders")
            batches = [batch for file in files for batch in reader.batches("orders", file)]
            found.append((reader.schema("orders"), pa.Table.from_batches(batches), reader.statistics("orders")))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    (schema, table, statistics), *others = found
    assert table["id"].to_pylist() == list(range(1000))
    for other_schema, other_table, other_statistics in others:
        types = [[(item.name, item.type) for item in each] for each in (schema, other_schema)]
        assert types[0] == types[1]  # not what a plan says of nulls: it depends on simplification, and nothing reads it
        assert table.to_pylist() == other_table.to_pylist()
        assert statistics == other_statistics


def test_a_batch_larger_than_expected_is_computed_again(spark: SparkSession, tmp_path: Path) -> None:
    few = staging.FEW_ROWS
    fits = write_batch(_request(tmp_path), Job(f"{HERE}:unsplit", {}), spark.range(0, few, 1, 1), 0, 1, {}, few=True)
    assert fits.seal().rows == {"orders": few}
    with pytest.raises(staging.ManyRowsError):
        write_batch(_request(tmp_path), Job(f"{HERE}:unsplit", {}), spark.range(0, few + 1, 1, 1), 1, 2, {}, few=True)


def test_plans_show_which_queries_never_add_rows(spark: SparkSession) -> None:
    numbers = spark.readStream.format("rate").load()
    bounded = [
        numbers,
        numbers.where("value > 1").selectExpr("value + 1 AS id", "timestamp AS at").alias("n"),
        numbers.withWatermark("timestamp", "1 minute").dropDuplicates(["value"]).repartition(2),
    ]
    unbounded = [
        numbers.selectExpr("explode(array(value, value)) AS id"),
        numbers.selectExpr("inline(array(struct(value), struct(value)))"),
        numbers.union(numbers),
        numbers.join(spark.range(2)),
        numbers.mapInArrow(lambda batches: batches, numbers.schema),
        numbers.groupBy(F.window("timestamp", "10 seconds", "1 second")).count(),
    ]
    assert [never_adds_rows(each) for each in bounded] == [True] * len(bounded)
    assert [never_adds_rows(each) for each in unbounded] == [False] * len(unbounded)


def test_sources_are_known_by_name_in_sparks_order(spark: SparkSession, tmp_path: Path) -> None:
    specs = {}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        specs[name] = FileSource(path=str(tmp_path / name), schema="n int").to_json()
    sources = Sources(spark, specs, {})
    assert sources["one"] is sources["one"] and list(sources) == ["one", "two"]
    own = spark.readStream.schema("n int").json(str(tmp_path / "one"))
    assert source_order(sources["two"].union(sources["one"]).union(own)) == ["two", "one", "source-2"]
    twice = sources["two"].union(sources["two"].where("n > 0")).union(sources["one"])
    assert source_order(twice) == ["two", "one"] and source_places(twice) == [0, 0, 1], "Spark has a line for each"
    assert source_order(sources["one"].join(spark.range(3), sources["one"].n == 1)) == ["one"]
    assert sources.static("one").isStreaming is False


def test_positions_have_the_names_of_the_sources() -> None:
    assert named_positions(["a", "b"], [], [{"logOffset": 0}, None]) == {
        "a": {"start": None, "end": {"logOffset": 0}},
        "b": {"start": None, "end": None},
    }
    assert named_positions(["a"], [1], [2]) == {"a": {"start": 1, "end": 2}}
