"""What a list says of each pipeline is kept with every write; and every write shows to who has asked before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_ft.protocol.errors import FencedError
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import PLAIN, AfterAbort, CheckpointState, RunKey, StateSizes
from airflow_ft.protocol.timing import Delivered
from airflow_ft.store.summary import FEW, NEWEST
from tests.protocol.systems import Metered
from tests.store.flatness import every_operation
from tests.store.scene import PIPELINE, RUN, Scene
from tests.store.summary import differences

S = CheckpointState
SIZES = StateSizes(120, 4_000, 3)


class _Counting:
    """A database that knows whether a write has changed a row."""

    def __init__(self, database: Any) -> None:
        self._database, self.changed = database, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    @contextmanager
    def write(self) -> Iterator[Any]:
        with self._database.write() as tx:
            plain = tx.change

            def change(sql: str, *values: object) -> int:
                changed: int = plain(sql, *values)
                self.changed += changed
                return changed

            tx.change = change
            yield tx


class _Watched:
    """A store that compares its mark before and after each operation with what the operation has written."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._database = store._database = _Counting(store._database)
        self.event_texts: dict[str, set[bool]] = {}

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, name)
        if not callable(operation):
            return operation

        def call(*args: Any, **named: Any) -> Any:
            before, self._database.changed = self._store.mark(), 0
            try:
                return operation(*args, **named)
            finally:
                has_written = self._database.changed > 0
                of_a_pipeline = has_written and name != "remember_root"  # a root is the whole log's
                assert (self._store.mark() != before) is of_a_pipeline, name
                self.event_texts.setdefault(name, set()).add(has_written)

        return call


class TestSummary:
    def test_every_write_is_seen_in_the_mark_and_no_look(self, scene: Scene) -> None:
        watched = _Watched(scene.store)
        every_operation(watched)  # type: ignore[arg-type]
        writers = {name for name, written in watched.event_texts.items() if True in written}
        assert writers >= {
            "trigger",
            "publish",
            "renew_lease",
            "record_lags",
            "record_state_sizes",
            "read_all",
            "enter_turn",
        }
        assert not writers & {"overviews", "recent", "doing", "timings", "checkpoints", "lags", "overview", "pipeline"}

    def test_a_write_is_seen_whatever_the_clock_says(self, scene: Scene) -> None:
        """A second write within a microsecond, or after the clock was put back."""
        store = scene.store
        scene.stage()
        marks = [store.mark(), store.mark(PIPELINE)]
        other = Scene(store, "other")
        assert store.mark() != marks[0] and store.mark(PIPELINE) == marks[1], "that is of another pipeline"
        database = store._database  # type: ignore[attr-defined]
        with database.write() as tx:
            tx.change("UPDATE pipeline SET changed_at = changed_at + 3600000000")
        for each in (scene, other, scene):
            before = store.mark(), store.mark(each.pipeline)
            each.take()
            assert store.mark() != before[0] and int(store.mark(each.pipeline).rpartition(":")[2]) > int(
                before[1].rpartition(":")[2]
            )

    def test_of_many_pipelines_the_newest_tell(self, scene: Scene) -> None:
        store = scene.store
        for number in range(NEWEST + 5):
            store.register(f"many-{number:03}")
        before = store.mark()
        assert len(before.split()) == NEWEST and PIPELINE not in before
        scene.take()
        assert store.mark() != before and store.mark().startswith(f"{PIPELINE}:")
        with pytest.raises(KeyError):
            store.mark("nowhere")

    def test_times_are_kept_where_the_pipeline_may_be_late(self, scene: Scene) -> None:
        """As the tables say them, after each step."""
        store, database = scene.store, scene.store._database  # type: ignore[attr-defined]
        queries = {
            "confirmed_at": "SELECT completed_at FROM checkpoint WHERE pipeline = name AND state = 'COMPLETED'"
            " ORDER BY number DESC LIMIT 1",
            "read_at": "SELECT max(read_as_of) FROM run WHERE pipeline = name",
            "complete_at": "SELECT max(stage_began) FROM run WHERE pipeline = name AND complete = 1",
        }
        wanted = ", ".join(f"({query}) AS wanted_{name}" for name, query in queries.items())
        seen = set()

        def kept() -> None:
            [row] = database.read(f"SELECT pipeline.*, {wanted} FROM pipeline")
            for name in queries:
                assert row[name] == row[f"wanted_{name}"], name
                seen.add((name, row[name] is not None))

        scene.stage(2, made_with={"late_after": 60.0}, continues=True)
        kept()
        scene.complete(1)
        kept()
        store.read_all(PIPELINE, scene.epoch, RUN, store.now())
        kept()
        store.end_stage(PIPELINE, scene.epoch, RUN, None)
        kept()
        store.begin_stage(PIPELINE, scene.epoch, RUN, spec={"late_after": 60.0})
        kept()
        assert seen == {(name, known) for name in queries for known in (False, True)}

    def test_a_summary_keeps_the_alphabetically_first_and_last_dag(self, scene: Scene) -> None:
        store = scene.store
        scene.take()
        dags = []
        for dag in ("m", "z", "b", "k"):
            store.trigger(PIPELINE, scene.epoch, RunKey(dag, "1"))
            dags.append(store.overview(PIPELINE).dags)
        store.trigger(PIPELINE, scene.epoch, None)
        assert dags == [("m",), ("m", "z"), ("b", "z"), ("b", "z")]
        assert store.overview(PIPELINE).dags == ("b", "z")

    def test_a_dag_that_restores_a_known_pipeline_is_not_its_own(self, scene: Scene) -> None:
        """The page would wait for a run of the maintenance DAG while the pipeline's own DAG is paused."""
        store, restores = scene.store, RunKey("maintenance", "1")
        scene.take()
        store.restore(PIPELINE, scene.epoch, None, "from the beginning", restores, "the beginning")
        assert store.overview(PIPELINE).dags == ("maintenance",), "no other DAG is known yet"
        store.enter_turn(PIPELINE, RUN, None)
        assert store.overview(PIPELINE).dags == (RUN.dag_id,)
        assert differences(store._database) == []  # type: ignore[attr-defined]
        store.take_epoch("other", store.register("other").epoch, {}, Worker("w").lease(), "a test")
        store.enter_turn("other", RUN, None)
        store.restore("other", store.pipeline("other").epoch, None, "as before", restores, "the beginning")
        store.enter_turn("other", RunKey("second", "1"), None)
        assert store.overview("other").dags == (RUN.dag_id, "second"), "a DAG that has worked on it stays"
        store.take_epoch("third", store.register("third").epoch, {}, Worker("w").lease(), "a test")
        store.restore("third", store.pipeline("third").epoch, None, "from the beginning", restores, "the beginning")
        store.enter_turn("third", RunKey(f"{PLAIN}third", "1"), None)
        assert "maintenance" in store.overview("third").dags, "if no DAG were known, all users would see it"

    def test_what_is_open_is_counted_also_where_it_is_much(self, scene: Scene) -> None:
        """Counted as the table says it, after whatever is done to one of many; and mended when few are left."""
        store, database = scene.store, scene.store._database  # type: ignore[attr-defined]

        def kept() -> tuple[int, int, int]:
            found = store.overview(PIPELINE)
            states = [each.state for each in store.open_checkpoints(PIPELINE)]
            counted = found.quarantined, found.committing, found.undelivered
            assert counted == (states.count(S.QUARANTINED), states.count(S.COMMITTING), store.undelivered(PIPELINE))
            return counted

        numbers = scene.stage(FEW + 20, continues=True)
        assert kept() == (0, 0, FEW + 20)
        scene.abort(numbers[0])
        assert kept() == (0, 0, FEW + 20), "its rows are carried"
        scene.prepare(numbers[1], numbers[:2])
        scene.decide(numbers[1])
        assert kept() == (0, 1, FEW + 20)
        scene.quarantine(numbers[1])
        assert kept() == (1, 0, FEW + 20)
        scene.release(numbers[1])
        assert kept() == (0, 1, FEW + 20)
        for name in scene.promises:
            scene.prove(numbers[1], name)
        assert kept() == (0, 0, FEW + 18)
        scene.carry()
        assert kept() == (0, 0, FEW + 18)
        with database.write() as tx:  # wrong, for whatever reason
            tx.change("UPDATE pipeline SET quarantined = 7, undelivered = 7")
        scene.trigger()
        scene.abort(numbers[-1], AfterAbort.REWOUND, numbers[4])
        assert kept() == (0, 0, 2)

    def test_an_epoch_corrects_wrong_counts(self, scene: Scene) -> None:
        database = scene.store._database  # type: ignore[attr-defined]
        scene.complete(scene.stage()[0])
        with database.write() as tx:
            tx.change("UPDATE pipeline SET quarantined = 1, committing = 1, undelivered = 2")
        assert len(differences(database)) == 3
        scene.take()
        assert differences(database) == []

    def test_dags_in_another_order_stay_known(self, scene: Scene) -> None:
        """PostgreSQL may have 'a' before 'B' (`tests/integration/test_store_postgres.py`)."""
        scene.take()
        for dag in ("a", "B"):
            scene.trigger(RunKey(dag, "1"))
        with scene.store._database.write() as tx:  # type: ignore[attr-defined]
            tx.change("UPDATE pipeline SET first_dag = 'a', last_dag = 'B'")
        scene.trigger(RunKey("B", "2"))
        assert scene.store.overview(PIPELINE).dags == ("B", "a")
        assert [each.name for each in scene.store.overviews("a")] == [PIPELINE]

    def test_what_the_newest_of_several_pipelines_brought(self, scene: Scene) -> None:
        store, other = scene.store, Scene(scene.store, "other")
        scene.stage(4)
        for number in (1, 2, 3):
            scene.complete(number)
        other.stage(1)
        other.complete(1)
        found = store.recent([PIPELINE, "other", "nowhere"], 2)
        at = scene.checkpoint(3).completed_at
        assert at is not None and found[PIPELINE][0] == Delivered(3, 11, at)
        assert {name: [each.number for each in of] for name, of in found.items()} == {PIPELINE: [3, 2], "other": [1]}
        assert not store.recent([], 2)

    def test_rows_delivered_with_a_later_number_count(self, scene: Scene) -> None:
        scene.store.meter = meter = Metered()
        scene.stage(3)
        scene.complete(3, [1, 2, 3])
        [timing] = [call[-1] for call in meter.calls if call[0] == "completed"]
        assert (timing.rows, timing.bytes) == (33, 3 * 4_100_000)
        [delivered] = scene.store.recent([PIPELINE], 5)[PIPELINE]
        assert (delivered.number, delivered.rows) == (3, 33)

    def test_what_several_holders_say_of_themselves(self, scene: Scene) -> None:
        store, other = scene.store, Scene(scene.store, "other")
        for each in (scene, other):
            each.take()
        assert not store.doing([PIPELINE, "other"]) and not store.doing([])
        store.renew_lease(PIPELINE, scene.epoch, "worker", "it counts")
        assert store.doing([PIPELINE, "other"]) == {PIPELINE: ["it counts"]}


class TestReportedByTheDriver:
    def test_a_checkpoint_keeps_how_large_the_state_was(self, scene: Scene) -> None:
        store = scene.store
        scene.stage(2)
        before = store.events(PIPELINE)
        store.record_state_sizes(PIPELINE, scene.epoch, 1, SIZES)
        assert [each.state_sizes for each in store.checkpoints(PIPELINE)] == [None, SIZES]
        assert [each.state_sizes for each in store.timings(PIPELINE, 5)] == [None, SIZES]
        store.record_state_sizes(PIPELINE, scene.epoch, 1, replace(SIZES, replayed=4))
        sizes = scene.checkpoint(1).state_sizes
        assert sizes is not None and sizes.replayed == 4, "the last word counts"
        assert store.events(PIPELINE) == before
        old = scene.epoch
        scene.take()
        with pytest.raises(FencedError):
            store.record_state_sizes(PIPELINE, old, 1, SIZES)

    def test_a_checkpoint_keeps_the_id_of_its_spark_application(self, scene: Scene) -> None:
        scene.take()
        scene.store.trigger(PIPELINE, scene.epoch, RUN, "application_17_0004")
        scene.trigger()
        scene.abort(1)
        assert [scene.checkpoint(number).application for number in (1, 2)] == ["application_17_0004", ""]


def test_a_write_costs_the_same_however_many_are_open(scene: Scene) -> None:
    """In SQLite, whose steps can be counted."""
    database = scene.store._database  # type: ignore[attr-defined]
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def cost() -> int:
        nonlocal steps
        number = scene.trigger()
        with database.write() as tx:  # by the connection that is used next
            tx._connection.set_progress_handler(step, 1)
        steps = 0
        scene.publish(number)
        return steps

    scene.stage(FEW + 10, continues=True)
    first = cost()
    scene.stage(150, continues=True)
    assert 0 < cost() < 1.1 * first
