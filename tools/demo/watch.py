"""Follows a run: tells each event of the decision log, lets the killers look, and returns when the run has ended."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from airflow_ft.core.model import RunKey
from airflow_ft.core.ports import Store
from tools.demo.airflow import END_STATES, Airflow
from tools.demo.console import Console
from tools.demo.killer import CommitKiller, DriverKiller, Kill

RUN_SECONDS = 900.0
LOOK_SECONDS = 0.01
ASK_SECONDS = 0.5


class Story:
    """The decision log's events of a pipeline, oldest first and each once, as text; `run` is called 'this run'."""

    def __init__(self, store: Store, pipeline: str, run: RunKey) -> None:
        self._store, self._pipeline, self._run = store, pipeline, str(run)
        self._told: set[tuple[object, ...]] = set()

    def news(self) -> Iterator[str]:
        """What has happened since the last call."""
        try:
            events = self._store.events(self._pipeline, limit=200)
        except KeyError:  # not registered yet
            return
        for event in reversed(events):
            key = (event.at, event.number, event.epoch, event.kind, event.message)
            if key not in self._told:
                self._told.add(key)
                yield event.message.replace(f"run {self._run}", "this run").replace(f"{self._run}/", "")


def watch(
    airflow: Airflow,
    dag_id: str,
    run_id: str,
    store: Store,
    pipeline: str,
    console: Console,
    rows_in_flight: Callable[[], int],
    seed: int | None = None,
) -> tuple[str, list[Kill]]:
    """Returns the run's final state and all kills; TimeoutError when it does not end in 900 s.

    `rows_in_flight` tells how many rows lie in open transactions of the database. `seed` makes the moment at which the
    driver is killed repeatable in so far as the processes are.
    """
    story = Story(store, pipeline, RunKey(dag_id, run_id))
    killers: list[DriverKiller | CommitKiller] = [
        DriverKiller(store, pipeline, random.Random(seed)),
        CommitKiller(store, pipeline, rows_in_flight),
    ]
    kills: list[Kill] = []
    deadline, next_question, next_story = time.monotonic() + RUN_SECONDS, 0.0, 0.0
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
        now = time.monotonic()
        if now >= next_story:
            next_story = now + 0.2
            for line in story.news():
                console.say(line)
        if now >= next_question:
            next_question = now + ASK_SECONDS
            state = airflow.run_state(dag_id, run_id)
            if state in END_STATES:
                for line in story.news():
                    console.say(line)
                return state, kills
        if now > deadline:
            raise TimeoutError(f"the run {run_id} did not end in {RUN_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
