from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from airflow_ft import FilesSink, RedisSink
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointingMode,
    CheckpointState,
    ParticipantPlan,
    Plan,
    Promise,
    Segment,
    canonical_json,
)
from airflow_ft.protocol.planning import (
    check_sinks_of_segments,
    free_segments,
    group,
    plan_delivery,
    read_tombstone,
    stranded,
    tombstone_detail,
)
from airflow_ft.protocol.position import Position
from airflow_ft.protocol.reasons import AbortReason
from tests.protocol.systems import ModelSink
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

ATOMIC, REDO = Promise.ATOMIC, Promise.REDO


def staged(number: int, rows: int = 10, **changes: object) -> Checkpoint:
    checkpoint = Checkpoint(
        pipeline="p",
        number=number,
        state=CheckpointState.STAGED,
        epoch=1,
        run=None,
        predecessor=number - 1,
        segment=Segment(number, f"{number:064x}", f"file:///wal/{number}", {"rows": rows}, 100),
        position=None,
        plan=None,
        votes={},
        reason=None,
        message="",
        after_abort=None,
        subsumed_by=None,
        delivered_by=None,
        rollback_pending=False,
        finalised=False,
        positions={},
        triggered_at=datetime(2026, 1, 1, tzinfo=UTC),
        staged_at=None,
        prepared_at=None,
        decided_at=None,
        completed_at=None,
    )
    return dataclasses.replace(checkpoint, **changes)  # type: ignore[arg-type]


def planned(number: int, *segments: Checkpoint, state: CheckpointState = CheckpointState.STAGED) -> Checkpoint:
    delivery = plan_delivery({"rows": ModelSink("db", ATOMIC)})
    plan = Plan("p", "i", number, tuple(c.segment for c in segments if c.segment), delivery.participants, "db")
    return staged(number, plan=plan, state=state)


def carried(number: int) -> Checkpoint:
    return staged(number, state=CheckpointState.ABORTED, reason=AbortReason.USER, after_abort=AfterAbort.CARRIED)


def shape(checkpoints: list[Checkpoint], max_rows: int) -> list[tuple[int, list[int]]]:
    return [(g.number, [s.number for s in g.segments]) for g in group(checkpoints, max_rows)]


def test_the_first_atomic_participant_carries_the_commit_point() -> None:
    delivery = plan_delivery(
        {"a": ModelSink("kafka", REDO), "b": ModelSink("db1", ATOMIC), "c": ModelSink("db2", ATOMIC)}
    )
    assert delivery.commit_point == "db1"
    assert delivery.names == ("db1", "db2", "kafka")
    assert "db1 carries the commit point" in delivery.reasons[0]


def test_the_commit_point_can_be_asked_for() -> None:
    sinks = {"b": ModelSink("db1", ATOMIC), "c": ModelSink("db2", ATOMIC)}
    assert plan_delivery(sinks, "db2").names == ("db2", "db1")
    with raises(ConfigurationError, "argument_invalid", argument="commit_point", value="'db3'"):
        plan_delivery(sinks, "db3")


def test_without_an_atomic_participant_the_decision_log_decides() -> None:
    assert plan_delivery({"a": ModelSink("kafka", REDO)}).commit_point is None


def test_sinks_of_one_connection_are_one_participant() -> None:
    same = plan_delivery({"a": ModelSink("db", ATOMIC, table="x"), "b": ModelSink("db", ATOMIC, table="y")})
    assert [sorted(p.sinks) for p in same.participants] == [["a", "b"]]
    with raises(ConfigurationError, "connection_shared", conn_id="db", sinks=["a", "b"]):
        plan_delivery({"a": ModelSink("db", ATOMIC), "b": ModelSink("db", ATOMIC, strategy="other")})


def test_a_sink_without_a_connection_needs_its_own_name() -> None:
    lake, db = FilesSink(folder="/lake", name="db"), ModelSink("db", ATOMIC)
    for other in (lake, db):
        with raises(ConfigurationError, "name_taken", name="db", sinks=["a", "b"]) as caught:
            plan_delivery({"a": lake, "b": other})
        assert caught.error and "one of them has no" not in caught.error.what


def test_a_pipeline_without_sinks_is_refused() -> None:
    with raises(ConfigurationError, "argument_missing", argument="sinks"):
        plan_delivery({})


def test_consecutive_checkpoints_are_grouped_up_to_the_row_limit() -> None:
    checkpoints = [staged(n, rows=10) for n in (1, 2, 3, 4, 5)]
    assert shape(checkpoints, 20) == [(2, [1, 2]), (4, [3, 4]), (5, [5])]
    assert shape(checkpoints, 1000) == [(5, [1, 2, 3, 4, 5])]
    assert shape(checkpoints, 0) == [(n, [n]) for n in (1, 2, 3, 4, 5)]


def test_a_sink_that_takes_few_rows_bounds_the_groups() -> None:
    """A larger plan would be refused in each prepare, and it stays."""
    atomic = RedisSink(key="o:{id}", strategy="atomic")
    for mode in CheckpointingMode:
        delivery = plan_delivery({"cache": atomic, "rows": ModelSink("db", ATOMIC)}, mode=mode)
        assert (delivery.at_once(1_000_000), delivery.at_once(50), delivery.at_once(0)) == (100_000, 50, 0)
    checkpoints = [staged(n, rows=50_000) for n in (1, 2, 3)]
    assert shape(checkpoints, delivery.at_once(1_000_000)) == [(2, [1, 2]), (3, [3])]
    for unbounded in (replace(atomic, strategy="upsert"), ModelSink("db", ATOMIC)):
        assert plan_delivery({"rows": unbounded}).at_once(1_000_000) == 1_000_000


def test_a_plan_keeps_to_the_rows_that_its_sinks_take(tmp_path: Path) -> None:
    world = World(tmp_path, max_rows=1_000)
    world.delivery = replace(world.delivery, most_rows=40)
    world.prepared(5)  # with 20 rows each
    plans = [checkpoint.plan for checkpoint in world.store.checkpoints(PIPELINE) if checkpoint.plan]
    assert sorted(tuple(segment.number for segment in plan.segments) for plan in plans) == [(1, 2), (3, 4), (5,)]


def test_one_large_checkpoint_is_delivered_alone() -> None:
    assert shape([staged(1, 5), staged(2, 50), staged(3, 5)], 20) == [(1, [1]), (2, [2]), (3, [3])]


def test_each_position_is_delivered_alone() -> None:
    given = Position.of("day").to_json()
    checkpoints = [staged(1, positions=given), staged(2, positions=given), staged(3, segment=None)]
    assert shape(checkpoints, 1000) == [(1, [1]), (2, [2]), (3, [])]


def test_carried_segments_go_first_and_in_order() -> None:
    assert shape([carried(1), carried(2), staged(4)], 0) == [(4, [1, 2, 4])]


def test_what_a_live_plan_holds_is_not_free() -> None:
    one, two, three = staged(1), staged(2), staged(3)
    assert [s.number for s in free_segments([one, planned(2, one, two), three])] == [3]
    aborted = dataclasses.replace(planned(2, one, two, state=CheckpointState.ABORTED), after_abort=AfterAbort.CARRIED)
    subsumed = dataclasses.replace(one, state=CheckpointState.SUBSUMED, subsumed_by=2)
    assert [s.number for s in free_segments([subsumed, aborted, three])] == [1, 2, 3]


def test_rewound_and_delivered_segments_are_not_free() -> None:
    rewound = staged(1, state=CheckpointState.ABORTED, after_abort=AfterAbort.REWOUND)
    delivered = staged(2, state=CheckpointState.SUBSUMED, delivered_by=3)
    assert free_segments([rewound, delivered]) == []


def test_segments_without_a_follower_are_stranded() -> None:
    assert [s.number for s in stranded([carried(1), carried(2)])] == [1, 2]
    assert stranded([carried(1), staged(2)]) == []


def test_a_number_without_a_segment_carries_the_others() -> None:
    assert shape([carried(1), staged(2, segment=None)], 0) == [(2, [1])]


def test_rows_of_a_sink_no_longer_declared_are_not_dropped() -> None:
    delivery = plan_delivery({"other": ModelSink("db", ATOMIC)})
    segments = [Segment(7, "d", "file:///x", {"rows": 3}, 1)]
    with raises(ConfigurationError, "sink_undeclared", checkpoint=7, sink="rows", rows=3):
        check_sinks_of_segments("p", delivery, segments)
    check_sinks_of_segments("p", delivery, [Segment(7, "d", "file:///x", {"rows": 0}, 1)])


def test_plans_and_tombstones_survive_their_way_through_json() -> None:
    plan = planned(2, staged(1), staged(2)).plan
    assert plan is not None
    assert Plan.from_json(plan.to_json()) == plan
    detail = tombstone_detail(AbortReason.DECLINED, "why", AfterAbort.REWOUND)
    assert read_tombstone(detail) == (AbortReason.DECLINED, "why", AfterAbort.REWOUND)


def test_the_declared_order_of_sinks_survives_the_decision_log() -> None:
    delivery = plan_delivery({"orders": ModelSink("db", ATOMIC), "items": ModelSink("db", ATOMIC)})
    plan = Plan("p", "i", 2, (), delivery.participants, "db")
    stored = json.loads(canonical_json(plan.to_json()))
    assert list(stored["participants"][0]["sinks"]) == ["items", "orders"]
    again = Plan.from_json(stored)
    assert list(again.participants[0].sinks) == ["orders", "items"]
    assert Plan.from_json(json.loads(canonical_json(again.to_json()))) == plan


def test_a_plan_of_an_earlier_release_still_matches() -> None:
    delivery = plan_delivery({"orders": ModelSink("db", ATOMIC), "items": ModelSink("db", ATOMIC)})
    stored = json.loads(canonical_json(delivery.participants[0].to_json()))
    del stored["order"]
    participant = ParticipantPlan.from_json(stored)
    assert list(participant.sinks) == ["items", "orders"]
    plan = Plan("p", "i", 2, (), (participant,), "db")
    assert delivery.matches(plan)


def test_the_plan_digest_depends_on_order_and_content() -> None:
    a, b = staged(1), staged(2)
    digests = {
        planned(2, a, b).plan.digest,  # type: ignore[union-attr]
        planned(2, b, a).plan.digest,  # type: ignore[union-attr]
        planned(2, b).plan.digest,  # type: ignore[union-attr]
    }
    assert len(digests) == 3
