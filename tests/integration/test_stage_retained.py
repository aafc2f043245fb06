"""Each retained checkpoint is whole: rows, positions and state, from which the job goes on as it did then."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.retention import retain
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.wal.local import local_path
from airflow_ft.wal.retention import WalArchive
from tests.integration.stage_world import JARS, KEPT_SECONDS, PIPELINE, StageWorld, world

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

RETAINED, WAITING = 7, 4
# Spark deletes what it need not keep at once, and makes a full snapshot of every other version.
CONF = {
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
    "spark.sql.streaming.stateStore.maintenanceShutdownTimeout": "1s",
    "spark.sql.streaming.stateStore.maintenanceForceShutdownTimeout": "1s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
    "spark.sql.streaming.fileSource.log.cleanupDelay": "1ms",
    "spark.sql.streaming.fileSource.log.compactInterval": "3",
}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


class Sink:
    """Forgets its old markers."""

    def forget(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class Retaining:
    """A stateful pipeline that counts rows, and keeps the newest checkpoints."""

    def __init__(self, pipeline: StageWorld, by: str, conf: dict[str, str]) -> None:
        self.pipeline, self.by = pipeline, by
        self.conf = {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2", **CONF, **conf}
        self.config = CheckpointConfig(num_retained=RETAINED)
        self.files = 0

    def add(self) -> None:
        """A file with two rows of each key."""
        self.pipeline.add_file(f"f{self.files:03}", [{"k": k, "n": 2 * self.files + i} for i in range(2) for k in "ab"])
        self.files += 1

    def request(self, files: int | None = None, **more: Any) -> StageRequest:
        source = FileSource(path=str(self.pipeline.input), schema="k string, n bigint", max_files_per_trigger=files)
        return self.pipeline.request(
            "stage_jobs:Counts",
            {"numbers": source},
            job_arguments={"by": self.by},
            conf=self.conf,
            keep_session=KEPT_SECONDS,
            jars=(str(JARS),),
            checkpointing=self.config,
            retained_batches=WAITING,
            **more,
        )

    def run(self, *, clean: bool = True) -> None:
        """Two more checkpoints, delivered; unless the run ends well, the next attempt works in a copy."""
        for _ in range(2):
            self.add()
        (self.pipeline.complete if clean else self.pipeline.stage)(self.request(1))
        self.pipeline.deliver()
        sink: Any = Sink()
        archive = WalArchive(str(self.pipeline.root))
        retain(self.pipeline.store, PIPELINE, self.config, lambda _: sink, archive, lambda _: None)

    def retained(self) -> list[Checkpoint]:
        """Those whose rows are not pruned, ascending."""
        return list(self.pipeline.store.prunable(PIPELINE, 0, 100))

    def restore_savepoint(self, retained: Checkpoint) -> Checkpoint:
        """What the job publishes in a copy of that checkpoint's location, of all that came after it."""
        store = self.pipeline.store
        self.pipeline.complete(self.request(base=retained.position, base_is_clean=False))
        found = self.pipeline.published()[-1]
        assert found.number > retained.number and found.position != retained.position
        epoch = store.pipeline(PIPELINE).epoch
        store.rewind(PIPELINE, epoch, found.number, store.position_before(PIPELINE, found.number), "a test")
        return found

    def counts(self, checkpoint: Checkpoint) -> dict[str, int]:
        return {row["k"]: row["rows"] for row in self.pipeline.rows(checkpoint).to_pylist()}


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


@pytest.mark.parametrize(
    ("by", "conf"),
    [("count", {}), ("rows", {}), ("count", {PROVIDER: HDFS})],
    ids=["aggregation", "transformWithState", "on the map"],
)
def test_each_retained_checkpoint_restores_its_exact_state(pipeline: StageWorld, by: str, conf: dict[str, str]) -> None:
    """They lie in two locations, with a restart between, and Spark has begun to delete in the second."""
    job = Retaining(pipeline, by, conf)
    for run in range(7):
        job.run(clean=run != 3)
    retained = job.retained()
    assert [checkpoint.number for checkpoint in retained] == list(range(14 - RETAINED + 1, 15))
    locations = [checkpoint.position.location for checkpoint in retained if checkpoint.position]
    assert locations.count(locations[0]) == 1 and locations.count(locations[-1]) == RETAINED - 1
    assert not (local_path(locations[-1]) / "offsets/0").exists(), "Spark deletes what is older than it need keep"
    folder = str(pipeline.folder / "savepoints")
    kept = [take(pipeline.store, PIPELINE, folder, "a test", checkpoint.number) for checkpoint in retained]
    assert [taken.batch for _, taken in kept] == [c.position.batch for c in retained if c.position]
    with pytest.raises(ConfigurationError) as caught:
        take(pipeline.store, PIPELINE, folder, "a test", 1)
    assert caught.value.checkpoint == 1 and "pruned" in caught.value.what
    job.add()
    for checkpoint in retained:
        assert job.counts(checkpoint) == dict.fromkeys("ab", 2 * checkpoint.number)
        found = job.restore_savepoint(checkpoint)
        assert found.positions["numbers"]["start"] == checkpoint.positions["numbers"]["end"]
        assert job.counts(found) == dict.fromkeys("ab", 2 * job.files)
        if checkpoint is retained[0]:
            shutil.rmtree(local_path(locations[0]))  # the others need nothing of it

    def no_participant(_: Any) -> Any:
        raise AssertionError("no sink is asked")

    oldest, _ = kept[0]
    restore(pipeline.store, oldest, no_participant, Worker("", 1), "a test", lease_seconds=0.0, later=Later.WRITE_AGAIN)
    pipeline.complete(job.request())
    found = pipeline.published()[-1]
    assert found.number > retained[-1].number
    assert found.positions["numbers"]["start"] == retained[0].positions["numbers"]["end"]
    assert job.counts(found) == dict.fromkeys("ab", 2 * job.files)
