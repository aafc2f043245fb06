"""Follows a run: tells each event of the decision log, lets the killers look, and returns when the run has ended."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

from airflow_ft.protocol.model import RunKey
from airflow_ft.store.decision_log import DecisionLog
from tools.demo.airflow import END_STATES, Airflow
from tools.demo.console import Console
from tools.demo.killer import CommitKiller, DriverKiller, Kill

RUN_SECONDS = 900.0
LOOK_SECONDS = 0.01
ASK_SECONDS = 0.5


class Story:
    """The decision log's events of a pipeline, oldest first and each once, as text; `run` is called 'this run'."""

    def __init__(self, store: DecisionLog, pipeline: str, run: RunKey) -> None:
        self._store, self._pipeline, self._run = store, pipeline, str(run)
        self._reported: set[tuple[object, ...]] = set()

    def news(self) -> Iterator[str]:
        """What has happened since the last call."""
        try:
            events = self._store.events(self._pipeline, limit=200)
        except KeyError:  # not registered yet
            return
        for event in reversed(events):
            key = (event.at, event.number, event.epoch, event.kind, event.message)
            if key not in self._reported:
                self._reported.add(key)
                yield event.message.replace(f"run {self._run}", "this run").replace(f"{self._run}/", "")


def choose_killers(
    store: DecisionLog,
    pipeline: str,
    statement: Callable[[str], str],
    seed: int | None = None,
    *,
    streaming: bool = False,
) -> list[DriverKiller | CommitKiller]:
    """Who strikes, one after the other: the driver while it computes, then whoever commits: of a stream its one task.

    `statement` is what a participant executes now, "" if nothing. `seed` makes the moment at which the driver is killed
    repeatable in so far as the processes are.
    """
    stage, commit = ("stream", "stream") if streaming else ("stage", "commit.{}")
    return [DriverKiller(store, pipeline, random.Random(seed), stage), CommitKiller(store, pipeline, statement, commit)]


def watch(
    airflow: Airflow,
    dag_id: str,
    run_id: str,
    store: DecisionLog,
    pipeline: str,
    console: Console,
    killers: list[DriverKiller | CommitKiller],
) -> tuple[str, list[Kill]]:
    """Returns the run's final state and all kills; TimeoutError when it does not end in 900 s."""
    story = Story(store, pipeline, RunKey(dag_id, run_id))
    kills: list[Kill] = []
    deadline, next_story = time.monotonic() + RUN_SECONDS, 0.0
    # Airflow is asked beside this loop: on a busy machine it may take its time, and a kill must not wait for it.
    with Asking(lambda: airflow.run_state(dag_id, run_id)) as asking:
        while True:
            if killers and any(p.name == pipeline for p in store.pipelines()):
                kill = killers[0].look(list(store.open_checkpoints(pipeline)))
                if kill is not None:
                    for line in story.news():
                        console.say(line)
                    console.say(f"*** {kill}")
                    kills.append(kill)
                    if kill.counts:
                        killers.pop(0)
            if time.monotonic() >= next_story:
                next_story = time.monotonic() + 0.2
                state = asking.answer()
                for line in story.news():
                    console.say(line)
                if state in END_STATES:
                    return state, kills
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run {run_id} did not end in {RUN_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)


class Asking:
    """Repeats a question from a thread; `answer` is the newest answer, or raises what the question raised."""

    def __init__(self, question: Callable[[], str]) -> None:
        self._question = question
        self._answer = ""
        self._error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ask-airflow", daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(ASK_SECONDS):
            try:
                self._answer = self._question()
            except Exception as error:
                self._error = error
                return

    def answer(self) -> str:
        if self._error is not None:
            raise self._error
        return self._answer

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
