"""A pipeline for staging tests: a real SQLite store, a log in a temporary folder, real Spark drivers.

Tests that say nothing of the JVM share one (`sessions`), as runs of a pipeline with `keep_session` do: a start takes
longer than most of them. A stage that fails takes it with it.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.inline_job import InlineJob
from airflow_ft.protocol.lease import Worker, new_epoch, take_epoch
from airflow_ft.protocol.model import Checkpoint, RunKey, SparkPosition
from airflow_ft.sources import Source
from airflow_ft.spark.fitting import Judge
from airflow_ft.spark.request import StageRequest, StageResult
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.spark.task.launcher import Driver, run_stage
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import open_wal
from tests.store.scene import Scene
from tests.waiting import wait_for

PIPELINE = "orders"
RUN = RunKey("orders", "scheduled__1")
JARS = Path(__file__).parents[2] / ".local" / "jars" / "spark"
KEPT_SECONDS = 120.0
USUAL = {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2"}


class StageWorld:
    """Everything that an Airflow task would have; `lines` is the log of all drivers.

    `sessions`: the folder of JVMs that wait for the next stage; None: each stage has its own. `own_sessions`: the same
    for stages that set something in it, and are of this test alone; None: each of them has its own.
    """

    def __init__(self, folder: Path, sessions: Path | None = None, own_sessions: Path | None = None) -> None:
        self.folder = folder
        self.sessions, self.own_sessions = sessions, own_sessions
        self.input = folder / "input"
        self.input.mkdir()
        self.root = folder / "wal"
        self.url = f"sqlite:///{folder / 'ft.db'}"
        self.store: DecisionLog = open_store(self.url)
        self.store.register(PIPELINE)
        self.lines: list[str] = []
        self._began, self._files = int(time.time()) - 10_000, 0

    def request(self, job: str | InlineJob, sources: Mapping[str, Source] | None = None, **more: Any) -> StageRequest:
        """A new attempt under a new epoch, as the task `stage` begins it."""
        epoch = take_epoch(self.store, PIPELINE, Worker(task="t", try_number=1).lease(), "test", lease_seconds=0.0)
        before = self.store.pipeline(PIPELINE)
        run = more.pop("run", RUN)
        attempt = self.store.begin_stage(PIPELINE, epoch, run)
        settings: dict[str, Any] = {
            "pipeline": PIPELINE,
            "run": run,
            "epoch": epoch,
            "attempt": attempt,
            "store_url": self.url,
            "wal_root": str(self.root),
            "job": job,
            "sinks": ("orders",),
            "sources": {name: source.to_json() for name, source in (sources or {}).items()},
            "base": before.base,
            "base_is_clean": before.base_is_clean,
            "last_published": before.last_published,
            "master": "local[2]",
            "conf": {**USUAL, **more.pop("conf", {})},
            "python_path": (str(Path(__file__).parent),),
        }
        if self._sessions(settings["conf"]):
            settings |= {"keep_session": KEPT_SECONDS, "jars": (str(JARS),)}
        return StageRequest(**{**settings, **more})

    def _sessions(self, conf: Mapping[str, str]) -> Path | None:
        return self.sessions if conf == USUAL else self.own_sessions

    def stage(
        self,
        request: StageRequest,
        on_start: Callable[[Driver], None] = lambda _: None,
        judge: Judge | None = None,
    ) -> StageResult:
        """Runs it, without ending the stage."""
        sessions = self._sessions(request.conf)
        with sessions_in(sessions) if sessions else nullcontext():
            return run_stage(request, self.store, log=self.lines.append, on_start=on_start, judge=judge)

    def complete(self, request: StageRequest) -> StageResult:
        """Runs it and ends the stage, as the task does."""
        result = self.stage(request)
        self.store.end_stage(PIPELINE, request.epoch, request.run, result.position)
        return result

    def deliver(self) -> None:
        """What is published is delivered, as far as the decision log knows."""
        scene = Scene(self.store, PIPELINE, self.store.pipeline(PIPELINE).epoch)
        for checkpoint in self.published():
            if not checkpoint.is_undelivered:
                continue
            assert checkpoint.segment is not None
            plan = replace(scene.make_plan(checkpoint.number), segments=(checkpoint.segment,))
            self.store.plan(PIPELINE, scene.epoch, plan)
            for name in scene.promises:
                scene.vote(checkpoint.number, name)
            scene.decide(checkpoint.number)
            for name in scene.promises:
                scene.prove(checkpoint.number, name)
            assert self.store.checkpoint(PIPELINE, checkpoint.number).is_confirmed

    def reset_state(self) -> SparkPosition | None:
        """As `airflow ft reset-state` does."""
        with new_epoch(self.store, PIPELINE, Worker("", 1), "a test", lease_seconds=0.0) as (epoch, _):
            return reset_state(self.store, PIPELINE, epoch, "a test")

    def add_file(self, name: str, rows: list[dict[str, Any]]) -> None:
        """A file of JSON lines that appears at once."""
        hidden = self.folder / name
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._files += 1  # Spark reads files in the order of their modification, which ties within a clock tick
        os.utime(hidden, (self._began + self._files, self._began + self._files))
        hidden.rename(self.input / f"{name}.json")

    def checkpoints(self) -> list[Checkpoint]:
        """All, ascending."""
        return list(reversed(self.store.checkpoints(PIPELINE)))

    def published(self) -> list[Checkpoint]:
        """Those with a segment, ascending."""
        return [checkpoint for checkpoint in self.checkpoints() if checkpoint.segment is not None]

    def rows(self, checkpoint: Checkpoint, sink: str = "orders") -> pa.Table:
        """The rows of a sink in one checkpoint's segment."""
        assert checkpoint.segment is not None
        reader = open_wal().open(checkpoint.segment)
        schema = reader.schema(sink)
        return pa.Table.from_batches((b for file in reader.files(sink) for b in reader.batches(sink, file)), schema)

    def all_rows(self, sink: str = "orders") -> list[dict[str, Any]]:
        """The rows of a sink over all published checkpoints, in order."""
        return [row for checkpoint in self.published() for row in self.rows(checkpoint, sink).to_pylist()]

    def close(self) -> None:
        self.store.close()


@contextmanager
def sessions_in(folder: Path) -> Iterator[None]:
    """JVMs that are kept are looked for in this folder alone, and are the same to every test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        yield


def with_connection(request: StageRequest, connection: ConnectionInfo) -> StageRequest:
    """The same request, with a connection for its sources."""
    return replace(request, connections={connection.conn_id: connection})


def world(folder: Path, sessions: Path | None = None, own_sessions: Path | None = None) -> Iterator[StageWorld]:
    """For a fixture."""
    made = StageWorld(folder, sessions, own_sessions)
    yield made
    made.close()
    sys.stdout.write("\n".join(made.lines[-300:]))


@contextmanager
def streaming(pipeline: StageWorld, request: StageRequest, **config: Any) -> Iterator[list[Driver]]:
    """A stream, for the duration of the block, which gets its driver as soon as it has one.

    No process delivers what it publishes, and by default it does not wait for that.

    At its end it stops after the checkpoint under way.
    """
    settings = {"interval": CheckpointConfig().interval / 5, "unaligned": True, **config}
    if "max_concurrent" in settings:
        del settings["unaligned"]
    request = replace(request, streaming=True, checkpointing=CheckpointConfig(**settings))
    drivers: list[Driver] = []
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(pipeline.stage, request, drivers.append)
        try:
            yield drivers
        finally:
            wait_for(lambda: drivers, 60, "a driver")
            drivers[0].end(drain=False)
            ended.result(60)
