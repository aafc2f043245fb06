"""The demonstration as a stream: flights come in all the time, a line a second tells how far they have got."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Self

from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.store.decision_log import DecisionLog
from tools.demo.airflow import END_STATES, Airflow
from tools.demo.console import Console
from tools.demo.killer import CommitKiller, DriverKiller, Kill
from tools.demo.loader import producer, records, send
from tools.demo.watch import LOOK_SECONDS, RUN_SECONDS, Asking

SECONDS = 60.0
"""In which all flights come in, unless there are kills to wait for."""
SLICES = 10
"""In a second."""
TRICKLE = 50
"""So much slower come the last flights, until all kills have struck."""
CALM = 8
"""So many checkpoints are confirmed before each kill, so that the stream is seen at work."""


class Feeder:
    """Produces flights from a thread, evenly over `SECONDS`; the last tenth trickles until `finish`."""

    def __init__(self, bootstrap: str, topic: str, flights: int) -> None:
        self._bootstrap, self._topic, self.flights = bootstrap, topic, flights
        self.sent = 0
        self.error: Exception | None = None
        self._sent_at: deque[tuple[int, float]] = deque()
        self._stop, self._finish = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder", daemon=True)

    def finish(self) -> None:
        """What is left may come."""
        self._finish.set()

    @property
    def is_done(self) -> bool:
        """Whether all has been sent."""
        return self.sent == self.flights

    def age(self, delivered: int) -> float:
        """How long ago the last one of so many was sent, in seconds."""
        while len(self._sent_at) > 1 and self._sent_at[0][0] < delivered:
            self._sent_at.popleft()
        return time.monotonic() - self._sent_at[0][1] if self._sent_at else 0.0

    def _run(self) -> None:
        found = records(self.flights)
        through = producer(self._bootstrap)
        share = max(1, round(self.flights / SECONDS / SLICES))
        held = self.flights - self.flights // 10
        try:
            while not self._stop.wait(1 / SLICES) and not self.is_done:
                slowly = self.sent >= held and not self._finish.is_set()
                upto = min(self.sent + (max(1, share // TRICKLE) if slowly else share), self.flights)
                send(through, self._topic, found[self.sent : upto])
                self.sent = upto
                self._sent_at.append((upto, time.monotonic()))
        except Exception as error:
            self.error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@dataclass
class Progress:
    """What the decision log says of a stream's deliveries."""

    rows: int = 0
    newest: int = 0

    def look(self, store: DecisionLog, pipeline: str, sink: str) -> None:
        """Adds what was confirmed since the last look."""
        for checkpoint in reversed(store.checkpoints(pipeline, limit=200)):
            if checkpoint.number > self.newest and checkpoint.state == "COMPLETED" and checkpoint.plan is not None:
                self.rows += sum(segment.rows.get(sink, 0) for segment in checkpoint.plan.segments)
                self.newest = checkpoint.number


@dataclass(frozen=True)
class Savepoint:
    """Where a stream is to leave one, when so many rows are delivered."""

    folder: str
    rows: int


def follow(
    airflow: Airflow,
    dag_id: str,
    run_id: str,
    store: DecisionLog,
    pipeline: str,
    console: Console,
    killers: list[DriverKiller | CommitKiller],
    feeder: Feeder,
    progress: Progress,
    savepoint: Savepoint | None = None,
) -> tuple[str, list[Kill]]:
    """Tells how the stream goes, lets the killers look, and stops it when all flights are there.

    With `savepoint` it is stopped before, with one. Returns the run's final state and all kills; TimeoutError after
    900 s.
    """
    kills: list[Kill] = []
    asked, before, struck = False, progress.rows, progress.newest
    deadline, next_line = time.monotonic() + RUN_SECONDS, time.monotonic() + 1.0
    with Asking(lambda: airflow.run_state(dag_id, run_id)) as asking:
        while True:
            if feeder.error is not None:
                raise feeder.error
            known = any(each.name == pipeline for each in store.pipelines())
            calm = progress.newest - struck >= CALM
            if killers and calm and (kill := killers[0].look(list(store.open_checkpoints(pipeline)))):
                console.say(f"*** {kill}")
                kills.append(kill)
                if kill.counts:
                    killers.pop(0)
                    struck = progress.newest
            if not killers and savepoint is None:
                feeder.finish()
            if time.monotonic() >= next_line:
                next_line += 1.0
                if known:
                    progress.look(store, pipeline, pipeline)
                lag = feeder.sent - progress.rows
                latency = feeder.age(progress.rows) if lag else 0.0
                console.say(
                    f"checkpoint {progress.newest:>4} | {progress.rows:>7,} flights delivered,"
                    f" {progress.rows - before:>6,} in this second | lag {lag:>6,} | latency {latency:4.1f} s"
                )
                before = progress.rows
                if savepoint is not None and not killers and not asked and progress.rows >= savepoint.rows:
                    asked = True
                    console.say("airflow ft stop --savepoint")
                    store.ask(pipeline, RequestKind.STOP, {"savepoint": savepoint.folder}, "make demo")
                if feeder.is_done and progress.rows >= feeder.flights and not asked:
                    asked = True
                    console.say("all flights are there: airflow ft stop")
                    store.ask(pipeline, RequestKind.STOP, {}, "make demo")
                if (state := asking.answer()) in END_STATES:
                    return state, kills
            if time.monotonic() > deadline:
                raise TimeoutError(f"the stream {run_id} did not end in {RUN_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)
