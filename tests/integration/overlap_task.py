"""A process that stages and delivers beside that, as the task `stage` does: `python -m tests.integration.overlap_task`.

Standard input: {"folder", "input", "try", "mariadb": fields of the connection, "wal_root", "conf": Spark settings}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.pipelines import Pipeline
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.steps import Context
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sources import FileSource
from airflow_ft.spark.request import StageRequest
from airflow_ft.spark.task.stage import Staging, stage_step
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from airflow_ft.wal.retention import WalArchive
from tests.integration.stage_world import PIPELINE, RUN

CONFIG = CheckpointConfig(max_delivery_rows=0)
SCHEMA = "id bigint, name string"


def delivery() -> Delivery:
    """Into one table, without a unique key."""
    return plan_delivery({"orders": MySqlSink(table="orders", conn_id="shop")})


def context(folder: Path, mariadb: dict[str, Any], try_number: int) -> Context:
    """The run as a task of that try sees it."""

    def participants(plan: ParticipantPlan) -> Participant:
        return open_participant(plan, ConnectionInfo("shop", "mysql", **mariadb), open_wal())

    return Context(
        store=open_store(f"sqlite:///{folder / 'ft.db'}"),
        pipeline=PIPELINE,
        run=RUN,
        participants=participants,
        worker=Worker("orders/stage", try_number),
        lease_seconds=2.0,
    )


def main() -> None:
    given = json.load(sys.stdin)
    folder = Path(given["folder"])
    sources = {"numbers": FileSource(path=given["input"], schema=SCHEMA, max_files_per_trigger=1)}

    def make(pipeline: Pipeline, epoch: int, attempt: int) -> StageRequest:
        return StageRequest(
            pipeline=PIPELINE,
            run=RUN,
            epoch=epoch,
            attempt=attempt,
            base=pipeline.base,
            base_is_clean=pipeline.base_is_clean,
            last_published=pipeline.last_published,
            store_url=f"sqlite:///{folder / 'ft.db'}",
            wal_root=given["wal_root"],
            job=f"{Path(__file__).with_name('stage_jobs.py').stem}:Plain",
            sources={name: source.to_json() for name, source in sources.items()},
            sinks=("orders",),
            master="local[2]",
            conf={"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "2", **given["conf"]},
            python_path=(str(Path(__file__).parent),),
        )

    run = context(folder, given["mariadb"], given["try"])
    beside = delivery(), CONFIG, lambda _: None, WalArchive(given["wal_root"])
    stage_step(run, Staging(make_request=make, on_line=print), beside)


if __name__ == "__main__":
    main()
