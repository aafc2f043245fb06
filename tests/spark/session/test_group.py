"""What streams of a group share in one JVM: state stores, and guards of one stream that leave the others alone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_ft.protocol.errors import JobError
from airflow_ft.spark.attribution import inherited, working_for
from airflow_ft.spark.driver.own_queries import refusing_queries
from airflow_ft.spark.driver.rowless import LooksAtRowsError, no_actions
from airflow_ft.spark.session.groups import is_of_session
from airflow_ft.spark.state.files import sizes, upload_own

pytestmark = [pytest.mark.sampled, pytest.mark.spark, pytest.mark.slow]
_STORES = "org.apache.spark.sql.execution.streaming.state"


def _counts(spark: SparkSession, folder: Path) -> Any:
    """A session of its own with a query that has computed two micro-batches; the session and its location."""
    session: Any = spark.newSession()
    session.conf.set("spark.sql.streaming.stateStore.providerClass", f"{_STORES}.RocksDBStateStoreProvider")
    session.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1")
    session.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    rows, location = folder / "rows", folder / "location"
    rows.mkdir(parents=True)
    for number in range(2):
        (rows / f"{number}.txt").write_text("a\nb\n")
    source = session.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(rows))
    writer = source.groupBy("value").count().writeStream.outputMode("update").format("noop")
    query = writer.option("checkpointLocation", str(location)).trigger(availableNow=True).start()
    query.awaitTermination()
    return session, location


def _loaded(spark: SparkSession) -> set[str]:
    """The names of the folders of locations whose state stores the JVM has."""
    jvm: Any = spark._jvm
    module = jvm.java.lang.Class.forName(f"{_STORES}.StateStore$").getField("MODULE$").get(None)
    field = module.getClass().getDeclaredField("loadedProviders")
    field.setAccessible(True)
    keys, found = field.get(module).keys().toList(), set()
    while not keys.isEmpty():
        found.add(Path(keys.head().storeId().checkpointRootLocation()).parents[1].name)
        keys = keys.tail()
    return found


def test_an_ending_stream_uploads_and_unloads_only_its_own_state(spark: SparkSession, tmp_path: Path) -> None:
    session, mine = _counts(spark, tmp_path / "1-1")
    _, other = _counts(spark, tmp_path / "1-10")
    assert {"1-1", "1-10"} <= _loaded(spark)
    upload_own(session, str(mine))
    assert "1-1" not in _loaded(spark) and "1-10" in _loaded(spark)
    found = sizes(f"file://{mine}", 1)
    assert found is not None and found.replayed == 0, "a full snapshot is there"
    assert not list(other.glob("state/**/*.zip"))


def test_a_guard_of_one_stream_leaves_the_others_alone(spark: SparkSession, tmp_path: Path) -> None:
    """While `transform` of one runs, and while another one's `split` gets an empty batch."""
    found: list[Any] = []

    def other() -> None:
        with working_for("other"):
            rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
            writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "location"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            found.append(spark.range(3).count())

    frame = spark.range(1)
    with inherited(), working_for("mine"), refusing_queries("job", "transform", any_thread=True), no_actions(DataFrame):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    with working_for("mine"), no_actions(type(frame)):
        with pytest.raises(LooksAtRowsError):
            frame.count()
        with working_for("other"):
            assert frame.count() == 1
    assert found == [3] and frame.count() == 1
    with working_for("mine"), pytest.raises(JobError), refusing_queries("job", "transform", any_thread=True):
        spark.readStream.format("rate").load().writeStream.format("noop").start()


def test_the_split_of_a_stream_does_not_wait_for_another(spark: SparkSession) -> None:
    """A hanging one would delay the start of all others."""
    frame = spark.range(1)
    refused, ended = threading.Event(), threading.Event()

    def other() -> None:
        with working_for("other"), no_actions(type(frame)):
            refused.set()
            assert ended.wait(60)
            with pytest.raises(LooksAtRowsError):
                frame.count()

    thread = threading.Thread(target=other)
    thread.start()
    assert refused.wait(60)
    with working_for("mine"):
        with no_actions(type(frame)), pytest.raises(LooksAtRowsError):
            frame.count()
        assert frame.count() == 1
    ended.set()
    thread.join()
    assert not isinstance(vars(type(frame)).get("count"), property)


def test_settings_that_spark_has_once_in_a_jvm_are_known(spark: SparkSession) -> None:
    """Without them two streams would set them to different values, and one would be refused when it starts."""
    module: Any = spark._jvm.java.lang.Class.forName("org.apache.spark.sql.internal.SQLConf$")  # type: ignore[union-attr]
    entries: Any = module.getField("MODULE$").get(None)
    keys = [entry.key() for entry in entries.getConfigEntries().toArray()]
    static = {key for key in keys if entries.isStaticConfigKey(key)}
    assert "spark.sql.codegen.cache.maxEntries" in static
    assert [key for key in sorted(static) if is_of_session(key)] == []
