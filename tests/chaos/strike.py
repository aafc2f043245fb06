"""Carrying out a kill: waits for its moment, finds the process, kills it, and says what the decision log showed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.chaos.airflow import Try, descendants
from tests.chaos.decision_log import NOT_FINALISED, UNFINISHED, Event
from tests.chaos.faults import Choice, Part
from tests.chaos.world import World
from tools.demo.run import DAG
from tools.servers import processes

LOOK = 0.01
ASK = 0.3
APPEAR = 20.0  # seconds for which a process may be late for its own death
DRIVER = "org.apache.spark.deploy.SparkSubmit"


@dataclass(frozen=True)
class Strike:
    """A kill. `before` and `after` are the unfinished checkpoints around it, as (number, state); `at` is monotonic.

    `had_turn`: its run had not yet given the pipeline's turn back, the last thing that a run does.
    """

    choice: Choice
    pids: tuple[int, ...]
    step: str
    before: Sequence[tuple[int, str]]
    after: Sequence[tuple[int, str]]
    at: float
    had_turn: bool

    @property
    def counts(self) -> bool:
        """Whether it hit unfinished work; for `confirmed` what follows COMPLETED (finalising, pruning) is its work."""
        if self.choice.fault.task.endswith(".confirmed"):
            return self.had_turn
        return any(state in UNFINISHED for _, state in self.after)

    @property
    def state(self) -> str:
        """The states hit, each with how many checkpoints were in it: '2 STAGED, 1 TRIGGERED'."""
        found = [state for _, state in self.after]
        order = (NOT_FINALISED, *reversed(UNFINISHED))
        text = ", ".join(f"{found.count(state)} {state}" for state in order if state in found)
        return text or ("all COMPLETED, the run not ended" if self.had_turn else "nothing unfinished")


class Striker:
    """Waits for the moment of one kill in a run, without ever being in the way of the run."""

    def __init__(self, world: World, choice: Choice, run_id: str, since: int, is_over: Callable[[], bool]) -> None:
        self._world, self._choice, self._run, self._since = world, choice, run_id, since
        self._is_over = is_over
        self._asked = 0.0
        self._try: Try | None = None

    def strike(self) -> Strike | None:
        """Kills, once; None when the run ended before its moment, or the process was gone by then."""
        if not self._await_moment():
            return None
        time.sleep(self._choice.delay)
        if self._choice.fault.part.is_server:
            return self._kill_server()
        deadline = time.monotonic() + APPEAR
        while not (pids := self._find()):
            if time.monotonic() > deadline or self._is_over():
                return None
            time.sleep(LOOK)
        before = self._world.log.unfinished()
        at = time.monotonic()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return None
        processes.await_end(pids, 10)
        assert self._try is not None
        step = f"{self._try.task_id}, try {self._try.number}"
        return self._result(pids, step, before, at)

    def _await_moment(self) -> bool:
        moment = self._choice.moment
        while True:
            if moment.kind == "RUNNING":
                if self._find():
                    return True
            elif moment.reached(self._events()):
                return True
            if self._is_over():
                return False
            time.sleep(LOOK)

    def _events(self) -> list[Event]:
        return self._world.log.events(self._since)

    def _kill_server(self) -> Strike:
        server = self._world.mariadb if self._choice.fault.part is Part.MARIADB else self._world.kafka
        pid = server.pid
        before = self._world.log.unfinished()
        at = time.monotonic()
        server.kill()
        return self._result((pid,), server.name, before, at)

    def _result(self, pids: tuple[int, ...], step: str, before: Sequence[tuple[int, str]], at: float) -> Strike:
        log = self._world.log
        return Strike(self._choice, pids, step, before, log.unfinished(), at, log.turn() == self._run)

    def _find(self) -> tuple[int, ...]:
        """The processes to be killed; none when they are not at work now."""
        found = self._world.airflow.task_process(self._try) if self._try is not None else None
        if found is None and time.monotonic() - self._asked > ASK:
            self._asked = time.monotonic()
            tries = self._world.airflow.tries(DAG, self._run)
            self._try = next((t for t in tries if t.task_id == self._choice.fault.task), None)
            found = self._world.airflow.task_process(self._try) if self._try is not None else None
        if found is None:
            return ()
        task, supervisor = found
        match self._choice.fault.part:
            case Part.TASK:
                return (task,)
            case Part.SUPERVISOR:
                return (supervisor,)
            case Part.DRIVER:
                return tuple(pid for pid in descendants(task, DRIVER, "airflow-ft-stage-"))[:1]
            case Part.PYTHON:
                return tuple(pid for pid in descendants(task, "airflow-ft-stage-", "main.py") if _is_python(pid))[:1]
            case Part.WORKER:
                return tuple(descendants(task, "pyspark.daemon"))
            case _:
                raise ValueError(self._choice.fault.part)


def _is_python(pid: int) -> bool:
    """Whether it is the driver's Python, and not the JVM, which has the same script in its command line."""
    return DRIVER not in processes.command_line(pid)
