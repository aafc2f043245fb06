"""The driver of a group as its task sees it, with a process in place of Spark (`group_driver`)."""

from __future__ import annotations

import errno
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    CheckpointExpiredError,
    ConfigurationError,
    RestartsExhaustedError,
    StageError,
)
from airflow_ft.protocol.model import RunKey, SparkPosition
from airflow_ft.protocol.restart import FixedDelay
from airflow_ft.spark.private import private_folder, write
from airflow_ft.spark.process import Driver
from airflow_ft.spark.reports import rebuild_error
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.submit import END, RESULT, SESSION, START
from airflow_ft.spark.state.settings import FORMAT
from airflow_ft.spark.task import shared
from airflow_ft.spark.task.launcher import run_stage
from airflow_ft.spark.task.shared import DIED, ENDED_BY_OTHER, WAIT, SharedDriver, SharedStream
from airflow_ft.store import open_store
from tests.raising import raises
from tests.waiting import wait_for

PROJECT = Path(__file__).parents[2]


class World:
    """A group and its streams, whose driver may die once for an unknown reason."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.pids: list[int] = []
        self.group = SharedDriver(
            "small",
            restart=FixedDelay(attempts=1, delay=timedelta(seconds=7)),
            on_line=self.said.append,
            on_start=lambda process: self.pids.append(process.pid),
        )
        self.request = StageRequest(
            pipeline="waits",
            run=RunKey("d", "r"),
            epoch=1,
            attempt=1,
            store_url="sqlite:////nowhere/ft.db",
            wal_root=str(folder),
            job="jobs",
            sinks=("s",),
            connections={"c": ConnectionInfo("c", "kafka", password="secret-word")},
            python_path=(str(PROJECT),),
            streaming=True,
        )

    def start(self, pipeline: str, folder: Path, **changes: object) -> SharedStream:
        return self.group.start(folder, replace(self.request, pipeline=pipeline, **changes))  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    program = str(Path(__file__).with_name("group_driver.py"))
    monkeypatch.setattr(shared, "submit", lambda folder, _: [sys.executable, program, str(folder)])
    made = World(tmp_path)
    yield made
    made.group.kill()


def _waited(stream: SharedStream) -> tuple[int, list[str]]:
    lines: list[str] = []
    return stream.wait(lines.append, stream.folder / RESULT), lines


@contextmanager
def _full_disk(monkeypatch: pytest.MonkeyPatch, end: str) -> Iterator[None]:
    """Refuse to write files whose names end so."""

    def refuse(path: Path, text: str) -> None:
        if path.name.endswith(end):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(shared, "write", refuse)
        yield


def test_streams_in_one_process_keep_their_own_lines_and_ends(world: World) -> None:
    with private_folder() as a, private_folder() as b:
        one, other = world.start("waits", a), world.start("other", b)
        assert one.pid == other.pid
        one.end()
        assert _waited(one) == (0, ["it begins"])
        world.group.kill()
        code, lines = _waited(other)
        assert code < 0 and lines == ["it begins"]
    assert world.said.pop(0).startswith("Starting Spark ")
    assert world.said[0] == "of the JVM, with a ***", "without secrets"
    assert world.said[1:] == ["half a line of the JVM"] * 2
    with private_folder() as folder, pytest.raises(StageError):
        world.start("waits", folder)  # the task ends


def test_each_stream_of_a_group_has_its_own_state_format(world: World) -> None:
    old, new = [], []
    for kept, found in (("1", old), ("2", new)):
        with private_folder() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr("airflow_ft.spark.session.submit.commit_format", lambda base, kept=kept: base and kept)
            stream = world.start("waits", folder, master="spark://host:7077", base=SparkPosition(str(folder), 3))
            found.append(json.loads((folder / SESSION).read_text()).get(FORMAT))
            stream.end()
            _waited(stream)
    assert (old, new) == ([None], ["2"])
    assert FORMAT not in world.group._conf, "else the sessions would inherit it"


def test_a_new_process_follows_one_that_died(world: World) -> None:
    with private_folder() as a, private_folder() as b, private_folder() as c:
        one = world.start("other", a)
        world.start("dies", b)
        assert _waited(one)[0] == 3
        found = world.group.error_of(one)
        assert found is not None and (found["code"], found["fields"][WAIT]) == (DIED, 7.0)
        assert found["fields"]["exit_code"] == 3
        again = world.start("waits", c)
        assert again.pid != one.pid
        again.end()
        assert _waited(again)[0] == 0
        world.group.close()
    assert len(world.pids) == 2


def test_the_group_gives_up_when_its_driver_has_died_too_often(world: World) -> None:
    for _ in range(2):
        with private_folder() as a, private_folder() as b:
            one, other = world.start("other", a), world.start("dies", b)
            assert _waited(one)[0] == _waited(other)[0] == 3
            found = [world.group.error_of(each) for each in (one, other)]
    error = rebuild_error(found[0] or {})
    assert isinstance(error, RestartsExhaustedError) and (error.pipeline, error.fields["cause"]) == ("other", DIED)
    assert found[1] is not None and found[1]["pipeline"] == "dies"


@pytest.mark.parametrize("how, what", [("unfit", "Unrecognized option: "), ("fails", "no login with ***")])
def test_the_reason_of_a_death_has_no_secrets(
    world: World, caplog: pytest.LogCaptureFixture, how: str, what: str
) -> None:
    """The group logs it, and each stream reports it."""
    with private_folder() as a, private_folder() as b:
        one, other = world.start("other", a), world.start(how, b)
        assert _waited(one)[0] == _waited(other)[0] == 1
        found = world.group.error_of(one)
    assert what in caplog.text and found is not None and what in found["what"]
    assert "secret-" not in f"{caplog.text} {found}"


def test_the_reason_in_a_streams_own_line_has_no_secrets(world: World, tmp_path: Path) -> None:
    """The other streams report it, too."""
    with private_folder() as folder, closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        store.register("leaks")
        other = world.start("other", folder)

        def look(line: str) -> None:
            if "Unrecognized" in line:
                other.process.kill()

        with pytest.raises(StageError) as caught:
            run_stage(replace(world.request, pipeline="leaks"), store, log=look, shared=world.group)
        assert _waited(other)[0] < 0
        found = world.group.error_of(other)
    assert found is not None and "Unrecognized option: --Dtrust.password=***" in found["what"]
    assert "secret-" not in f"{caught.value} {found}"


def test_the_only_stream_of_a_driver_counts_its_death(world: World) -> None:
    with private_folder() as folder:
        one = world.start("dies", folder)
        assert _waited(one)[0] == 3
        assert world.group.error_of(one) is None


HUNG = CheckpointExpiredError("of it.", pipeline="deaf", checkpoint=7, remedy="Look in the job.", timeout=9.0)


def test_the_reason_of_a_hung_driver_reaches_all_its_streams(world: World) -> None:
    """Which job hangs is unknown, since all have one Python process: the group counts it."""
    for last in (False, True):
        with private_folder() as a, private_folder() as b:
            deaf, other = world.start("deaf", a), world.start("other", b)
            deaf.kill_hung(HUNG)
            assert _waited(deaf)[0] < 0 and _waited(other)[0] < 0
            for stream in (deaf, other):
                error = rebuild_error(world.group.error_of(stream) or {})
                assert (error.pipeline, error.checkpoint) == (stream.pipeline, 0), "it is not a checkpoint of both"
                assert isinstance(error, RestartsExhaustedError if last else StageError)
                assert (error.fields["reason"], error.fields["timeout"]) == ("checkpoint_expired", 9.0)
                assert "hung" in error.what and "checkpoint 7 of deaf" in error.what and HUNG.remedy in error.remedy


def test_the_only_stream_that_hung_gets_its_own_error(world: World) -> None:
    with private_folder() as folder:
        deaf = world.start("deaf", folder)
        deaf.kill_hung(HUNG)
        assert _waited(deaf)[0] < 0
        error = rebuild_error(world.group.error_of(deaf) or {})
        assert isinstance(error, CheckpointExpiredError)
        assert (error.code, error.checkpoint, error.what) == (HUNG.code, 7, HUNG.what)


def test_a_process_id_given_again_brings_no_old_errors(world: World, tmp_path: Path) -> None:
    def died(pipelines: list[str]) -> SharedStream:
        process = object.__new__(Driver)
        process.pid = 7
        streams = [SharedStream(world.group, process, tmp_path / each, each) for each in pipelines]
        world.group._streams += streams
        world.group._ended(process, tmp_path, 3)
        return streams[0]

    former = died(["one", "other"])
    assert world.group.error_of(former) is not None
    assert world.group.error_of(died(["one"])) is None
    assert world.group.error_of(former) is not None


def test_unread_lines_are_dropped_once_no_thread_reads_them(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "LINES", 10)
    with private_folder() as folder:
        talks = world.start("talks", folder)
        wait_for(lambda: talks._lines.qsize() == 10, 30, "its first lines wait")

        def fails(line: str) -> None:
            raise ValueError(line)

        with pytest.raises(ValueError):
            talks.wait(fails, folder / RESULT)
        wait_for(lambda: (folder / "talked").exists(), 30, "it could say all")
    world.group.kill()


def test_a_stream_that_could_not_be_ordered_takes_no_lines(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread has gone, so its lines would fill up and stop the driver's output."""
    monkeypatch.setattr(shared, "LINES", 3)
    with private_folder() as a, private_folder() as b:
        with _full_disk(monkeypatch, f".{START}"), pytest.raises(OSError):
            world.start("talks", a)
        talks = world.start("talks", b)
        lines: list[str] = []
        threading.Thread(target=talks.wait, args=(lines.append, b / RESULT), daemon=True).start()
        wait_for(lambda: len(lines) > 10, 30, "its lines arrive")
        world.group.kill()


def test_a_driver_that_cannot_be_asked_to_end_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with private_folder() as folder:
        waits = world.start("waits", folder)
        waits.end()
        assert _waited(waits)[0] == 0
        with _full_disk(monkeypatch, END):
            closing = threading.Thread(target=world.group.close, daemon=True)
            closing.start()
            closing.join(30)
        assert not closing.is_alive()
    assert not Path(f"/proc/{waits.pid}").exists()


def test_a_hanging_stream_is_blamed_for_the_end_of_the_others(world: World) -> None:
    with private_folder() as a, private_folder() as b:
        hangs, other = world.start("hangs", a), world.start("other", b)
        killer = threading.Thread(target=hangs.kill)
        killer.start()
        assert _waited(other)[0] == 1
        killer.join()
        found = world.group.error_of(other)
        assert found is not None and (found["code"], found["fields"]) == (ENDED_BY_OTHER, {"pipelines": ["hangs"]})
        assert _waited(hangs)[0] == 1
        assert world.group.error_of(hangs) is None


def test_a_process_in_which_a_stream_does_not_end_is_killed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "KILL_SECONDS", 0.1)
    with private_folder() as a, private_folder() as b:
        deaf, other = world.start("deaf", a), world.start("other", b)
        deaf.kill(0)
        assert _waited(other)[0] < 0
        found = world.group.error_of(other)
        assert found is not None and found["fields"] == {"pipelines": ["deaf"]}


@pytest.mark.parametrize("pipeline", ["silent", "silent_success", "silent_chatter"])
def test_a_stream_whose_end_is_not_said_does_not_wait_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch, pipeline: str
) -> None:
    """Text of the JVM may have torn the line that says it. The driver may also hang after the result."""
    monkeypatch.setattr(shared, "KILL_SECONDS", 0.1)
    with private_folder() as a, private_folder() as b:
        silent, other = world.start(pipeline, a), world.start("other", b)
        found: list[int] = []
        threading.Thread(target=lambda: found.append(_waited(silent)[0]), daemon=True).start()
        wait_for(lambda: found, 30, "the stream's end")
        assert _waited(other)[0] < 0
        error = world.group.error_of(other)
        assert error is not None and error["fields"] == {"pipelines": [pipeline]}
        assert "failed" not in error["what"], "its result may be good"
        assert (a / RESULT).exists()


def test_the_stream_that_did_not_end_is_named_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "KILL_SECONDS", 0.1)
    with private_folder() as a, private_folder() as b, private_folder() as c:
        deaf, failed, other = world.start("deaf", a), world.start("a_failed", b), world.start("other", c)
        write(failed.folder / RESULT, json.dumps({"error": {}}))
        deaf.kill(0)
        assert _waited(other)[0] < 0
        error = world.group.error_of(other)
        assert error is not None and error["fields"] == {"pipelines": ["deaf", "a_failed"]}
        assert "at deaf " in error["remedy"]


def test_an_end_that_could_not_be_read_yet_kills_no_driver(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of another stream wait for its thread, and the end is behind them."""
    monkeypatch.setattr(shared, "KILL_SECONDS", 1.0)
    monkeypatch.setattr(shared, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(shared, "LINES", 10)
    read = threading.Event()
    with private_folder() as a, private_folder() as b:
        waits, talks = world.start("waits", a), world.start("talks", b)
        threading.Thread(target=talks.wait, args=(lambda _: read.wait(), b / RESULT), daemon=True).start()
        wait_for(lambda: world.group.held_up, 30, "the thread that reads the output waits")
        waits.kill(1.5)
        monkeypatch.setattr(shared, "KILL_SECONDS", 60.0)
        read.set()
        assert _waited(waits)[0] == 0
        world.group.kill()


def test_a_stream_with_another_setting_of_the_jvm_is_refused(world: World) -> None:
    with private_folder() as a, private_folder() as b:
        world.start("waits", a, conf={"spark.driver.memory": "900m", "spark.sql.shuffle.partitions": "1"})
        with raises(ConfigurationError, "group_unequal", setting="spark.driver.memory"):
            world.start("other", b, conf={"spark.driver.memory": "2g"})
        world.start("other", b, conf={"spark.sql.shuffle.partitions": "2"})
