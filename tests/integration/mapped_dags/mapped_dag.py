"""A DAG for tests/integration/test_airflow_mapped.py, whose tasks die or stop where a file says so, once.

The file `kind` names the system: "mysql", "postgres" or "kafka".
"""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_ft import CheckpointedPipeline, KafkaSink, MySqlSink, PostgresSink
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Fence, Plan

HERE = Path(os.environ["AIRFLOW_HOME"])
KIND = (HERE / "kind").read_text()

SINK: Any
match KIND:
    case "kafka":
        from airflow_ft.sinks.kafka.shared_slots import SharedHeldParticipant as Participant
        from airflow_ft.sinks.kafka.transaction_coordinator import TransactionCoordinator as Session
        from airflow_ft.wal import incoming

        incoming.ROWS_A_FILE = incoming.ROW_GROUP_BYTES = 1  # else all rows are in one file, and so in one slot
        SINK = KafkaSink(topic="mapped", conn_id="shop", strategy="held", slots=3)
    case "postgres":
        from airflow_ft.sinks.postgres.prepared import PreparedParticipant as Participant
        from airflow_ft.sinks.postgres.session import Session

        SINK = PostgresSink(table="mapped", conn_id="shop", strategy="prepared", branches=3)
    case _:
        from airflow_ft.sinks.mysql.session import Session
        from airflow_ft.sinks.mysql.shared_branches import SharedXaParticipant as Participant

        SINK = MySqlSink(table="mapped", conn_id="shop", strategy="xa", branches=3)

# A task process parses this file, and then runs its task.
announce, load, conclude = Participant.announce, Participant.load, Participant.conclude


def fault(name: str) -> None:
    """Take the fault of that name, if there is one: "kill", or "stop", of this process and of its supervisor."""
    file = HERE / "faults" / name
    try:
        file.rename(file.with_suffix(".taken"))
    except FileNotFoundError:
        return
    if file.with_suffix(".taken").read_text() == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    (HERE / "stopped").write_text(json.dumps([os.getpid(), os.getppid()]))
    os.kill(os.getppid(), signal.SIGSTOP)  # else its heartbeats would go on
    os.kill(os.getpid(), signal.SIGSTOP)


def announcing(self: Any, plan: Plan, fence: Fence) -> Mapping[str, Any]:
    notes = announce(self, plan, fence)
    fault("announce")
    return notes


def loading(self: Any, plan: Plan, fence: Fence, notes: Mapping[str, Any], branch: str) -> bool:
    if (HERE / "faults" / f"refuse-{branch}").exists():
        raise SinkUnavailableError("this worker cannot reach the server.", remedy="Look at its network.")
    return load(self, plan, fence, notes, branch)


def concluding(self: Any, plan: Plan, fence: Fence, notes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    voted = conclude(self, plan, fence, notes)
    fault("vote")
    return voted


Participant.announce = announcing  # type: ignore[method-assign]
Participant.load = loading  # type: ignore[method-assign]
Participant.conclude = concluding  # type: ignore[method-assign]

PREPARES = "leave_note" if KIND == "kafka" else "run"
prepare = getattr(Session, PREPARES)


def preparing(self: Any, *args: Any, **named: Any) -> Any:
    """What makes a branch count: the note of a filled transaction, or the statement that prepares it."""
    if KIND == "kafka" or args[0].startswith(("XA PREPARE", "PREPARE TRANSACTION")):
        fault(args[0].split(".")[-2])  # the branch's label, in the note's group or the transaction's name
    return prepare(self, *args, **named)


setattr(Session, PREPARES, preparing)

with DAG("mapped", schedule=None, catchup=False, default_args={"retries": 3, "retry_delay": 1}):
    mapped = CheckpointedPipeline(pipeline="mapped", position="{{ run_id }}", sinks={"orders": SINK}, delivery="mapped")

    with mapped:

        @task
        def compute(folder: str) -> None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            ids = range(*json.loads((HERE / "ids.json").read_text()))
            for part in range(3):
                pq.write_table(pa.table({"id": pa.array(ids[part::3], pa.int64())}), f"{folder}/part-{part}.parquet")

        compute(mapped.folder) >> mapped.stage
