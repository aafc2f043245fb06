"""A standby driver with real Spark, Kafka and MariaDB: it takes over, dies, is of no use, and ends with its stream."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sources import FileSource
from airflow_ft.spark.private import STAGE, folders
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.session.submit import READY, REQUEST
from airflow_ft.spark.task.launcher import Driver, run_stage
from airflow_ft.spark.task.standby import Standby
from tests.conftest import TopicFactory
from tests.integration.stage_world import PIPELINE, StageWorld
from tests.integration.test_stream import World
from tests.waiting import wait_for
from tools.servers import Database, Kafka

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

SECRET = "s3cr3t-Passw0rd"
_STARTED = re.compile(r"a standby driver starts \(process (\d+)\)")
_READY = "the standby driver is ready"


class Standbys(World):
    """A stream with a standby."""

    def standbys(self) -> list[int]:
        """All that were started, in order."""
        return [int(pid) for pid in _STARTED.findall(self.log())]

    def until_ready(self, count: int = 1) -> int:
        """Wait until this number of standbys has been ready. Return the process of the newest one."""
        self.until(lambda: self.log().count(_READY) >= count, 480)
        return self.standbys()[-1]


@pytest.fixture
def world(tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory) -> Iterator[Standbys]:
    made = Standbys(tmp_path, kafka, mariadb_database, topic_factory)
    yield made
    made.store.close()
    print(made.log()[-20_000:])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["EXACTLY_ONCE", "AT_MOST_ONCE"])
def test_a_standby_takes_over_each_time_a_driver_is_killed(world: Standbys, mode: str) -> None:
    checkpointing = {"interval": 0.3, "mode": mode}
    begins = "earliest" if mode == "EXACTLY_ONCE" else "latest"
    with world.task(world.stream(standby=True, checkpointing=checkpointing, source={"starting_offsets": begins})):
        with world.sending():
            for count in (1, 2):
                waiting = world.until_ready(count)
                assert waiting != world.driver()
                kill(world.driver())
                world.until(lambda waiting=waiting: world.driver() == waiting)
                world.until_confirmed(3)
        if mode == "EXACTLY_ONCE":
            world.until_all_is_there()
        world.stop()
    if mode == "EXACTLY_ONCE":
        world.check_exactly_once()
    assert len(set(world.rows())) == len(world.rows())
    assert all(is_gone(pid) for pid in world.standbys())


@pytest.mark.chaos
def test_state_continues_in_the_standby(world: Standbys) -> None:
    world.database.sql("CREATE TABLE totals (n BIGINT, k BIGINT, place BIGINT, random DOUBLE) ENGINE=InnoDB")
    with world.sending(), world.task(world.stream("Totals", tables={"totals": "totals"}, standby=True)):
        waiting = world.until_ready()
        kill(world.driver())
        world.until(lambda: world.driver() == waiting)
        world.until_confirmed(3)
        world.stop()
    rows = world.database.sql("SELECT n, k, place FROM totals")
    numbers = [row[0] for row in rows]
    assert len(set(numbers)) == len(numbers)
    for key in range(7):
        places = sorted(row[2] for row in rows if row[1] == key)
        assert places == list(range(1, len(places) + 1))


@pytest.mark.chaos
@pytest.mark.parametrize("victims", ["standby", "both"])
def test_without_its_standby_a_stream_starts_a_driver(world: Standbys, victims: str) -> None:
    with world.task(world.stream(standby=True)):
        with world.sending():
            waiting, driver = world.until_ready(), world.driver()
            kill(waiting)
            if victims == "standby":
                world.until_confirmed(3)
                assert world.driver() == driver
            kill(driver)
            world.until(lambda: world.driver() != driver)
            assert world.driver() != waiting
            world.until_confirmed(3)
        world.until_all_is_there()
        world.stop()
    world.check_exactly_once()


@pytest.mark.chaos
def test_a_standby_killed_right_after_takeover_is_replaced(world: Standbys) -> None:
    with world.task(world.stream(standby=True)):
        with world.sending():
            waiting = world.until_ready()
            kill(world.driver())
            world.until(lambda: world.driver() == waiting)
            kill(waiting)
            world.until(lambda: world.driver() != waiting)
            world.until_confirmed(3)
        world.until_all_is_there()
        world.stop()
    world.check_exactly_once()


@pytest.mark.parametrize("how", ["stop", "at_once", "drain", "fails", "killed"])
def test_the_standby_ends_with_its_stream(world: Standbys, how: str) -> None:
    world.send(10)
    job = "FailsAt" if how == "fails" else "Copy"
    more: dict[str, Any] = {"job_args": {"bad": 10}, "restart": {"type": "none"}} if how == "fails" else {}
    with world.task(world.stream(job, standby=True, **more)) as process:
        [waiting] = world.until(world.standbys)
        family = [waiting, *(child.pid for child in psutil.Process(waiting).children(recursive=True))]
        if how == "fails":
            world.send(10)
            assert process.wait(240) != 0
        elif how == "killed":
            process.kill()
        else:
            world.stop(**({} if how == "stop" else {how: True}))
        wait_for(lambda: all(map(is_gone, family)), 60, "the standby ends")


# --- one attempt after the other, in this process ----------------------------------------------------------------


class Attempts:
    """A stream over files, whose attempts this process begins and ends."""

    def __init__(self, folder: Path) -> None:
        self.world = StageWorld(folder)
        self.standby = Standby()
        self.drivers: list[int] = []

    def request(self, **more: Any) -> StageRequest:
        source = FileSource(path=str(self.world.input), schema="k string, n bigint")
        given = {"keep_session": 0.0, "streaming": True, "standby": True, **more}
        return self.world.request("stage_jobs:Plain", {"numbers": source}, **given)

    def run(self, file: str, **more: Any) -> StageResult:
        """One attempt, which stages a file."""
        self.world.add_file(file, [{"k": "a", "n": 1}])
        request = self.request(**more)

        def started(driver: Driver) -> None:
            self.drivers.append(driver.pid)
            threading.Thread(target=self._end, args=(driver,), daemon=True).start()

        result = run_stage(
            request, self.world.store, log=self.world.lines.append, on_start=started, standby=self.standby
        )
        self.world.store.end_stage(PIPELINE, request.epoch, request.run, result.position)
        return result

    def _end(self, driver: Driver) -> None:
        published = self.world.store.pipeline(PIPELINE).last_published
        wait_for(lambda: self.world.store.pipeline(PIPELINE).last_published > published, 240, "a publication")
        time.sleep(0.5)  # its line is read, which starts the standby
        driver.end()

    @property
    def waiting(self) -> Any:
        """The standby's process, folder and key."""
        return self.standby._waiting

    def until_ready(self) -> int:
        """The standby's process, when it is warm."""
        driver, said = self.waiting.driver, list[str]()
        wait_for(lambda: driver.read(said.append) and READY in said, 600, "the standby is ready")
        return int(driver.pid)


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    made = Attempts(tmp_path)
    yield made
    made.standby.end()
    made.world.store.close()


def test_a_standby_knows_nothing_of_its_pipeline(attempts: Attempts) -> None:
    connections = {"kafka": ConnectionInfo("kafka", "kafka", password=SECRET)}
    attempts.run("first", connections=connections)
    folder, pid = attempts.waiting.folder, attempts.until_ready()
    assert folder in folders(STAGE)
    files = [each for each in folder.rglob("*") if each.is_file()]
    assert folder / REQUEST not in files
    texts = b"".join(each.read_bytes() for each in files)
    for process in (found := psutil.Process(pid), *found.children(recursive=True)):
        texts += Path(f"/proc/{process.pid}/environ").read_bytes() + Path(f"/proc/{process.pid}/cmdline").read_bytes()
        opened = [Path(each.path) for each in process.open_files()]
        assert not [each for each in opened if each.is_relative_to(attempts.world.folder)]
    for secret in (SECRET, attempts.world.url, str(attempts.world.root)):
        assert secret.encode() not in texts
    attempts.run("second", connections=connections)
    assert not (folder / REQUEST).exists()
