"""Each reason for which a checkpoint fails or waits: in the table of the docs, in logs, commands, page, metrics."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.delivery_progress import Taken
from airflow_ft.protocol.errors import FencedError
from airflow_ft.protocol.lease import Worker, take_epoch
from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.protocol.reasons import FAILURE, AbortReason, WaitReason, failure_text
from airflow_ft.protocol.timing import Timing
from airflow_ft.store.sqlite import SqliteStore
from tests.protocol.systems import Metered
from tests.store.scene import PIPELINE, Scene

PROJECT = Path(__file__).resolve().parents[1]
PAGE = (PROJECT / "docs" / "failures.md").read_text()
FLINK = """
    PERIODIC_SCHEDULER_SHUTDOWN TOO_MANY_CHECKPOINT_REQUESTS MINIMUM_TIME_BETWEEN_CHECKPOINTS
    NOT_ALL_REQUIRED_TASKS_RUNNING IO_EXCEPTION BLOCKING_OUTPUT_EXIST CHECKPOINT_ASYNC_EXCEPTION
    CHANNEL_STATE_SHARED_STREAM_EXCEPTION CHECKPOINT_EXPIRED CHECKPOINT_SUBSUMED CHECKPOINT_DECLINED
    CHECKPOINT_DECLINED_TASK_NOT_READY CHECKPOINT_DECLINED_TASK_CLOSING CHECKPOINT_DECLINED_SUBSUMED
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER CHECKPOINT_DECLINED_INPUT_END_OF_STREAM CHECKPOINT_COORDINATOR_SHUTDOWN
    CHECKPOINT_COORDINATOR_SUSPEND JOB_FAILOVER_REGION TASK_FAILURE TASK_CHECKPOINT_FAILURE
    UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE FINALIZE_CHECKPOINT_FAILURE TRIGGER_CHECKPOINT_FAILURE
"""
"""Flink's `CheckpointFailureReason`, as its master branch had it in 2026."""


def table(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


ABORTS, WAITS = table("Why a checkpoint failed"), table("Why no checkpoint is triggered")
PROVOKED_BY: dict[AbortReason | WaitReason, tuple[str, ...]] = {
    AbortReason.JOB_FAILED: ("tests/spark/test_publisher.py::test_a_batch_whose_job_raised_is_aborted_at_once",),
    AbortReason.TOO_MANY_DEAD_LETTERS: (
        "tests/integration/test_rejected.py::test_too_many_fail_the_run_and_nothing_is_published",
    ),
    AbortReason.STAGE_FAILED: ("tests/spark/test_publisher.py::test_a_batch_that_spark_failed_on_is_aborted_at_once",),
    AbortReason.DATA_LOSS: (
        "tests/spark/test_publisher.py::test_a_batch_is_not_published_if_a_source_has_lost_records",
    ),
    AbortReason.SEAL_FAILED: ("tests/spark/test_publisher.py::test_what_the_disk_does_not_take_is_not_sealed",),
    AbortReason.PUBLISH_FAILED: (
        "tests/spark/test_publisher.py::test_an_attempt_cannot_publish_behind_what_it_did_not_see",
    ),
    AbortReason.HALTED: ("tests/spark/test_publisher.py::test_a_pipeline_that_is_halted_meanwhile_gets_nothing_more",),
    AbortReason.STOPPED: ("tests/spark/test_stage_step.py::test_what_a_driver_leaves_that_was_ended_is_stopped",),
    AbortReason.FENCED: ("tests/store/test_epochs.py::test_a_take_over_drops_leases_and_aborts_unpublished_numbers",),
    AbortReason.ATTEMPT_ENDED: ("tests/store/test_epochs.py::test_what_nobody_is_at_work_on_ended_by_itself",),
    AbortReason.EXPIRED: (
        "tests/spark/test_publisher.py::test_what_is_not_staged_in_time_expires",
        "tests/protocol/test_coordinator.py::test_rows_of_an_expired_checkpoint_are_carried_over",
    ),
    AbortReason.DECLINED: (
        "tests/protocol/test_coordinator.py::test_a_refusal_in_prepare_rewinds_to_the_last_delivery",
    ),
    AbortReason.SUPERSEDED: (
        "tests/protocol/test_coordinator.py::test_changed_sinks_supersede_a_plan_that_is_not_prepared",
    ),
    AbortReason.PREDECESSOR_ABORTED: (
        "tests/protocol/test_coordinator.py::test_an_aborted_checkpoint_is_carried_by_the_next_number",
    ),
    AbortReason.USER: ("tests/store/test_aborting.py::test_a_person_rewinds_what_is_undelivered",),
    WaitReason.MIN_PAUSE: ("tests/spark/test_capacity.py::test_a_stream_waits_for_its_pause",),
    WaitReason.TOO_MANY_QUEUED: (
        "tests/spark/test_capacity.py::test_a_stream_waits_while_as_many_as_may_be_are_under_way",
    ),
    WaitReason.NOT_ACTIVE: (
        "tests/spark/test_capacity.py::test_a_stream_waits_while_a_checkpoint_is_kept_for_a_person",
    ),
}
"""By reason, the tests that provoke it."""
PROVOKED = [
    pytest.param(reason, test, id=f"{reason}-{index}")
    for reason, tests in PROVOKED_BY.items()
    for index, test in enumerate(tests)
]


def test_the_tables_have_every_reason() -> None:
    assert [(row[0], row[4]) for row in ABORTS] == [(r.value, "yes" if r.counts else "no") for r in AbortReason]
    assert [row[0] for row in WAITS] == [r.value for r in WaitReason]
    assert PROVOKED_BY.keys() == {*AbortReason, *WaitReason}


@pytest.mark.parametrize(("reason", "test"), PROVOKED)
def test_the_named_test_asserts_its_reason(reason: AbortReason | WaitReason, test: str) -> None:
    path, _, name = test.partition("::")
    functions = [
        node
        for node in ast.walk(ast.parse((PROJECT / path).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    assert len(functions) == 1, f"{path} has no such test"
    asserted = {
        (node.value.id, node.attr)
        for statement in ast.walk(functions[0])
        if isinstance(statement, ast.Assert)
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert (type(reason).__name__, reason.name) in asserted


def test_every_reason_of_flink_has_its_place() -> None:
    known = set(FLINK.split())
    here = set(re.findall(r"`([A-Z_]{8,})`", " ".join(row[-1] for row in (*ABORTS, *WAITS))))
    elsewhere = {name for row in table("Flink's other reasons") for name in re.findall(r"`([A-Z_]+)`", row[0])}
    assert here & elsewhere == set()
    assert here | elsewhere == known | {"JOB_FAILURE"}


def test_a_rewind_asks_programs_for_the_position() -> None:
    for reason in (AbortReason.DECLINED, AbortReason.USER):
        assert "give their position again" in reason.rows.replace("gives", "give")
    assert not AbortReason.USER.remedy.startswith("Do nothing")


def test_every_text_is_a_sentence() -> None:
    for reason in (*AbortReason, *WaitReason):
        for text in (reason.cause, reason.rows, reason.remedy):
            assert re.fullmatch(r"[A-Z`].*\.", text) and "|" not in text, text


def test_each_write_counts_its_outcome_once_and_logs_failures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SqliteStore(tmp_path / "ft.db") as store:
        scene, meter = Scene(store), Metered()
        store.meter = meter
        numbers = scene.stage(4, continues=True)
        scene.complete(2, [1, 2])
        timing = Timing.of(scene.checkpoint(2))._replace(rows=22, bytes=8_200_000)  # with those of 1
        completed = ("completed", PIPELINE, timing)
        assert meter.calls == [("confirmed", PIPELINE, 2), completed]
        for _ in range(2):
            scene.abort(3)
        scene.trigger()
        take_epoch(store, PIPELINE, Worker().lease(), "test", lease_seconds=0.0)
        assert meter.calls[2:] == [
            ("failed", PIPELINE, AbortReason.DECLINED),
            ("failed", PIPELINE, AbortReason.FENCED),
        ]
        with pytest.raises(FencedError):
            scene.abort(numbers[-1])
        assert len(meter.calls) == 4, "what was not written is not counted"
    lines = [record.getMessage() for record in caplog.records if record.name == "airflow_ft.store.writing"]
    reasons = [(match := FAILURE.match(line)) and match["reason"] for line in lines]
    assert reasons == ["DECLINED", "FENCED"]
    assert lines[0] == (
        f"checkpoint 3 of {PIPELINE} failed (DECLINED): too long. {AbortReason.DECLINED.rows}"
        f" {AbortReason.DECLINED.remedy}"
    )


@pytest.mark.parametrize("reason", AbortReason)
def test_a_line_in_a_log_is_one_line_and_can_be_read_again(reason: AbortReason) -> None:
    line = failure_text("p", 7, reason, "two\nlines")
    match = FAILURE.match(line)
    assert match is not None and match["reason"] == reason and "\n" not in line
    assert reason.rows in line and line.endswith(reason.remedy)


def test_counters_go_by_airflows_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.observability import stats

    from airflow_ft.pipeline.metrics import Counters

    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(stats, "incr", lambda name, count, tags: tags or sent.append((name, count)))
    counters = Counters()
    counters.failed("shop", AbortReason.SEAL_FAILED)
    counters.confirmed("shop", 3)
    counters.waited("shop", WaitReason.MIN_PAUSE, 1.5)
    assert sent == [
        ("airflow_ft.failed.shop.SEAL_FAILED", 1),
        ("airflow_ft.confirmed.shop", 3),
        ("airflow_ft.waited_ms.shop.MIN_PAUSE", 1500),
    ]


def test_how_long_a_checkpoint_took_goes_by_airflows_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.observability import stats

    from airflow_ft.pipeline.metrics import Counters

    sent: dict[str, Any] = {}
    for kind in ("incr", "timing"):
        monkeypatch.setattr(stats, kind, lambda name, value, tags: tags or sent.update({name: value}))
    began = datetime(2026, 1, 1, tzinfo=UTC)
    staged, prepared, decided, done = (began + timedelta(seconds=after) for after in (2, 3, 3.5, 6))
    timing = Timing(7, CheckpointState.COMPLETED, None, 11, 4100, began, staged, prepared, decided, done)
    Counters().completed("shop", timing)
    assert sent == {
        "airflow_ft.stage_duration.shop": timedelta(seconds=2),
        "airflow_ft.prepare_duration.shop": timedelta(seconds=1),
        "airflow_ft.decide_duration.shop": timedelta(seconds=0.5),
        "airflow_ft.commit_duration.shop": timedelta(seconds=2.5),
        "airflow_ft.checkpoint_duration.shop": timedelta(seconds=6),
        "airflow_ft.rows.shop": 11,
        "airflow_ft.log_bytes.shop": 4100,
    }


def test_sizes_of_the_state_and_headway_go_by_airflows_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.observability import stats

    from airflow_ft.pipeline.metrics import Counters

    sent: dict[str, float] = {}
    monkeypatch.setattr(stats, "gauge", lambda name, value, tags: tags or sent.update({name: value}))
    Counters().state("shop", 10, 2000, 3)
    Counters().taken("shop", Taken("shop", 7, "db", "orders", 5, 8))
    assert sent == {
        "airflow_ft.taken_rows.shop.orders": 5,
        "airflow_ft.rows_to_take.shop.orders": 8,
        "airflow_ft.state_changes_bytes.shop": 10,
        "airflow_ft.state_snapshot_bytes.shop": 2000,
        "airflow_ft.state_replayed.shop": 3,
    }


@pytest.mark.airflow
def test_the_page_tells_why_where_the_rows_are_and_what_to_do(tmp_path: Path) -> None:
    from plugins.checkpoint import listed

    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        [number] = scene.stage()
        assert listed(scene.checkpoint(number))["reason"] == ""
        scene.abort(number)
        answer = listed(scene.checkpoint(number))
    reason = AbortReason.DECLINED
    assert (answer["reason"], answer["cause"], answer["fate"], answer["remedy"]) == (
        reason,
        reason.cause,
        reason.rows,
        reason.remedy,
    )
    assert answer["message"] == "too long"
    script = (PROJECT / "plugins" / "history.js").read_text()
    assert all(f"data.{name}" in script for name in ("reason", "cause", "fate", "remedy", "message"))


def test_a_reason_that_an_older_version_has_stored_is_read(tmp_path: Path) -> None:
    older = ["ATTEMPT_ENDED", "EXPIRED", "DECLINED", "SUPERSEDED", "PREDECESSOR_ABORTED", "USER"]
    with SqliteStore(tmp_path / "ft.db") as store:
        scene = Scene(store)
        scene.take()
        for name in older:
            number = scene.trigger(RunKey("dag", name))
            scene.store.give_up(PIPELINE, 1, AbortReason.STOPPED, "a test")
            with store._database.write() as tx:
                tx.change("UPDATE checkpoint SET reason = ? WHERE number = ?", name, number)
            assert scene.checkpoint(number).reason == name
