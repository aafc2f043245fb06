"""What the sources hear of what is confirmed (`retention.finalise`): never of more than that."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import Checkpoint, RunKey, Segment, SparkPosition
from airflow_ft.protocol.retention import finalise
from airflow_ft.protocol.steps import commit_step, prepare_step
from tests.protocol.world import PIPELINE, World

NEXT = RunKey("dag", "run-2")


def test_sources_hear_nothing_beyond_an_unconfirmed_checkpoint(tmp_path: Path) -> None:
    """The sink was taken out of the DAG meanwhile, so later ones are confirmed without it. A group that stands behind
    the rows that it still lacks would skip them for whoever begins there, as after a lost decision log.
    """
    world = World(tmp_path, max_rows=1)
    world.prepared(1)
    world.systems["log"].away = True
    commit_step(world.context(), "db")  # decides
    with suppress(SinkUnavailableError):
        commit_step(world.context(), "log")
    store = world.store
    world.delivery = world.deliver_into({"rows": "db"})
    store.leave_turn(PIPELINE, world.context().run)
    store.enter_turn(PIPELINE, NEXT, None)
    with new_epoch(store, PIPELINE, Worker(f"{NEXT}/step"), "stage", 0.03) as (epoch, _):
        store.begin_stage(PIPELINE, epoch, NEXT)
        for _ in range(2):
            number, before = store.trigger(PIPELINE, epoch, NEXT), store.pipeline(PIPELINE).last_published
            segment = Segment(number, f"{number:064x}", f"file:///wal/{number}", {"rows": 10}, 100)
            position = SparkPosition(f"file:///spark/{epoch}-1", number)
            store.publish(PIPELINE, epoch, number, before, segment, position, {})
        store.end_stage(PIPELINE, epoch, NEXT, None)
    context = world.context(run=NEXT)
    prepare_step(context, world.delivery, world.config, "db")
    commit_step(context, "db")
    assert [store.checkpoint(PIPELINE, number).is_confirmed for number in (1, 2, 3)] == [False, True, True]
    seen_requests: list[int] = []

    def progress(checkpoint: Checkpoint) -> None:
        seen_requests.append(checkpoint.number)

    assert not finalise(store, PIPELINE, progress)
    assert seen_requests == []
    waiting = [c.number for c in store.open_checkpoints(PIPELINE) if c.is_confirmed]
    assert waiting == [3], "the newest says it all, when the time has come"

    world.systems["log"].away = False
    commit_step(context, "log")
    assert finalise(store, PIPELINE, progress)
    assert seen_requests == [3]
    assert finalise(store, PIPELINE, progress) and seen_requests == [3]
