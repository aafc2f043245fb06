"""All pipelines in short, and one of them with its checkpoints."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import PLAIN, AfterAbort, RunKey
from airflow_ft.protocol.noting import warn
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.warning import PipelineWarning
from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE, RUN, Scene, a_position

pytestmark = pytest.mark.airflow

BROKEN = Failure("JobError", "job_failed", "the job raised.", "correct it.", task_id="stage", try_number=3)


def another(scene: Pipeline, name: str) -> Scene:
    """One more pipeline of the same decision log, without a checkpoint."""
    return Scene(scene.store, name)


def listed(ask: Asking, question: str = "", **who: Any) -> list[str]:
    answer = ask(f"?{question}", **who).json()
    names = [each["name"] for each in answer["pipelines"]]
    assert answer["total"] >= len(names)
    return names


def test_a_pipeline_shows_the_run_at_work_and_its_progress(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    [row] = ask("").json()["pipelines"]
    assert (row["name"], row["confirmed"], row["at_work"], row["doing"]) == (PIPELINE, 1, "", [])
    assert (row["condition"], row["dags"], row["waiting"]) == ("IDLE", [RUN.dag_id], 0)
    scene.store.enter_turn(PIPELINE, RUN, None)
    scene.store.renew_lease(PIPELINE, 1, "worker", "checkpoint 2: db has taken 5 of 8 rows of orders")
    [row] = ask("").json()["pipelines"]
    one = ask(PIPELINE).json()
    for answer in (row, one):
        assert (answer["at_work"], answer["doing"]) == (str(RUN), ["checkpoint 2: db has taken 5 of 8 rows of orders"])
    assert row["condition"] == "RUNNING" and row["alive_at"] == ""
    with scene.store._database.write() as tx:  # type: ignore[attr-defined]
        tx.change("UPDATE lease SET renewed_at = renewed_at - 31000000")
    for answer in (ask("").json()["pipelines"][0], ask(PIPELINE).json()):
        assert (answer["condition"], answer["at_work"], answer["doing"]) == ("FAILED", "", [])
        assert f"since {answer['alive_at'][:19].replace('T', ' ')} UTC" in answer["description"]


def test_what_needs_a_person_comes_first_and_is_counted(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    store = scene.store
    waiting, quarantined, doubtful, halted = (another(scene, name) for name in ("a", "b", "c", "z"))
    for each in (waiting, quarantined, doubtful, halted):
        each.stage()
    for each in (quarantined, doubtful):
        each.prepare(1)
        each.decide(1)
    quarantined.quarantine(1)
    store.halt("z", HaltReason.TOKEN_LOST, "the token is gone")
    assert listed(ask) == ["z", "b", "c", "a", PIPELINE]
    answer = ask("").json()
    assert answer["conditions"] == {"HALTED": 1, "QUARANTINED": 1, "IN_DOUBT": 1, "WAITING": 1, "IDLE": 1}
    assert answer["pipelines"][0]["description"].startswith("TOKEN_LOST [token_lost]: the token is gone\nFix: ")
    assert [each["waiting"] for each in answer["pipelines"]] == [1, 1, 1, 1, 0]
    store.enter_turn("c", RunKey("dag", "again"), None)
    assert listed(ask) == ["z", "b", "a", "c", PIPELINE], "somebody is at work"
    only = ask("?condition=HALTED").json()
    assert (only["total"], [each["name"] for each in only["pipelines"]]) == (1, ["z"])
    assert only["conditions"] == {"HALTED": 1, "QUARANTINED": 1, "WAITING": 1, "RUNNING": 1, "IDLE": 1}


def test_a_killed_run_that_holds_the_turn_is_not_shown_at_work(scene: Pipeline, ask: Asking) -> None:
    """Nor is what it has decided waiting for it."""
    scene.confirmed({"a": 1})
    store = scene.store
    doubtful, other = another(scene, "a"), another(scene, "b")
    for each in (doubtful, other):
        each.stage()
        store.enter_turn(each.pipeline, RUN, None)
    doubtful.prepare(1)
    doubtful.decide(1)
    store.enter_turn(PIPELINE, RunKey(f"{PLAIN}{PIPELINE}", "a program, which Airflow knows nothing of"), None)
    assert ask("").json()["conditions"] == {"RUNNING": 3}
    ask.end_runs()
    store.renew_lease("a", doubtful.epoch, "worker", "it writes")
    answer = {each["name"]: (each["condition"], each["at_work"], each["doing"]) for each in ask("").json()["pipelines"]}
    assert answer["a"] == ("IN_DOUBT", "", []) and answer["b"] == ("FAILED", "", [])
    assert answer[PIPELINE][0] == "RUNNING"
    assert [ask(name).json()["condition"] for name in ("a", "b", PIPELINE)] == ["IN_DOUBT", "FAILED", "RUNNING"]


def test_a_failed_run_shows_its_error_and_the_failed_task(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    store = scene.store
    store.enter_turn(PIPELINE, RUN, None)
    store.record_failure(PIPELINE, RUN, BROKEN)
    store.leave_turn(PIPELINE, RUN)
    [row], one = ask("").json()["pipelines"], ask(PIPELINE).json()
    for answer in (row, one):
        assert (
            answer["condition"] == "FAILED"
            and "the job raised" in answer["description"]
            and "correct it" in answer["description"]
        )
    failure = one["failure"]
    assert (failure["kind"], failure["code"], failure["dag_id"]) == ("JobError", "job_failed", RUN.dag_id)
    assert (failure["run_id"], failure["task_id"], failure["try_number"]) == (RUN.run_id, "stage", 3)
    assert "retire" in one["fitting"] and failure["at"][:2] == "20"
    ask.pause(RUN.dag_id)
    paused = ask(PIPELINE).json()
    assert paused["condition"] == "FAILED" and "paused" in paused["description"]


def test_an_error_of_a_dag_that_one_may_not_see_is_not_told(scene: Pipeline, ask: Asking) -> None:
    new = another(scene, "new")
    for run in (RunKey("secret", "run"), RUN):
        scene.store.record_failure("new", run, replace(BROKEN, message="of a secret table."))
        answer = ask("new")
        assert answer.json()["condition"] == "FAILED"
        assert ("secret" in answer.text) is (run == RUN), "its message names the secret table"
    new.stage(made_with={"streaming": True})
    scene.store.enter_turn("new", RunKey("secret", "run"), None)
    ask.end_runs()
    assert ask("new").json()["condition"] == "NOT_RUNNING" and "secret" not in ask("new").text + ask("").text


def test_in_doubt_tells_the_last_error_of_each_sink(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    doubtful = another(scene, "a")
    doubtful.stage()
    doubtful.prepare(1)
    doubtful.decide(1)
    answer = ask("a").json()
    assert answer["condition"] == "IN_DOUBT" and "delivers it." in answer["description"]
    scene.store.record_problem("a", doubtful.epoch, 1, "db", Failure("UnfitTargetError", "", "no column x.", "add x."))
    [row, _], answer = ask("").json()["pipelines"], ask("a").json()
    assert (
        row["description"] == answer["description"]
        and "no column x" in row["description"]
        and "fails until" in row["description"]
    )
    [checkpoint] = answer["open"]
    problems = {each["name"]: each["problem"] for each in checkpoint["participants"]}
    assert problems["log"] is None and (problems["db"]["kind"], problems["db"]["remedy"]) == (
        "UnfitTargetError",
        "add x.",
    )
    assert "abort" not in checkpoint["fitting"] and "commit" in checkpoint["fitting"]


def test_no_checkpoint_action_is_offered_while_a_lease_is_held(scene: Pipeline, ask: Asking) -> None:
    busy = another(scene, "a")
    busy.stage()
    busy.prepare(1)
    scene.store.enter_turn("a", RUN, None)
    assert [each["fitting"] for each in ask("a").json()["open"]] == [[]]
    scene.store.release_lease("a", "worker")
    assert "abort" in ask("a").json()["open"][0]["fitting"], "between two tasks"


def test_the_fix_of_a_failed_checkpoint_names_the_pipeline(scene: Pipeline, ask: Asking) -> None:
    failed = another(scene, "a")
    failed.stage()
    failed.store.abort("a", failed.epoch, 1, AbortReason.HALTED, "a test", AfterAbort.CARRIED, tombstoned=False)
    for remedy in (ask("a").json()["failed"]["remedy"], ask("a/checkpoints/1").json()["remedy"]):
        assert "`airflow ft resume a`" in remedy


def test_warnings_are_counted_and_listed(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    warn(scene.store, PIPELINE, PipelineWarning("SOURCE_FILE_GREW", "orders", "a.json has grown.", "write a new file."))
    [row], one = ask("").json()["pipelines"], ask(PIPELINE).json()
    assert (row["condition"], row["warnings"]) == ("IDLE", 1)
    [warned] = one["warnings"]
    assert (warned["code"], warned["subject"], warned["remedy"]) == ("SOURCE_FILE_GREW", "orders", "write a new file.")


def test_users_who_see_all_dags_see_pipelines_of_deleted_dags(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    ask.delete_dag(RUN.dag_id)
    assert listed(ask) == [PIPELINE] and ask(PIPELINE).status_code == 200
    assert listed(ask, f"dag={RUN.dag_id}") == [PIPELINE]
    assert listed(ask, team="another") == [] and ask(PIPELINE, team="another").status_code == 404


def test_it_says_how_far_a_pipeline_is_behind_its_sources(scene: Pipeline, ask: Asking) -> None:
    for number in (1, 2):
        scene.confirmed({"a": number})
    assert ask("").json()["pipelines"][0]["lag"] == [] == ask(PIPELINE).json()["lag"]
    reading = Lag("orders", Unit.RECORDS, 800, 100.0, 200, 1000)
    scene.store.record_lags(PIPELINE, scene.epoch, 2, [Lag("files", Unit.FILES, 3), reading])
    answer = ask("").json()["pipelines"][0]["lag"]
    assert answer == ask(PIPELINE).json()["lag"]
    assert [each.pop("at")[:2] for each in answer] == ["20", "20"]
    nothing = {"rate": None, "done": 0, "expected": 0, "seconds_left": None}
    assert answer == [
        {"source": "files", "unit": "files", "behind": 3, **nothing},
        {
            "source": "orders",
            "unit": "records",
            "behind": 800,
            "rate": 100,
            "done": 200,
            "expected": 1000,
            "seconds_left": 8,
        },
    ]
    assert [each["lag"] for each in ask(f"{PIPELINE}/timings").json()["checkpoints"]] == [
        {},
        {"files": 3, "orders": 800},
    ]
    tag = ask("").headers["ETag"]
    assert ask("", known=tag).status_code == 304


def test_what_is_late_comes_before_what_runs(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    for name, after in (("in-time", 3600.0), ("tardy", 1e-6)):
        one = another(scene, name)
        one.stage(made_with={"late_after": after})
        one.complete(1)
        scene.store.enter_turn(name, RUN, None)
    answer = ask("").json()
    assert [(each["name"], each["condition"]) for each in answer["pipelines"]] == [
        ("tardy", "LATE"),
        ("in-time", "RUNNING"),
        (PIPELINE, "IDLE"),
    ]
    assert answer["pipelines"][0]["description"].startswith("Nothing was confirmed for longer than its late_after")
    assert listed(ask, "condition=LATE") == ["tardy"]
    tag = ask("").headers["ETag"]
    assert ask("", known=tag).status_code == 304, "for how long is not told: it would be another answer each time"


def test_it_is_searched_by_name_and_dag_and_cut_into_pages(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    for index in range(30):
        another(scene, f"team{index % 2}-{index:02}")
    assert len(listed(ask)) == 25 and ask("").json()["total"] == 31
    assert listed(ask, "offset=25") == sorted(listed(ask, "limit=100"))[25:]
    assert listed(ask, "search=TEAM1-") == [f"team1-{index:02}" for index in range(1, 30, 2)]
    assert listed(ask, f"search={RUN.dag_id}") == [PIPELINE]
    assert listed(ask, f"dag={RUN.dag_id}") == [PIPELINE] and listed(ask, f"dag={RUN.dag_id[:-1]}") == []
    assert listed(ask, "search=team1-&offset=14") == ["team1-29"] and listed(ask, "offset=31") == []
    for wrong in ("limit=0", "limit=101", "offset=-1", "condition=TARDY"):
        assert ask(f"?{wrong}").status_code == 422, wrong


def test_others_do_not_learn_that_it_is_there(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    assert listed(ask) == [PIPELINE] and listed(ask, team="another") == []
    assert ask("", team="another").json()["conditions"] == {}
    there, nowhere = ask(PIPELINE, team="another"), ask("nowhere", team="another")
    assert there.status_code == nowhere.status_code == 404
    assert there.json()["detail"].replace(PIPELINE, "nowhere") == nowhere.json()["detail"]
    # Made by another DAG, too, which nobody of the team may see.
    other = another(scene, "shared")
    other.stage()
    assert listed(ask, "search=shared") == ["shared"]
    other.stage(run=RunKey("secret", "run"))
    assert listed(ask, "search=shared") == [] and ask("shared").status_code == 404


@pytest.mark.parametrize("role", ["viewer", "user", "op"])
def test_who_may_see_a_pipeline_may_see_it_under_its_new_name(scene: Pipeline, ask: Asking, role: str) -> None:
    """Also before a DAG has made a checkpoint of it there, when nothing else says who may."""
    old, new = another(scene, "old"), another(scene, "new")
    old.complete(old.stage()[0])
    new.take()
    scene.store.rename("old", old.epoch, 1, "new", new.epoch, a_position(7), "a test")
    for name in ("old", "new"):
        assert listed(ask, f"search={name}", by=role) == [name] and ask(name, by=role).status_code == 200
        assert ask(name, by=role).json()["dags"] == [RUN.dag_id]
        assert listed(ask, f"search={name}", by=role, team="another") == []
        assert ask(f"{name}/events", by=role, team="another").status_code == 404
    new.stage(run=RunKey("secret", "run"))
    assert listed(ask, "search=new", by=role) == [] and ask("new", by=role).status_code == 404


def test_a_dag_that_one_may_not_see_is_named_nowhere(scene: Pipeline, ask: Asking) -> None:
    """It made the pipeline's first checkpoints, long ago."""
    other = another(scene, "taken-over")
    other.stage(1, RunKey("secret", "run"))
    other.stage(16)
    secret = RunKey("secret", "another")
    other.store.enter_turn("taken-over", secret, None)
    [row] = ask("?search=taken").json()["pipelines"]
    assert (row["dags"], row["condition"], row["at_work"]) == ([RUN.dag_id], "RUNNING", "")
    assert listed(ask, "search=secret") == [] and listed(ask, "dag=secret") == []
    assert ask.at("/v1/runs?dag=secret&run=run").json()["pipelines"] == []
    answer = ask("taken-over/checkpoints?limit=100")
    assert [each["number"] for each in answer.json()["checkpoints"]] == list(range(17, 0, -1))
    assert "secret" not in answer.text and answer.json()["checkpoints"][1]["dag_id"] == RUN.dag_id


def test_a_checkpoint_of_a_hidden_dag_quotes_nothing(scene: Pipeline, ask: Asking) -> None:
    other = another(scene, "taken-over")
    [number] = other.stage(1, RunKey("hr", "run"))
    other.plan(number)
    other.abort(number)
    other.stage(16)
    place = other.checkpoint(number).segment.location
    in_doubt = other.stage(1, RunKey("hr", "run"))[0]
    other.prepare(in_doubt)
    other.decide(in_doubt)
    other.store.record_problem(other.pipeline, other.epoch, in_doubt, "db", replace(BROKEN, message="too long: 4711"))
    other.stage(16)
    assert "4711" not in ask("taken-over").text and "4711" not in ask("?search=taken").text
    for path in ("taken-over/checkpoints?before=2", f"taken-over/checkpoints/{number}"):
        answer = ask(path)
        assert answer.status_code == 200 and "Hidden: " in answer.text
        assert "too long" not in answer.text and place not in answer.text


def test_what_a_program_has_run_is_seen_by_all(scene: Pipeline, ask: Asking) -> None:
    """`airflow_ft.run`: no DAG says who may."""
    other = another(scene, "by-hand")
    other.stage(1, RunKey("python:by-hand", "monday"))
    assert listed(ask, "search=by-hand") == listed(ask, "search=by-hand", team="another") == ["by-hand"]
    [row] = ask("?search=by-hand").json()["pipelines"]
    assert row["dags"] == [] and ask("by-hand").json()["dags"] == []
    assert ask("by-hand/checkpoints/1").json()["run_id"] == "monday"
    other.stage(1)
    assert listed(ask, "search=by-hand", team="another") == [], "a DAG has, too"
    other.stage(20, RunKey("python:by-hand", "tuesday"))
    assert listed(ask, "search=by-hand", team="another") == [], "the DAG stays its own"
    assert ask("by-hand", team="another").status_code == 404


def test_the_newest_completed_checkpoints_tell_rate_and_rows(scene: Pipeline, ask: Asking) -> None:
    for number in range(1, 4):
        scene.confirmed({"a": number})
    [row] = ask("").json()["pipelines"]
    assert [each["number"] for each in row["recent"]] == [1, 2, 3] and all(each["rows"] > 0 for each in row["recent"])
    assert row["rate"] is None or row["rate"] > 0
    assert row["confirmed"] == 3 and row["confirmed_at"] == scene.checkpoint(3).completed_at.isoformat()


def test_a_run_shows_its_checkpoints_of_each_pipeline(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    other = another(scene, "another")
    other.stage(2)
    other.stage(1, RunKey(RUN.dag_id, RUN.run_id, 1))
    other.stage(1, RunKey(RUN.dag_id, "later"))
    asked = f"/v1/runs?dag={RUN.dag_id}&run={RUN.run_id}"
    listed = [
        (each["name"], each["map_index"], [one["number"] for one in each["checkpoints"]])
        for each in ask.at(asked).json()["pipelines"]
    ]
    assert listed == [("another", -1, [2, 1]), ("another", 1, [3])]
    assert ask.at(asked, team="another").json()["pipelines"] == []
    assert ask.at(f"/v1/runs?dag={RUN.dag_id}&run=nothing").json()["pipelines"] == []


def test_the_api_describes_itself(ask: Asking) -> None:
    answer = ask.at("/v1/openapi.json").json()
    assert set(answer["paths"]) >= {"/v1/pipelines", "/v1/pipelines/{name}/checkpoints", "/v1/runs"}
    for path, methods in answer["paths"].items():
        assert path.startswith("/v1/") and all(each["description"] for each in methods.values()), path


def test_what_only_a_newer_release_knows_hides_no_other_pipeline(scene: Pipeline, ask: Asking, tmp_path: Path) -> None:
    """Two API servers of two releases look at one decision log while it is upgraded."""
    scene.confirmed({"a": 1})
    for name in ("a", "z"):
        another(scene, name).stage()
    scene.store.record_lags("z", 1, 0, [Lag("clicks", Unit.RECORDS, 7)])
    with closing(sqlite3.connect(tmp_path / "ft.db")) as db:
        db.execute("UPDATE pipeline SET status = 'HALTED', halt_reason = 'SINK_MOVED', halt_message = 'see the sink'"
                   " WHERE name = 'a'")  # fmt: skip
        db.execute("UPDATE checkpoint SET state = 'ABORTED', reason = 'TOO_COLD', after_abort = 'parked'"
                   " WHERE pipeline = 'z'")  # fmt: skip
        db.execute("UPDATE source_lag SET unit = 'partitions'")
        db.commit()
    assert listed(ask) == ["a", "z", PIPELINE]
    halted, other, _ = ask("").json()["pipelines"]
    assert (halted["condition"], other["lag"][0]["unit"]) == ("HALTED", "partitions")
    assert halted["description"].startswith("SINK_MOVED: see the sink\nFix: Install the version")
    one = ask("a").json()
    assert (one["condition"], one["halt"]["reason"], one["description"]) == (
        "HALTED",
        "SINK_MOVED",
        halted["description"],
    )
    runs = ask.at(f"/v1/runs?dag={RUN.dag_id}&run={RUN.run_id}").json()["pipelines"]
    assert {each["name"]: len(each["checkpoints"]) for each in runs} == {"a": 1, "z": 0}
    with closing(sqlite3.connect(tmp_path / "ft.db")) as db:
        db.execute("UPDATE checkpoint SET after_abort = 'carried' WHERE pipeline = 'z'")
        db.commit()
    [failed] = ask("z/checkpoints?only=failed").json()["checkpoints"]
    assert failed["reason"] == "TOO_COLD" and "newer airflow-ft" in failed["cause"]
    assert ask("z/timings").json()["reasons"] == {"TOO_COLD": 1}
    assert ask("z").json()["failed"]["reason"] == "TOO_COLD"


def test_a_first_run_that_halts_is_shown_only_to_its_dag(scene: Pipeline, ask: Asking) -> None:
    scene.store.register("secret")
    scene.store.enter_turn("secret", RUN, None)
    scene.store.halt("secret", HaltReason.FOREIGN_OWNER, "shop.salaries belongs to another decision log")
    assert listed(ask, "search=secret") == ["secret"] and ask("secret").status_code == 200
    assert listed(ask, "search=secret", team="another") == [] and ask("secret", team="another").status_code == 404
