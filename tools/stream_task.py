"""A process that runs a stream, as `StreamingPipelineOperator` does: `python -m tools.stream_task`.

Standard input: the JSON of a `Stream`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_ft.clients.buckets import BucketPlace, renew, resolve_with
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.from_savepoint import FromSavepoint
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import ParticipantPlan, RunKey
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.pipelines import Pipeline
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.restart import RestartStrategy
from airflow_ft.protocol.steps import Context, recover_step
from airflow_ft.sinks.kafka import participant as kafka_participant
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql import participant as mysql_participant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.sqlite import participant as sqlite_participant
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.sources import source_from_json
from airflow_ft.sources.progress import GroupOffsets
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.savepoints.restoring import restore_once
from airflow_ft.spark.task.answers import answer_stops
from airflow_ft.spark.task.launcher import Driver
from airflow_ft.spark.task.shared import SharedDriver
from airflow_ft.spark.task.stage import Staging
from airflow_ft.spark.task.stream import finish_step, stream_step
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from airflow_ft.wal.retention import WalArchive

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

PROJECT = Path(__file__).resolve().parents[1]
JARS = PROJECT / ".local" / "jars" / "spark"
S3A = JARS.with_name("s3a")
PARTICIPANTS: Mapping[str, Any] = {
    "kafka": kafka_participant,
    "mysql": mysql_participant,
    "sqlite": sqlite_participant,
}


@dataclass
class Stream:
    """A pipeline, its servers, and the task's try.

    topics, tables, files: what each sink goes into, by its name: of Kafka, of MySQL, of the SQLite file. keys: of a
    table in which rows replace each other ("upsert", with a column `version`). jobs: the folder with the job's module.
    lake: of the connection to a store whose bucket has the log. savepoint: that the run starts from. master: of Spark.
    """

    folder: str
    job: str
    sources: Mapping[str, Mapping[str, Any]]
    pipeline: str = "stream"
    run: str = "run-1"
    try_number: int = 1
    store: str = ""
    wal_root: str = ""
    topics: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    kafka: str = ""
    mysql: Mapping[str, Any] = field(default_factory=dict)
    sqlite: str = ""
    lake: Mapping[str, Any] = field(default_factory=dict)
    job_args: Mapping[str, Any] = field(default_factory=dict)
    checkpointing: Mapping[str, Any] = field(default_factory=dict)
    restart: Mapping[str, Any] = field(default_factory=lambda: {"type": "fixed-delay", "attempts": 3, "delay": 0.1})
    savepoint: str = ""
    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict)
    jobs: str = str(PROJECT / "tests" / "integration")
    keep_session: float = 0.0
    standby: bool = False
    retained_batches: int = 100
    lease_seconds: float = 2.0

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.folder}/ft.db"

    @property
    def log_root(self) -> str:
        return self.wal_root or f"{self.folder}/wal"

    @property
    def delivery(self) -> Delivery:
        sinks: dict[str, Any] = {
            name: MySqlSink(table=to, conn_id="shop", **self._upsert(name)) for name, to in self.tables.items()
        }
        sinks |= {name: KafkaSink(topic=to, conn_id="kafka") for name, to in self.topics.items()}
        sinks |= {name: SqliteSink(table=to, conn_id="file") for name, to in self.files.items()}
        return plan_delivery(sinks, mode=CheckpointConfig.from_json(self.checkpointing).mode)

    def _upsert(self, name: str) -> dict[str, Any]:
        keys = self.keys.get(name)
        return {"strategy": "upsert", "key_columns": list(keys), "version_column": "version"} if keys else {}

    def connection(self, conn_id: str) -> ConnectionInfo:
        """Of the four that there are."""
        if conn_id == "shop":
            return ConnectionInfo("shop", "mysql", **self.mysql)
        if conn_id == "lake":
            return ConnectionInfo("lake", "aws", **self.lake)
        if conn_id == "file":
            return ConnectionInfo("file", "sqlite", host=self.sqlite)
        return ConnectionInfo("kafka", "kafka", extra={"bootstrap.servers": self.kafka, "group.id": "ignored"})

    def participants(self, plan: ParticipantPlan) -> Participant:
        """Opens one of them."""
        opened: Participant = PARTICIPANTS[plan.kind].open_participant(plan, self.connection(plan.name), open_wal())
        return opened

    def context(self) -> Context[DecisionLog]:
        """The run as the task sees it."""
        resolve_with(self.connection)
        return Context(
            store=open_store(self.store_url),
            pipeline=self.pipeline,
            run=RunKey("dag", self.run),
            participants=self.participants,
            worker=Worker("dag/stream", self.try_number),
            lease_seconds=self.lease_seconds,
            run_is_over=lambda _: True,
        )

    def request(self, pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
        """What the driver is told."""
        return StageRequest(
            pipeline=self.pipeline,
            run=RunKey("dag", self.run),
            epoch=epoch,
            attempt=attempt,
            base=pipeline.base,
            base_is_clean=pipeline.base_is_clean,
            last_published=pipeline.last_published,
            store_url=self.store_url,
            wal_root=self.log_root,
            job=self.job,
            job_arguments=self.job_args,
            sources=self.sources,
            connections={"kafka": self.connection("kafka")} if self.kafka else {},
            sinks=(*self.tables, *self.topics, *self.files),
            master=self.master,
            conf={"spark.driver.memory": "900m", "spark.sql.shuffle.partitions": "2", **self.conf},
            jars=(str(JARS), str(S3A)) if self.lake else (str(JARS),),
            buckets=[renew(BucketPlace.of(self.log_root)).to_json()] if self.lake else (),
            python_path=(self.jobs,),
            checkpointing=CheckpointConfig.from_json(self.checkpointing),
            streaming=True,
            retained_batches=self.retained_batches,
            restart=self.restart,
            keep_session=self.keep_session,
            standby=self.standby,
        )

    def to_json(self) -> str:
        """For the process."""
        return json.dumps(asdict(self))

    def start(self, log: Path) -> subprocess.Popen[str]:
        """The process of this try, which writes into `log`."""
        return start_module("tools.stream_task", self.to_json(), log)

    def task(
        self,
        on_start: Any = lambda _: None,
        *,
        shared: SharedDriver | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        """What the operator does, without Airflow. `shared`: the driver of its group."""
        config = CheckpointConfig.from_json(self.checkpointing)
        with closing((context := self.context()).store):
            restore = partial(
                restore_once,
                context.store,
                FromSavepoint(self.savepoint),
                self.pipeline,
                context.run,
                context.participants,
                context.worker,
                wal_root=self.log_root,
                lease_seconds=self.lease_seconds,
            )
            recover_step(context, again=True, restore=restore if self.savepoint else None)
            sources = {name: source_from_json(source) for name, source in self.sources.items()}
            progress = GroupOffsets(sources, self.connection)
            overlap = (self.delivery, config, progress, WalArchive(self.log_root))
            end = stream_step(
                context,
                Staging(make_request=self.request, on_line=on_line or say, on_start=on_start),
                overlap,
                strategy=RestartStrategy.from_json(self.restart),
                shared=shared,
            )
            _, outcome = finish_step(context, overlap, end)
            answer_stops(context, outcome)


def start_module(module: str, given: str, log: Path) -> subprocess.Popen[str]:
    """A Python process of its own, and its own group, that reads `given` from its standard input."""
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    assert process.stdin
    process.stdin.write(given)
    process.stdin.close()
    return process


def say(line: str) -> None:
    """Into the log, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def newest_driver(log: Path) -> int:
    """The process of the newest driver that a stream has written into its log; 0: there was none yet."""
    pids = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("driver ")]
    return int(pids[-1]) if pids else 0


def _driver(driver: Driver) -> None:
    say(f"driver {driver.pid}")


def main() -> None:
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    Stream(**json.load(sys.stdin)).task(_driver)


if __name__ == "__main__":
    main()
