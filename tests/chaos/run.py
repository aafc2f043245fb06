"""The loop: load a slice, start a run, kill, let everything recover by itself, look from outside, again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import checks
from tests.chaos.faults import FAULTS, Choice, Fault, Part, choose, deck
from tests.chaos.outside import Head, Marker, Token
from tests.chaos.report import Kill, Report
from tests.chaos.strike import Strike, Striker
from tests.chaos.world import Size, World
from tools.demo.airflow import END_STATES
from tools.demo.console import Console
from tools.demo.run import DAG

RUN_SECONDS = 600.0  # a run that has not ended by then does not progress (I7)
RUNS = 4  # so many may fail one after the other before recovery counts as stuck
REPEATS = 6  # moments that are tried for one kill
ASK = 0.5


class Violation(Exception):
    """An invariant does not hold; the message says which and how."""


@dataclass(frozen=True)
class Options:
    """`faults`: names of the kinds to draw from, none for all. `flights`: of a run."""

    folder: Path
    kills: int
    seed: int
    flights: int = Size.flights
    faults: Sequence[str] = ()
    baseline: bool = False
    hazards: Sequence[str] = ()


class Chaos:
    """One chaos run. `run` may be called once; `close` ends everything that was started."""

    def __init__(self, options: Options, console: Console) -> None:
        if unknown := sorted(set(options.faults) - set(FAULTS)):
            raise ValueError(f"no such fault: {', '.join(unknown)}; known are {', '.join(FAULTS)}")
        self.options, self.console = options, console
        self.world = World(options.folder, Size(options.flights), console)
        self.report = Report(options.seed, options.kills)
        self._markers: dict[int, Marker] = {}
        self._head: Head | None = None
        self._token: Token | None = None
        self._asked = 0.0
        self.since = 0
        """The last event before the round that is going on."""

    def close(self) -> None:
        """Ends Airflow with its tasks, then the servers."""
        self.world.close()

    def run(self) -> Report:
        """All kills, then the judge; stops at the first violation, since what follows would only be its consequence."""
        began = time.monotonic()
        try:
            self.world.start()
            if self.options.baseline:
                self.report.undisturbed = self.undisturbed()
            for number, fault in enumerate(deck(self.options.seed, self.options.kills, self.options.faults), 1):
                self.kill(number, fault)
            for name in self.options.hazards:
                self.hazard(name)
            self.judge()
        except Violation as violation:
            self.report.violations.append(str(violation))
            self.console.say(f"*** {violation}")
        except KeyboardInterrupt:
            self.report.interrupted = True
            raise
        finally:
            self.report.flights = self.world.loaded
            self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    def undisturbed(self) -> float:
        """A run in peace; returns its seconds."""
        self.world.load()
        began = time.monotonic()
        run_id = self.world.airflow.trigger(DAG)
        self.recover(run_id)
        self.inspect()
        seconds = time.monotonic() - began
        self.console.say(f"an undisturbed run took {seconds:.1f} s")
        return seconds

    def kill(self, number: int, fault: Fault) -> None:
        """One kill that counts, with as many tries as it takes."""
        for repeat in range(REPEATS):
            choice = choose(fault, self.options.seed, number, repeat)
            self.console.say(f"kill {number} of {self.options.kills}: {choice}")
            strike, outcome, recovery = self.round(choice)
            if strike is not None and strike.counts:
                self.report.kills.append(
                    Kill(
                        fault.name,
                        f"{choice.moment} + {choice.delay * 1000:.0f} ms",
                        strike.state,
                        strike.step,
                        outcome,
                        round(recovery, 1),
                        repeat,
                    )
                )
                return
            self.report.missed += 1
            self.console.say("that did not hit unfinished work: again at another moment")
        raise Violation(f"kill {number} ({fault.name}) hit unfinished work in none of {REPEATS} tries")

    def hazard(self, name: str) -> None:
        """One of `tests.chaos.hazards`."""
        from tests.chaos.hazards import HAZARDS

        self.console.say(f"hazard: {name}")
        outcome = HAZARDS[name](self)
        self.report.hazards.append((name, outcome))
        self.console.say(f"exact so far: {outcome}")

    def round(self, choice: Choice) -> tuple[Strike | None, str, float]:
        """One slice of flights with one kill, until all is recovered and looks right from outside."""
        self.world.load()
        since = self.world.log.last_event()
        run_id = self.world.airflow.trigger(DAG)
        if choice.fault.recovery:
            self.abandon(run_id, since)
            since = self.world.log.last_event()
            # The abandoned run's leases and turn are taken over by the next one; its recover has something to do.
            run_id = self.world.airflow.trigger(DAG)
        strike = Striker(self.world, choice, run_id, since, lambda: self.is_over(run_id)).strike()
        if strike is not None:
            self.console.say(f"*** kill -9 of {choice.fault.name} (pid {strike.pids}) in {strike.step}: {strike.state}")
            if choice.fault.part.is_server:
                time.sleep(choice.pause)
                (self.world.mariadb if choice.fault.part is Part.MARIADB else self.world.kafka).start()
                self.console.say(f"{choice.fault.name} is back")
        outcome, delivered_at = self.recover(run_id)
        self.inspect()
        recovery = max(0.0, delivered_at - strike.at) if strike is not None else 0.0
        self.console.say(f"exact so far: {outcome}" + (f", recovered after {recovery:.1f} s" if strike else ""))
        return strike, outcome, recovery

    def abandon(self, run_id: str, since: int) -> None:
        """Kills a run's commit task in the middle and marks the run as failed, so that it leaves things in doubt."""
        fault = FAULTS["commit.kafka task" if self.options.seed % 2 else "commit.mysql task"]
        attempt = next(moment for moment, _ in fault.moments if moment.kind == "ATTEMPT")
        Striker(self.world, Choice(fault, attempt, 0.05, 0), run_id, since, lambda: self.is_over(run_id)).strike()
        self.world.airflow.set_failed(DAG, run_id)
        self.console.say(f"{fault.name} killed, {run_id} marked as failed: {self.world.log.unfinished()}")

    def is_over(self, run_id: str) -> bool:
        """Whether Airflow calls the run over; asked now and then."""
        now = time.monotonic()
        if now - self._asked < ASK:
            return False
        self._asked = now
        return self.world.airflow.run_state(DAG, run_id) in END_STATES

    def recover(self, run_id: str) -> tuple[str, float]:
        """Waits until a run has succeeded, starting another one when it fails; returns how it went, and when all that
        was loaded was delivered by the decision log's word."""
        failed = []
        delivered_at = 0.0
        deadline = time.monotonic() + RUN_SECONDS
        while True:
            if not delivered_at and self.world.log.delivered("flights") >= self.world.loaded:
                delivered_at = time.monotonic()
            if self.is_over(run_id):
                state = self.world.airflow.run_state(DAG, run_id)
                if state == "success":
                    break
                failed.append(run_id)
                self.console.say(f"the run {run_id} has {state}: {self._failed_tasks(run_id)}")
                if len(failed) >= RUNS:
                    raise Violation(f"I7: {len(failed)} runs failed one after the other: {self._failed_tasks(run_id)}")
                run_id = self.world.airflow.trigger(DAG)
                deadline = time.monotonic() + RUN_SECONDS
            if time.monotonic() > deadline:
                raise Violation(
                    f"I7: {run_id} has not ended in {RUN_SECONDS:.0f} s; unfinished: {self.world.log.unfinished()}"
                )
            time.sleep(0.1)
        delivered = self.world.log.delivered("flights")
        if delivered != self.world.loaded:
            raise Violation(
                f"I9: {run_id} has succeeded, {delivered:,} of {self.world.loaded:,} flights are delivered by the"
                " decision log's word"
            )
        tries = self.world.airflow.tries(DAG, run_id)
        retried = [f"{t.task_id.removeprefix('flights.')} {t.number}x" for t in tries if t.number > 1]
        how = f"{', '.join(retried) or 'no retry'}" + (f"; {len(failed)} run(s) failed before" if failed else "")
        return how, delivered_at or time.monotonic()

    # --- looking from outside ---

    def inspect(self) -> None:
        """Counts, markers, head and token after a round; Violation for the first thing that is wrong."""
        outside, log = self.world.outside(), self.world.log
        problems = []
        if (rows := outside.flights()) != self.world.loaded:
            problems.append(f"I2: {self.world.loaded:,} flights were loaded, the table has {rows:,}")
        checkpoints, head, token = log.checkpoints(), outside.head(), outside.token()
        markers = outside.markers()
        problems += checks.changed_markers(self._markers.values(), markers, head)
        problems += checks.head_problems(self._head, head, self._token, token)
        self._markers |= {marker.number: marker for marker in markers}
        self._head, self._token = head, token
        problems += checks.marker_problems(list(self._markers.values()))
        problems += checks.event_problems(log.events())
        problems += checks.log_problems(checkpoints, "flights")
        problems += checks.proof_problems(checkpoints, self._markers, head, token, "flights")
        records = outside.records("delays")
        problems += checks.order_problems(outside.records("flights"), records, checkpoints, "flights")
        late = sum(c.rows.get("delays", 0) for c in checkpoints if c.published and not c.rewound)
        if len(records) != late:
            problems.append(f"I2: {late:,} late flights are in the log, {len(records):,} in Kafka")
        self.report.checkpoints = sum(c.delivered_by is not None for c in checkpoints)
        self.report.deliveries = sum(c.state == "COMPLETED" for c in checkpoints)
        if problems:
            self.report.violations += problems[1:]
            raise Violation(problems[0])

    def judge(self) -> None:
        """The multisets of everything that was loaded, by a process of its own."""
        verdict = self.world.judge()
        self.report.lost = verdict["mysql"]["missing"] + verdict["kafka"]["missing"]
        self.report.duplicated = verdict["mysql"]["duplicates"] + verdict["kafka"]["duplicates"]
        self.report.foreign = verdict["mysql"]["foreign"] + verdict["kafka"]["foreign"]
        self.report.judged = True
        if not verdict["exact"]:
            found = [*verdict["problems"], *verdict["mysql"]["examples"], *verdict["kafka"]["examples"]]
            self.report.violations += found[1:]
            raise Violation(f"the judge: {found[0] if found else 'multisets differ'}")

    def _failed_tasks(self, run_id: str) -> str:
        errors = []
        for task in self.world.airflow.tasks(DAG, run_id):
            if task.state == "failed":
                error = self.world.airflow.last_error(self.world.airflow.task_log(DAG, run_id, task))
                errors.append(f"{task.task_id} (try {task.try_number}): {error or 'no error in its log'}")
        return "; ".join(errors)
