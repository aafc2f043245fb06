"""`airflow ft ...` by way of Airflow's own parser, over a real decision log and model sinks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import sqlite3
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.cli.cli_config import ActionCommand, GroupCommand
from sqlalchemy.exc import OperationalError

from airflow_ft.admin import dag_runs, documentation
from airflow_ft.admin.cli import get_ft_cli_commands
from airflow_ft.admin.commands import common, looking, settling
from airflow_ft.admin.commands.looking import describe
from airflow_ft.pipeline.actions import pipelines
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import (
    ConfigurationError,
    ForeignOwnerError,
    LeaseHeldError,
    SinkUnavailableError,
    StateConflictError,
)
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import (
    DRAINED,
    PLAIN,
    AfterAbort,
    CheckpointState,
    Promise,
    RunKey,
    SparkPosition,
    StateSizes,
)
from airflow_ft.protocol.orphans import Orphan, OrphanKind
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.reasons import AbortReason
from tests.protocol.systems import System
from tests.protocol.world import PIPELINE, RUN, World
from tests.raising import raises
from tests.spark.test_savepoints import saved_scene
from tests.store.scene import Scene

pytestmark = pytest.mark.airflow

LISTING = {"pipelines", "checkpoints", "events", "doctor", "verify", "sessions", "in-doubt"}


@contextlib.contextmanager
def answered_no() -> Iterator[None]:
    """Expect the end of a command whose question was answered with no."""
    with pytest.raises(SystemExit) as ended:
        yield
    assert ended.value.code == common.UNCHANGED


def prepared(world: World, count: int = 1) -> list[int]:
    """Checkpoints that every sink has voted for, and a process that died then."""
    numbers = world.stage(count)
    for name in world.delivery.names:
        steps.prepare_step(world.context(), world.delivery, world.config, name)
    return numbers


def test_what_cannot_be_read_hides_no_other_pipeline(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__LEASE_SECONDS", "1")  # `recover` waits for the lease of what has staged
    world.stage(1)
    for name in ("a", "b", "c"):
        Scene(world.store, name).stage(1)
    with contextlib.closing(sqlite3.connect(world.folder / "ft.db")) as db:
        db.execute("UPDATE pipeline SET status = 'HALTED', halt_reason = 'SINK_MOVED' WHERE name = 'a'")
        db.execute("UPDATE checkpoint SET after_abort = 'parked' WHERE pipeline = 'b'")
        db.execute("UPDATE checkpoint SET segment_rows = '{' WHERE pipeline = 'c'")
        db.commit()
    rows = {row["pipeline"]: row for row in json.loads(ft("pipelines", "-o", "json"))}
    assert {name: row["status"] for name, row in rows.items()} == {
        "a": "HALTED (SINK_MOVED)", "b": "ACTIVE", "c": "ACTIVE", PIPELINE: "ACTIVE"
    }  # fmt: skip
    assert {name: row["unsettled"] for name, row in rows.items()} == {"a": 1, "b": None, "c": None, PIPELINE: 1}
    assert rows["c"]["code"] == "store_corrupt"
    doubts = {row["pipeline"]: row for row in json.loads(ft("in-doubt", "-o", "json"))}
    assert doubts.keys() == {"a", "b", "c"} and doubts["a"]["state"] == "HALTED (SINK_MOVED)"
    for action in (("resume", "a", "--yes"), ("retire", "a", "--yes"), ("rewind", "a", "--yes"), ("recover", "b")):
        with raises(SystemExit, "newer_release"):
            ft(*action)


@pytest.mark.slow
def test_the_documentation_is_there_without_a_log_or_a_network(
    parser: ArgumentParser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def docs(*arguments: str) -> Any:
        args = parser.parse_args(["ft", "docs", *arguments])
        args.func(args)
        return capsys.readouterr().out

    listed = {row["page"]: row["about"] for row in json.loads(docs("-o", "json"))}
    assert next(iter(listed)) == "index"
    assert listed["kafka"] == "The Kafka sink" and listed["reference/sinks"] == "Sinks"
    text = (documentation.FOLDER / "kafka.md").read_text()
    assert docs("kafka") == docs("kafka.md") == docs("docs/kafka.md") == text
    assert "# Metrics" in docs("observability")
    reference = docs("reference/sinks")
    assert "KafkaSink(" in reference and "allow_unsafe_durability: bool = False" in reference
    assert "{eval-rst}" not in reference and "<factory>" not in docs("reference/pipelines")

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team")
    found = json.loads(docs("--search", "WHAT THE CONFORMANCE KIT TRIES", "-o", "json"))
    address = "https://airflow.example/team/airflow-ft/docs/sinks.md#what-the-conformance-kit-tries"
    assert found == [{"page": "sinks", "heading": "What the conformance kit tries", "address": address}]
    by_heading, *_ = json.loads(docs("--search", "dead letters", "-o", "json"))
    assert by_heading["heading"].lower().startswith("dead letters")
    by_words, *_ = json.loads(docs("--search", "rename pipeline", "-o", "json"))
    assert by_words["heading"] == "Rename a pipeline"
    [argument] = json.loads(docs("--search", "allow_unsafe_durability: deliver", "-o", "json"))[:1]
    assert argument["page"] == "reference/sinks" and argument["address"] is None, "the UI does not have it"
    assert "No page contains 'no suchword'" in docs("--search", "no suchword")
    monkeypatch.delenv("AIRFLOW__API__BASE_URL")
    assert {row["address"] for row in json.loads(docs("--search", "backfill", "-o", "json"))} == {None}

    for wrong, nearest in (("kafak", "'kafka'"), ("../setup", "")):
        with raises(SystemExit) as refused:
            docs(wrong)
        assert isinstance(refused.error, ConfigurationError) and nearest in refused.error.remedy
    with raises(SystemExit, "arguments_conflict"):
        docs("kafka", "--search", "x")


@pytest.mark.slow
def test_a_page_is_rendered_for_a_terminal_alone(parser: ArgumentParser) -> None:
    command = [sys.executable, "-m", "airflow", "ft", "docs", "tutorial"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}
    ) as run:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:  # EIO: the other end is shut
            while part := terminal.read(4096):
                shown += part
    assert run.returncode == 0
    assert b"\x1b[" in shown, "bold and colours"
    assert b"```" not in shown and b"Tutorial: from an empty folder" in shown


def test_looking_changes_nothing(world: World, ft: Any) -> None:
    assert "No data found" in ft("pipelines")
    prepared(world)
    before = len(world.store.events(PIPELINE))
    [row] = json.loads(ft("pipelines", "-o", "json"))
    assert (row["pipeline"], row["status"], row["confirmed"], row["unsettled"]) == (PIPELINE, "ACTIVE", 0, 1)
    [row] = json.loads(ft("checkpoints", PIPELINE, "-o", "json"))
    assert (row["number"], row["state"], row["rows"]) == (1, "PREPARED", 20)
    events = json.loads(ft("events", PIPELINE, "1", "-o", "json"))
    assert events and {event["checkpoint"] for event in events} == {1}
    text = ft("show", PIPELINE, "1")
    for words in ("PREPARED", "db carries the commit point", "voted yes", "copies 10, rows 10"):
        assert words in text, text
    assert len(world.store.events(PIPELINE)) == before


def test_a_checkpoint_shows_how_far_its_sources_were_read(world: World) -> None:
    [number] = world.stage(1)
    checkpoint = world.store.checkpoint(PIPELINE, number)
    read = {"orders": {"orders": {"0": 4711}}, DRAINED: {"location": "/wal/t/spark/1-1", "batch": 3}}
    lines = list(describe(replace(checkpoint, positions=read)))
    assert [line.split() for line in lines if "source" in line] == [
        ["source", "orders:", "{'orders':", "{'0':", "4711}}"]
    ]


def test_show_prints_the_spark_application_and_the_state_size(world: World, ft: Any, tmp_path: Path) -> None:
    world.store.register(PIPELINE)
    with new_epoch(world.store, PIPELINE, Worker("d/stage"), "a test") as (epoch, _):
        world.store.trigger(PIPELINE, epoch, RUN, "application_17_0004")
    assert "  Spark app application_17_0004" in ft("show", PIPELINE, "1")
    [number] = world.stage(1)
    assert "Spark's" not in ft("show", PIPELINE, str(number))
    checkpoint = world.store.checkpoint(PIPELINE, number)
    lines = list(describe(replace(checkpoint, state_sizes=StateSizes(120, 4000, 3))))
    assert "  state     120 bytes of changes; full snapshot 4000 bytes, 3 batches before" in lines
    snapshot = tmp_path / "spark/state/0/0/8.zip"
    snapshot.parent.mkdir(parents=True)
    snapshot.write_bytes(b"cut")
    damaged = SparkPosition((tmp_path / "spark").as_uri(), 7)
    [line] = (line for line in describe(replace(checkpoint, position=damaged)) if line.startswith("  state "))
    assert snapshot.as_uri() in line and "[state_damaged]" in line


def test_whoever_is_at_work_says_how_far_it_has_come(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    worker = Worker("d/commit_db")
    with new_epoch(world.store, PIPELINE, worker, "a test", lease_seconds=60) as (epoch, _):
        [lease] = world.store.leases(PIPELINE)
        assert json.loads(ft("pipelines", "-o", "json"))[0]["doing"] is None
        world.store.renew_lease(PIPELINE, epoch, lease.holder, "checkpoint 7: db has taken 5 of 8 rows of rows")
        [row] = json.loads(ft("pipelines", "-o", "json"))
        assert (row["doing"], row["alive_at"]) == ("checkpoint 7: db has taken 5 of 8 rows of rows", None)
        world.store.enter_turn(PIPELINE, RUN, None)
        with world.store._database.write() as tx:  # type: ignore[attr-defined]
            tx.change("UPDATE lease SET renewed_at = renewed_at - 61000000")
        [row] = json.loads(ft("pipelines", "-o", "json"))
        assert (row["condition"], row["at_work"], row["doing"]) == ("FAILED", None, None), "it was killed, or hangs"
        assert f"since {row['alive_at'][:19].replace('T', ' ')} UTC" in ft("pipelines")
    assert json.loads(ft("pipelines", "-o", "json"))[0]["doing"] is None


def test_it_says_that_a_stream_is_held_back_and_why(world: World, ft: Any) -> None:
    scene = Scene(world.store, PIPELINE)
    scene.take()
    world.store.enter_turn(PIPELINE, RUN, None)
    scene.stage(made_with={"streaming": True, "checkpointing": {"max_concurrent": 1}, "sources": {}}, continues=True)
    [row] = json.loads(ft("pipelines", "-o", "json"))
    assert row["held_back"].startswith("TOO_MANY_QUEUED since 20")
    text = ft("show", PIPELINE, "1")
    assert "TOO_MANY_QUEUED since 20" in text
    scene.complete(1)
    [row] = json.loads(ft("pipelines", "-o", "json"))
    assert row["held_back"] is None and "TOO_MANY_QUEUED" not in ft("show", PIPELINE, "1")


@pytest.mark.parametrize(("minutes", "age"), [(0, ""), (3, " (3m 0s ago)"), (200, " (3h 20m ago)")])
def test_a_lag_has_its_age(minutes: int, age: str) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert looking._age(Lag("orders", Unit.FILES, 1, at=now - timedelta(minutes=minutes)), now) == age


def test_the_command_line_shows_a_pipelines_lag_and_lateness(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    with new_epoch(world.store, PIPELINE, Worker("d/stage"), "a test") as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, RUN, spec={"late_after": 3600.0})
        [row] = json.loads(ft("pipelines", "-o", "json"))
        assert (row["lag"], row["late"]) == ([], None)
        lags = [Lag("orders", Unit.RECORDS, 1200), Lag("returns", Unit.FILES, 1)]
        world.store.record_lags(PIPELINE, epoch, 0, lags)
        world.store.begin_stage(PIPELINE, epoch, RUN, spec={"late_after": 1e-6})
    [row] = json.loads(ft("pipelines", "-o", "json"))
    assert row["lag"] == ["orders 1,200 records", "returns 1 file"] and row["late"] > 0
    [number] = world.stage(1)
    world.store.record_lags(PIPELINE, world.store.pipeline(PIPELINE).epoch, number, lags)
    assert "  lag       orders 1,200, returns 1 not read yet" in ft("show", PIPELINE, str(number))


def test_a_failed_checkpoint_is_shown_with_its_reason_and_remedy(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    with new_epoch(world.store, PIPELINE, Worker("t"), "a test", 1) as (epoch, _):
        world.store.trigger(PIPELINE, epoch, RunKey("d", "r"))
        world.store.give_up(PIPELINE, epoch, AbortReason.SEAL_FAILED, "no space left")
    reason = AbortReason.SEAL_FAILED
    shown = ft("show", PIPELINE, "1")
    for words in ("ABORTED (SEAL_FAILED)", "no space left", reason.cause, reason.rows, reason.remedy):
        assert words in shown, shown
    [row] = json.loads(ft("checkpoints", PIPELINE, "-o", "json"))
    assert row["state"] == "ABORTED (SEAL_FAILED)"
    newest, *others = json.loads(ft("events", PIPELINE, "1", "-o", "json"))
    assert newest["message"].endswith(f"no space left. {reason.remedy}") and newest["code"] == "SEAL_FAILED"
    assert not any(reason.remedy in event["message"] for event in others)


def test_the_fix_of_a_failed_checkpoint_names_the_pipeline(world: World, ft: Any) -> None:
    [number] = world.stage(1)
    epoch = world.store.pipeline(PIPELINE).epoch
    world.store.abort(PIPELINE, epoch, number, AbortReason.HALTED, "a test", AfterAbort.CARRIED, tombstoned=False)
    command = f"`airflow ft resume {PIPELINE}`"
    assert command in ft("show", PIPELINE, "1") and command in ft("events", PIPELINE, "1", "-o", "json")
    [whole] = json.loads(ft("show", PIPELINE, "1", "-o", "json"))
    assert command in whole["remedy"]


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


def test_spec_shows_what_a_checkpoint_was_made_with(world: World, ft: Any) -> None:
    with raises(SystemExit, "checkpoint_unknown", pipeline=PIPELINE):
        world.store.register(PIPELINE)
        ft("spec", PIPELINE)
    world.stage(1)
    with raises(SystemExit, "spec_unknown", checkpoint=1):
        ft("spec", PIPELINE)
    with new_epoch(world.store, PIPELINE, Worker("t"), "a test", 1) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, RunKey("d", "r"), "t", {"job": "jobs.orders", "overlap": False})
        number = world.store.trigger(PIPELINE, epoch, RunKey("d", "r"))
    rows = json.loads(ft("spec", PIPELINE, "-o", "json"))
    assert rows == [{"field": "job", "value": "jobs.orders"}, {"field": "overlap", "value": False}]
    assert f"settings of checkpoint {number} of {PIPELINE}" in ft("spec", PIPELINE, str(number))
    assert "jobs.orders" in ft("spec", PIPELINE) and f"`airflow ft spec {PIPELINE}" in ft("show", PIPELINE, str(number))


def test_spec_shows_the_source_of_a_job_of_the_dag_file_as_it_is(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    source = "def transform(spark, sources):\n    return [sources['orders']]"
    made_with = {"job": "orders.py:transform", "job_sha256": "5f" * 32, "job_source": source}
    with new_epoch(world.store, PIPELINE, Worker("t"), "a test", 1) as (epoch, _):
        world.store.begin_stage(PIPELINE, epoch, RunKey("d", "r"), "t", made_with)
        world.store.trigger(PIPELINE, epoch, RunKey("d", "r"))
    shown = ft("spec", PIPELINE)
    assert shown.endswith(f"\n\n{source}\n") and "job_source" not in shown and "5f5f" in shown
    assert {"field": "job_source", "value": source} in json.loads(ft("spec", PIPELINE, "-o", "json"))


def test_json_and_yaml_output_keeps_the_types_of_values(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    found = world.store.checkpoint(PIPELINE, 1)
    assert found.segment is not None and found.completed_at is not None
    expected = {
        "number": 1,
        "state": "COMPLETED",
        "rows": 20,
        "bytes": found.segment.bytes,
        "run": str(found.run),
        "staged": found.staged_at,
        "decided": found.decided_at,
        "completed": found.completed_at,
        "took": (found.completed_at - found.triggered_at).total_seconds(),
    }
    for output, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        [row] = read(ft("checkpoints", PIPELINE, "-o", output))
        for name in ("staged", "decided", "completed"):
            at = datetime.fromisoformat(row[name])
            assert at.utcoffset() is not None
            row[name] = at
        assert row == expected, output
    for output in ("table", "plain"):
        text = ft("checkpoints", PIPELINE, "-o", output)
        assert f"{found.completed_at:%Y-%m-%d %H:%M:%S}Z" in text and "COMPLETED" in text, output
    prepared(world)
    [row] = json.loads(ft("in-doubt", "-o", "json"))[:1]
    assert row["checkpoint"] == 2 and isinstance(row["age"], float)


def test_what_stands_in_brackets_is_not_eaten(world: World, ft: Any, parser: ArgumentParser) -> None:
    world.stage(1)
    world.steps(world.context())
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "see [airflow_ft] store and [red]")
    for output in ("table", "plain", "json", "yaml"):
        assert "[airflow_ft] store and [red]" in " ".join(ft("events", PIPELINE, "-o", output).split()), output


@pytest.mark.parametrize("output", ["table", "json", "yaml", "plain"])
@pytest.mark.parametrize("command", ["pipelines", "in-doubt", "sessions"])
def test_a_list_with_nothing_in_it_can_be_read_too(
    command: str, output: str, parser: ArgumentParser, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    store = [] if command == "sessions" else ["--store", f"sqlite:///{world.folder}/ft.db"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("airflow_ft.spark.session.session_leases.kept", list)
        args = parser.parse_args(["ft", command, "-o", output, *store])
        args.func(args)
    text = capsys.readouterr().out
    assert text.strip() if output in ("table", "plain") else yaml.safe_load(text) == []


def test_the_help_says_what_the_options_say(capsys: pytest.CaptureFixture[str], parser: ArgumentParser) -> None:
    [group] = get_ft_cli_commands()
    assert isinstance(group, GroupCommand)
    commands: list[tuple[list[str], ActionCommand]] = []
    for found in group.subcommands:
        if isinstance(found, GroupCommand):
            commands += [
                ([found.name, each.name], each) for each in found.subcommands if isinstance(each, ActionCommand)
            ]
        else:
            assert isinstance(found, ActionCommand)
            commands.append(([found.name], found))
    for names, command in commands:
        with pytest.raises(SystemExit):
            parser.parse_args(["ft", *names, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        for arg in command.args:
            said = " ".join(str(arg.kwargs["help"]).replace("\\[", "[").split())
            assert said in text, (command.name, said)
            assert "airflow_ft] " not in said or "[airflow_ft] " in text
        assert "--output" in text or command.name not in LISTING


def test_show_tells_the_proofs(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    assert "proof of epoch" in ft("show", PIPELINE, "1")


def test_recover_says_that_staged_rows_wait_for_the_next_run(world: World, ft: Any) -> None:
    world.stage(1)
    assert "the next run delivers 1 staged checkpoint" in ft("recover", PIPELINE)


def test_show_defaults_to_the_newest_checkpoint(world: World, ft: Any) -> None:
    with raises(SystemExit, "checkpoint_unknown", pipeline=PIPELINE):
        world.store.register(PIPELINE)
        ft("show", PIPELINE)
    world.stage(1)
    world.stage(1)
    assert ft("show", PIPELINE) == ft("show", PIPELINE, "2") != ft("show", PIPELINE, "1")


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
    monkeypatch.setattr(dag_runs, "going", lambda dag_ids: ())  # it has failed, and nobody has taken its turn since
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


def test_a_number_without_a_checkpoint_has_no_events(world: World, ft: Any) -> None:
    world.stage(1)
    assert json.loads(ft("events", PIPELINE, "1", "-o", "json"))
    with raises(SystemExit, "checkpoint_unknown", checkpoint=2):
        ft("events", PIPELINE, "2")


@pytest.mark.parametrize("command", [("pipelines",), ("checkpoints", "orders"), ("in-doubt",), ("recover", "orders")])
def test_a_misspelled_log_is_not_made(tmp_path: Path, parser: ArgumentParser, command: tuple[str, ...]) -> None:
    args = parser.parse_args(["ft", *command, "--store", f"sqlite:///{tmp_path}/nowhere/ft.db"])
    with raises(SystemExit, "store_file_missing", store=f"sqlite:///{tmp_path}/nowhere/ft.db"):
        args.func(args)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "command",
    [
        ("pipelines",),
        ("doctor", "orders"),
        ("savepoint", "restore", "/s", "--yes"),
        ("dry-run", "orders", "--dag", "f"),
    ],
)
def test_a_password_on_the_command_line_is_refused(parser: ArgumentParser, command: tuple[str, ...]) -> None:
    args = parser.parse_args(["ft", *command, "--store", "postgresql://me:secret-word@127.0.0.1:1/log"])
    with raises(SystemExit, "password_visible", argument="store") as caught:
        args.func(args)
    assert "secret-word" not in f"{caught.value}"


def test_a_misspelled_folder_of_savepoints_is_told(tmp_path: Path, parser: ArgumentParser) -> None:
    args = parser.parse_args(["ft", "savepoint", "list", "--dir", str(tmp_path / "nowhere")])
    with raises(SystemExit, "folder_missing"):
        args.func(args)


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


def test_every_command_that_shows_something_has_an_output_format() -> None:
    [group] = get_ft_cli_commands()
    assert isinstance(group, GroupCommand)
    flat = [
        each
        for found in group.subcommands
        for each in (found.subcommands if isinstance(found, GroupCommand) else (found,))
        if isinstance(each, ActionCommand)
    ]
    shows = re.compile("List|Show|Print|Check|Compare|Compute what|Read|Create what|Query")
    lacking = [each.name for each in flat if shows.match(each.help) and not any("-o" in a.flags for a in each.args)]
    assert lacking == []


def test_of_many_pipelines_the_three_closest_names_are_told(world: World, ft: Any) -> None:
    for name in [PIPELINE, *(f"pipeline-{number}" for number in range(50)), "order-items"]:
        world.store.register(name)
    with raises(SystemExit) as caught:
        ft("checkpoints", "order")
    remedy = caught.error.remedy if caught.error else ""
    assert "orders" in remedy and "order-items" in remedy and "pipeline-1" not in remedy
    with raises(SystemExit) as caught:
        ft("checkpoints", "zzz")
    remedy = caught.error.remedy if caught.error else ""
    assert "`airflow ft pipelines`" in remedy and "orders" not in remedy


def test_it_says_that_airflow_cannot_be_asked(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: Any) -> Any:
        raise OperationalError("SELECT 1", {}, Exception("no such table"))

    monkeypatch.setattr(dag_runs, "ended", away)
    world.store.register(PIPELINE)
    world.store.enter_turn(PIPELINE, RUN, None)
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        [row] = json.loads(ft("pipelines", "-o", "json"))
    assert row["condition"] == "RUNNING" and "sql_alchemy_conn" in stderr.getvalue()


def test_one_checkpoint_as_plain_data(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    [output] = json.loads(ft("show", PIPELINE, "1", "-o", "json"))
    assert (output["number"], output["state"], output["delivers"]) == (1, "COMPLETED", [1])
    assert {each["name"] for each in output["participants"]} == set(world.delivery.names)
    assert all(each["proof"]["outcome"] == "committed" for each in output["participants"])
    assert all(each["last_error"] is None for each in output["participants"])
    assert yaml.safe_load(ft("show", PIPELINE, "1", "-o", "yaml"))[0]["number"] == 1


def test_unknown_names_are_told_with_the_known_ones(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    with raises(SystemExit) as caught:
        ft("show", PIPELINE, "9")
    assert caught.error is not None and caught.error.checkpoint == 9
    for given in (
        ["checkpoints", "no-such"],
        ["inject-barrier", "b", "no-such"],
        ["savepoint", "restore", "beginning", "--pipeline", "no-such", "--yes"],
        ["state", "show", "no-such"],
    ):
        with raises(SystemExit) as caught:
            ft(*given)
        assert caught.error is not None and PIPELINE in caught.error.remedy and "--store" in caught.error.remedy
    with raises(SystemExit, "argument_missing", argument="--pipeline"):
        ft("savepoint", "restore", "beginning", "--yes")
    with pytest.raises(SystemExit) as ended:
        ft("doctor", "no-such")
    assert ended.value.code == 1
    with raises(SystemExit, "dag_file_invalid", path=str(world.folder)):
        ft("dry-run", PIPELINE, "--dag", str(world.folder))


def test_a_living_process_is_not_fenced_by_a_command(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__LEASE_SECONDS", "6")
    prepared(world)
    with (
        new_epoch(world.store, PIPELINE, Worker("dag/run/step"), "at work", 0.3),
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


@pytest.mark.parametrize(
    "given",
    [
        ["checkpoints", PIPELINE, "--limit", "-1"],
        ["events", PIPELINE, "0"],
        ["show", PIPELINE, "one"],
        ["stop", PIPELINE, "--wait", "nan"],
        ["recover", PIPELINE, "--min-age", "-1"],
        ["pipelines", "--no-such-option"],
    ],
)
def test_what_no_command_takes_ends_with_status_2(ft: Any, given: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        ft(*given)
    assert refused.value.code == 2


def test_a_closed_output_pipe_ends_a_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            common.command(lambda _: common.say("x" * 100_000))(Namespace())
    assert ended.value.code == 1


def test_a_user_without_a_name_may_act(world: World, ft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
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
    with new_epoch(world.store, PIPELINE, Worker("t", 1), "a run at work", 1.0), raises(SystemExit) as refused:
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
        ft("inject-barrier", "closing", PIPELINE, "nobody")
    assert isinstance(refused.error, ConfigurationError) and "nobody" in refused.error.headline
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
