"""Spark sessions that are kept between runs: what the next run finds, and what ends with whom."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import JobError, StageError
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.sources import FileSource, KafkaSource
from airflow_ft.spark import private
from airflow_ft.spark.request import StageResult
from airflow_ft.spark.session.session_leases import kept
from airflow_ft.spark.task.launcher import Driver
from tests.conftest import TopicFactory
from tests.integration.stage_jobs import fill, recreate
from tests.integration.stage_world import JARS, PIPELINE, StageWorld, with_connection, world
from tests.raising import raises
from tests.waiting import wait_for
from tools.servers import Kafka
from tools.servers.processes import has_ended

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
ROOT = Path(__file__).parents[2]
KEEP = 300.0
JOB = """
from pyspark.sql import functions as F

@F.udf("string")
def said(k):
    import helper
    return helper.WORD

class Job:
    def transform(self, spark, sources):
        before = spark.conf.get("spark.sql.shuffle.partitions"), [t.name for t in spark.catalog.listTables()]
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        spark.range(1).createOrReplaceTempView("left_behind")
        seen = F.lit(str(before))
        return sources["numbers"].select("n", said("k").alias("word"), F.lit({word!r}).alias("own"), seen.alias("seen"))
"""

CALLBACKS = """
from pyspark.sql import functions as F

class Job:
    def transform(self, spark, sources):
        pool = spark.sparkContext._gateway.gateway_property.pool
        return sources["numbers"].select(F.lit(str(pool.next_id)).alias("id"))
"""


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StageWorld]:
    # Of its own, that a test may look at all sessions; the path of a socket has to be short.
    with tempfile.TemporaryDirectory(prefix="ft-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        # A keeper that is too busy to greet within 2 s counts as gone: then a run has a JVM of its own.
        monkeypatch.setattr("airflow_ft.spark.session.session_leases._GREETING_SECONDS", 60.0)
        try:
            yield from world(tmp_path)
        finally:
            for one in kept():
                one.end()
            wait_for(lambda: not kept(), 60, "no session is left")


def _run(
    pipeline: StageWorld,
    job: str = "stage_jobs:Plain",
    look: Callable[[Driver], None] = lambda _: None,
    **more: Any,
) -> StageResult:
    """A run over one more row."""
    number = len(list(pipeline.input.iterdir()))
    pipeline.add_file(f"f{number}", [{"k": "a", "n": number}])
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    request = pipeline.request(job, sources, **{"keep_session": KEEP, **more})
    result = pipeline.stage(request, look)
    pipeline.store.end_stage(request.pipeline, request.epoch, request.run, result.position)
    return result


def _jvm() -> int:
    (one,) = kept()
    return one.jvm


def _workers(jvm: int) -> list[int]:
    """Python workers; a shell that spark-submit has left behind stays a zombie."""
    children = psutil.Process(jvm).children(recursive=True)
    return [child.pid for child in children if not has_ended(child.pid)]


def _while_at_work(pipeline: StageWorld, action: Callable[[Driver], None]) -> Callable[[Driver], None]:
    """For `_run`: acts as soon as a checkpoint is computed, in a thread."""

    def watch(driver: Driver) -> None:
        def later() -> None:
            at_work = CheckpointState.TRIGGERED
            wait_for(lambda: any(c.state is at_work for c in pipeline.checkpoints()), 240, "it computes")
            action(driver)

        threading.Thread(target=later).start()

    return watch


HANG = {"job": "stage_jobs:Faulty", "job_arguments": {"fault": "hang"}}


def test_the_next_run_continues_with_its_state_in_the_same_jvm(pipeline: StageWorld) -> None:
    pids = []
    for _ in range(3):
        assert _run(pipeline, "stage_jobs:Crashing").rows == {"orders": 1}
        pids.append(_jvm())
        wait_for(lambda: not _workers(_jvm()), 60, "workers have ended: they know the job as it was")
    assert len(set(pids)) == 1
    rows = pipeline.all_rows()
    assert [row["steps"] for row in rows] == [1, 2, 3]
    assert all(after["total"] == before["total"] + after["added"] for before, after in pairwise(rows))


def test_a_run_in_a_kept_jvm_sees_only_the_current_job(pipeline: StageWorld, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    pids = set()
    for word in ("first", "other"):
        (jobs / "own_job.py").write_text(JOB.replace("{word!r}", repr(word)))
        (jobs / "helper.py").write_text(f"WORD = {word!r}\n")
        _run(pipeline, "own_job:Job", python_path=(str(jobs),))
        pids.add(_jvm())
    assert len(pids) == 1
    first, second = pipeline.all_rows()
    assert (first["word"], first["own"]) == ("first", "first") and (second["word"], second["own"]) == ("other", "other")
    assert first["seen"] == second["seen"] == "('2', [])"


@pytest.mark.parametrize("keep", [0.0, KEEP])
def test_spark_pyspark_python_is_for_the_workers_alone(pipeline: StageWorld, tmp_path: Path, keep: float) -> None:
    workers, calls = tmp_path / "python", tmp_path / "calls"
    workers.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexec {sys.executable} "$@"\n')
    workers.chmod(0o755)
    _run(pipeline, "stage_jobs:Crashing", keep_session=keep, conf={"spark.pyspark.python": str(workers)})
    started = calls.read_text().splitlines()
    assert started and all("-m pyspark." in each for each in started)


@pytest.mark.parametrize("keep", [0.0, KEEP])
def test_strangers_cannot_guess_the_ids_of_callbacks(pipeline: StageWorld, tmp_path: Path, keep: float) -> None:
    (tmp_path / "callbacks.py").write_text(CALLBACKS)
    for _ in range(2):
        _run(pipeline, "callbacks:Job", keep_session=keep, python_path=(str(tmp_path),))
    ids = [int(row["id"]) for row in pipeline.all_rows()]
    assert min(map(int.bit_length, ids)) > 64 and abs(ids[0] - ids[1]) > 2**64


def test_a_run_that_failed_takes_the_jvm_with_it(pipeline: StageWorld) -> None:
    _run(pipeline)
    pid = _jvm()
    with raises(JobError, "job_failed") as caught:
        _run(pipeline, "stage_jobs:Faulty", job_arguments={"fault": "cast"})
    assert caught.error and "CAST_INVALID_INPUT" in caught.error.what
    wait_for(lambda: has_ended(pid) and not kept(), 60, "the JVM has gone")
    assert _run(pipeline).rows == {"orders": 2}
    assert _jvm() != pid


def test_a_jvm_that_is_killed_is_reported_with_its_signal(pipeline: StageWorld) -> None:
    look = _while_at_work(pipeline, lambda _: os.kill(_jvm(), signal.SIGKILL))
    with raises(StageError, "driver_ended", signal="SIGKILL"):
        _run(pipeline, look=look, **HANG)
    assert _run(pipeline).rows == {"orders": 2}


def test_a_driver_that_ends_on_request_takes_the_jvm_with_it(pipeline: StageWorld) -> None:
    pids: list[int] = []

    def end(driver: Driver) -> None:
        pids.append(_jvm())
        driver.kill()

    with raises(StageError, "driver_ended", pipeline=PIPELINE):
        _run(pipeline, look=_while_at_work(pipeline, end), **HANG)
    wait_for(lambda: has_ended(pids[0]), 60, "the JVM has gone")


def test_a_killed_keeper_takes_the_jvm_with_it_busy_or_idle(pipeline: StageWorld) -> None:
    def kill_keeper(_: object = None) -> int:
        jvm = psutil.Process(_jvm())
        assert "airflow_ft.spark.session.session_keeper" in jvm.parent().cmdline()
        jvm.parent().kill()
        return int(jvm.pid)

    with pytest.raises(StageError):
        _run(pipeline, look=_while_at_work(pipeline, kill_keeper), **HANG)
    assert _run(pipeline).rows == {"orders": 2}
    pid = kill_keeper()
    wait_for(lambda: has_ended(pid) and not kept(), 60, "the JVM has gone")
    assert _run(pipeline).rows == {"orders": 1}


def test_a_killed_task_takes_driver_and_jvm_with_it(pipeline: StageWorld, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    script = tmp_path / "task.py"
    script.write_text(
        "from pathlib import Path\n"
        "from tests.integration.stage_world import StageWorld\n"
        "from airflow_ft.sources import FileSource\n"
        f"w = StageWorld(Path({str(tmp_path / 'other')!r}))\n"
        "w.add_file('f', [{'k': 'a', 'n': 1}])\n"
        "s = {'numbers': FileSource(path=str(w.input), schema='k string, n bigint')}\n"
        "w.stage(w.request('stage_jobs:Faulty', s, job_arguments={'fault': 'hang'}, keep_session=300.0))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tempfile.tempdir)}
    task = subprocess.Popen([sys.executable, str(script)], cwd=ROOT, env=environment, start_new_session=True)

    def driver() -> Any:
        for child in psutil.Process(task.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # another one has just ended
                if child.cmdline()[-1:] and child.cmdline()[-1].endswith("main.py"):
                    return child
        return None

    try:
        python = wait_for(driver, 240, "the driver is there")
        pid = wait_for(lambda: kept() and _jvm(), 240, "the JVM is there")
        time.sleep(5)
        assert not has_ended(pid) and not has_ended(python.pid)
        task.kill()
        task.wait()
        wait_for(lambda: has_ended(pid) and has_ended(python.pid), 60, "both have gone")
    finally:
        task.kill()


def test_a_run_with_other_settings_replaces_the_jvm(pipeline: StageWorld) -> None:
    _run(pipeline)
    pid = _jvm()
    _run(pipeline, conf={"spark.sql.shuffle.partitions": "3"})
    wait_for(lambda: has_ended(pid), 60, "the old one has gone")
    assert _jvm() != pid


def _sessions(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """What `airflow ft sessions` lists."""
    from airflow.cli.cli_parser import get_parser

    capsys.readouterr()
    args = get_parser().parse_args(["ft", "sessions", "-o", "json", *arguments])
    args.func(args)
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


@pytest.mark.airflow
def test_a_jvm_that_is_busy_is_left_alone(pipeline: StageWorld, capsys: pytest.CaptureFixture[str]) -> None:
    _run(pipeline)
    (one,) = kept()
    loan = one.borrow()
    assert loan is not None
    _run(pipeline)
    assert len({other.jvm for other in kept()}) == 2
    assert one.borrow() is None
    assert {row["jvm"]: row["state"] for row in _sessions(capsys)}[one.jvm] == "in use"
    assert sorted(row["state"] for row in _sessions(capsys, "--end")) == ["in use", "stopped"]
    loan.end(keep=False)  # it was not used: it stays
    wait_for(one.is_idle, 60, "it is free again")
    [row] = wait_for(lambda: rows if len(rows := _sessions(capsys)) == 1 else None, 60, "the other one has ended")
    assert (row["pipeline"], row["state"]) == (PIPELINE, "idle") and row["memory"] > 100_000_000


def test_nobody_waits_for_a_jvm_longer_than_was_said(pipeline: StageWorld) -> None:
    _run(pipeline, keep_session=1.0)
    wait_for(lambda: not private.folders(private.SESSION), 60, "it has ended, and removed its folder")
    assert kept() == []


def test_where_none_can_be_kept_a_run_does_without(pipeline: StageWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Path(str(tempfile.tempdir), "a" * 100)
    long.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(long))
        assert _run(pipeline).rows == {"orders": 1}
        assert kept() == []


def test_no_secret_is_left_in_arguments_environment_or_files(
    pipeline: StageWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-Passw0rd"
    monkeypatch.setenv("AIRFLOW_CONN_MYSQL_DEFAULT", f"mysql://u:{secret}@h/d")
    _run(pipeline, conf={"spark.hadoop.fs.s3a.secret.key": secret})
    (one,) = kept()
    jvm = psutil.Process(one.jvm)
    seen = [str(p.cmdline()) + str(p.environ()) for p in (jvm, jvm.parent())]
    files = [path for path in one.folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"session.json", "jvm"}
    assert all(secret not in text for text in [*seen, *(f.read_bytes().decode(errors="replace") for f in files)])
    assert one.folder.stat().st_mode & 0o777 == 0o700


def test_a_kept_jvm_reads_a_recreated_topic_from_its_beginning(
    pipeline: StageWorld, kafka: Kafka, topic_factory: TopicFactory
) -> None:
    """Nothing that the JVM remembers of the old topic counts: no consumer, no metadata, no client."""
    topic = topic_factory(partitions=1)
    source = KafkaSource(topics=[topic], fail_on_data_loss=False)
    connection = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap})

    def run() -> StageResult:
        more = {"jars": (str(JARS),), "keep_session": KEEP}
        return pipeline.complete(
            with_connection(pipeline.request("stage_jobs:Plain", {"numbers": source}, **more), connection)
        )

    fill(kafka.bootstrap, topic, [f"old {n}" for n in range(20)])
    assert run().rows == {"orders": 20}
    (one,) = kept()
    recreate(kafka.bootstrap, topic, [f"new {n}" for n in range(20)])
    assert run().rows == {"orders": 20}
    assert [other.folder for other in kept()] == [one.folder]
    values = [bytes(row["value"]).decode() for row in pipeline.all_rows()]
    assert values == [f"{age} {n}" for age in ("old", "new") for n in range(20)]
