"""A stateful job whose Python workers wait where a test wants to kill something, and what it has to have published."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.restart import FixedDelay
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.session.home import spark_home
from airflow_ft.spark.task.launcher import Driver
from tests.integration.stage_world import PIPELINE, StageWorld, streaming
from tests.waiting import wait_for

KEYS = "abcdefgh"
SECONDS = 600
RESTART = {"restart": FixedDelay(attempts=9, delay=timedelta(seconds=1)).to_json()}
"""Spark gives the driver's Python worker 10 s to start, which a busy machine may exceed."""
TWO_EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.instances": "2",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.locality.wait": "0s",
    "spark.hadoop.dfs.replication": "1",
    "spark.hadoop.dfs.blocksize": str(1 << 20),
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{SECONDS}s",
    "spark.python.authenticate.socketTimeout": f"{SECONDS}s",
}
"""Settings of Spark for two small executors, which a stage waits for."""
ON_YARN = {
    **TWO_EXECUTORS,
    "spark.driver.host": "127.0.0.1",
    "spark.yarn.am.memory": "512m",
    "spark.yarn.am.extraJavaOptions": TWO_EXECUTORS["spark.executor.extraJavaOptions"],
    "spark.yarn.jars": f"local:{spark_home()}/jars/*",
}
"""The same on YARN, with the jars of this machine."""


class Holding:
    """The job `Held` on a cluster: from the second file on, its state processors wait until the test releases them."""

    def __init__(self, pipeline: StageWorld, folder: Path, master: str, conf: Mapping[str, str]) -> None:
        self._master, self._conf = master, conf
        self._pipeline, self.folder = pipeline, folder / "held"
        self.folder.mkdir()
        self.folder.chmod(0o777)  # executors are of another user
        self._rows: set[tuple[str, int]] = set()
        self.drivers: list[Driver] = []

    def source(self) -> FileSource:
        # By HADOOP_CONF_DIR, HDFS is the default file system.
        path = f"file://{self._pipeline.input}"
        return FileSource(path=path, schema="k string, n bigint", max_files_per_trigger=1)

    def request(self, **more: Any) -> StageRequest:
        return self._pipeline.request(
            "stage_jobs:Held",
            {"numbers": self.source()},
            master=self._master,
            conf={**self._conf, **more.pop("conf", {})},
            job_arguments={"folder": str(self.folder)},
            **RESTART,
            **more,
        )

    def add(self, *numbers: int, keys: str = KEYS) -> None:
        """A file each, with one row a key."""
        for n in numbers:
            self._pipeline.add_file(f"f{n}", [{"k": k, "n": n} for k in keys])
            self._rows |= {(k, n) for k in keys}

    def waiting(self, n: int) -> int:
        """How many workers have come as far as file `n`, with those of tries that were lost."""
        return len(list(self.folder.glob(f"there-{n}-*")))

    def go(self, *numbers: int) -> None:
        for n in numbers:
            (self.folder / f"go-{n}").touch()

    @contextmanager
    def staged(self, request: StageRequest) -> Iterator["Future[StageResult]"]:
        """Run the stage in a thread, while the block runs."""

        def stage() -> StageResult:
            result = self._pipeline.stage(request, self.drivers.append)
            self._pipeline.store.end_stage(PIPELINE, request.epoch, request.run, result.position)
            return result

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(stage)
            try:
                yield future
            finally:
                self.go(*range(10))

    @contextmanager
    def streamed(self, request: StageRequest) -> Iterator[list[Driver]]:
        """Run a stream while the block runs, as `streaming`. Its workers wait until the block ends at the latest."""
        with streaming(self._pipeline, request) as drivers:
            try:
                yield drivers
            finally:
                self.go(*range(10))

    def await_workers(self, staged: "Future[StageResult]", n: int, workers: int = 2) -> None:
        """Wait until this number of workers has loaded file `n`."""
        self.until(staged, lambda: self.waiting(n) >= workers, f"{workers} workers with file {n}")

    def until(self, staged: "Future[StageResult]", what: Callable[[], Any], told: str) -> None:
        def look() -> Any:
            assert not staged.done(), staged.exception() or self._pipeline.lines[-5:]
            return what()

        wait_for(look, SECONDS, told)

    def judge(self) -> None:
        """Each row was published once, and each total is the one before it and what was added."""
        totals, found = dict.fromkeys(KEYS, 0.0), []
        for row in self._pipeline.all_rows():
            totals[row["k"]] += row["added"]
            assert row["total"] == pytest.approx(totals[row["k"]])
            found.append((row["k"], row["n"]))
        assert len(found) == len(set(found)) and set(found) == self._rows
