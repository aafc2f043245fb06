"""Commands of `airflow ft` that look: lists, checkpoints, events, specifications, as text and as data."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
from argparse import ArgumentParser
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy.exc import OperationalError

from airflow_ft.admin import dag_runs
from airflow_ft.admin.commands import looking
from airflow_ft.admin.commands.looking import describe
from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import (
    DRAINED,
    AfterAbort,
    RunKey,
    SparkPosition,
    StateSizes,
)
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.wal import roots
from tests.admin.scene import prepared
from tests.protocol.world import PIPELINE, RUN, World
from tests.raising import raises
from tests.store.scene import Scene

pytestmark = pytest.mark.airflow


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


def test_show_prints_votes_and_errors_although_the_state_is_away(world: World, ft: Any, tmp_path: Path) -> None:
    [number] = world.stage(1)
    world.steps(world.context())
    root = tmp_path / "log"
    roots.claim(world.store, str(root))
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    checkpoint = world.store.checkpoint(PIPELINE, number)
    away = SparkPosition((root / PIPELINE / "spark" / "1-1").as_uri(), 0)
    text = "\n".join(describe(replace(checkpoint, position=away)))
    assert "[wrong_disk]" in text and "proof of epoch" in text


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


def test_show_tells_the_proofs(world: World, ft: Any) -> None:
    world.stage(1)
    world.steps(world.context())
    assert "proof of epoch" in ft("show", PIPELINE, "1")


def test_show_defaults_to_the_newest_checkpoint(world: World, ft: Any) -> None:
    with raises(SystemExit, "checkpoint_unknown", pipeline=PIPELINE):
        world.store.register(PIPELINE)
        ft("show", PIPELINE)
    world.stage(1)
    world.stage(1)
    assert ft("show", PIPELINE) == ft("show", PIPELINE, "2") != ft("show", PIPELINE, "1")


def test_a_number_without_a_checkpoint_has_no_events(world: World, ft: Any) -> None:
    world.stage(1)
    assert json.loads(ft("events", PIPELINE, "1", "-o", "json"))
    with raises(SystemExit, "checkpoint_unknown", checkpoint=2):
        ft("events", PIPELINE, "2")


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
