"""The same by this package's steps, without Airflow: recover, stage, prepare, commit, confirm.

Run by `benchmarks.crashes` as a process of its own; when it is started again, it settles what is open first.
"""

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
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.steps import Context, commit_step, confirm_step, prepare_step, recover_step
from airflow_ft.sinks import open_participant
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.task.stage import Staging, stage_step
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from airflow_ft.wal.retention import WalArchive


def main(job: dict[str, Any]) -> None:
    """One run of the pipeline, or the rest of it."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO)
    store_url, root = f"sqlite:///{job['folder']}/ft.db", f"{job['folder']}/wal"
    connections = {
        "mysql": ConnectionInfo(
            "mysql", "mysql", "127.0.0.1", job["mysql_port"], job["user"], job["password"], job["database"]
        ),
        "kafka": ConnectionInfo("kafka", "kafka", extra={"bootstrap.servers": job["bootstrap"]}),
    }
    sinks: dict[str, SinkSpec] = {
        "table": MySqlSink(table=job["table"], conn_id="mysql"),
        "topic": KafkaSink(topic=job["topic"], conn_id="kafka"),
    }
    source = KafkaSource(topics=[job["source"]], conn_id="kafka", max_offsets_per_trigger=job["batch"])
    delivery, config = plan_delivery(sinks), CheckpointConfig(max_delivery_rows=0)

    def connection(conn_id: str) -> ConnectionInfo:
        return connections[conn_id]

    def participant(plan: ParticipantPlan) -> Participant:
        return open_participant(plan, connection, open_wal())

    def request(pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
        return StageRequest(
            pipeline=job["table"],
            run=context.run,
            epoch=epoch,
            attempt=attempt,
            base=pipeline.base,
            base_is_clean=pipeline.base_is_clean,
            last_published=pipeline.last_published,
            store_url=store_url,
            wal_root=root,
            job="benchmarks.crashes.rows",
            sources={"rows": source.to_json()},
            connections={"kafka": connections["kafka"]},
            sinks=tuple(sinks),
            master="local[2]",
            jars=tuple(job["jars"]),
            python_path=(str(Path(__file__).parents[2]),),
        )

    with closing(open_store(store_url)) as store:
        # As Airflow would start it: a newer try of the same task takes over without waiting for a lease.
        worker = Worker("crashes/run/task", job["try"])
        context = Context(store, job["table"], RunKey("crashes", "run"), participant, worker)
        recover_step(context)
        stage_step(context, Staging(make_request=request, on_line=logging.info))
        for name in delivery.names:
            prepare_step(context, delivery, config, name)
        for name in delivery.names:
            commit_step(context, name)
        confirm_step(context, config, WalArchive(root))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
