"""One pipeline: how it stands, its checkpoints, how long they took, what they were made with."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.protocol.model import RunKey, StateSizes
from airflow_ft.protocol.pipelines import HaltReason
from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE, RUN, Scene

pytestmark = pytest.mark.airflow

ROUTES = ("", "/checkpoints", "/checkpoints/1", "/timings", "/job", "/checkpoints/1/spec")


def another(scene: Pipeline) -> Scene:
    """One more pipeline of the same decision log, with checkpoints that are written by hand."""
    return Scene(scene.store, "another")


def numbers(ask: Asking, question: str = "") -> list[int]:
    return [each["number"] for each in ask(f"another/checkpoints?{question}").json()["checkpoints"]]


def test_it_says_how_it_stands(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    answer = ask("another").json()
    assert (answer["condition"], answer["triggered"], answer["confirmed"], answer["open"]) == ("IDLE", 0, 0, [])
    assert answer["completed"] is answer["failed"] is answer["savepoint"] is answer["restored"] is None
    other.stage(4)
    other.complete(1)
    other.complete(2)
    other.abort(3)
    other.store.note_savepoint("another", 2, "taken", {"uri": "file:///there"})
    answer = ask("another").json()
    assert (answer["condition"], answer["triggered"], answer["confirmed"], answer["waiting"]) == ("WAITING", 4, 2, 2)
    assert [(each["number"], each["state"]) for each in answer["open"]] == [(4, "STAGED"), (3, "ABORTED")]
    assert (answer["completed"]["number"], answer["completed"]["rows"]) == (2, 11)
    assert sum(answer["completed"]["steps"].values()) == pytest.approx(answer["completed"]["seconds"])
    failed = answer["failed"]
    assert (failed["number"], failed["reason"]) == (3, other.checkpoint(3).reason)
    assert failed["cause"] and failed["fate"] and failed["remedy"]
    assert answer["savepoint"]["number"] == 2 and "taken" in answer["savepoint"]["message"]
    assert answer["dags"] == [RUN.dag_id]
    other.store.halt("another", HaltReason.TOKEN_LOST, "it is gone")
    answer = ask("another").json()
    halt = answer["halt"]
    assert (halt["reason"], halt["code"], halt["message"]) == ("TOKEN_LOST", "token_lost", "it is gone")
    shown = f"TOKEN_LOST [token_lost]: it is gone\nFix: {halt['remedy']}"
    assert (answer["condition"], answer["description"]) == ("HALTED", shown)


def test_it_says_that_a_stream_is_held_back_why_and_since_when(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.take()
    other.store.enter_turn("another", RUN, None)
    made_with = {"streaming": True, "checkpointing": {"max_concurrent": 1}, "sources": {}}
    [number] = other.stage(made_with=made_with, continues=True)
    held, staged = ask("another").json()["held_back"], other.checkpoint(number).staged_at
    assert staged is not None and (held["reason"], held["since"]) == ("TOO_MANY_QUEUED", staged.isoformat())
    assert "max_concurrent" in held["cause"] and "airflow ft in-doubt" in held["remedy"]
    other.complete(number)
    assert ask("another").json()["held_back"] is None


def test_how_many_checkpoints_have_ended_how(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(5)
    other.complete(2, [1, 2])
    other.abort(3)
    assert ask("another").json()["counts"] == {
        "triggered": 5,
        "in_progress": 2,
        "completed": 1,
        "subsumed": 1,
        "failed": 1,
        "restored": 0,
    }


def test_recent_dead_letters_are_shown_beside_their_bounds(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(1)
    assert ask("another").json()["dead_letters"] is None
    bounds = {"sink": "alerts", "max_rows": 5, "max_share": None}
    other.stage(22, made_with={"dead_letters": bounds})
    assert ask("another").json()["dead_letters"] == {**bounds, "checkpoints": 20, "rows": 20, "of": 220}


def test_the_history_of_a_reason_a_time_or_a_run(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(2)
    other.stage(2, RunKey(RUN.dag_id, "later", 3))
    other.stage(1, RunKey("secret", "run"))
    other.stage(15)  # so that the newest ones are of one DAG
    other.abort(2)
    assert numbers(ask, "reason=DECLINED") == [2] and numbers(ask, "reason=EXPIRED") == []
    assert numbers(ask, f"dag={RUN.dag_id}&run=later&map_index=3") == [4, 3]
    assert numbers(ask, f"dag={RUN.dag_id}&run=later&map_index=3&before=4") == [3]
    assert numbers(ask, f"dag={RUN.dag_id}&run=later") == [], "it was of a mapped task"
    assert numbers(ask, "dag=secret&run=run") == [], "nobody of the team may see that DAG"
    until = other.checkpoint(3).triggered_at.isoformat().replace("+00:00", "Z")
    assert max(numbers(ask, f"until={until}")) == 3 and numbers(ask, f"until={until}&before=2") == [1]
    for wrong in ("reason=LOST", "until=yesterday", "until=2026-01-02T00:00:00", "map_index=-2"):
        assert ask(f"another/checkpoints?{wrong}").status_code == 422, wrong


def test_a_checkpoint_shows_its_markers_and_its_stage_task(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.take()
    other.store.begin_stage("another", other.epoch, RUN, f"{RUN.dag_id}/{RUN.run_id}/group.stage")
    for _ in range(2):
        other.publish(other.trigger())
    attempt = other.plan(1) and other.attempt(1, "db")
    other.store.vote("another", other.epoch, 1, "db", attempt, {"xid": "ft-1"})
    answer = ask("another/checkpoints/1").json()
    assert answer["task"] == "group.stage" and answer["finalised_at"] == ""
    db, log = answer["markers"]
    assert db == {"participant": "db", "digest": "", "epoch": 0, "notes": {"xid": "ft-1"}, "detail": {}}
    other.vote(1, "log")
    other.decide(1)
    for name in ("db", "log"):
        other.prove(1, name)
    other.store.finalise("another", 1)
    answer = ask("another/checkpoints/1").json()
    db, log = answer["markers"]
    assert (db["digest"], db["epoch"], db["notes"]) == (answer["plan"], other.epoch, {"xid": "ft-1"})
    assert log["detail"] == {"connection": 7} and answer["finalised_at"] >= answer["completed_at"] > ""
    other.stage(1, RunKey("python:another", "monday"))
    assert ask("another/checkpoints/3").json()["task"] == ""


def test_a_checkpoint_leads_to_spark_where_that_is_configured(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = another(scene)
    other.stage(1, RunKey(RUN.dag_id, "manual & more"))
    assert ask("another/checkpoints/1").json()["spark"] == ""
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_HISTORY_URL", "https://spark/{pipeline}/{run_id}?n={number}")
    assert ask("another/checkpoints/1").json()["spark"] == "https://spark/another/manual%20%26%20more?n=1"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_HISTORY_URL", "https://spark/history/{application_id}")
    body = ask("another/checkpoints/1").json()
    assert (body["application"], body["spark"]) == ("", ""), "it is not known which one it was"
    other.store.trigger("another", other.epoch, RunKey(RUN.dag_id, "next"), "application_17_0004")
    body = ask("another/checkpoints/2").json()
    assert body["application"] == "application_17_0004"
    assert body["spark"] == "https://spark/history/application_17_0004"
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__SPARK_HISTORY_URL", "javascript:alert(1)")
    answer = ask("another/checkpoints/1")
    assert answer.status_code == 503 and "[airflow_ft] spark_history_url" in answer.json()["detail"]


def test_each_setting_shows_its_effective_value_and_its_origin(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    made_with = {
        "job": "shop.orders",
        "streaming": False,
        "overlap": True,
        "checkpointing": {"timeout": 60, "num_retained": 9},
        "spark_conf": {"spark.a": "1"},
        "configured": ["checkpointing.timeout", "spark_conf.spark.a"],
    }
    other.stage(1, made_with=made_with)
    answer = {each["name"]: (each["value"], each["origin"]) for each in ask("another/job").json()["settings"]}
    assert answer["checkpointing.timeout"] == (60, "[airflow_ft]")
    assert answer["checkpointing.num_retained"] == (9, "the pipeline")
    assert answer["checkpointing.mode"] == ("EXACTLY_ONCE", "default")
    assert answer["spark_conf.spark.a"] == ("1", "[airflow_ft]")
    assert (answer["overlap"], answer["streaming"]) == ((True, "the pipeline"), (False, "default"))
    assert "checkpointing.interval" not in answer, "it says nothing to a scheduled pipeline"
    other.stage(1, made_with={**made_with, "streaming": True, "checkpointing": {"unaligned": True}})
    answer = {each["name"]: (each["value"], each["origin"]) for each in ask("another/job").json()["settings"]}
    assert answer["checkpointing.interval"] == (10, "default") and answer["checkpointing.max_concurrent"][0] == 1
    other.stage(1, made_with={"checkpointing": {"of_another_version": 1}})
    [setting] = ask("another/job").json()["settings"]
    assert (setting["name"], setting["value"]) == ("checkpointing.of_another_version", 1)


def test_the_history_is_cut_into_pages_and_filtered(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(5)
    for number in (1, 2, 3):
        other.complete(number)
    other.abort(4)
    assert numbers(ask) == [5, 4, 3, 2, 1] and numbers(ask, "limit=2") == [5, 4]
    assert numbers(ask, "limit=2&before=4") == [3, 2] and numbers(ask, "before=1") == []
    assert numbers(ask, "only=completed") == [3, 2, 1] and numbers(ask, "only=completed&before=3&limit=1") == [2]
    assert numbers(ask, "only=failed") == [4] and numbers(ask, "only=open") == [5, 4]
    for wrong in ("before=0", "limit=0", "limit=101", "only=lost"):
        assert ask(f"another/checkpoints?{wrong}").status_code == 422, wrong


def test_a_checkpoint_tells_its_plan_votes_proofs_and_events(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(2)
    other.complete(1)
    answer = ask("another/checkpoints/1").json()
    assert (answer["state"], answer["dag_id"], answer["run_id"]) == ("COMPLETED", RUN.dag_id, RUN.run_id)
    assert answer["log"] == other.checkpoint(1).segment.location  # type: ignore[union-attr]
    assert list(answer["steps"]) == ["stage", "prepare", "decide", "commit"]
    outcomes = {each["name"]: (each["proof"], each["outcome"]) for each in answer["participants"]}
    assert outcomes == dict.fromkeys(("db", "log"), (True, "committed"))
    kinds = [each["kind"] for each in answer["events"]]
    assert kinds[0] == "TRIGGERED" and kinds.index("PREPARED") < kinds.index("COMPLETED")
    assert ask("another/checkpoints/3").status_code == 404
    assert ask("another/checkpoints/3").json()["code"] == "checkpoint_unknown"


def test_how_long_the_newest_took_is_summed_up(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    assert ask("another/timings").json() == {"states": {}, "reasons": {}, "summary": {}, "checkpoints": []}
    other.stage(4)
    other.complete(1)
    other.complete(2)
    other.abort(3)
    answer = ask("another/timings").json()
    assert answer["states"] == {"STAGED": 1, "ABORTED": 1, "COMPLETED": 2}
    assert answer["reasons"] == {other.checkpoint(3).reason: 1}
    assert [each["number"] for each in answer["checkpoints"]] == [1, 2, 3, 4]
    rows = answer["summary"]["rows"]
    assert (rows["minimum"], rows["mean"], rows["maximum"], rows["p50"], rows["p95"]) == (11, 11, 11, 11, 11)
    seconds = answer["summary"]["seconds"]
    assert 0 < seconds["minimum"] <= seconds["p50"] <= seconds["p95"] <= seconds["p99"] <= seconds["maximum"]
    assert set(answer["summary"]) == {"seconds", "stage", "prepare", "decide", "commit", "rows", "bytes"}
    short = ask("another/timings?each=false").json()
    assert short == {**answer, "checkpoints": []}
    assert [each["number"] for each in ask("another/timings?limit=1").json()["checkpoints"]] == [4]
    for wrong in ("limit=0", "limit=1001"):
        assert ask(f"another/timings?{wrong}").status_code == 422, wrong


def test_the_sizes_of_the_state_are_told_beside_those_of_the_log(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(2)
    other.complete(1)
    other.complete(2)
    sizes = {"changes": 120, "snapshot": 4000, "replayed": 3}
    other.store.record_state_sizes("another", other.epoch, 2, StateSizes(**sizes))
    for path in ("timings", "checkpoints"):
        answer = {each["number"]: each["state_sizes"] for each in ask(f"another/{path}").json()["checkpoints"]}
        assert answer == {1: None, 2: sizes}, path
    assert ask("another/checkpoints/2").json()["state_sizes"] == sizes
    summary = ask("another/timings?each=false").json()["summary"]
    assert summary["bytes"]["mean"] == 4_100_000
    assert (summary["state_changes"]["mean"], summary["state_snapshot"]["mean"]) == (120, 4000)


def test_the_job_is_that_of_the_newest_checkpoint_that_says_so(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    assert ask("another/job").json()["spec"] == {} and ask("another").json()["streaming"] is False
    made_with: dict[str, Any] = {"job": "shop.orders", "streaming": True, "overlap": False, "packages": [], "sinks": {}}
    other.stage(2, made_with=made_with)
    other.complete(1)
    answer = ask("another/job").json()
    assert answer["checkpoint"] == 2 and answer["spec"] == made_with and answer["defaults"] == ["overlap", "packages"]
    assert answer["confirmed"]["checkpoint"] == 1 and answer["read"]["checkpoint"] == 2
    assert ask("another").json()["streaming"] is True
    assert ask("another/checkpoints/2/spec").json() == made_with
    assert ask("another/checkpoints/9/spec").status_code == 404


def test_the_source_of_a_job_is_for_those_who_may_read_code(scene: Pipeline, ask: Asking) -> None:
    made_with = {"job": "dag.py:orders", "job_sha256": "5f", "job_source": "def orders(): ..."}
    another(scene).stage(made_with=made_with)
    answers = lambda: (ask("another/job").json()["spec"], ask("another/checkpoints/1/spec").json())  # noqa: E731
    assert answers() == (made_with, made_with)
    ask.keep_from("CODE")
    assert answers() == ({"job": "dag.py:orders", "job_sha256": "5f"},) * 2


def test_whoever_may_not_see_its_dag_learns_nothing(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    answers = {(route, team): ask(f"{PIPELINE}{route}", team=team) for route in ROUTES for team in ("shop", "another")}
    for (route, team), answer in answers.items():
        if team == "another":
            assert (answer.status_code, answer.json()["code"]) == (404, "pipeline_unknown"), route
        else:
            assert answer.status_code == 200 or route.endswith("spec"), (route, answer.text)


def test_a_dag_of_long_ago_is_named_nowhere(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(1, RunKey("secret", "run"))
    other.stage(16)
    other.store.enter_turn("another", RunKey("secret", "again"), None)
    for route in ("", "/checkpoints?limit=100", "/timings", "/job"):
        answer = ask(f"another{route}")
        assert answer.status_code == 200 and "secret" not in answer.text, route
    answer = ask("another/checkpoints/1")
    assert answer.json()["dag_id"] == "" and "secret" not in answer.text
    assert [each["kind"] for each in answer.json()["events"]] == ["TRIGGERED", "STAGED"]
    assert ask("another/checkpoints/1/spec").status_code == 404


def test_an_answer_that_has_not_changed_is_not_sent_again(scene: Pipeline, ask: Asking) -> None:
    other = another(scene)
    other.stage(1)
    first = ask("another")
    assert first.status_code == 200 and first.headers["Cache-Control"] == "private, no-cache"
    again = ask("another", known=first.headers["ETag"])
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])
    assert ask("another", known=f'"else", W/{first.headers["ETag"]}').status_code == 304
    other.complete(1)
    changed = ask("another", known=first.headers["ETag"])
    assert changed.status_code == 200 and changed.headers["ETag"] != first.headers["ETag"]
