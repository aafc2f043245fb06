"""Each file of a source is read once, or the batch is refused and names it. With a real query."""

import os
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_ft.protocol.errors import ConfigurationError, JobError, StageError
from airflow_ft.protocol.warning import PipelineWarning
from airflow_ft.sources import FileSource, names
from airflow_ft.spark.driver import folder_values, folders
from airflow_ft.spark.driver.failures import as_error
from airflow_ft.spark.driver.gauges import gauges_of
from airflow_ft.spark.driver.inputs import Sources
from airflow_ft.spark.driver.planned import batch_listings
from airflow_ft.spark.state.locations import SparkLocation
from airflow_ft.wal.filesystem import filesystem
from tests.raising import raises
from tools.servers import Hdfs

NO_TOPICS: Any = None
ODD = (
    *(" a.json", "a ", "a%20b.json", "%zz.json", "a#b.json", "a+b;c.json", "a\nb.json", "a\tb.json", "\u2028.json"),
    *("\u00e9.json", "e\u0301.json", "\u00a0.json", "^a.json", "a,b.json", "a'\"`$!@&=<>|~.json", "_k=v.json", "a?b"),
)


class Reading:
    """A query over a folder, whose batches are checked as a run's are; `rows` has what was read."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder, self.rows, self.tries = spark, folder, list[Any](), 0

    def add(self, *names: str, rows: Callable[[int], str] = lambda n: f'{{"id": {n}}}\n') -> None:
        for n, name in enumerate(names):
            path = self.folder / "in" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rows(n))

    def read(self, path: str = "in", schema: str = "id bigint", *, logs: str = "", **options: Any) -> list[Any]:
        where = path if "://" in path else str(self.folder / path)
        source = FileSource(path=where, schema=schema, **options)
        failed: list[BaseException] = []
        self.tries += 1
        logs = f"{self.folder}/{logs or f'spark-{self.tries}'}"

        def on_batch(batch: DataFrame, number: int) -> None:
            location = SparkLocation(str(self.folder), "orders", f"file://{logs}", -1, "new")
            try:
                [query] = self.spark.streams.active
                batch_listings(self.spark, location, number, query, [source])
                self.rows += [row[0] if len(row) == 1 else tuple(row) for row in batch.collect()]
            except BaseException as error:
                failed.append(error)
                raise

        stream = Sources(self.spark, {"files": source.to_json()}, {})["files"]
        writing = stream.writeStream.foreachBatch(on_batch).option("checkpointLocation", logs)
        query = writing.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except Exception:
            query.stop()
            raise failed[0] if failed else AssertionError from None
        return sorted(self.rows)


@pytest.fixture
def reading(spark: SparkSession, tmp_path: Path) -> Reading:
    return Reading(spark, tmp_path)


def test_files_with_odd_names_are_read_once(reading: Reading) -> None:
    names = [name for name in ODD if "?" not in name]
    reading.add(*names)
    assert reading.read() == list(range(len(names)))


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("name", ["orders [copy].json", "*.json", "a?b", "{a}.json", "a\\b.json", "]"])
def test_a_name_that_spark_takes_for_a_pattern_is_refused(reading: Reading, name: str) -> None:
    reading.add("orders.json", name)
    with pytest.raises(JobError) as refused:
        reading.read()
    assert f"/in/{name}" in refused.value.what and not reading.rows
    (reading.folder / "in" / name).rename(reading.folder / "in" / "renamed.json")
    assert reading.read() == [0, 1]


def test_such_names_that_spark_reads_once_are_read(reading: Reading) -> None:
    """One file a batch, and folders of partitions: there it makes no mistake."""
    reading.add("a [1].json", "b*.json", "c.json")
    assert reading.read(max_files_per_trigger=1) == [0, 1, 2]


def test_folders_of_partitions_are_taken_as_they_are_named(reading: Reading) -> None:
    reading.add("k=[2]/a.json", "k=1:2/b.json", "k=a%3Ab/c.json")
    assert reading.read(schema="id bigint, k string") == [(0, "[2]"), (1, "1:2"), (2, "a:b")]


def test_a_folder_whose_name_is_no_exact_value_is_refused(reading: Reading) -> None:
    """Spark read -56."""
    reading.add("k=200/a.json")
    with raises(JobError, "partition_value_unfit", column="k") as caught:
        reading.read(schema="id bigint, k tinyint")
    assert caught.error and caught.error.fields["paths"][0].endswith("/in/k=200") and "tinyint" in caught.error.what
    source = FileSource(path=str(reading.folder / "in"), schema="id bigint, k tinyint")
    with raises(JobError, "partition_value_unfit", column="k"):
        Sources(reading.spark, {"files": source.to_json()}, {}).static("files")
    assert reading.read(schema="id bigint, k smallint") == [(0, 200)]


CHOSEN = {"int": (["7", "-3", "05"], ["007", "+1"]), "double": (["0.5", "1"], ["1.50", "1234567890123456789.5", "NaN"])}


@pytest.mark.sampled(one_in=4)
@pytest.mark.parametrize("kind", CHOSEN)
def test_a_type_that_spark_chooses_changes_no_text_of_a_folder(kind: str, reading: Reading) -> None:
    good, bad = CHOSEN[kind]
    reading.add(*(f"k={value}/a.json" for value in good))
    assert reading.read() == [(n, float(value) if kind == "double" else int(value)) for n, value in enumerate(good)]
    source = FileSource(path=str(reading.folder / "in"), schema="id bigint")
    for value in bad:
        reading.add(f"k={value}/a.json")
        with raises(JobError, "partition_value_unfit", column="k"):
            reading.read()
        with raises(JobError, "partition_value_unfit", column="k"):
            Sources(reading.spark, {"files": source.to_json()}, {}).static("files")
        (reading.folder / f"in/k={value}/a.json").unlink()
        (reading.folder / f"in/k={value}").rmdir()
    reading.add("k=007/a.json")
    reading.rows.clear()
    assert (0, "007") in reading.read(schema="id bigint, K string")
    reading.rows.clear()
    assert (0, 7.0) in reading.read(schema="id bigint, k double")


HOLD = {
    "tinyint": (["7", "-128", "007", "+1"], ["200", "1.0", "", "\u0667", "1e1"]),
    "bigint": (["9223372036854775807"], ["9223372036854775808", "9" * 200]),
    "decimal(12,2)": (["2.5", "2.550", "1e2", "0e99", "-0.00"], ["2.555", "12345678901", "1e99", "x"]),
    "double": (["0.1", "NaN", "1e300"], ["1e400", "1d", "0x1p3"]),
    "float": (["0.1"], ["1e39"]),
    "boolean": (["true", "FALSE"], ["yes", "1"]),
    "date": (["2024-02-29", "2024-2-9"], ["2024", "2024-02", "2023-02-29", "2024-05-01 rest", "2024-05-01 12:30"]),
    "timestamp": (
        ["2024-05-01", "2024-05-01 12:30", "2024-05-01T12:30:00.5Z", "2024-05-01 12:30:00 Europe/Paris"],
        ["12:30", "2024-05-01 24:00", "2024-05-01 12:30:00.1234567", "2024-05-01 12:30 BST"],
    ),
    "timestamp_ntz": (["2024-05-01 12:30:00.123456"], ["2024-05-01 12:30Z"]),
    "string": (["", "x/y"], []),
}


@pytest.mark.parametrize("kind", HOLD)
def test_what_the_name_of_a_folder_says_is_held_exactly(kind: str) -> None:
    good, bad = HOLD[kind]
    for value in [*good, *bad, folder_values._NULL]:
        name = value.replace("/", "%2F").replace(":", "%3A")
        found = list(folder_values.inexact([f"file:///in/j=x/K={name}/a"], {"k": kind, "j": "string"}))
        assert bool(found) == (value in bad), value


def test_a_file_from_the_future_hides_no_other_one(reading: Reading) -> None:
    """Spark leaves out what is older than the newest file by more than an age, in silence."""
    reading.add("a.json")
    os.utime(reading.folder / "in/a.json", (10_000_000_000,) * 2)
    assert reading.read(logs="same") == [0]
    (reading.folder / "in/b.json").write_text('{"id": 7}\n')
    assert reading.read(logs="same") == [0, 7]


def test_a_folder_that_is_called_like_a_pattern_is_refused(reading: Reading) -> None:
    """It found `br1`, and read nothing of `br[0-9]`."""
    reading.add("br[0-9]/a.json", "br1/b.json")
    for path in ("in/br[0-9]", "in/br[0-9]/*.json"):
        with raises(ConfigurationError, "path_ambiguous", source="files") as caught:
            reading.read(path)
        assert caught.error and caught.error.fields["existing"].endswith("/br[0-9]")
    (reading.folder / "in/br[0-9]").rename(reading.folder / "in/br2")
    assert reading.read("in/br[0-9]") == [0, 1]


def test_a_file_that_a_pattern_finds_twice_is_refused(reading: Reading) -> None:
    reading.add("a/x/f.json")
    with raises(JobError, "file_read_twice") as caught:
        reading.read("in/{a/x,*/x}")
    assert caught.error and caught.error.fields["paths"][0].endswith("f.json")


@pytest.mark.parametrize("options", [{}, {"max_files_per_trigger": 1}])
def test_a_file_beside_folders_of_partitions_is_refused(reading: Reading, options: dict[str, Any]) -> None:
    """Spark counted it as read, and never read it."""
    reading.add("a.json", "k=1/b.json")
    os.utime(reading.folder / "in/a.json", (1_700_000_000,) * 2)
    with raises(JobError, "file_left_out") as caught:
        reading.read(schema="id bigint, k string", **options)
    assert caught.error and caught.error.fields["paths"][0].endswith("/in/a.json")
    assert not reading.rows


def test_an_empty_file_is_no_reason_to_fail(reading: Reading) -> None:
    reading.add("k=1/a.json", "k=2/b.json")
    (reading.folder / "in/k=2/empty.json").touch()
    assert reading.read(schema="id bigint, k int") == [(0, 1), (1, 2)]


def test_a_colon_in_the_name_of_a_file_is_refused_with_a_way_out(reading: Reading) -> None:
    reading.add("12:30.json", "a.json")
    with pytest.raises(JobError) as refused:
        reading.read()
    assert f"mv '{reading.folder}/in/12:30.json' '{reading.folder}/in/12-30.json'" in refused.value.remedy
    with raises(JobError, "file_name_unfit") as caught:  # a filter of names may leave it out, so the batch is judged
        reading.read(options={"pathGlobFilter": "*.json"})
    assert caught.error and caught.error.fields["paths"][0].endswith("12:30.json")
    assert not reading.rows


def test_a_colon_on_the_way_is_none_of_sparks_business(reading: Reading) -> None:
    reading.add("a:b/a.json")
    assert reading.read("in/a:b") == [0]


def test_a_colon_that_a_pattern_meets_is_named(reading: Reading) -> None:
    reading.add("a:b/a.json")
    with raises(Exception) as raised:
        reading.read("in/*")
    assert raised.value
    error = as_error(raised.value, "orders", "jobs.orders")
    assert isinstance(error, JobError) and error.code == "file_name_unfit" and error.fields["path"] == "a:b"


def test_a_path_without_a_scheme_is_shown_as_hadoop_resolves_it() -> None:
    """With HADOOP_CONF_DIR it may lie in another file system than its author thinks."""
    assert "file:///data/in" in folders._hint("/data/in", "hdfs://namenode:8020/data/in")
    assert not folders._hint("/data/in", "file:/data/in") and not folders._hint("hdfs://a/in", "hdfs://a/in")


def test_a_name_that_java_cannot_decode_is_refused(reading: Reading) -> None:
    """Spark left it out in silence."""
    reading.add("a.json")
    Path(os.fsdecode(os.fsencode(reading.folder) + b"/in/\xe9.json")).write_text('{"id": 7}\n')
    with raises(JobError, "file_name_unfit", source="files") as caught:
        reading.read()
    assert caught.error and caught.error.fields["paths"][0].endswith("\\xe9.json") and "UTF-8" in caught.error.remedy


def test_a_stream_warns_of_a_new_name_that_java_cannot_decode(reading: Reading) -> None:
    reading.add("a.json")
    source = FileSource(path=str(reading.folder / "in"), schema="id bigint")
    warnings: list[PipelineWarning] = []
    location = SparkLocation(str(reading.folder), "orders", f"file://{reading.folder}/spark", -1, "new")
    gauge = gauges_of(reading.spark, location, {"files": source}, NO_TOPICS, warnings.append)["files"]
    assert gauge.measure(None) == (1, 0) and not warnings
    Path(os.fsdecode(os.fsencode(reading.folder) + b"/in/\xe9.json")).touch()
    for _ in range(2):
        gauge.measure(None)
    assert [(warning.code, warning.subject) for warning in warnings] == [("SOURCE_FILE_UNREADABLE", "files")]


@pytest.mark.parametrize("each", [None, 1], ids=["in one batch", "in two"])
def test_a_link_to_a_file_that_is_read_too_is_refused(reading: Reading, each: int | None) -> None:
    reading.add("a.json")
    (reading.folder / "in/latest.json").symlink_to("a.json")
    with raises(JobError, "file_read_twice") as caught:
        reading.read(max_files_per_trigger=each)
    assert caught.error and caught.error.fields["paths"][0].endswith("/latest.json") and "/a.json" in caught.error.what


def test_a_link_into_a_recursively_read_folder_is_refused(reading: Reading) -> None:
    reading.add("deep/er/a.json")
    (reading.folder / "in/latest.json").symlink_to("deep/er/a.json")
    with raises(JobError, "file_read_twice") as caught:
        reading.read(max_files_per_trigger=1, options={"recursiveFileLookup": "true"})
    assert caught.error and caught.error.fields["paths"][0].endswith("/latest.json")


def test_a_pattern_of_many_files_is_looked_at_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file was compared with each other one: 100,000 files took 20 minutes."""
    files = [tmp_path / f"{n}.json" for n in range(2000)]
    for file in files:
        file.touch()
    calls = Counter[str]()

    def counted(name: str, of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: calls.update([name]) or of(*args)

    for each in ("is_hidden", "_above"):
        monkeypatch.setattr(names, each, counted(each, getattr(names, each)))
    monkeypatch.setattr(os.path, "realpath", counted("realpath", os.path.realpath))
    assert names.twins([file.as_uri() for file in files], f"{tmp_path}/*.json") == []
    assert calls["is_hidden"] <= 3 * len(files) and calls["_above"] <= 3 * len(files) and calls["realpath"] < 10


def test_a_link_to_a_folder_that_a_pattern_finds_too_is_refused(reading: Reading) -> None:
    reading.add("2026/a.json")
    link = reading.folder / "in/current"
    link.symlink_to("2026")
    with raises(JobError, "file_read_twice") as refused:
        reading.read("in/*")
    assert refused.error and refused.error.fields["paths"][0].endswith("current/a.json")
    assert f"`rm '{link}'`" in refused.error.remedy, "the file is to stay"
    assert reading.read("in/curr*") == [0]


def test_the_link_is_told_from_the_folder_whatever_their_names(reading: Reading) -> None:
    reading.add("z/a.json")
    (reading.folder / "in/a").symlink_to("z")
    (reading.folder / "link").symlink_to("in")
    for path in ("in/*", "link/*"):
        with raises(JobError, "file_read_twice") as refused:
            reading.read(path)
        assert refused.error and refused.error.fields["paths"][0].endswith(f"/{path[:-2]}/a/a.json")
        assert f"`rm '{reading.folder}/{path[:-2]}/a'`" in refused.error.remedy


def test_links_out_of_the_folder_are_read(reading: Reading) -> None:
    """As Kubernetes mounts files: a link to a hidden folder beside it."""
    reading.add("..2026/a.json", "b.json", "../elsewhere/c.json")
    (reading.folder / "in/..data").symlink_to("..2026")
    (reading.folder / "in/a.json").symlink_to("..data/a.json")
    (reading.folder / "in/c.json").symlink_to("../elsewhere/c.json")
    (reading.folder / "link").symlink_to("in")
    assert reading.read("link") == [0, 1, 2]


def test_a_path_that_is_no_folder_is_told_as_hadoop_sees_it(reading: Reading) -> None:
    reading.add("a.json")
    with raises(StageError, "folder_missing", source="files", path=f"file:{reading.folder}/other") as caught:
        reading.read("other")
    assert caught.error and f"{reading.folder}/other)" in caught.error.what, "as it is declared, too"
    with raises(ConfigurationError, "path_invalid", source="files", path=f"file:{reading.folder}/in/a.json"):
        reading.read("in/a.json")


@pytest.mark.parametrize("marker", ["_delta_log", ".hoodie"])
def test_a_table_is_no_folder_of_files(reading: Reading, marker: str) -> None:
    reading.add("a.json")
    (reading.folder / "in" / marker).mkdir()
    with raises(ConfigurationError, "path_invalid", source="files", path=f"file:{reading.folder}/in"):
        reading.read(format="parquet")
    assert reading.read() == [0]


def test_a_warning_tells_that_spark_skips_files_in_its_output(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    reading.add("a.json")
    rows = reading.spark.readStream.schema("id bigint").json(str(reading.folder / "in"))
    writing = rows.writeStream.format("json").option("checkpointLocation", f"{reading.folder}/written")
    writing.trigger(availableNow=True).start(f"{reading.folder}/out").awaitTermination()
    (reading.folder / "out" / "more.json").write_text('{"id": 7}\n')
    assert reading.read("out") == [0]
    assert "_spark_metadata" in caplog.text


def test_a_static_read_is_judged_alike(reading: Reading) -> None:
    reading.add("a.json", "k=1/b.json")
    source = FileSource(path=str(reading.folder / "in"), schema="id bigint, k string")
    with raises(JobError, "file_left_out"):
        Sources(reading.spark, {"files": source.to_json()}, {}).static("files")


@pytest.mark.sampled(among="HDFS")
@pytest.mark.server
@pytest.mark.slow
def test_names_on_hdfs_are_judged_alike(spark: SparkSession, hdfs: Hdfs, tmp_path: Path) -> None:
    """HDFS itself refuses names with ':'."""
    root = f"{hdfs.url}/{uuid.uuid4().hex}"
    files = filesystem(root)
    files.make_folder(f"{root}/in")
    for n, name in enumerate(("a b#%20.json", "\u00e9,^.json", "k.json")):
        files.write(f"{root}/in/{name}", f'{{"id": {n}}}\n'.encode())
    reading = Reading(spark, tmp_path)
    assert reading.read(f"{root}/in") == [0, 1, 2]
    files.write(f"{root}/in/orders [copy].json", b'{"id": 3}\n')
    with raises(JobError, "file_name_unfit") as caught:
        reading.read(f"{root}/in")
    assert caught.error and caught.error.fields["paths"][0].endswith("orders [copy].json")
    with raises(ConfigurationError, "path_ambiguous"):
        files.make_folder(f"{root}/br[0-9]")
        reading.read(f"{root}/br[0-9]")
    with raises(StageError, "folder_missing", path=f"{root}/nowhere"):
        reading.read(f"{root}/nowhere")
