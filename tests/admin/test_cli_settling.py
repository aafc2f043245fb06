"""Commands of `airflow ft` that act: they settle, give up, resume, retire, adopt; with what they ask and refuse."""

from __future__ import annotations

import contextlib
import json
import os
from argparse import ArgumentParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.admin import dag_runs
from airflow_ft.admin.commands import common, settling
from airflow_ft.pipeline.actions import pipelines
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import (
    ConfigurationError,
    ForeignOwnerError,
    LeaseHeldError,
    SinkUnavailableError,
    StateConflictError,
)
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import (
    PLAIN,
    AfterAbort,
    CheckpointState,
    Promise,
    RunKey,
)
from airflow_ft.protocol.orphans import Orphan, OrphanKind
from airflow_ft.protocol.pipelines import HaltReason
from tests.admin.scene import answered_no, prepared
from tests.protocol.systems import System
from tests.protocol.world import PIPELINE, RUN, World
from tests.raising import raises
from tests.spark.test_savepoints import saved_scene
from tests.store.scene import Scene

pytestmark = pytest.mark.airflow


def test_a_stream_is_asked_to_drain_and_only_one_that_is_there(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    with raises(SystemExit, "action_refused", pipeline=PIPELINE):
        ft("stop", PIPELINE, "--drain")
    with raises(SystemExit, "arguments_conflict", argument="drain"):
        ft("stop", PIPELINE, "--drain", "--now")
    with raises(SystemExit, "arguments_conflict", argument="--dir"):
        ft("stop", PIPELINE, "--dir", "/savepoints")
    with new_epoch(world.store, PIPELINE, Worker("t"), "a test", 1):
        assert "was asked to stop" in ft("stop", PIPELINE, "--drain", "--wait", "0")
    [asked] = world.store.open_requests(PIPELINE)
    assert dict(asked.arguments) == {"at_once": False, "drain": True}


@pytest.mark.parametrize("how", [(), ("--now",), ("--drain",), ("--savepoint",)])
def test_a_scheduled_run_is_not_asked_to_stop(world: World, ft: Any, how: tuple[str, ...]) -> None:
    """Nothing would read the request, and a stream of later would."""
    scheduled, stream = Scene(world.store, "scheduled"), Scene(world.store, "stream")
    for scene in (scheduled, stream):
        scene.stage(made_with={"streaming": scene is stream})
        world.store.enter_turn(scene.pipeline, RUN, None)
    with raises(SystemExit, "action_refused", pipeline="scheduled", run=str(RUN)):
        ft("stop", "scheduled", *how)
    assert not any("stop" in event.message.lower() for event in world.store.events("scheduled", limit=100))
    assert "was asked to stop" in ft("stop", "stream", *how, "--wait", "0")


def test_recover_says_that_staged_rows_wait_for_the_next_run(world: World, ft: Any) -> None:
    world.stage(1)
    assert "the next run delivers 1 staged checkpoint" in ft("recover", PIPELINE)


def test_recover_settles_what_is_in_doubt(world: World, ft: Any) -> None:
    numbers = prepared(world)
    assert "checkpoint 1 is PREPARED and was skipped" in ft("recover", PIPELINE, "--min-age", "3600")
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.PREPARED
    assert "checkpoint 1 was in doubt and is now COMPLETED" in ft("recover", PIPELINE)
    world.check_exactly_once(numbers)
    assert "nothing is in doubt" in ft("recover", PIPELINE)


@pytest.mark.parametrize(("option", "after"), [((), AfterAbort.CARRIED), (("--rewind",), AfterAbort.REWOUND)])
def test_abort_asks_first_and_leaves_a_tombstone(
    world: World, ft: Any, option: Any, after: AfterAbort, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(world)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with answered_no():
        ft("in-doubt", "--pipeline", PIPELINE, "--abort", "1", *option)
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.PREPARED
    ft("in-doubt", "--pipeline", PIPELINE, "--abort", "1", *option, "--yes", "--reason", "a test")
    found = world.store.checkpoint(PIPELINE, 1)
    assert (found.state, found.after_abort) == (CheckpointState.ABORTED, after)
    assert "a test" in found.message
    assert world.systems["db"].markers[1].outcome == "aborted"


def test_abort_refuses_a_delivered_checkpoint(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    prepared(world)
    with raises(SystemExit, "action_refused", checkpoint=1, state="COMPLETED"):
        ft("in-doubt", "--pipeline", PIPELINE, "--abort", "1", "--yes")
    assert world.store.checkpoint(PIPELINE, 2).state is CheckpointState.PREPARED


def test_rewind_gives_up_what_is_not_delivered(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    delivered = world.store.pipeline(PIPELINE).base
    prepared(world, 2)
    world.stage(1)
    ft("rewind", PIPELINE, "--yes")
    assert [world.store.checkpoint(PIPELINE, n).after_abort for n in (2, 3, 4)] == [AfterAbort.REWOUND] * 3
    assert world.store.pipeline(PIPELINE).base == delivered
    assert world.systems["db"].rows == [1]
    assert "nothing was changed" in ft("rewind", PIPELINE, "--yes")


def test_rewind_warns_that_rows_are_lost_with_at_most_once(
    world: World, ft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "")
    for mode in ("EXACTLY_ONCE", "AT_MOST_ONCE"):
        world.store.register(PIPELINE)
        with new_epoch(world.store, PIPELINE, Worker("t"), "a test", 1) as (epoch, _):
            world.store.begin_stage(PIPELINE, epoch, RunKey("d", mode), "t", {"checkpointing": {"mode": mode}})
            world.store.trigger(PIPELINE, epoch, RunKey("d", mode))
        with answered_no():
            ft("rewind", PIPELINE)
    assert "AT_MOST_ONCE" not in asked[0]
    assert "lost" in asked[1] and "AT_MOST_ONCE" in asked[1]
    assert "the next run starts from the beginning" in ft("rewind", PIPELINE, "--yes")


def test_rewind_refuses_what_is_decided(world: World, ft: Any) -> None:
    prepared(world)
    steps.commit_step(world.context(), "db")
    with raises(SystemExit) as refused:
        ft("rewind", PIPELINE, "--yes")
    assert refused.error is not None and "`airflow ft in-doubt" in refused.error.remedy
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.COMMITTING


def test_resume_lets_a_halted_pipeline_go_on(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    assert "not halted" in ft("resume", PIPELINE)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone")
    assert "HALTED (TOKEN_LOST)" in ft("pipelines")
    with raises(SystemExit, "pipeline_halted", reason="TOKEN_LOST"):
        ft("recover", PIPELINE)
    text = ft("resume", PIPELINE, "--yes")
    assert "the token is gone" in text and "is ACTIVE" in text


def test_a_resumption_says_why(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "the token is gone")
    ft("resume", PIPELINE, "--yes", "--reason", "it is back")
    [event] = world.store.events(PIPELINE, limit=1)
    assert event.kind == "RESUMED" and "it is back" in event.message


def test_retire_refuses_a_pipeline_until_its_run_has_ended(
    world: World, ft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunKey("dag", "run")
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, run, None)
    with raises(SystemExit, "run_active", run="dag/run") as refused:
        ft("retire", PIPELINE, "--yes")
    assert refused.error is not None and "`airflow dags delete dag`" in refused.error.remedy
    assert "dag/run" in ft("pipelines")
    monkeypatch.setattr(dag_runs, "going", lambda dag_ids: ())  # it has failed, and no other run has its turn
    [row] = json.loads(ft("pipelines", "-o", "json"))
    assert (row["at_work"], row["condition"], row["code"]) == (
        None,
        "FAILED",
        None,
    ) and "orders is FAILED: Run dag/run" in ft("pipelines")
    assert "orders is retired" in ft("retire", PIPELINE, "--yes")
    assert world.store.pipeline(PIPELINE).turn is None


def test_retire_takes_the_turn_of_a_program_that_was_killed(
    world: World, ft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 0.1)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RunKey(f"{PLAIN}cron", "1"), None)
    assert "orders is retired" in ft("retire", PIPELINE, "--yes")
    assert world.store.pipeline(PIPELINE).turn is None


@pytest.mark.parametrize("moves", [False, True], ids=["no lease moves", "a lease moves"])
def test_retire_takes_the_turn_of_a_run_without_a_dag(
    world: World, ft: Any, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """Airflow does not end it. Its last task may work on after Airflow has given it up."""
    run = RunKey("renamed", "run")
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, run, None)
    monkeypatch.setattr("airflow_ft.pipeline.settings.lease_seconds", lambda: 0.1)
    monkeypatch.setattr(common, "known_to_have_ended", lambda runs: set())
    monkeypatch.setattr(common, "is_stranded", lambda asked: asked == run)
    with contextlib.ExitStack() as stack:
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if moves:
                stack.enter_context(new_epoch(world.store, PIPELINE, Worker("a task", 1), "a test"))

        monkeypatch.setattr(pipelines, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=sleep))
        if moves:
            with raises(SystemExit, "run_active", run="renamed/run"):
                ft("retire", PIPELINE, "--yes")
        else:
            assert "orders is retired" in ft("retire", PIPELINE, "--yes")
    assert (world.store.pipeline(PIPELINE).turn is not None) is moves


def test_adopt_shows_what_the_sinks_hold_and_takes_them_over(world: World, ft: Any) -> None:
    for system in world.systems.values():
        system.rank, system.last, system.rows, system.foreign = (9, 30), 7, [5, 6, 7], True
    (number,) = world.stage(1)
    with pytest.raises(ForeignOwnerError):
        world.steps(world.context())
    text = ft("adopt", PIPELINE, "--yes")
    assert "db: delivered up to checkpoint 7" in text and "is ACTIVE" in text
    world.steps(world.context(3))
    assert world.systems["db"].rows == world.systems["log"].rows == [5, 6, 7, number]


def test_adopt_names_a_sink_that_lost_everything(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    world.systems["log"] = System(Promise.REDO, expires=False, token_is_gone=True)
    world.store.halt(PIPELINE, HaltReason.STORE_BEHIND_SINK, "a test")
    text = ft("adopt", PIPELINE, "--yes")
    assert "log had lost deliveries" in text and "different checkpoints" not in text


def test_adopt_warns_of_nothing_that_it_refuses(world: World, ft: Any, capsys: pytest.CaptureFixture[str]) -> None:
    world.stage(1)
    capsys.readouterr()
    with raises(SystemExit, "action_refused", status="ACTIVE"):
        ft("adopt", PIPELINE, "--yes")
    assert capsys.readouterr().out == ""


def test_adopt_refuses_an_older_log_before_it_asks(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.prepared()
    for system in world.systems.values():
        system.rank, system.owner = (99, 0), world.store.installation
    world.store.halt(PIPELINE, HaltReason.FOREIGN_OWNER, "a test")
    monkeypatch.setattr(settling, "sure", lambda *_: pytest.fail("it asked"))
    with raises(SystemExit, "store_behind_sink"):
        ft("adopt", PIPELINE)


def test_adopt_lists_orphans_and_requires_a_choice_for_them(world: World, ft: Any) -> None:
    for system in world.systems.values():
        system.rank, system.last, system.rows, system.foreign = (9, 30), 7, [5, 6, 7], True
    prepared, visible = OrphanKind.PREPARED, OrphanKind.COMMITTED
    world.systems["db"].left = [
        Orphan(8, "0001", visible, "another", "branch 0001 of 2 is committed: 5 rows into rows are visible", 2),
        Orphan(8, "0002", prepared, "another", "branch 0002 is prepared", 0, "XA COMMIT 'x'", "XA ROLLBACK 'x'"),
    ]
    (number,) = world.stage(1)
    with pytest.raises(ForeignOwnerError):
        world.steps(world.context())
    with raises(SystemExit) as refused:
        ft("adopt", PIPELINE, "--yes")
    assert refused.error is not None and "--prepared commit" in f"{refused.error}"
    with raises(SystemExit) as refused:
        ft("adopt", PIPELINE, "--yes", "--prepared", "rollback")
    assert refused.error is not None and "--accept-partial" in refused.error.remedy
    assert world.systems["db"].foreign and len(world.systems["db"].left) == 2
    text = ft("adopt", PIPELINE, "--yes", "--prepared", "commit")
    assert "checkpoint 8: branch 0001 of 2 is committed: 5 rows into rows are visible" in text
    assert "XA COMMIT 'x';" in text and "XA ROLLBACK 'x';" in text
    world.steps(world.context(3))
    assert world.store.checkpoint(PIPELINE, number).delivered_by == 9


def test_a_living_process_is_not_fenced_by_a_command(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__LEASE_SECONDS", "6")
    prepared(world)
    with (
        new_epoch(world.store, PIPELINE, Worker("dag/run/step"), "a step", 0.3),
        raises(SystemExit) as refused,
    ):
        ft("recover", PIPELINE)
    assert isinstance(refused.error, LeaseHeldError)


def test_giving_up_needs_the_name_of_a_sink(ft: Any) -> None:
    for options in (("--give-up", "1"), ("--sink", "db"), ("--abort", "1", "--sink", "db")):
        with pytest.raises(SystemExit) as ended:
            ft("in-doubt", "--pipeline", PIPELINE, *options)
        assert "--give-up needs --sink" in f"{ended.value}"


def test_in_doubt_lists_each_sink_and_what_is_known(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    assert "nothing is in doubt" in ft("in-doubt")
    prepared(world)
    steps.commit_step(world.context(), "db")
    db, log = json.loads(ft("in-doubt", "-o", "json"))
    assert (db["pipeline"], db["checkpoint"], db["sink"], db["state"]) == (PIPELINE, 1, "db", "COMMITTING")
    assert (db["finding"], log["finding"]) == ("delivered", "absent")
    assert "committed by epoch" in db["known"] and "not delivered" in log["known"]


def test_a_list_promises_no_run_where_none_comes(world: World, ft: Any) -> None:
    waiting = Scene(world.store, "waiting")
    waiting.stage()
    prepared(world)
    steps.commit_step(world.context(), "db")
    world.store.leave_turn(PIPELINE, RUN)
    for name in ("waiting", PIPELINE):
        world.store.retire(name, "ada")
    _, log = json.loads(ft("in-doubt", "--pipeline", PIPELINE, "-o", "json"))
    assert log["next"].startswith("no run follows")
    rows = {row["pipeline"]: row for row in json.loads(ft("pipelines", "-o", "json"))}
    assert rows["waiting"]["condition"] == "WAITING" and "No run delivers" in rows["waiting"]["why"]


@pytest.mark.parametrize(
    ("action", "state"),
    [("commit", "COMPLETED"), ("abort", "ABORTED"), ("quarantine", "QUARANTINED")],
)
def test_in_doubt_acts_when_told_to_and_logs_by_whom(
    world: World, ft: Any, action: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    prepared(world)
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return "n"

    monkeypatch.setattr("builtins.input", answer)
    with answered_no():
        ft("in-doubt", "--pipeline", PIPELINE, f"--{action}", "1")
    assert "checkpoint 1 (PREPARED, 20 rows)".lower() in asked[0].lower()
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.PREPARED
    assert state in ft("in-doubt", "--pipeline", PIPELINE, f"--{action}", "1", "--yes", "--reason", "a test")
    events = " ".join(event.message for event in world.store.events(PIPELINE))
    assert f"`airflow ft in-doubt --{action} 1` by ada: a test" in events


def test_an_act_needs_the_pipeline_and_explains_what_it_refuses(world: World, ft: Any) -> None:
    world.stage(1)
    with raises(SystemExit, "argument_missing", argument="--pipeline"):
        ft("in-doubt", "--commit", "1")
    for action, number, kind in (("--commit", 1, StateConflictError), ("--abort", 9, ConfigurationError)):
        with raises(SystemExit) as refused:
            ft("in-doubt", "--pipeline", PIPELINE, action, str(number), "--yes")
        assert isinstance(refused.error, kind) and refused.error.checkpoint == number


def test_several_acts_and_options_of_another_act_are_refused(world: World, ft: Any) -> None:
    prepared(world)
    for given, fields in (
        (["--quarantine", "1", "--abort", "1"], {"actions": ["abort", "quarantine"]}),
        (["--commit", "1", "--rewind"], {"argument": "--rewind"}),
        (["--rewind"], {"argument": "--rewind"}),
    ):
        with raises(SystemExit, "arguments_conflict", **fields):
            ft("in-doubt", "--pipeline", PIPELINE, *given, "--yes")
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.PREPARED


def test_a_user_without_a_name_may_act(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", unknown)
    world.stage(1)
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "it is gone.")
    ft("resume", PIPELINE, "--yes")
    assert f"by user {os.getuid()}" in ft("events", PIPELINE, "--limit", "1", "-o", "json")


def test_rewind_and_recover_leave_what_is_quarantined(world: World, ft: Any) -> None:
    prepared(world)
    ft("in-doubt", "--pipeline", PIPELINE, "--quarantine", "1", "--yes")
    with raises(SystemExit, "checkpoint_quarantined", checkpoint=1):
        ft("recover", PIPELINE)
    with raises(SystemExit) as refused:
        ft("rewind", PIPELINE, "--yes")
    assert refused.error is not None and refused.error.checkpoint == 1
    assert world.store.checkpoint(PIPELINE, 1).state is CheckpointState.QUARANTINED


def test_verify_says_what_cannot_be_compared(world: World, ft: Any) -> None:
    world.stage(1)
    with raises(SystemExit) as refused:
        ft("verify", PIPELINE, "1")
    assert refused.error is not None and refused.error.checkpoint == 1
    assert "nothing to compare" in ft("verify", PIPELINE)
    world.steps(world.context())
    with pytest.raises(SystemExit) as ended:
        ft("verify", PIPELINE)
    assert ended.value.code == 1, "sinks of tests cannot be compared"


def test_reset_state_asks_first_and_refuses_undelivered_rows(
    world: World, ft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does is tried with Spark: `test_dropped_state_begins_anew_where_the_last_run_ended`."""
    world.stage(1)
    base = world.store.pipeline(PIPELINE).base
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with answered_no():
        ft("reset-state", PIPELINE)
    with raises(SystemExit) as refused:
        ft("reset-state", PIPELINE, "--yes")
    assert refused.error is not None and "`airflow ft rewind" in refused.error.remedy
    with new_epoch(world.store, PIPELINE, Worker("t", 1), "a running step", 1.0), raises(SystemExit) as refused:
        ft("reset-state", PIPELINE, "--yes")
    assert isinstance(refused.error, LeaseHeldError)
    assert world.store.pipeline(PIPELINE).base == base
    ft("rewind", PIPELINE, "--yes")
    assert "no state to drop" in ft("reset-state", PIPELINE, "--yes")


def test_refused_rows_are_set_aside_and_told_wherever_one_looks(
    world: World, ft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(world)
    steps.commit_step(world.context(), "db")
    world.systems["log"].declines_in_commit = True
    [_, doubt] = json.loads(ft("in-doubt", "--pipeline", PIPELINE, "-o", "json"))
    assert doubt["last_error"] is None and "--dead-letter" not in doubt["next"], "nothing is known to be refused"
    with pytest.raises(SinkUnavailableError):
        steps.commit_step(world.context(), "log")
    [_, doubt] = json.loads(ft("in-doubt", "--pipeline", PIPELINE, "-o", "json"))
    assert "--dead-letter" in doubt["next"] and doubt["last_error"].startswith("SinkUnavailableError [")
    code = doubt["last_error_code"]
    assert code and f"last error: SinkUnavailableError [{code}]" in ft("show", PIPELINE, "1")
    [shown] = json.loads(ft("show", PIPELINE, "1", "-o", "json"))
    assert [each["last_error"] and each["last_error"]["code"] for each in shown["participants"]] == [None, code]
    monkeypatch.setattr(dag_runs, "going", lambda dag_ids: ())  # the run has failed
    [row] = json.loads(ft("pipelines", "-o", "json"))
    assert row["condition"] == "IN_DOUBT" and (row["code"], f"[{code}]" in row["why"]) == (code, True)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    with answered_no():
        ft("in-doubt", "--pipeline", PIPELINE, "--dead-letter", "1")
    output = ft("in-doubt", "--pipeline", PIPELINE, "--dead-letter", "1", "--yes", "--reason", "unwanted")
    assert "checkpoint 1 is COMPLETED, 1 row set aside" in output and "file:///dead/1" in output
    shown = ft("show", PIPELINE, "1")
    assert "1 row of copies was refused and set aside (duplicate key 7.): file:///dead/1" in shown
    [row] = json.loads(ft("checkpoints", PIPELINE, "-o", "json"))
    assert row["state"] == "COMPLETED, 1 row set aside"
    events = ft("events", PIPELINE, "-o", "json")
    assert "in-doubt --dead-letter 1" in events and "unwanted" in events and "set aside" in events


def test_a_barrier_is_injected_and_looked_at(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    world.store.register("payments")
    world.store.register(PIPELINE)
    with raises(SystemExit) as refused:
        ft("inject-barrier", "closing", PIPELINE, "absent")
    assert isinstance(refused.error, ConfigurationError) and "absent" in refused.error.headline
    with raises(SystemExit, "barrier_unknown", barrier="closing"):
        ft("barriers", "closing")
    rows = json.loads(ft("inject-barrier", "closing", PIPELINE, "payments", "-o", "json"))
    assert json.loads(ft("inject-barrier", "closing", "payments", PIPELINE, "-o", "json")) == rows
    listed = json.loads(ft("barriers", "-o", "json"))
    assert {(row["barrier"], row["pipeline"]) for row in listed} == {("closing", PIPELINE), ("closing", "payments")}
    assert {row["by"] for row in listed} == {"`airflow ft inject-barrier` by ada"}
    assert len(json.loads(ft("barriers", "--limit", "1", "-o", "json"))) == 1
    world.stage(1)
    world.steps(world.context())
    found = {row["pipeline"]: row for row in json.loads(ft("barriers", "closing", "-o", "json"))}
    assert (found[PIPELINE]["covered"], found[PIPELINE]["number"]) == (True, 1)
    assert (found["payments"]["covered"], found["payments"]["as_of"]) == (False, None)
    assert "closing injected by `airflow ft inject-barrier` by ada" in ft("events", "payments", "-o", "json")


def test_a_savepoint_is_taken_listed_shown_restored_and_deleted(
    tmp_path: Path, parser: ArgumentParser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pipeline does with it is tried with Spark: `tests/integration/test_savepoints.py`."""

    def ft(*arguments: str) -> str:
        args = parser.parse_args(["ft", "savepoint", *arguments])
        args.func(args)
        return capsys.readouterr().out

    with saved_scene(tmp_path) as scene:
        there = ["--dir", str(tmp_path / "savepoints")]
        log = ["--store", f"sqlite:///{tmp_path}/ft.db"]
        (tmp_path / "savepoints").mkdir()
        assert "No data found" in ft("list", *there)
        [taken] = json.loads(ft("trigger", PIPELINE, *there, *log, "-o", "json"))
        assert taken["checkpoint"] == 1 and taken["size"] > 0
        uri = taken["savepoint"]
        assert "savepoint of checkpoint 1 of orders" in ft("trigger", PIPELINE, *there, *log)
        rows = json.loads(ft("list", *there, "-o", "json"))
        assert [row["pipeline"] for row in rows] == [PIPELINE] * 2 and uri in [row["savepoint"] for row in rows]
        shown = ft("show", uri)
        for words in (
            "complete",
            "operator    0 stateStoreSave: 1 partition",
            "default key: k long",
            "source      orders",
        ):
            assert words in shown, shown
        monkeypatch.setattr("builtins.input", lambda _: "n")
        with answered_no():
            ft("restore", uri, *log)
        with answered_no():
            ft("dispose", uri)
        with raises(SystemExit) as refused:
            ft("restore", uri, "--claim-mode", "mine", *log, "--yes")
        assert isinstance(refused.error, ConfigurationError) and "'mine'" in refused.error.headline
        before = scene.store.pipeline(PIPELINE).base
        assert f"the next run of {PIPELINE} continues from checkpoint 1" in ft("restore", uri, *log, "--yes")
        assert scene.store.pipeline(PIPELINE).base != before
        copied = ft("restore", uri, "--pipeline", "copy", "--wal-root", str(tmp_path / "wal"), *log, "--yes")
        assert "the next run of copy continues from checkpoint 1 of orders" in copied
        with raises(SystemExit, "argument_missing", argument="--pipeline"):
            ft("restore", "beginning", *log, "--yes")
        refresh = ["beginning", "--pipeline", PIPELINE, *log, "--yes"]
        with raises(SystemExit, "rows_would_repeat", pipeline=PIPELINE):
            ft("restore", *refresh)
        assert f"the next run of {PIPELINE} reads its sources from the beginning" in ft(
            "restore", *refresh, "--later", "write-again"
        )
        base = scene.store.pipeline(PIPELINE).base
        assert base is not None and base.batch == -1
        assert "is deleted" in ft("dispose", uri, "--yes")
        with raises(SystemExit) as refused:
            ft("show", uri)
        assert refused.error is not None and "_metadata" in refused.error.headline
