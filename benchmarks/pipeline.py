"""A whole run of a pipeline by this package's steps: recover, stage, prepare, commit, confirm; no Airflow around it."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import ParticipantPlan, RunKey
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.pipelines import Pipeline
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.steps import Context, commit_step, confirm_step, prepare_step, recover_step
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.task.stage import Staging, stage_step
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from airflow_ft.wal.retention import WalArchive
from benchmarks.workers import ROOT

SPARK_CONF = {"spark.driver.memory": "2g"}


def spark_jars() -> tuple[str, ...]:
    """The connectors that tools/bootstrap.sh has fetched."""
    return tuple(str(jar) for jar in sorted((ROOT / ".local" / "jars" / "spark").glob("*.jar")))


def main(job: dict[str, Any]) -> None:
    """One run over everything that the source holds, until it is confirmed.

    `job`: pipeline (a new name), folder, job, source (its `to_json`), connections (by id), table and topic (each may be
    lacking), overlap, keep_session (seconds).
    """
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(message)s")
    store_url, root = f"sqlite:///{job['folder']}/ft.db", f"{job['folder']}/wal"
    connections = {name: ConnectionInfo(**info) for name, info in job["connections"].items()}
    sinks: dict[str, Any] = {}
    if "table" in job:
        sinks["table"] = MySqlSink(table=job["table"], conn_id="shop")
    if "topic" in job:
        sinks["topic"] = KafkaSink(topic=job["topic"], conn_id="broker", key="key", value="value")
    delivery, config = plan_delivery(sinks), CheckpointConfig()

    def connection(conn_id: str) -> ConnectionInfo:
        return connections[conn_id]

    def participant(plan: ParticipantPlan) -> Participant:
        return open_participant(plan, connection, open_wal())

    def request(pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
        return StageRequest(
            pipeline=job["pipeline"],
            run=context.run,
            epoch=epoch,
            attempt=attempt,
            base=pipeline.base,
            base_is_clean=pipeline.base_is_clean,
            last_published=pipeline.last_published,
            store_url=store_url,
            wal_root=root,
            job=job["job"],
            sources={"rows": job["source"]},
            connections={name: connections[name] for name in ("broker",) if name in connections},
            sinks=tuple(sinks),
            master="local[2]",
            conf=SPARK_CONF,
            jars=spark_jars(),
            python_path=(str(ROOT),),
            keep_session=job["keep_session"],
            session_name="bench",
        )

    with closing(open_store(store_url)) as store:
        context = Context(store, job["pipeline"], RunKey("bench", "run"), participant, Worker("bench/run/task", 1))
        recover_step(context)
        beside = (delivery, config, lambda _: None, WalArchive(root)) if job["overlap"] else None
        stage_step(context, Staging(make_request=request, on_line=logging.info), beside)
        for name in delivery.names:
            prepare_step(context, delivery, config, name)
        for name in delivery.names:
            commit_step(context, name)
        found = confirm_step(context, config, WalArchive(root))
        logging.info("confirmed %s", found)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
