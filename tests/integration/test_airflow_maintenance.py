"""The DAG of acts in a real Airflow: who may trigger it, what a run does, and whose name the event log has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_ft.protocol.pipelines import Event, HaltReason, PipelineStatus
from tests.integration.airflow_world import AirflowWorld
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.sampled(among="Airflow"),
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ALL, LOOK, PIPELINE = "airflow_ft_maintenance", "look", "orders"
DAGS = {
    ALL: "from airflow_ft.example_dags.airflow_ft_maintenance import dag\n",
    LOOK: f"from airflow_ft import maintenance_dag\n\nmaintenance_dag({LOOK!r}, ['verify', 'doctor'])\n",
}


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowWorld]:
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    for name, text in DAGS.items():
        (home / "dags" / f"{name}.py").write_text(text)
    airflow = AirflowWorld(home, {}, {"core__simple_auth_manager_users": "admin:admin,eve:viewer"})
    airflow.start()
    try:
        for dag_id in DAGS:
            airflow.wait_until_ready(dag_id)
        yield airflow
    finally:
        airflow.stop()


@pytest.fixture(autouse=True)
def halted(airflow: AirflowWorld) -> None:
    """The pipeline stands still, since a sink contradicts the decision log."""
    with airflow.store() as store:
        if store.register(PIPELINE).halt:  # for a cause of the test before
            store.resume(PIPELINE, "a test")
        store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone")


def status(airflow: AirflowWorld) -> PipelineStatus:
    with airflow.store() as store:
        return store.pipeline(PIPELINE).status


def newest(airflow: AirflowWorld) -> Event:
    with airflow.store() as store:
        return store.events(PIPELINE, limit=1)[0]


def asked(airflow: AirflowWorld, dag_id: str, user: str = "admin", **conf: Any) -> httpx.Response:
    """What Airflow answers to somebody who triggers a run, as the page does."""
    password = json.loads((airflow.home / "passwords.json").read_text())[user]
    with httpx.Client(base_url=airflow.url, timeout=60, trust_env=False) as client:
        token = client.post("/auth/token", json={"username": user, "password": password}).raise_for_status().json()
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        body = {"logical_date": None, "conf": {"pipeline": PIPELINE, **conf}}
        return client.post(f"/api/v2/dags/{dag_id}/dagRuns", json=body, headers=headers)


def test_resuming_a_halted_pipeline_logs_who_triggered_the_run(airflow: AirflowWorld) -> None:
    airflow.pause(ALL, False)
    run_id = asked(airflow, ALL, action="resume", reason="the token is back").raise_for_status().json()["dag_run_id"]
    assert airflow.finish(ALL, run_id) == {"action": "success"}, airflow.log_text(ALL, run_id, "action")
    assert status(airflow) is PipelineStatus.ACTIVE
    assert (
        newest(airflow).message
        == f"pipeline orders RESUMED: by admin ({ALL}/{run_id}/action): the token is back, after TOKEN_LOST"
    )
    log = airflow.log_text(ALL, run_id, "action")
    assert "orders is HALTED (TOKEN_LOST): the token is gone" in log and "orders is ACTIVE" in log
    rendered = airflow.rendered(ALL, run_id, "action")
    assert (rendered["action"], rendered["pipeline"], rendered["checkpoint"]) == ("resume", PIPELINE, "None")

    with airflow.store() as store:
        store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone once more")
    airflow.clear(ALL, run_id)
    wait_for(lambda: [t.try_number for t in airflow.tasks(ALL, run_id)] == [2], 120, "the cleared task is tried")
    assert airflow.finish(ALL, run_id) == {"action": "failed"}
    assert "[action_refused]" in airflow.log_text(ALL, run_id, "action")
    assert status(airflow) is PipelineStatus.HALTED, "nobody has looked at the new cause"


def test_an_act_that_is_refused_fails_once_and_says_what_to_do(airflow: AirflowWorld) -> None:
    run_id, states = airflow.run(ALL, {"pipeline": PIPELINE, "action": "commit", "checkpoint": 9})
    assert states == {"action": "failed"} and [task.try_number for task in airflow.tasks(ALL, run_id)] == [1]
    log = airflow.log_text(ALL, run_id, "action")
    assert "[checkpoint_unknown]" in log and "`airflow ft checkpoints orders`" in log


def test_airflow_says_who_may_act_and_the_dag_how(airflow: AirflowWorld) -> None:
    airflow.pause(LOOK, False)
    assert asked(airflow, ALL, "eve", action="resume").status_code == httpx.codes.FORBIDDEN
    for dag_id, conf in ((LOOK, {"action": "resume"}), (ALL, {"action": "adopt"}), (ALL, {})):
        answer = asked(airflow, dag_id, **conf)
        assert answer.status_code == httpx.codes.BAD_REQUEST and "action" in answer.text, answer.text
    assert status(airflow) is PipelineStatus.HALTED
    run_id, states = airflow.run(LOOK, {"pipeline": PIPELINE, "action": "doctor"})
    assert states == {"action": "failed"}, "it is a problem that the pipeline is halted"
    assert "the token is gone" in airflow.log_text(LOOK, run_id, "action")
    assert newest(airflow).kind == "HALTED", "who looks leaves nothing"


def test_the_page_finds_the_acts_of_each_dag(airflow: AirflowWorld) -> None:
    for dag_id, first in ((ALL, "recover"), (LOOK, "verify")):
        params = airflow.get(f"/api/v2/dags/{dag_id}/details")["params"]
        assert params["action"]["schema"]["enum"][0] == first and "pipeline" in params
    where = Path(airflow.get(f"/api/v2/dags/{LOOK}/details")["fileloc"])
    assert where.name == f"{LOOK}.py", "the UI shows the file that declares it"
