"""kill -9 in the middle of writes: what was acknowledged is there, and nothing is half there."""

from __future__ import annotations

import os
import random
import select
import signal
from pathlib import Path

import pytest

from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import PIPELINE, Scene
from tests.store.summary import differences

pytestmark = pytest.mark.slow

S = CheckpointState
ROUNDS = 25

# What each state must have left in the event log on its way.
TOLD = {
    S.TRIGGERED: {"TRIGGERED"},
    S.STAGED: {"TRIGGERED", "STAGED"},
    S.SUBSUMED: {"TRIGGERED", "STAGED", "SUBSUMED"},
    S.PREPARED: {"TRIGGERED", "STAGED", "PLANNED", "VOTED", "PREPARED"},
    S.COMMITTING: {"TRIGGERED", "STAGED", "PLANNED", "VOTED", "PREPARED", "COMMITTING"},
    S.COMPLETED: {"TRIGGERED", "STAGED", "PLANNED", "VOTED", "PREPARED", "COMMITTING", "PROVEN", "COMPLETED"},
    S.ABORTED: {"TRIGGERED", "ABORTED"},
}


def work_for_ever(path: Path, acknowledge: int) -> None:
    """Delivers two numbers together, over and over, and tells the parent after each write that was acknowledged."""
    scene = Scene(SqliteStore(path))

    def done(state: str, number: int) -> None:
        os.write(acknowledge, f"{state} {number}\n".encode())

    scene.take(f"worker-{os.getpid()}")
    done("EPOCH", scene.epoch)
    while True:
        for c in scene.store.open_checkpoints(PIPELINE):
            if c.state in (S.STAGED, S.PREPARED):
                scene.abort(c.number)
                done("ABORTED", c.number)
            elif c.state is S.COMMITTING:
                for name in scene.promises:
                    scene.prove(c.number, name)
                done("COMPLETED", c.number)
        carried = [c.number for c in scene.store.open_checkpoints(PIPELINE) if c.is_undelivered]
        first, second = scene.stage(2)
        done("STAGED", first)
        done("STAGED", second)
        scene.prepare(second, [*carried, first, second])
        done("PREPARED", second)
        scene.decide(second)
        done("COMMITTING", second)
        for name in scene.promises:
            scene.prove(second, name)
        done("COMPLETED", second)
        scene.store.finalise(PIPELINE, second)


def test_a_killed_writer_leaves_whole_writes_only(tmp_path: Path) -> None:
    path = tmp_path / "ft.db"
    dice = random.Random(7)
    completed = 0
    for _ in range(ROUNDS):
        lines = _run_and_kill(path, dice)
        with SqliteStore(path) as store:
            scene = Scene(store)
            assert store._database.read("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
            assert store._database.read("PRAGMA foreign_key_check") == []
            _check_acknowledged(scene, lines)
            completed = _check_whole(scene)
    assert completed > 10  # the writers got somewhere between the kills


def _run_and_kill(path: Path, dice: random.Random) -> list[str]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work_for_ever(path, write)
        finally:
            os._exit(1)
    os.close(write)
    text = b""
    wanted = dice.randint(1, 15)  # acknowledgements to wait for, then some part of the next write
    while text.count(b"\n") < wanted:
        chunk = os.read(read, 4096)
        assert chunk, "the writer failed by itself"
        text += chunk
    select.select([], [], [], dice.random() * 0.004)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while chunk := os.read(read, 4096):
        text += chunk
    os.close(read)
    return text.decode().splitlines()


def _check_acknowledged(scene: Scene, lines: list[str]) -> None:
    for line in lines:
        state, number = line.split()
        if state == "EPOCH":
            assert scene.store.pipeline(PIPELINE).epoch == int(number)
        else:
            assert state in scene.kinds(int(number)), line


def _check_whole(scene: Scene) -> int:
    """Each state has its events and its neighbours in agreement; returns how many numbers are COMPLETED."""
    checkpoints = scene.store.checkpoints(PIPELINE, limit=10_000)
    completed = 0
    for checkpoint in checkpoints:
        kinds = scene.kinds(checkpoint.number)
        assert TOLD[checkpoint.state] <= set(kinds), f"{checkpoint.number} {checkpoint.state}: {kinds}"
        transitions = [kind for kind in kinds if kind in S.__members__]
        assert transitions[-1] == checkpoint.state.value
        assert checkpoint.after_abort in (None, AfterAbort.CARRIED)
        if checkpoint.state is S.COMPLETED:
            completed += 1
            assert checkpoint.plan is not None
            for segment in checkpoint.plan.segments:
                assert scene.checkpoint(segment.number).delivered_by == checkpoint.number
        elif checkpoint.delivered_by is not None:
            assert "DELIVERED" in kinds
    pipeline = scene.store.pipeline(PIPELINE)
    assert pipeline.next_number == max((c.number for c in checkpoints), default=0) + 1
    assert pipeline.epoch == scene.kinds().count("EPOCH")
    assert differences(scene.store._database) == []  # type: ignore[attr-defined]
    return completed
