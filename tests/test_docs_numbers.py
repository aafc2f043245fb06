"""Numbers that pages tell are those of the code: bounds, time-outs, how many of the newest are looked at."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from inspect import signature

import pytest
from airflow_ft.plugins import access, handles, pipeline, pipelines, savepoints, state

from airflow_ft.operators import reporting as lineage_reporting
from airflow_ft.operators import stream
from airflow_ft.operators.maintenance import MaintenanceOperator
from airflow_ft.pipeline.retries import OF_A_STREAM, USUAL
from airflow_ft.protocol import arguments, backpressure, inline_job, meter, numbers, overlap, retention, sweep
from airflow_ft.sinks import delivery_progress as headway
from airflow_ft.sinks import ready, refused
from airflow_ft.sinks.base import requirements, slices, sql_sink
from airflow_ft.sinks.delta import rows
from airflow_ft.sinks.files import writing
from airflow_ft.sinks.kafka import records, spec
from airflow_ft.sinks.mysql import parameters
from airflow_ft.sinks.postgres.session import Limits
from airflow_ft.sinks.sqlite import file
from airflow_ft.spark.driver import capacity as room
from airflow_ft.spark.driver import columns, gauges, kafka_admin, lag, staging
from airflow_ft.spark.session import session_keeper as keeper
from airflow_ft.spark.state import timers
from airflow_ft.store.database import Pool
from airflow_ft.wal import copying, hdfs
from tests.conformance.test_seeded_defects import DEFECTS
from tests.conformance.test_wrong_histories import WRONG as HISTORIES
from tests.conformance.test_wrong_sinks import WRONG
from tests.simulation.known import DEFECTS as SEEDED
from tests.simulation.scenarios import ALL
from tests.test_docs import PROJECT, TEXT

pytestmark = pytest.mark.airflow

SERVER = Limits()
KEPT = backpressure.RETAINED_BATCHES - backpressure.SPARE_BATCHES
MINUTES = f"{sweep.ORPHAN_AGE.total_seconds() / 60:g}"
SECONDS = f"{USUAL.delay.total_seconds():g}"
TEXTS = {
    "alignment": [f"at most {arguments._LONGEST_BARRIER} characters"],
    "architecture": [
        f"prunes at most {retention.BATCH * retention.BATCHES:,} checkpoints after a delivery, "
        f"in batches of {retention.BATCH}",
        f"the first {staging.FEW_ROWS:,} raises",
    ],
    "checkpoints": [
        f"up to the {KEPT} checkpoints for which Spark keeps state",
        f"The log says so every {room._LOG_EACH:g} seconds",
        f"between its tries, up to {overlap.LONGEST_PAUSE:g} s",
    ],
    "configuration": [f"and after {keeper.USES} runs", f"three retries, {SECONDS} seconds apart"],
    "dags": [f"With more than {numbers.MOST_LISTED:,} checkpoints, `numbers` is None"],
    "delta": [f"texts longer than {rows._LONGEST} characters", f"after the first {rows._INDEXED}"],
    "errors": [f"does not answer within {ready.LOOK_SECONDS:g} s counts as unreachable"],
    "failures": [f"takes longer than {room._LOG_EACH:g} seconds"],
    "jobs": [f"At most {inline_job.MOST_BYTES >> 10} KB are shipped"],
    "kafka": [f"every {records._SLICE_ROWS:,} records", f"1 to {spec.MAX_SLOTS}."],
    "mysql": [
        f"1 to {sql_sink.MAX_BRANCHES} |",
        f"fewer than {slices.MIN_ROWS:,} rows",
        f"as {parameters.MAX_PARAMETERS:,} parameters allow",
    ],
    "observability": [
        f"of up to {numbers.MOST_LISTED:,} checkpoints",
        f"more than {meter.MOST_EVENTS} events",
        f"more than {columns.MOST_NODES} nodes or {columns.MOST_COLUMNS:,} columns",
        f"more than {columns.MOST_INPUTS:,} inputs",
    ],
    "postgres": [
        f"1 to {sql_sink.MAX_BRANCHES} |",
        f"fewer than {slices.MIN_ROWS:,} rows",
        f"| {SERVER.lock_wait:g} s without the lock |",
        f"| up to {SERVER.head_wait:g} s |",
        f"| {SERVER.idle:g} s idle in its transaction |",
        f"| {SERVER.answer / 60:g} minutes in one statement |",
    ],
    "recovery": [f"More than {refused.MAX_ROWS:,} refused rows", f"`orphan_age` ({MINUTES} minutes)"],
    "restarts": [
        f"tried again {USUAL.attempts} times, {SECONDS} seconds apart",
        f"`retries`, {OF_A_STREAM.attempts:,} after {OF_A_STREAM.delay.seconds} seconds",
    ],
    "savepoints": [f"at most {savepoints.MOST} savepoints"],
    "security": [f"its newest {access.NEWEST} checkpoints"],
    "simulation": [
        f"| all | {len(ALL)} |",
        f"| with savepoints that are taken and restored | {sum('savepoint' in each.person for each in ALL)} |",
        f"| with a full refresh | {sum('beginning' in each.person for each in ALL)} |",
        f"| with sources that change | {sum(bool(each.sources) for each in ALL)} |",
        f"switch off {len(SEEDED)} rules",
    ],
    "sqlite": [f"others wait for {file.WAIT_SECONDS:g} s"],
    "state": [
        f"the pipeline's newest {access.NEWEST} checkpoints",
        f"{handles.ENTRIES} values of a key in a state, {state.MOST_BYTES >> 20} MB for an answer",
        f"{handles.BYTES >> 20} MB of files in memory for a lookup",
        f"after {timers.SILENT} such micro-batches in a row",
        f"{timers.SILENT * (timers.WAITING + 1)}, and {timers.SILENT} more for each retained checkpoint",
    ],
    "ui": [
        f"over the newest {pipelines.RECENT} completed checkpoints",
        f"of the newest {pipeline.COUNTED} checkpoints by sink",
        f"of the newest {pipeline.SUMMED:,} checkpoints",
        f"Above {gauges._MANY_FILES:,} files",
        f"waits up to {signature(MaintenanceOperator).parameters['wait'].default:g} s",
    ],
    "writing-a-sink": [f"only reads, within {requirements.ASK_SECONDS:g} s"],
    "storage": [f"after {hdfs.TIMEOUT:g} seconds without an answer"],
    "streaming": [f"{OF_A_STREAM.attempts:,} times in a stream"],
}
"""By page, words with a number in it that the code has."""
IN_WORDS = {
    ("checkpoints", "by a stream at its start and about once a minute"): overlap.PRUNED_EACH == 60,
    ("delta", "under an eighth of `file_bytes`"): writing.SMALL == 8,
    ("observability", "every ten seconds"): headway.EACH_SECONDS == 10,
    ("observability", "a minute after the last event"): lineage_reporting.EACH_SECONDS == 60,
    ("ui", "looks every five seconds"): lag.EACH_SECONDS == 5,
    ("ui", "twenty seconds later"): lag._SHARE == 20,
    ("ui", "longer than ten seconds logs"): lag.LOG_SECONDS == 10,
    ("ui", "within about ten seconds"): kafka_admin._PARTITIONS_SECONDS == 10,
    ("ui", "At most eight requests wait at once"): access.AT_ONCE == 8,
    ("ui", "up to four connections to the decision log"): signature(Pool).parameters["keep"].default == 4,
    ("sources", "in a stream within about 5 seconds"): overlap.FOLLOWED_EACH == 5,
    ("state", "four requests at once"): handles.AT_ONCE == 4,
    ("storage", "sixteen files at once"): copying._COPIES == 16,
    ("streaming", "within about ten seconds"): stream._LOOK_SECONDS == 10,
}
"""A page and words that say a number, and whether it is the code's."""


@pytest.mark.parametrize(("page", "words"), [(page, words) for page, all_of in TEXTS.items() for words in all_of])
def test_a_number_of_the_page_is_the_codes(page: str, words: str) -> None:
    assert words in " ".join(TEXT[f"docs/{page}.md"].split())


@pytest.mark.parametrize(("page", "words"), IN_WORDS)
def test_a_number_in_words_is_the_codes(page: str, words: str) -> None:
    assert words in " ".join(TEXT[f"docs/{page}.md"].split())
    assert IN_WORDS[page, words]


JOBS = (("Parquet", "MariaDB"), ("Parquet", "MySQL"), ("Kafka", "Kafka"), ("Kafka", "MariaDB + Kafka"))
SPARKS = "Spark's own writer, a micro-batch a second (at least once)"


def ratio(path: str) -> float:
    """What `make bench` has last found, by the first row of such a path."""
    rows = re.findall(r"^\| (.+?) \| .+? \| ([\d.]+) \(", TEXT["docs/performance.md"], re.MULTILINE)
    return next(float(found) for name, found in rows if name == path)


def median(stream: str) -> int:
    """Milliseconds of a record, at 100 a second."""
    [found] = re.findall(rf"^\| {re.escape(stream)} \| (\d+) \(", TEXT["docs/performance.md"], re.MULTILINE)
    return int(found)


def test_how_fast_it_is_is_told_as_it_was_measured_last() -> None:
    readme, compared = (" ".join(TEXT[page].split()) for page in ("README.md", "docs/is-this-for-me.md"))
    kafka = ratio("WAL -> Kafka, default, against Spark's writer, warm")
    mysql, local = (ratio(f"WAL -> {server}, `local` against Spark JDBC") for server in ("MySQL", "MariaDB"))
    assert readme.count("| deliver a checkpoint into") == 3
    for sink, found in (("Kafka", kafka), ("MySQL", mysql), ("MariaDB", local)):
        assert f"| deliver a checkpoint into {sink} | {found} |" in readme
    assert f"slower into MariaDB ({local})" in compared
    jobs = [f"{way} -> PySpark -> WAL -> {sink}" for way, sink in JOBS]
    kept = [ratio(f"{job}, session kept") for job in jobs]
    new = [ratio(f"{job}, whole job{how}") for job in jobs for how in ("", ", overlap")]
    assert f"| whole jobs in a kept session | {min(kept)} to {max(kept)} |" in readme
    assert f"| whole jobs in a new JVM | {min(new)} to {max(new)} |" in readme
    assert f"ratios {min(new)} to {max(new)})" in compared
    ours, flink = median("ours, a checkpoint a second"), median("Flink, a checkpoint a second")
    fast, spark = median("ours, as fast as it goes (`interval=0`)"), SPARKS
    seconds = [f"{each / 1000:.2f} s" for each in (ours, flink, median(spark), fast)]
    [line] = [each for each in TEXT["README.md"].splitlines() if "from topic to topic" in each]
    assert re.findall(r"\d\.\d\d s", line) == seconds
    assert f"took {flink} ms in Flink and {ours} ms here" in compared
    once = median("ours, AT_LEAST_ONCE, as fast as it goes")
    assert f"{once} ms instead of {fast} in the median" in " ".join(TEXT["docs/checkpoints.md"].split())


@pytest.mark.slow
def test_the_kit_has_as_many_cases_of_each_sink_as_the_page_says() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "--all", "tests/conformance"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    counted = Counter(re.findall(r"^tests/conformance/test_(\w+)\.py::", listed, re.MULTILINE))
    rows = re.findall(r"^\| (\w+)[^|]*\| (\d+) \|$", TEXT["docs/sinks.md"], re.MULTILINE)
    assert {name.lower().replace("postgresql", "postgres"): int(cases) for name, cases in rows} == {
        name: counted[name]
        for name in (
            "sqlite",
            "delta",
            "iceberg",
            "hive",
            "paimon",
            "files",
            "postgres",
            "kafka",
            "mysql",
            "redis",
            "hbase",
            "cassandra",
        )
    }
    words = " ".join(TEXT["docs/writing-a-sink.md"].split())
    mistakes = len(DEFECTS) + len(HISTORIES) + len(WRONG)
    assert f"puts {mistakes} mistakes into sinks" in words
