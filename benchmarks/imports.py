"""What the provider adds to the parsing of a DAG file, in CPU time: ten pipelines against an empty DAG."""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.bench import Bench
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError
from benchmarks.workers import ROOT

ALLOWED_MS = 100.0
EMPTY = """
from airflow.sdk import DAG
with DAG("empty"):
    pass
"""
PIPELINES = """
from airflow.sdk import DAG
from airflow_ft import CheckpointedPipeline, KafkaSink, KafkaSource, MySqlSink
with DAG("pipelines"):
    for number in range(10):
        CheckpointedPipeline(
            pipeline=f"orders-{number}",
            job="jobs.orders",
            sources={"orders": KafkaSource(topics=["orders"])},
            sinks={"orders": MySqlSink(table="shop.orders"), "alerts": KafkaSink(topic="alerts")},
        )
"""
_TIMED = """
import time
began = time.process_time()
{code}
print((time.process_time() - began) * 1000)
"""


def imports(bench: Bench) -> list[Comparison]:
    """From a fresh interpreter to a parsed file, imports of Airflow itself included in both."""
    home = bench.folder / "airflow-imports"
    home.mkdir()

    def parse(code: str) -> float:
        environment = {
            **os.environ, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": str(ROOT),
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", _TIMED.format(code=code)],
            cwd=home, env=environment, check=False, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode != 0:
            raise MeasurementError(done.stderr)
        return float(done.stdout.splitlines()[-1])

    contenders = [
        Contender("10 pipelines", lambda: parse(PIPELINES)),
        Contender("an empty DAG", lambda: parse(EMPTY)),
        Contender("an empty DAG + 100 ms", lambda: parse(EMPTY) + ALLOWED_MS),
    ]
    claims = [
        Claim("an empty DAG + 100 ms, against parsing 10 pipelines", "10 pipelines", ("an empty DAG + 100 ms",), 1.0),
        Claim("an empty DAG, against parsing 10 pipelines", "10 pipelines", ("an empty DAG",), None),
    ]
    title = "CPU time of parsing a DAG file in a fresh interpreter"
    return [Comparison("imports", title, contenders, claims, unit="ms")]
