"""Spark sessions that are kept between runs on a standalone cluster and on YARN."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_ft.sources import FileSource
from airflow_ft.spark.session.session_leases import kept
from tests.integration.holding import KEYS, ON_YARN, RESTART, TWO_EXECUTORS
from tests.integration.stage_world import StageWorld, world
from tests.integration.test_stage_cluster import Cluster, _executors
from tests.integration.test_stage_kept import JOB
from tests.waiting import wait_for
from tools.servers import Hdfs, Yarn
from tools.servers.processes import has_ended

pytestmark = [
    pytest.mark.release,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]
KEEP = 600.0


@dataclass(frozen=True)
class Kept:
    """A cluster, for runs of a pipeline in one JVM."""

    pipeline: StageWorld
    folder: Path
    master: str
    conf: dict[str, str]
    executors: Callable[[], list[int]]

    def run(self, job: str = "stage_jobs:Crashing", **more: Any) -> int:
        """A run over one more file, until the cluster has given new executors. Return its JVM."""
        number = len(list(self.pipeline.input.iterdir()))
        self.pipeline.add_file(f"f{number}", [{"k": k, "n": number} for k in KEYS])
        source = FileSource(path=f"file://{self.pipeline.input}", schema="k string, n bigint")
        more = {"master": self.master, "conf": self.conf, "keep_session": KEEP, **RESTART, **more}
        assert self.pipeline.complete(self.pipeline.request(job, {"numbers": source}, **more)).rows == {
            "orders": len(KEYS)
        }
        wait_for(self._are_new, 120, "two executors without Python processes of the run")
        [session] = kept()
        return session.jvm

    def _are_new(self) -> bool:
        found = self.executors()
        with suppress(psutil.NoSuchProcess):
            return len(found) == 2 and not any(psutil.Process(pid).children() for pid in found)
        return False


@pytest.fixture(params=["standalone", "yarn"])
def cluster(
    request: pytest.FixtureRequest, folder: Path, servers_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Kept]:
    # The path of a socket has to be short.
    with tempfile.TemporaryDirectory(prefix="ft-", ignore_cleanup_errors=True) as sessions:
        monkeypatch.setattr(tempfile, "tempdir", sessions)
        monkeypatch.setattr("airflow_ft.spark.session.session_leases._GREETING_SECONDS", 60.0)
        made = _standalone if request.param == "standalone" else _yarn
        try:
            for pipeline in world(folder):
                yield from made(request, pipeline, folder, monkeypatch)
        finally:
            for one in kept():
                one.end()
            wait_for(lambda: not kept(), 60, "no session is left")


def _standalone(_: Any, pipeline: StageWorld, folder: Path, __: Any) -> Iterator[Kept]:
    with Cluster(folder, 2) as servers:
        conf = {**TWO_EXECUTORS, "spark.driver.host": "127.0.0.1"}
        workers = [folder / f"worker-{number}" for number in range(2)]
        yield Kept(pipeline, folder, servers.url, conf, lambda: [pid for each in workers for pid in _executors(each)])


def _yarn(
    request: pytest.FixtureRequest, pipeline: StageWorld, folder: Path, patch: pytest.MonkeyPatch
) -> Iterator[Kept]:
    yarn: Yarn = request.getfixturevalue("yarn")
    hdfs: Hdfs = request.getfixturevalue("hdfs")
    patch.setenv("HADOOP_CONF_DIR", str(yarn.configuration))
    pipeline.root = f"{hdfs.url}/{uuid.uuid4().hex}"  # type: ignore[assignment]
    yield Kept(pipeline, folder, "yarn", ON_YARN, lambda: [each.pid for each in yarn.executors()])


def test_state_continues_in_one_jvm_without_an_executor(cluster: Kept) -> None:
    """One is killed between two runs; the next run gets another one."""
    jvms = {cluster.run()}
    before = cluster.executors()
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    wait_for(lambda: has_ended(before[0]), 60, "it ends")
    jvms.add(cluster.run())
    jvms.add(cluster.run())
    assert len(jvms) == 1
    assert len(cluster.executors()) == 2 and set(cluster.executors()) != set(before)
    totals, steps = dict.fromkeys(KEYS, 0.0), []
    for row in cluster.pipeline.all_rows():
        totals[row["k"]] += row["added"]
        assert row["total"] == pytest.approx(totals[row["k"]])
        steps.append((row["k"], row["n"], row["steps"]))
    assert sorted(steps) == sorted((k, n, n + 1) for k in KEYS for n in range(3))


def test_executors_compute_the_job_as_it_is_now(cluster: Kept) -> None:
    jobs = cluster.folder / "jobs"
    jobs.mkdir()
    jvms = set()
    for word in ("first", "other"):
        (jobs / "own_job.py").write_text(JOB.replace("{word!r}", repr(word)))
        (jobs / "helper.py").write_text(f"WORD = {word!r}\n")
        jvms.add(cluster.run("own_job:Job", python_path=(str(jobs),)))
    assert len(jvms) == 1
    for name in ("word", "own"):
        found = [row[name] for row in cluster.pipeline.all_rows()]
        assert found == ["first"] * len(KEYS) + ["other"] * len(KEYS)
