"""Stages micro-batches of one row in a JVM that is kept, and tells how long one takes. See `workers`."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from airflow_ft.protocol.lease import Worker, take_epoch
from airflow_ft.protocol.model import RunKey
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.session.session_leases import kept
from airflow_ft.spark.task.launcher import run_stage
from airflow_ft.store import open_store
from benchmarks.workers import serve

BATCHES, WARM_UP = 30, 5
_OWN: set[str] = set()  # pipelines: the first one has started the JVM
_BEGAN = 1_700_000_000  # Spark reads files in the order of their modification


def stage(folder: str, number: int, job: str) -> Mapping[str, Any]:
    """A run of a new pipeline, whose number nobody else has, with a checkpoint for each of its files.

    {"milliseconds"}: the median from one publication to the next, without the first few. {"cpu"}: seconds of CPU of the
    whole run, also of the processes that the JVM has started.
    """
    home, pipeline = Path(folder), f"bench-micro-{number}"
    _OWN.add(pipeline)
    source = home / "input"
    source.mkdir(parents=True)
    for n in range(BATCHES):
        file = source / f"{n}.json"
        file.write_text(f'{{"k": "{"ab"[n % 2]}", "n": {n}}}\n')
        os.utime(file, (_BEGAN + n, _BEGAN + n))
    published: list[float] = []

    def look(line: str) -> None:
        if " published: " in line:
            published.append(time.monotonic())

    files = FileSource(path=str(source), schema="k string, n bigint", max_files_per_trigger=1)
    run = RunKey("bench", "run")
    with closing(open_store(f"sqlite:///{home}/ft.db")) as store:
        store.register(pipeline)
        epoch = take_epoch(store, pipeline, Worker("bench/stage", 1).lease(), "stage", lease_seconds=0.0)
        request = StageRequest(
            pipeline=pipeline,
            run=run,
            epoch=epoch,
            attempt=store.begin_stage(pipeline, epoch, run),
            store_url=f"sqlite:///{home}/ft.db",
            wal_root=f"{home}/wal",
            job=f"benchmarks.job:{job}",
            sources={"rows": files.to_json()},
            sinks=("notes", "copies") if job == "Twice" else ("table",),
            master="local[2]",
            conf={"spark.sql.shuffle.partitions": "2"},
            keep_session=900.0,
            session_name="bench-micro",
        )
        used = _used()
        result = run_stage(request, store, log=look)
        used = _used() - used
    if len(result.numbers) != BATCHES or len(published) != BATCHES:
        raise RuntimeError(f"{len(result.numbers)} checkpoints of {BATCHES} are there, {len(published)} were told")
    between = (after - before for before, after in pairwise(published[WARM_UP:]))
    return {"milliseconds": statistics.median(between) * 1000, "cpu": used}


def _used() -> float:
    """By the JVM and the Python drivers so far, and by processes that have ended."""
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    jvms = [psutil.Process(each.jvm) for each in kept() if each.pipeline in _OWN and each.jvm]
    return own.ru_utime + own.ru_stime + sum(sum(jvm.cpu_times()[:4]) for jvm in jvms)


if __name__ == "__main__":
    serve({"stage": stage})
    for session in kept():
        if session.pipeline in _OWN:
            session.end()
