"""What is worse than a kill: processes that stand still until their successor has finished and then go on, two runs at
once, and people who clear tasks. Each hazard is one round that must end as exactly as any other.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.chaos.faults import FAULTS, GROUP, KAFKA, MYSQL, Choice, Moment
from tests.chaos.run import RUN_SECONDS, Chaos, Violation
from tests.chaos.strike import APPEAR, LOOK, Striker
from tools.demo.run import DAG
from tools.servers import processes

PAUSE = 25.0  # seconds: longer than the lease of 10, and than the 20 after which Airflow takes a silent task for dead
TRIES = 3  # rounds until a process is met at its moment
STORM = 120.0  # seconds
AWAKE = 30.0  # seconds that a woken process gets for its mischief before its supervisor may end it


class _Freezer(Striker):
    """Waits for the moment as for a kill, then stops the supervisor with all that it has started."""

    def freeze(self) -> tuple[int, list[int]] | None:
        """(supervisor, the task and its descendants, parents first), all of them stopped; None when they were gone."""
        while not self._choice.moment.reached(self._events()):
            self._find()  # so that it is known when its moment has come, which may be short
            if self._is_over():
                return None
            time.sleep(LOOK)
        time.sleep(self._choice.delay)
        deadline = time.monotonic() + APPEAR
        while self._find() == ():
            if time.monotonic() > deadline or self._is_over():
                return None
            time.sleep(LOOK)
        found = self._world.airflow.task_process(self._try) if self._try is not None else None
        if found is None or self._try is None:
            return None
        task, supervisor = found
        processes.send([supervisor, task], signal.SIGSTOP)
        family = processes.tree(task)
        processes.send(family, signal.SIGSTOP)
        self._world.console.say(f"*** {self._try.task_id}, try {self._try.number} is frozen: {self.state()}")
        return supervisor, family

    def state(self) -> str:
        return ", ".join(f"{number} {state}" for number, state in self._world.log.unfinished()) or "nothing unfinished"


def zombie(fault: str, moment: Moment, delay: float) -> Callable[[Chaos], str]:
    """The process that is meant stands still from `moment` until its successor has finished; then it goes on.

    Its children go on first, and its supervisor last, so that nobody hinders it from doing what it was about to do.
    """

    def hazard(chaos: Chaos) -> str:
        with _frozen(chaos, Choice(FAULTS[fault], moment, delay, 0)) as (run_id, supervisor, family):
            try:
                outcome, _ = chaos.recover(run_id)
                chaos.inspect()
            finally:
                awake = list(reversed(family))
                processes.send(awake, signal.SIGCONT)
                ended = processes.await_end(awake, AWAKE)
                processes.send([supervisor], signal.SIGCONT)
            if not processes.await_end(awake, 60):
                raise Violation(f"I5: the woken {fault} is still there after {AWAKE + 60:.0f} s")
            return f"{outcome}; woken, it ended {'by itself' if ended else 'when its supervisor ended it'}"

    return hazard


def paused_driver(chaos: Chaos) -> str:
    """The Spark driver alone stands still for longer than the lease; its task goes on renewing it."""
    with _frozen(chaos, Choice(FAULTS["stage task"], Moment("TRIGGERED", 2), 0.2, 0)) as (run_id, supervisor, family):
        processes.send([supervisor, family[0]], signal.SIGCONT)
        try:
            time.sleep(PAUSE)
        finally:
            processes.send(family, signal.SIGCONT)
        outcome, _ = chaos.recover(run_id)
        return outcome


def two_runs(chaos: Chaos) -> str:
    """Two runs of the DAG are triggered at once: one has to wait for the other, both succeed."""
    with _round(chaos) as run_id:
        second = chaos.world.airflow.trigger(DAG)
        return "; ".join(f"{name}: {chaos.recover(run)[0]}" for name, run in (("first", run_id), ("second", second)))


def cleared_finished(chaos: Chaos) -> str:
    """Stage and commit tasks of a finished run are cleared while another run is at work."""
    with _round(chaos) as old:
        chaos.recover(old)
    with _round(chaos) as run_id:
        await_moment(chaos, run_id, Moment("TRIGGERED", 2))
        chaos.world.airflow.clear(DAG, old, [f"{GROUP}.stage", f"{GROUP}.commit.{MYSQL}", f"{GROUP}.commit.{KAFKA}"])
        outcome, _ = chaos.recover(run_id)
        again, _ = chaos.recover(old)
        return f"{outcome}; the cleared run: {again}"


def cleared_running(task: str, moment: Moment) -> Callable[[Chaos], str]:
    """A task is cleared while it works: Airflow ends it within seconds and starts it anew."""

    def hazard(chaos: Chaos) -> str:
        with _round(chaos) as run_id:
            await_moment(chaos, run_id, moment)
            chaos.world.airflow.clear(DAG, run_id, [f"{GROUP}.{task}"])
            return chaos.recover(run_id)[0]

    return hazard


def cleared_failed(task: str, moment: Moment) -> Callable[[Chaos], str]:
    """A task is marked as failed while it works. Then the failed tasks of its run are cleared, and it succeeds."""

    def hazard(chaos: Chaos) -> str:
        with _round(chaos) as run_id:
            await_moment(chaos, run_id, moment)
            chaos.world.airflow.fail(DAG, run_id, f"{GROUP}.{task}")
            end = time.monotonic() + RUN_SECONDS
            while not chaos.is_over(run_id):
                if time.monotonic() > end:
                    raise Violation(f"I7: {run_id} has not ended in {RUN_SECONDS:.0f} s")
                time.sleep(0.1)
            chaos.world.airflow.clear(DAG, run_id)
            outcome, _ = chaos.recover(run_id)
            if (state := chaos.world.airflow.run_state(DAG, run_id)) != "success":
                raise Violation(f"I9: {run_id} has {state} after its failed tasks were cleared")
            return outcome

    return hazard


def await_moment(chaos: Chaos, run_id: str, moment: Moment) -> None:
    """Waits for it; Violation when the run ends before."""
    while not moment.reached(chaos.world.log.events(chaos.since)):
        if chaos.is_over(run_id):
            raise Violation(f"{run_id} ended before {moment}")
        time.sleep(0.01)


def storm(chaos: Chaos) -> str:
    """For as long as a run lasts, something dies every few seconds: a task, its supervisor, MariaDB or Kafka."""
    source = random.Random(f"{chaos.options.seed}/storm")
    world, killed = chaos.world, 0
    with _round(chaos) as run_id:
        end = time.monotonic() + STORM
        while time.monotonic() < end and not chaos.is_over(run_id):
            time.sleep(source.uniform(0.5, 6))
            server = source.choice([None, None, world.mariadb, world.kafka])
            if server is not None:
                server.kill()
                time.sleep(source.uniform(0, 2))
                server.start()
            else:
                running = [t for t in world.airflow.tries(DAG, run_id) if t.state == "running"]
                found = [pids for one in running if (pids := world.airflow.task_process(one)) is not None]
                if not found:
                    continue
                processes.send([source.choice(source.choice(found))], signal.SIGKILL)
            killed += 1
        outcome, _ = chaos.recover(run_id)
        return f"{killed} kills in one run; {outcome}"


@contextmanager
def _round(chaos: Chaos) -> Iterator[str]:
    """A slice of flights and a run for it; looked at from outside in the end."""
    chaos.world.load()
    chaos.since = chaos.world.log.last_event()
    yield chaos.world.airflow.trigger(DAG)
    chaos.inspect()


@contextmanager
def _frozen(chaos: Chaos, choice: Choice) -> Iterator[tuple[str, int, list[int]]]:
    """A round in which a process stands still: (run, supervisor, the task and its descendants)."""
    for _ in range(TRIES):
        with _round(chaos) as run_id:
            freezer = _Freezer(chaos.world, choice, run_id, chaos.since, lambda: chaos.is_over(run_id))
            if (found := freezer.freeze()) is not None:
                yield run_id, *found
                return
            chaos.world.console.say("it was gone by then: once more")
            chaos.recover(run_id)
    raise Violation(f"{choice.fault.name} was not to be frozen at {choice.moment}: it was gone each time")


HAZARDS: Mapping[str, Callable[[Chaos], str]] = {
    "frozen stage": zombie("stage task", Moment("TRIGGERED", 2), 0.3),
    "frozen stage, published": zombie("stage task", Moment("STAGED", 2), 0.0),
    "frozen prepare.kafka": zombie("prepare.kafka task", Moment("ATTEMPT", 1, KAFKA, "prepare"), 0.05),
    "frozen commit.mysql": zombie("commit.mysql task", Moment("ATTEMPT", 1, MYSQL, "commit"), 0.05),
    "frozen commit.mysql, later": zombie("commit.mysql task", Moment("ATTEMPT", 2, MYSQL, "commit"), 0.02),
    "frozen commit.kafka": zombie("commit.kafka task", Moment("ATTEMPT", 1, KAFKA, "commit"), 0.1),
    "paused driver": paused_driver,
    "storm": storm,
    "two runs at once": two_runs,
    "cleared stage and commits, finished": cleared_finished,
    "cleared stage, running": cleared_running("stage", Moment("TRIGGERED", 2)),
    "cleared commit, running": cleared_running(f"commit.{MYSQL}", Moment("ATTEMPT", 1, MYSQL, "commit")),
    "cleared only failed, of stage": cleared_failed("stage", Moment("TRIGGERED", 2)),
    "cleared only failed, of commit": cleared_failed(f"commit.{MYSQL}", Moment("ATTEMPT", 1, MYSQL, "commit")),
}
