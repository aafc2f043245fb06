"""A pipeline whose job is written in the DAG file, as Airflow sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task_group
from airflow.serialization.serialized_objects import DagSerialization

from airflow_ft import CheckpointedPipeline
from airflow_ft.admin.commands.rendering import rendered
from airflow_ft.operators.stage import StageOperator
from airflow_ft.operators.stream import StreamingPipelineOperator
from airflow_ft.protocol.inline_job import declared_job
from airflow_ft.protocol.model import RunKey
from airflow_ft.spark.request import StageRequest
from tests.jobs.dag_files import HEAD, imported
from tests.operators.declared import spec

pytestmark = pytest.mark.airflow
TEXT = "@ft.job\ndef transform(spark, sources):\n    return '{{ ds }}', %d\n"


def _job(folder: Path, n: int = 1) -> Any:
    return imported(folder / "orders.py", f"{HEAD}{TEXT % n}").transform


def _dag(job: Any) -> DAG:
    with DAG("d", schedule=None, params={"path": "/in"}) as dag:
        CheckpointedPipeline(spec(job=job, wal_root="{{ params.path }}"))
    return dag


def test_a_changed_inline_job_gives_the_dag_a_new_version(tmp_path: Path) -> None:
    one, same, other = (DagSerialization.serialize_dag(_dag(_job(tmp_path, n))) for n in (1, 1, 2))
    assert one == same and one != other
    assert "orders.py:transform (sha256 " in json.dumps(one)
    assert "def transform" not in json.dumps(one)
    DagSerialization.deserialize_dag(one)


@pytest.mark.parametrize("streaming", [False, True])
def test_source_is_no_template(tmp_path: Path, streaming: bool) -> None:
    job = _job(tmp_path)
    kind = StreamingPipelineOperator if streaming else StageOperator
    with DAG("d", schedule=None, params={"path": "/in"}) as dag:
        stage = kind(task_id="stage", spec=spec(job=job, streaming=streaming, wal_root="{{ params.path }}"))
    stage.render_template_fields({"params": {"path": "/wal"}, "dag": dag, "task": stage})
    found = stage.rendered()
    assert found.wal_root == "/wal" and found.job == declared_job(job)
    assert "'{{ ds }}'" in found.to_json()["job_source"]


def test_each_map_index_has_it(tmp_path: Path) -> None:
    job = _job(tmp_path)
    with DAG("d", schedule=None) as dag:

        @task_group
        def deliver(shop: Any) -> None:
            CheckpointedPipeline(spec("orders", suffix=shop, job=job))

        deliver.expand(shop=["de", "fr"])
    assert dag.task_dict["deliver.orders.stage"].job == declared_job(job)
    DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))


def test_the_command_line_takes_it_from_the_dag(tmp_path: Path) -> None:
    """As `airflow ft doctor --dag` does."""
    job, left_out = _job(tmp_path), dict[str, str]()
    found = rendered(_dag(job).task_dict["orders.stage"], left_out)  # type: ignore[arg-type]
    assert found["job"] == declared_job(job) and found["wal_root"] == "/in" and not left_out


def test_a_request_for_a_driver_carries_the_source(tmp_path: Path) -> None:
    job = declared_job(_job(tmp_path))
    request = StageRequest(
        pipeline="orders",
        run=RunKey("d", "r"),
        epoch=1,
        attempt=1,
        store_url="sqlite:////nowhere",
        wal_root="/wal",
        job=job,
        sinks=("orders",),
    )
    again = StageRequest.from_json(json.loads(json.dumps(request.to_json())))
    assert again == request and again.job_name == "orders.py:transform" and "def transform" not in repr(request)
