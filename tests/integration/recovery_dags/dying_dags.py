"""DAGs for tests/integration/test_airflow_recovery.py: each has a task that is killed for good."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_ft import CheckpointedPipeline, FileSource, KafkaSink, MySqlSink
from airflow_ft.protocol import steps

HERE = Path(os.environ["AIRFLOW_HOME"])
WORLD = json.loads((HERE / "world.json").read_text())

# A task process parses this file, and then runs its task: whoever is to die does so at this very point.
commit_step = steps.commit_step


def dying_commit(context: steps.Context, participant: str, **how: Any) -> Any:
    """kill -9 before the step of the participant that stands in this pipeline's file; no retry follows."""
    victim = HERE / f"dies-{context.pipeline}"
    if victim.exists() and victim.read_text() == participant:
        os.kill(os.getpid(), signal.SIGKILL)
    return commit_step(context, participant, **how)


steps.commit_step = dying_commit

for name, strategy in (("decided", "local"), ("undecided", "xa")):
    with DAG(name, schedule=None, catchup=False):
        CheckpointedPipeline(
            pipeline=name,
            job="job_of_tests",
            sources={
                "orders": FileSource(path=str(HERE / name), schema="id bigint, amount decimal(12,2), note string")
            },
            sinks={
                "orders": MySqlSink(table=name, conn_id="shop", strategy=strategy),
                "alerts": KafkaSink(topic=WORLD[name], key="key", conn_id="bus"),
            },
            default_args={"retries": 0},
        )
