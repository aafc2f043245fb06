"""What an operation costs does not depend on the length of the history."""

from __future__ import annotations

import inspect
from pathlib import Path

from airflow_ft.protocol.position import Position
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.sqlite import SqliteStore
from airflow_ft.store.summary import LISTED
from tests.store.flatness import INDEXES, every_operation, recorded
from tests.store.scene import PIPELINE, RUN, Scene

ALL = (
    "FROM pipeline ORDER BY name", "FROM pipeline WHERE first_dag = ?", "FROM pipeline WHERE former IS NOT NULL",
    "FROM pipeline AS p JOIN delivery",
)  # fmt: skip
"""What goes through all pipelines: that is what it is for, or a person asks for it."""
NEWEST = "FROM pipeline ORDER BY changed_at DESC"
"""The end of an index, of which so many entries are read: it asks whether any has changed."""

EVENTS = (
    "SELECT * FROM event WHERE pipeline = ? ORDER BY id DESC LIMIT ?",
    "SELECT * FROM event WHERE pipeline = ? AND kind IN (?, ?) ORDER BY id DESC LIMIT ?",
)
"""The newest events. Those of some kinds are read for a person who stops a stream."""


def test_every_statement_is_a_look_up_in_the_right_index(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "ft.db") as store:
        statements = recorded(store, every_operation)
        found = set()
        for sql, values in statements:
            steps = [row["detail"] for row in store._database.read(f"EXPLAIN QUERY PLAN {sql}", *values)]
            plan = "\n".join(steps)
            scans = [
                step for step in steps if step.startswith("SCAN") and step != "SCAN c" and "CONSTANT ROW" not in step
            ]
            if sql == LISTED or any(part in sql for part in ALL):
                assert "SCAN checkpoint" not in plan.replace("SCAN c USING INDEX checkpoint_open", ""), plan
                assert "SCAN c\n" not in f"{plan}\n", plan
                continue
            if "FROM barrier ORDER BY injected_at" in sql:  # the newest, in the index's own order
                assert scans == ["SCAN barrier USING INDEX barrier_at"] and len(steps) == 1, plan
                scans = []
            if sql == "SELECT name, changed_at FROM pipeline":  # the version tokens of all of them
                assert steps == ["SCAN pipeline USING COVERING INDEX pipeline_changed"], plan
                scans = []
            if "AS location FROM" in sql:  # of all pipelines, once for a root without a marker
                assert "SCAN checkpoint" not in plan.replace("SCAN checkpoint USING INDEX checkpoint_open", ""), plan
                continue
            if NEWEST in sql:
                assert steps == ["SCAN pipeline USING COVERING INDEX pipeline_changed"] and "LIMIT" in sql, plan
                scans = []
            if sql.startswith("SELECT * FROM (SELECT pipeline, number"):  # the newest of several pipelines
                looks = [step for step in steps if "checkpoint" in step]
                assert looks == ["SEARCH checkpoint USING INDEX checkpoint_completed (pipeline=?)"] * 2, plan
                scans = []
            assert not scans, f"{sql}\n{plan}"
            histories = [step for step in steps if step.startswith(("SEARCH event ", "SEARCH run "))]
            if sql not in EVENTS:
                assert not any(step.endswith("_1 (pipeline=?)") for step in histories), f"{sql}\n{plan}"
            votes = [step for step in steps if step.startswith(("SEARCH v ", "SEARCH vote "))]
            assert all("number=?" in step or "number>?" in step for step in votes), f"{sql}\n{plan}"
            for part, index in INDEXES.items():
                if part in sql and sql.startswith("SELECT"):
                    found.add(part)
                    assert index in plan, f"{sql}\n{plan}"
            if sql.startswith("SELECT") and "checkpoint" in sql and not any(part in sql for part in INDEXES):
                assert "number=?" in plan or "ORDER BY number DESC LIMIT ?" in sql, f"{sql}\n{plan}"
        assert found == set(INDEXES)


def test_every_operation_of_the_protocol_is_recorded() -> None:
    names = {name for name, _ in inspect.getmembers(DecisionLog, inspect.isfunction) if not name.startswith("_")}
    operations = names - {"close", "now", "know_roots", "root", "remember_root", "locations_below", "marks"}
    from tests.store import flatness, scene

    text = inspect.getsource(flatness) + inspect.getsource(scene)
    assert [name for name in sorted(operations) if f"store.{name}(" not in text] == []


def test_many_tries_of_a_position_are_read_in_linear_time(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "ft.db") as store:
        Scene(store).take()
        connection = store._database._take()
        counted = [0]

        def count() -> int:
            counted[0] += 1
            return 0

        connection.set_progress_handler(count, 10)  # each ten instructions
        store._database._pool.give(connection)
        costs = []
        for tries in (20, 60):
            for _ in range(tries):
                store.trigger(PIPELINE, 1, RUN, positions=Position.of(1).to_json())
            counted[0] = 0
            [last] = store.unpublished_positions(PIPELINE)
            costs.append(counted[0])
        assert last.number == 80
        assert costs[1] < 6 * costs[0], "four times as many"
