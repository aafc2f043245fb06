"""Seconds, rows per second and peak memory of a delivery into Kafka: `python -m benchmarks.kafka_delivery --help`.

One broker is started, a segment of the log is written, and a process of its own prepares it and, in another process,
commits it. Memory is that of the process (VmHWM), which starts no others; its target is 500 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
CONN_ID = "kafka_default"


def main() -> None:
    """Parses the arguments and prints one line a step."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka_delivery", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--strategy", choices=("transaction", "held"), default="transaction")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--step", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        _step(json.loads(arguments.step.read_text()))
        return
    with tempfile.TemporaryDirectory(prefix="kafka-delivery-") as folder:
        _measure(Path(folder), arguments.rows, arguments.strategy, arguments.slots)


def _measure(folder: Path, rows: int, strategy: str, slots: int) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    from airflow_ft.core.model import ParticipantPlan, Plan
    from airflow_ft.sinks.kafka import KafkaSink
    from airflow_ft.wal.writer import SegmentFolder, write_segment
    from tools.servers import Kafka

    numbers = pa.array(range(rows), pa.int64())
    table = pa.table({"id": numbers, "name": pc.cast(numbers, pa.string()), "amount": pc.divide(numbers, 100)})
    segment = write_segment(SegmentFolder(str(folder / "wal"), "orders", 1, 1, 1), 1, {"orders": table})
    sink = KafkaSink(topic="orders", key="name", strategy=strategy, slots=slots)
    participant = ParticipantPlan(CONN_ID, "kafka", strategy, sink.promise, 0, {"orders": sink.settings()})
    plan = Plan("orders", "0" * 36, 1, (segment,), (participant,), None)
    with Kafka(folder / "kafka") as server:
        server.create_topic("orders", 4)
        job: dict[str, Any] = {"plan": plan.to_json(), "bootstrap": server.bootstrap}
        prepared = _run(folder, {**job, "step": "prepare", "attempt": 1})
        committed = _run(folder, {**job, "step": "commit", "attempt": 2, "notes": prepared["notes"]})
    for step, found in (("prepare", prepared), ("commit", committed)):
        _say(f"{strategy} {step}: {found['seconds']:.2f} s, peak {found['peak_mb']:.0f} MB")
    slower = prepared if strategy == "held" else committed
    _say(f"{rows:,} rows, {slots} slots: {rows / slower['seconds']:,.0f} rows/s; counts {committed['counts']}")


def _run(folder: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / f"{job['step']}.json"
    path.write_text(json.dumps(job))
    command = [sys.executable, "-m", "benchmarks.kafka_delivery", "--step", str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _step(job: Mapping[str, Any]) -> None:
    from airflow_ft.core.model import Fence, Plan, Vote
    from airflow_ft.core.ports import ConnectionInfo
    from airflow_ft.sinks.kafka.participant import open_participant
    from airflow_ft.wal import open_wal

    plan = Plan.from_json(job["plan"])
    fence = Fence(plan.pipeline, plan.installation, 1, job["attempt"])
    connection = ConnectionInfo(CONN_ID, "kafka", extra={"bootstrap.servers": job["bootstrap"]})
    participant = open_participant(plan.participants[0], connection, open_wal())
    began = time.monotonic()
    found: dict[str, Any] = {}
    if job["step"] == "prepare":
        found["notes"] = participant.prepare(plan, fence)
    else:
        found["counts"] = dict(participant.commit(plan, fence, Vote(CONN_ID, 1, 1, None, job["notes"])).counts)
    found["seconds"] = time.monotonic() - began
    status = Path("/proc/self/status").read_text()
    kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    _say(json.dumps({**found, "peak_mb": kilobytes * 1024 / 1e6}))
    participant.close()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
