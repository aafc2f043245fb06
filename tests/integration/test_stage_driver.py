"""Staging in a Spark driver: values, checkpoints, mistakes in jobs, and what must not leak."""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import CheckpointExpiredError, FencedError, JobError, StageError
from airflow_ft.protocol.lease import Worker, take_epoch
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.sources import FileSource
from airflow_ft.spark.process import TERM_SECONDS
from airflow_ft.spark.task.launcher import Driver
from airflow_ft.wal import open_wal
from airflow_ft.wal.local import local_path
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.integration.stage_world import PIPELINE, StageWorld, streaming, world
from tests.protocol.systems import Metered
from tests.raising import raises
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]
JOBS = "stage_jobs"


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def _numbers(pipeline: StageWorld, **more: Any) -> dict[str, FileSource]:
    return {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint", **more)}


def _eventually(condition: Callable[[], Any]) -> Any:
    return wait_for(condition, 240, "it happens", 0.02)


def test_a_batch_job_is_one_checkpoint_a_run(pipeline: StageWorld) -> None:
    result = pipeline.complete(pipeline.request(f"{JOBS}:Static"))
    assert result.numbers == (1,) and result.rows == {"orders": 10} and result.position is None
    again = pipeline.complete(pipeline.request(f"{JOBS}:Static"))
    assert not again.complete, "what it has read, it read when the attempt before it began"
    assert again.numbers == () and len(pipeline.published()) == 1
    other = RunKey("orders", "scheduled__2")
    assert pipeline.complete(pipeline.request(f"{JOBS}:Static", run=other)).numbers == (2,)
    assert pipeline.store.pipeline(PIPELINE).base is None


@pytest.mark.parametrize(
    ("column", "condition"),
    [("now()", "at < x"), ("1", "at < (SELECT max(current_timestamp()))"), ("rand()", "x < 0.5")],
)
def test_each_row_reaches_one_of_two_sinks(pipeline: StageWorld, column: str, condition: str) -> None:
    """The sinks are written one after the other, and the values on which their rows depend are the same."""
    job = {"column": column, "condition": condition}
    request = pipeline.request(f"{JOBS}:Parted", job_arguments=job, sinks=("late", "fresh"))
    pipeline.complete(request)
    found = [row["id"] for sink in ("late", "fresh") for row in pipeline.all_rows(sink)]
    assert sorted(found) == list(range(80))


@pytest.mark.parametrize("column", ["changing()", "reflect('java.util.UUID', 'randomUUID')"])
def test_two_sinks_cannot_depend_on_changing_values(pipeline: StageWorld, column: str) -> None:
    job = {"column": column, "condition": "x > '5'"}
    with raises(JobError, "split_unfit", sinks=["late", "fresh"]):
        pipeline.stage(pipeline.request(f"{JOBS}:Parted", job_arguments=job, sinks=("late", "fresh")))
    assert pipeline.published() == []


def test_a_job_cannot_stop_the_query_of_its_pipeline(pipeline: StageWorld, tmp_path: Path) -> None:
    """I9: Spark would call it a good end, and what was not read yet would count as read."""
    for n in range(4):
        pipeline.add_file(f"f{n}", [{"k": "a", "n": n}])
    said = tmp_path / "said"
    request = pipeline.request(
        f"{JOBS}:Stopping", _numbers(pipeline, max_files_per_trigger=1), job_arguments={"said": str(said)}
    )
    result = pipeline.complete(request)
    assert result.complete and result.rows == {"orders": 4}
    assert said.read_text() == "query_in_job"


def test_the_log_is_compressed_as_it_is_read_fastest(pipeline: StageWorld) -> None:
    """By Spark as by `write_segment`: a session's own setting of another codec changes nothing."""
    request = pipeline.request(f"{JOBS}:Static", conf={"spark.sql.parquet.compression.codec": "gzip"})
    pipeline.complete(request)
    folder = SegmentFolder(f"{pipeline.root}/arrow", PIPELINE, 1, 1, 1)
    own = write_segment(folder, 1, {"orders": pa.table({"id": ["1"]})})
    for segment in (pipeline.published()[0].segment, own):
        assert segment is not None
        (file, *_) = open_wal().open(segment).files("orders")
        found = pq.ParquetFile(Path(local_path(segment.location)) / file.path).metadata
        assert found.row_group(0).column(0).compression == "LZ4"


def test_each_micro_batch_with_rows_becomes_a_checkpoint(pipeline: StageWorld) -> None:
    for n in range(3):
        pipeline.add_file(f"f{n}", [{"k": "a", "n": n}])
    sources = _numbers(pipeline, max_files_per_trigger=1)
    first = pipeline.request(f"{JOBS}:Plain", sources)
    result = pipeline.complete(first)
    assert result.numbers == (1, 2, 3) and result.rows == {"orders": 3}
    assert [row["n"] for row in pipeline.all_rows()] == [0, 1, 2]
    assert pipeline.published()[1].positions == {"numbers": {"start": {"logOffset": 0}, "end": {"logOffset": 1}}}
    assert any(line.startswith("checkpoint 2 published: 1 row in") for line in pipeline.lines)
    row = pipeline.store.pipeline(PIPELINE)
    assert row.base == result.position and row.base_is_clean
    # The next run continues in the same folder; without new data there is no checkpoint, and the base stays clean.
    nothing = pipeline.complete(pipeline.request(f"{JOBS}:Plain", sources))
    assert nothing.numbers == () and nothing.position == result.position
    pipeline.add_file("f3", [{"k": "a", "n": 3}])
    last = pipeline.complete(pipeline.request(f"{JOBS}:Plain", sources))
    assert last.numbers == (4,)
    assert last.position is not None and result.position is not None
    assert (last.position.location, last.position.batch) == (result.position.location, 3)
    assert [row["n"] for row in pipeline.all_rows()] == [0, 1, 2, 3]


def test_a_job_that_sets_up_logging_silences_no_driver(pipeline: StageWorld) -> None:
    """The task counts checkpoints, and keeps a standby, by what the driver says."""
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    pipeline.complete(pipeline.request("silent_jobs", _numbers(pipeline)))
    assert any(line.startswith("checkpoint 1 published: 1 row in") for line in pipeline.lines)
    assert pipeline.lines[-1] == "staged 1 checkpoint with 1 row"


def test_no_more_is_staged_than_could_be_rewound(pipeline: StageWorld) -> None:
    """Spark keeps the state of so many batches; when all of them wait for delivery, delivery goes first."""
    for n in range(8):
        pipeline.add_file(f"f{n}", [{"k": "a", "n": n}])
    sources = _numbers(pipeline, max_files_per_trigger=1)
    request = pipeline.request(f"{JOBS}:Plain", sources, retained_batches=7)
    first = pipeline.complete(request)
    assert len(first.numbers) == 5 and first.position is None
    assert not first.complete, "a gate must not take it for all that was there"
    assert any(line.startswith("the queue for delivery has 5 checkpoints") for line in pipeline.lines)
    assert pipeline.complete(pipeline.request(f"{JOBS}:Plain", sources, retained_batches=7)).numbers == ()
    rest = pipeline.complete(pipeline.request(f"{JOBS}:Plain", sources))
    assert rest.rows == {"orders": 3}
    assert sorted(row["n"] for row in pipeline.all_rows()) == list(range(8))


@pytest.mark.parametrize("fault", ["stop", "split and stop"])
def test_a_spark_that_does_not_stop_ends_with_its_driver(
    pipeline: StageWorld, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """What came of it is told before: so it is as if Spark had stopped."""
    monkeypatch.setattr("airflow_ft.spark.process.LINGER_SECONDS", 2.0)
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    request = pipeline.request(f"{JOBS}:Faulty", _numbers(pipeline), job_arguments={"fault": fault}, keep_session=0.0)
    if fault == "stop":
        assert pipeline.complete(request).rows == {"orders": 1}
    else:
        with raises(JobError, "job_failed", exception="KeyError"):
            pipeline.stage(request)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cast", "CAST_INVALID_INPUT"),
        ("split", r"KeyError: 'colour' \(.*stage_jobs.py, line \d+, in split\)"),
    ],
)
def test_a_mistake_in_the_job_is_named(pipeline: StageWorld, fault: str, message: str) -> None:
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    request = pipeline.request(f"{JOBS}:Faulty", _numbers(pipeline), job_arguments={"fault": fault})
    pipeline.store.meter = meter = Metered(traces=True)
    with raises(JobError, "job_failed", pipeline=PIPELINE) as caught:
        pipeline.stage(request)
    assert caught.error and re.search(f"(?s){message}", caught.error.what), "in the words of Python and Spark"
    [failed, (ended, checkpoint, events)] = [each for each in meter.calls if each[0] != "lag"]
    assert failed == ("failed", PIPELINE, AbortReason.JOB_FAILED), "the driver has none, so its task counts"
    assert (ended, checkpoint.reason, events[0].kind) == ("ended", AbortReason.JOB_FAILED, "ABORTED")
    assert pipeline.published() == []
    assert all(c.reason is AbortReason.JOB_FAILED and c.message for c in pipeline.checkpoints())


@pytest.mark.parametrize(
    ("fault", "exception"),
    [("exit in split", "SystemExit"), ("exit in transform", "SystemExit"), ("cancelled in split", "CancelledError")],
)
def test_a_job_that_exits_has_failed(pipeline: StageWorld, fault: str, exception: str) -> None:
    """The JVM hears of no such exception by itself."""
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    request = pipeline.request(f"{JOBS}:Faulty", _numbers(pipeline), job_arguments={"fault": fault})
    with raises(JobError, "job_failed", exception=exception):
        pipeline.stage(request)


def test_a_job_that_is_not_there_is_named(pipeline: StageWorld) -> None:
    with raises(JobError, "module_missing", module="no_such_job"):
        pipeline.stage(pipeline.request("no_such_job"))


def test_malformed_input_fails_the_job_instead_of_becoming_null(pipeline: StageWorld) -> None:
    (pipeline.input / "x.json").write_text('{"k": "a", "n": "not a number"}\n')
    with raises(JobError, "file_malformed") as caught:
        pipeline.stage(pipeline.request(f"{JOBS}:Plain", _numbers(pipeline)))
    assert caught.error and caught.error.fields["path"].endswith("/x.json") and "MALFORMED" in caught.error.what
    assert "PERMISSIVE" in caught.error.remedy and "\n" not in caught.error.headline


def test_a_master_that_cannot_be_is_named(pipeline: StageWorld) -> None:
    with raises(StageError, "spark_not_started", master="local[x]"):
        pipeline.stage(pipeline.request(f"{JOBS}:Plain", _numbers(pipeline), master="local[x]", keep_session=0.0))


def test_a_hanging_batch_expires_and_the_driver_ends(pipeline: StageWorld) -> None:
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    request = pipeline.request(
        f"{JOBS}:Faulty",
        _numbers(pipeline),
        job_arguments={"fault": "hang", "stop_seconds": 3.0},
        checkpointing=CheckpointConfig(timeout=timedelta(seconds=2)),
        conf={"spark.sql.streaming.stopTimeout": "2s"},
    )
    with raises(CheckpointExpiredError, "checkpoint_expired", checkpoint=1, timeout=2.0):
        pipeline.stage(request)
    (checkpoint,) = pipeline.checkpoints()
    assert checkpoint.state is CheckpointState.ABORTED and checkpoint.reason is AbortReason.EXPIRED


def test_a_new_owner_stops_the_attempt_before_it_publishes(pipeline: StageWorld) -> None:
    for n in range(40):
        pipeline.add_file(f"f{n}", [{"k": "a", "n": n}])
    request = pipeline.request(f"{JOBS}:Plain", _numbers(pipeline, max_files_per_trigger=1))

    class Fencing(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if line.startswith("checkpoint 1 published"):
                take_epoch(pipeline.store, PIPELINE, Worker("t", 2).lease(), "a newer try", lease_seconds=0.0)

    pipeline.lines = Fencing()
    with pytest.raises(FencedError):
        pipeline.stage(request)
    states = {c.number: c.state for c in pipeline.checkpoints()}
    assert len(states) < 40 and CheckpointState.TRIGGERED not in states.values()


def _children(pid: int) -> list[psutil.Process]:
    return list(psutil.Process(pid).children(recursive=True))


def _drivers_of(pid: int) -> tuple[psutil.Process, psutil.Process] | None:
    """The JVM and the Python driver below a process, once both are there."""
    java = python = None
    for process in _children(pid):
        with contextlib.suppress(psutil.NoSuchProcess):  # helpers of the JVM come and go
            command = process.cmdline()
            if process.name() == "java" and any("SparkSubmit" in part for part in command):
                java = process
            elif "python" in process.name() and len(command) > 1 and command[1].endswith("main.py"):
                python = process
    return (java, python) if java and python else None


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two
        return True


def test_a_killed_task_takes_jvm_and_driver_with_it(pipeline: StageWorld, tmp_path: Path) -> None:
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    script = tmp_path / "task.py"
    script.write_text(
        "import sys; from pathlib import Path\n"
        "from tests.integration.stage_world import StageWorld\n"
        "from airflow_ft.sources import FileSource\n"
        f"w = StageWorld(Path({str(tmp_path / 'other')!r}))\n"
        "w.add_file('f', [{'k': 'a', 'n': 1}])\n"
        "s = {'numbers': FileSource(path=str(w.input), schema='k string, n bigint')}\n"
        f"w.stage(w.request('{JOBS}:Faulty', s, job_arguments={{'fault': 'hang'}}))\n"
    )
    (tmp_path / "other").mkdir()
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    task = subprocess.Popen([sys.executable, str(script)], cwd=root, env=environment, start_new_session=True)
    try:
        java, python = _eventually(lambda: _drivers_of(task.pid))
        task.send_signal(signal.SIGKILL)
        task.wait()
        _eventually(lambda: _has_ended(java) and _has_ended(python))
    finally:
        task.kill()


def test_a_killed_driver_is_reported_with_its_signal(pipeline: StageWorld) -> None:
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    request = pipeline.request(f"{JOBS}:Faulty", _numbers(pipeline), job_arguments={"fault": "hang"}, keep_session=0.0)

    def kill_when_busy(driver: Driver) -> None:
        def wait_and_kill() -> None:
            _eventually(lambda: any(c.state is CheckpointState.TRIGGERED for c in pipeline.checkpoints()))
            os.kill(driver.pid, signal.SIGKILL)

        threading.Thread(target=wait_and_kill).start()

    with raises(StageError, "driver_ended", signal="SIGKILL"):
        pipeline.stage(request, kill_when_busy)
    (checkpoint,) = pipeline.checkpoints()
    assert checkpoint.state is CheckpointState.TRIGGERED, "it could not say anything: the stage does"


@pytest.mark.parametrize(("lost", "code"), [("", "driver_ended"), ("spark-local/blockmgr-*", "query_failed")])
def test_a_stream_whose_local_files_are_lost_gets_a_driver(
    pipeline: StageWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, code: str
) -> None:
    """A cleaner of temporary files removes them; the JVM cannot make them again."""
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    endless = {"type": "fixed-delay", "attempts": None, "delay": 0.0}
    conf = {"spark.sql.shuffle.partitions": "1"}  # other sessions have a folder of their own
    request = pipeline.request(f"{JOBS}:Sums", _numbers(pipeline), restart=endless, conf=conf)
    with raises(StageError, code), streaming(pipeline, request) as drivers:
        _eventually(pipeline.published)
        [folder] = temporary.glob("airflow-ft-stage-*")
        for found in [folder] if not lost else folder.glob(lost):
            shutil.rmtree(found)
        pipeline.add_file("f2", [{"k": "a", "n": 2}])
        _eventually(lambda: not psutil.pid_exists(drivers[0].pid))


def test_a_driver_ends_on_request(pipeline: StageWorld) -> None:
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    request = pipeline.request(f"{JOBS}:Faulty", _numbers(pipeline), job_arguments={"fault": "hang"}, keep_session=0.0)
    ended: list[int] = []

    def end_when_busy(driver: Driver) -> None:
        def wait_and_end() -> None:
            _eventually(lambda: any(c.state is CheckpointState.TRIGGERED for c in pipeline.checkpoints()))
            driver.kill()
            ended.append(driver.pid)

        threading.Thread(target=wait_and_end).start()

    with raises(StageError, "driver_ended", pipeline=PIPELINE):
        pipeline.stage(request, end_when_busy)
    _eventually(lambda: ended)
    assert TERM_SECONDS < 5  # Airflow sends SIGKILL to the task after that


def test_no_secret_is_in_arguments_environment_files_or_log(
    pipeline: StageWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-Passw0rd"
    monkeypatch.setenv("AIRFLOW_CONN_MYSQL_DEFAULT", f"mysql://u:{secret}@h/d")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"postgresql://u:{secret}@h/d")
    pipeline.add_file("f", [{"k": "a", "n": 1}])
    request = pipeline.request(
        f"{JOBS}:Faulty",
        _numbers(pipeline),
        job_arguments={"fault": "hang"},
        conf={"spark.hadoop.fs.s3a.secret.key": secret},
    )
    seen: list[str] = []

    def look(driver: Driver) -> None:
        def wait_and_look() -> None:
            try:
                _eventually(lambda: any(c.state is CheckpointState.TRIGGERED for c in pipeline.checkpoints()))
                for process in [psutil.Process(driver.pid), *_children(driver.pid)]:
                    with contextlib.suppress(psutil.NoSuchProcess):  # helpers of the JVM come and go
                        seen.append(" ".join(process.cmdline()))
                        seen.append(str(process.environ()))
                folder = Path(next(m[1] for m in map(re.compile(r"(/\S+)/main\.py").search, seen) if m))
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                seen.extend(p.read_text() for p in folder.iterdir() if p.is_file())
                seen.append(str([p.name for p in folder.iterdir()]))
            finally:
                driver.kill()

        threading.Thread(target=wait_and_look).start()

    with pytest.raises(StageError):
        pipeline.stage(request, look)
    assert len(seen) > 5 and "request.json" not in seen[-1] and "spark.properties" not in seen[-1]
    assert all(secret not in text for text in [*seen, *pipeline.lines])


def test_rows_are_typed_tables(pipeline: StageWorld) -> None:
    pipeline.add_file("f", [])
    result = pipeline.complete(pipeline.request(f"{JOBS}:Plain", _numbers(pipeline)))
    assert result.rows == {"orders": 0}  # a file without rows is a batch, and every batch is a checkpoint
    assert pipeline.rows(pipeline.published()[0]).schema == pa.schema({"k": pa.string(), "n": pa.int64()})
