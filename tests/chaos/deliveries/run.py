"""The loop: a process delivers, something befalls it, others finish its work, the judge looks. Again."""

from __future__ import annotations

import itertools
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.chaos.deliveries.faults import NAMES, Choice, Draw, Kind, choose, deck
from tests.chaos.deliveries.judge import Judge, Verdict
from tests.chaos.deliveries.nursery import Child, Nursery
from tests.chaos.deliveries.points import Point
from tests.chaos.deliveries.report import Report, Struck
from tests.chaos.deliveries.servers import Servers, missing
from tests.chaos.deliveries.strikes import PATIENCE, End, Striker
from tests.chaos.deliveries.targets import Target
from tests.chaos.deliveries.watch import Watch
from tools.demo.console import Console

STUCK = 300.0  # seconds after which a pipeline that is not finished does not progress (I7)
REPEATS = 20  # moments that are tried for one fault
LATER = 40  # rows of a chunk that is delivered before a stopped process wakes up
ROUNDS = 8  # of a pipeline; then a new one begins with its first checkpoint
SQLITE_LOCKED = ("another process holds its write lock", "database is locked")  # the latter of Iceberg's catalog
ENOUGH = 5  # violations after which nothing is to be learnt any more
FIRST_WRITE, LAST_WRITE = "store.trigger", "store.finalise"  # between them something is unfinished


@dataclass(frozen=True)
class Options:
    """`faults`, `targets`: names to draw from, none for all. `mount`: whether disks may be mounted."""

    folder: Path
    kills: int
    seed: int
    faults: Sequence[str] = ()
    targets: Sequence[str] = ()
    mount: bool = True


@dataclass
class Pipeline:
    """One pipeline under attack: what it delivers into, and how many rows each chunk of its source has."""

    name: str
    target: Target
    store: str
    chunks: list[int] = field(default_factory=list)
    rounds: int = 0


@dataclass
class Run:
    """A run of a pipeline, over all its tries: how they ended, and their logs."""

    pipeline: Pipeline
    name: str
    max_delivery_rows: int
    all_done: bool
    defect: str = ""
    ends: list[End] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)


class QuietError(RuntimeError):
    """Something went wrong although nothing was done to it."""


@dataclass(frozen=True)
class Quiet:
    """What an undisturbed run of a target did: the points while something was unfinished, and how long it took."""

    trace: Sequence[Point]
    seconds: float


class Deliveries:
    """One chaos run over deliveries. `run` may be called once; `close` ends everything that was started."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options, self.console = options, console
        self.report = Report(options.seed, options.kills)
        self._stack = ExitStack()
        self.pipelines: list[Pipeline] = []
        self._current: dict[tuple[str, str], Pipeline] = {}
        self._quiet: dict[str, Quiet] = {}
        self._runs = 0

    def close(self) -> None:
        """Ends processes and servers."""
        self._stack.close()

    def run(self) -> Report:
        """All faults, then a last look at everything from the beginning."""
        began = time.monotonic()
        try:
            cards = deck(self.options.seed, self.options.kills, self.options.faults, self.options.targets)
            of = {server for draw in cards for server in draw.target.servers}
            servers = Servers(self.options.folder / "servers", of, mount=self.options.mount)
            self.servers = self._stack.enter_context(servers)
            self.report.disk = self.servers.store_disk.kind
            self.nursery = self._stack.enter_context(Nursery(self.options.folder / "processes"))
            self.judge = Judge(self.servers)
            self._stack.callback(self.judge.close)
            self.console.say(f"{', '.join(NAMES[name] for name in self.servers.all)} are ready")
            for draw in cards:
                self.strike(draw)
                if len(self.report.violations) >= ENOUGH:
                    return self.report
            self.judge_everything()
        except KeyboardInterrupt:
            self.report.interrupted = True
            raise
        finally:
            self.report.seconds = round(time.monotonic() - began, 1)
        return self.report

    # --- one fault ---

    def strike(self, draw: Draw) -> None:
        """One fault that counts, with as many tries as it takes."""
        quiet = self.quiet(draw.target, draw.store)
        for repeat in range(REPEATS):
            choice = choose(draw, self.options.seed, repeat, quiet.trace)
            struck = self.round(draw, choice, quiet)
            self.report.struck.append(struck)
            self.console.say(
                f"{draw.number}: {struck.fault}, {struck.target} ({struck.store}), {struck.moment}: "
                + (f"{struck.state or 'nothing unfinished'}; {struck.outcome} after {struck.recovery:.2f} s")
                + ("" if struck.counted else "; does not count")
            )
            if struck.counted or struck.outcome != "exact":
                return
        self.violation(f"{draw.fault.name} hit unfinished work of {draw.target.name} in none of {REPEATS} tries")

    def round(self, draw: Draw, choice: Choice, quiet: Quiet, defect: str = "") -> Struck:
        """New rows, a process that something befalls, its successors, and what is then there.

        `defect` is one that all these processes have (`tests.chaos.deliveries.defects`).
        """
        pipeline = self.pipeline(draw.target, draw.store)
        begun = len(pipeline.chunks)
        pipeline.chunks += choice.chunks
        pipeline.rounds += 1
        newest = draw.target.is_newest
        later = [LATER] if newest and draw.fault.kind is Kind.ZOMBIE and choice.late else []
        forward = self.judge.order(draw.target, [*pipeline.chunks, *later], begun)
        watch = Watch(lambda: self.judge.watched(draw.target, pipeline.name), forward)
        run = Run(pipeline, self._next_run(), choice.max_delivery_rows, choice.all_done, defect)
        with ExitStack() as stack:
            if newest:
                stack.enter_context(watch)
            striker = Striker(self.servers, draw, choice, quiet.seconds, lambda: self._unfinished(pipeline))
            tries = itertools.count(1)
            if draw.fault.in_recovery:
                run.ends.append(striker.prelude(self._begin(stack, run), self._order(run, next(tries))))
            child = self._begin(stack, run)
            order = self._order(run, next(tries))
            if choice.new_run:  # others belong to the next run, as if this one had failed for good
                run.name, tries = self._next_run(), itertools.count(1)

            def rival() -> Child:
                other = self._begin(stack, run)
                other.order(**self._order(run, next(tries)))
                return other

            strike = striker.strike(child, order, rival)
            run.ends += [strike.end] if strike.rival is None else [strike.rival, strike.end]
            if strike.zombie is None:
                child.kill()
            problems = self._finish(stack, run, tries, strike.zombie)
            recovered = time.monotonic()
            if later and not problems:  # and numbers after it, before a stopped process wakes up
                pipeline.chunks += later
                following = Run(pipeline, self._next_run(), choice.max_delivery_rows, True, logs=run.logs)
                problems = self._finish(stack, following, itertools.count(1), strike.zombie)
            verdict = Verdict(problems=problems) if problems else self.look(pipeline)
            if strike.zombie is not None and strike.zombie.is_stopped and verdict.exact:
                verdict = self._wake(strike.zombie, run)
        self.report.looks += watch.looks
        if watch.problems:
            verdict = replace(verdict, problems=[*verdict.problems, *watch.problems])
        if verdict.exact:
            for log in run.logs:
                log.unlink(missing_ok=True)
        else:
            self._current.pop((draw.target.name, draw.store), None)  # what follows there would be its consequence
            logs = ", ".join(log.name for log in run.logs)
            self.violation(
                f"{draw.number} {draw.fault.name}, {pipeline.name}, {choice} ({logs}): " + "; ".join(verdict.problems)
            )
        return Struck(
            number=draw.number,
            fault=draw.fault.name,
            target=draw.target.name,
            store=draw.store,
            moment=str(choice),
            state=", ".join(f"{number} {state}" for number, state in strike.state),
            counted=strike.counted,
            outcome=outcome(verdict),
            recovery=round(max(0.0, recovered - strike.at), 3),
            ends=[end.text for end in run.ends],
        )

    def _begin(self, stack: ExitStack, run: Run) -> Child:
        child = self.nursery.fork()
        stack.callback(child.close)
        run.logs.append(child.log)
        return child

    def _finish(self, stack: ExitStack, run: Run, tries: Iterator[int], zombie: Child | None) -> list[str]:
        """Successors, one after the other, until one has confirmed everything; returns why that cannot be (I7).

        SQLite knows no time-out: a process that stands still within a write keeps its lock until a person does what the
        error says, and ends it. So that is done here.
        """
        deadline = time.monotonic() + STUCK
        for number in tries:
            if final := [end.text for end in run.ends if end.final]:
                return [f"I7: a process ended for good: {final[0]}"]
            if time.monotonic() > deadline:
                return [f"I7: not finished {STUCK:.0f} s after the fault: {run.ends[-1].text}"]
            self._mend()
            child = self._begin(stack, run)
            child.order(**self._order(run, number))
            run.ends.append(End.of(child.receive(PATIENCE)))
            child.kill()
            if run.ends[-1].is_done:
                break
            if zombie is not None and any(words in run.ends[-1].text for words in SQLITE_LOCKED):
                zombie.kill()
                run.ends.append(End("the process that stood still was ended, as the error says"))
        return []

    def _wake(self, zombie: Child, run: Run) -> Verdict:
        """I5: a stopped process wakes up when all is done; it must end by itself, and change nothing."""
        pipeline = run.pipeline
        before = self.judge.rows(pipeline.target, pipeline.name)
        zombie.signal(signal.SIGCONT)
        message = zombie.receive(PATIENCE)
        run.ends.append(End.of(message))
        zombie.kill()
        if message is None:
            return Verdict(problems=[f"I7: a woken process did not end within {PATIENCE:.0f} s"])
        if run.ends[-1].final:
            return Verdict(problems=[f"I5: a woken process ended for good: {run.ends[-1].text}"])
        verdict = self.look(pipeline)
        after = self.judge.rows(pipeline.target, pipeline.name)
        if verdict.exact and any(sorted(after[sink]) != sorted(before[sink]) for sink in before):
            return Verdict(problems=["I5: a woken process has changed rows"])
        return verdict

    def look(self, pipeline: Pipeline) -> Verdict:
        """The judge on one pipeline; and nothing of anybody is left prepared."""
        try:
            verdict = self.judge.judge(pipeline.target, pipeline.store, pipeline.name, pipeline.chunks)
        except TimeoutError as error:  # an open transaction is in the way of readers
            return Verdict(problems=[f"I7: {error}"])
        left = [f"I7: a branch is left prepared on {branch}" for branch in self.judge.prepared()]
        return replace(verdict, problems=[*verdict.problems, *left]) if left else verdict

    # --- pipelines and their processes ---

    def quiet(self, target: Target, store: str) -> Quiet:
        """What an undisturbed run of the target does, and how long it takes."""
        if target.name not in self._quiet:
            pipeline = self.pipeline(target, store)
            _ = self._undisturbed(pipeline)  # the first one makes ledger, head and token
            trace, seconds = min((self._undisturbed(pipeline) for _ in range(2)), key=lambda done: done[1])
            verdict = self.look(pipeline)
            if not verdict.exact:
                raise QuietError(f"after undisturbed runs of {pipeline.name}: {'; '.join(verdict.problems)}")
            names = [point.name for point in trace]
            first, last = names.index(FIRST_WRITE), len(names) - names[::-1].index(LAST_WRITE)
            self._quiet[target.name] = Quiet(trace[first + 1 : last - 1], seconds)
        return self._quiet[target.name]

    def _undisturbed(self, pipeline: Pipeline) -> tuple[list[Point], float]:
        pipeline.chunks.append(12)
        run = Run(pipeline, self._next_run(), 0, True)
        with ExitStack() as stack:
            child = self._begin(stack, run)
            began = time.monotonic()
            child.order(**self._order(run, 1), trace=True)
            message = child.receive(PATIENCE)
            seconds = time.monotonic() - began
        if message is None or "done" not in message:
            raise QuietError(f"an undisturbed run of {pipeline.name} ended: {End.of(message).text}, {child.log}")
        child.log.unlink()
        return [Point(*point) for point in message["trace"]], seconds

    def pipeline(self, target: Target, store: str) -> Pipeline:
        """The pipeline of a target that is under attack now; a new one after some rounds."""
        found = self._current.get((target.name, store))
        if found is None or found.rounds >= ROUNDS:
            number = len(self.pipelines) + 1
            slug = re.sub(r"[^a-z0-9]+", "-", target.name)
            found = Pipeline(f"{slug}-{store}-{number}", target, store)
            self.pipelines.append(found)
            self._current[target.name, store] = found
        return found

    def _next_run(self) -> str:
        self._runs += 1
        return f"run-{self._runs}"

    def _order(self, run: Run, number: int) -> dict[str, Any]:
        pipeline = run.pipeline
        return {
            "pipeline": pipeline.name,
            "sinks": {sink: list(place) for sink, place in pipeline.target.sinks.items()},
            "places": self.servers.places(pipeline.target, pipeline.name),
            "connections": self.servers.connections(),
            "store": self.servers.store_url(pipeline.store),
            "wal": str(self.servers.log_disk.folder / "wal"),
            "run": run.name,
            "try": number,
            "chunks": list(pipeline.chunks),
            "max_delivery_rows": run.max_delivery_rows,
            "all_done": run.all_done,
            "defect": run.defect,
        }

    def _unfinished(self, pipeline: Pipeline) -> list[tuple[int, str]]:
        return self.judge.unfinished(pipeline.store, pipeline.name)

    def _mend(self) -> None:
        """Starts a server that died by itself: that is no violation, but it is told."""
        for name in missing(self.servers):
            self.console.say(f"*** {name} had died by itself and is started again")
            self.report.died.append(name)
            self.servers.restart(name)

    # --- results ---

    def violation(self, text: str) -> None:
        """Notes it, and says it at once."""
        self.report.violations.append(text)
        self.console.say(f"*** {text}")

    def judge_everything(self) -> None:
        """All pipelines once more, all topics from their beginning; the sums of what was delivered."""
        self.judge.judge_everything()
        broken = {struck.number for struck in self.report.struck if struck.outcome != "exact"}
        for pipeline in self.pipelines:
            verdict = self.look(pipeline)
            if not verdict.exact and not broken:
                self.violation(f"in the end, {pipeline.name}: {'; '.join(verdict.problems)}")
            self.report.checkpoints += len(pipeline.chunks)
            self.report.rows += sum(pipeline.chunks) * len(pipeline.target.sinks)
        self.report.judged = True


def outcome(verdict: Verdict) -> str:
    """One word for a verdict."""
    if verdict.exact:
        return "exact"
    if verdict.lost or verdict.duplicated:
        return "lost" if verdict.lost else "duplicated"
    return "stuck" if any(problem.startswith("I7") for problem in verdict.problems) else "other"
