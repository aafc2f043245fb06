"""What a checkpoint costs in the decision log, against how many there were before: it must stay the same.

And what each operation takes behind a long history, in ordinary runs and all in one run, as a stream has it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.model import ParticipantPlan, Plan, Promise, RunKey, Segment, SparkPosition
from airflow_ft.protocol.pipelines import Lease
from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from benchmarks.bench import Bench, say
from benchmarks.measuring import Claim, Comparison, Contender, MeasurementError

PIPELINE, RUN = "history", RunKey("dag", "run")
FLAT = 1 / 1.2
CHECKPOINTS = 30  # in a measurement
SAMPLES = 200  # of an operation, at least
TOGETHER = 20  # so many checkpoints are finalised, pruned and forgotten at once
WAITING = 1_000  # checkpoints that nobody delivers, in the worst case: "many"
LIMIT_MS = 5.0
PARTICIPANTS = {"db": Promise.ATOMIC, "log": Promise.REDO}


def history(bench: Bench) -> Iterator[Comparison]:
    """For each database logs with a short and a long history; each measurement adds some checkpoints to them."""
    sizes = (1_000, 20_000) if bench.quick else (1_000, 1_000_000)
    for name, open_log in (("SQLite", _sqlite), ("PostgreSQL", _postgres)):
        small, large = (Log(open_log(bench, f"runs_{size}"), size, RUNS) for size in sizes)
        contenders = [Contender(f"{name}, {log.size:,} before", log.checkpoints) for log in (small, large)]
        one, other = (contender.name for contender in contenders)
        claims = [Claim(f"a checkpoint in the store: {one} against {other}", other, (one,), FLAT)]
        title = f"One checkpoint in the decision log ({name}), from TRIGGERED to finalised and pruned"
        yield Comparison(f"history/{name}", title, contenders, claims, unit="ms")
        if not bench.quick:
            yield _operations(name, large, SAMPLES, WAITING)
        large.remove()  # a long one takes some gigabytes
        stream = Log(open_log(bench, "stream"), sizes[-1], ONE_RUN)
        yield _operations(name, stream, *((TOGETHER, 100) if bench.quick else (SAMPLES, WAITING)))
        stream.remove()


RUNS, ONE_RUN = "each in a run of its own", "all in one run"


def _operations(database: str, log: Log, samples: int, waiting: int) -> Comparison:
    """The 99th percentile of each operation against the limit."""
    timed = Operations(log, samples, waiting, f"{database}, behind {log.size:,} checkpoints, {log.shape}")
    contenders = [Contender(name, partial(timed.percentile, name), warm_up=0) for name in (*OPERATIONS, SLOWEST)]
    contenders.append(Contender("the limit", lambda: LIMIT_MS, warm_up=0))
    label = f"{database}, {log.shape}: 5 ms, against the 99th percentile of the slowest operation"
    title = f"{timed.title}: 99th percentile"
    claims = [Claim(label, SLOWEST, ("the limit",), 1.0)]
    return Comparison(f"history/{database}/{log.shape}", title, contenders, claims, unit="ms")


SLOWEST = "the slowest"
CONNECTING = "open the log"  # PostgreSQL starts a process for it: not the log's own cost
WHOLE = "all that is open"  # its cost is that of what waits, whatever the history
OPERATIONS = (
    *(CONNECTING, "trigger", "publish", "plan", "begin an attempt", "vote", "decide", "record a proof"),
    *("finalise", "prune one", f"forget {TOGETHER}", "take an epoch", "what can be pruned", "the page's list"),
    *("sensor: number", "sensor: run", "sensor: as_of", "sensor: after", "is the run settled"),
    *("sensor: number, many wait", "sensor: run, many wait", "how many wait, many wait"),
    *("take an epoch, many wait", f"{WHOLE}, many wait"),
)
Found = TypeVar("Found")


class Operations:
    """Makes checkpoints behind a history, looks at it, and notes how long each operation takes."""

    def __init__(self, log: Log, samples: int, waiting: int, title: str) -> None:
        self.title = title
        self._log, self._samples, self._waiting = log, samples, waiting
        self._taken: dict[str, list[float]] = {}
        self._printed: set[str] = set()

    def percentile(self, operation: str) -> float:
        """Milliseconds; measures anew when the last measurement has been told already."""
        if not self._taken or operation in self._printed:
            self._measure()
        self._printed.add(operation)
        if operation != SLOWEST:
            return self._of(operation, 0.99)
        return max(self._of(name, 0.99) for name in OPERATIONS if name != CONNECTING and WHOLE not in name)

    def _of(self, operation: str, part: float) -> float:
        taken = self._taken[operation]
        return taken[min(len(taken) - 1, int(len(taken) * part))]

    def _timed(self, operation: str, call: Callable[..., Found], *given: Any, **more: Any) -> Found:
        began = time.monotonic()
        try:
            return call(*given, **more)
        finally:
            self._taken.setdefault(operation, []).append((time.monotonic() - began) * 1000)

    def _measure(self) -> None:
        self._taken, self._printed = {}, set()
        with closing(open_store(self._log.url)) as store:
            for _ in range(self._samples // TOGETHER):
                numbers = [self._checkpoint(store) for _ in range(TOGETHER)]
                self._afterwards(store, numbers)
                store.end_stage(PIPELINE, self._log.epoch, RUN, None)
                for _ in range(TOGETHER):
                    self._look(store, "")
                store.begin_stage(PIPELINE, self._log.epoch, RUN)
            for _ in range(self._samples):
                with closing(self._timed(CONNECTING, open_store, self._log.url)):
                    pass
            for _ in range(self._waiting):
                _publish(store, self._log.epoch)
            store.end_stage(PIPELINE, self._log.epoch, RUN, None)
            for _ in range(self._samples // 4):
                self._look(store, ", many wait")
            for _ in range(TOGETHER):
                self._take(store, ", many wait")
            store.rewind(PIPELINE, self._log.epoch, store.open_checkpoints(PIPELINE)[0].number, None, "a benchmark")
            store.begin_stage(PIPELINE, self._log.epoch, RUN)
        for taken in self._taken.values():
            taken.sort()
        say(f"{self.title}, ms (half of them, 99 of 100, samples):")
        for name in OPERATIONS:
            say(f"  {name:40} {self._of(name, 0.5):8.2f} {self._of(name, 0.99):8.2f} {len(self._taken[name]):6}")

    def _take(self, store: DecisionLog, more: str) -> None:
        held = {lease.holder: lease.counter for lease in store.leases(PIPELINE)}
        lease = Lease("bench", 0, "dag/task", 1, 0)
        self._log.epoch = self._timed(
            f"take an epoch{more}", store.take_epoch, PIPELINE, self._log.epoch, held, lease, "a benchmark"
        )

    def _checkpoint(self, store: DecisionLog) -> int:
        timed, epoch = self._timed, self._log.epoch
        number = timed("trigger", store.trigger, PIPELINE, epoch, RUN)
        given = _publication(store, number)
        timed("publish", store.publish, PIPELINE, epoch, number, *given)
        plan = timed("plan", store.plan, PIPELINE, epoch, _plan(store, given[1]))
        votes = {}
        for name in PARTICIPANTS:
            votes[name] = timed("begin an attempt", store.begin_attempt, PIPELINE, epoch, number, name)
            timed("vote", store.vote, PIPELINE, epoch, number, name, votes[name])
        timed("decide", store.decide, PIPELINE, epoch, number, votes)
        for name in PARTICIPANTS:
            timed("record a proof", store.record_proof, PIPELINE, epoch, number, _proof(plan, name, epoch))
        return number

    def _afterwards(self, store: DecisionLog, numbers: list[int]) -> None:
        for number in numbers:
            self._timed("finalise", store.finalise, PIPELINE, number)
        for old in self._timed("what can be pruned", store.prunable, PIPELINE, 3, TOGETHER):
            self._timed("prune one", store.prune, PIPELINE, old.number)
        self._timed(f"forget {TOGETHER}", store.forget_events, PIPELINE, TOGETHER, TOGETHER)
        self._take(store, "")
        store.begin_stage(PIPELINE, self._log.epoch, RUN)

    def _look(self, store: DecisionLog, more: str) -> None:
        """At gates that have to look to their end: of a run that has staged, and a number that is confirmed."""
        newest, run = store.latest_confirmed(PIPELINE), store.run(PIPELINE, RUN)
        assert newest and newest.completed_at and run and run.stage_began and run.staged
        gates = {"number": Gate(number=newest.number), "run": Gate(run=RUN)}
        if not more:
            self._timed("the page's list", store.checkpoints, PIPELINE, 15)
            self._timed("is the run settled", store.unsettled, PIPELINE, run=RUN, limit=1)
            gates |= {"as_of": Gate(as_of=run.stage_began), "after": Gate(after=newest.completed_at)}
        else:
            self._timed(f"how many wait{more}", store.undelivered, PIPELINE)
            self._timed(f"{WHOLE}{more}", store.open_checkpoints, PIPELINE)
        for name, gate in gates.items():
            opened = self._timed(f"sensor: {name}{more}", gate.is_open, store, PIPELINE)
            if opened is None and not more:  # while many wait, a closed gate has looked at them
                raise MeasurementError(f"closed: {gate}")


Execute = Callable[..., list[tuple[Any, ...]]]
"""(statement with `?`, values) -> its rows, if any."""
Opened = Callable[[], AbstractContextManager[Execute]]


@dataclass(frozen=True)
class Place:
    """Where a log is, and how to get at its tables: queries for a table's columns and for the size of all, in bytes."""

    url: str
    opened: Opened
    columns: str
    size: str
    remove: Callable[[], None]


def _sqlite(bench: Bench, named: str) -> Place:
    return sqlite_place(bench.folder / f"history-{named}.db")


def sqlite_place(path: Path) -> Place:
    """A log in this file."""

    @contextmanager
    def opened() -> Iterator[Execute]:
        with closing(sqlite3.connect(path, isolation_level=None)) as log:
            log.execute("PRAGMA synchronous = OFF")
            yield lambda sql, *values: log.execute(sql, values).fetchall()

    size = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
    return Place(f"sqlite:///{path}", opened, "SELECT name FROM pragma_table_info(?)", size, path.unlink)


def _postgres(bench: Bench, named: str) -> Place:
    return postgres_place(bench.servers.postgres, f"history_{named}")


def postgres_place(server: Any, schema: str) -> Place:
    """A log in this schema of a server."""

    @contextmanager
    def opened() -> Iterator[Execute]:
        with closing(server.connect(options=f"-c search_path={schema}")) as log, log.cursor() as cursor:

            def execute(sql: str, *values: object) -> list[tuple[Any, ...]]:
                cursor.execute(sql.replace("?", "%s"), values or None)
                return list(cursor.fetchall()) if cursor.description else []

            yield execute

    def remove() -> None:
        with opened() as execute:
            execute(f"DROP SCHEMA {schema} CASCADE")

    columns = "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name"
    size = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
    )
    url = f"postgresql://{server.user}:{server.password}@{server.host}:{server.port}/postgres?schema={schema}"
    return Place(url, opened, f"{columns} = ?", size, remove)


class Log:
    """A decision log with a history of `size` checkpoints, in one run or in many."""

    def __init__(self, place: Place, size: int, shape: str) -> None:
        self.url, self.size, self.shape, self.remove = place.url, size, shape, place.remove
        say(f"writing a history of {size:,} checkpoints, {shape}")
        with closing(open_store(self.url)) as store:
            store.register(PIPELINE)
            self.epoch = store.take_epoch(PIPELINE, 0, {}, Lease("bench", 0, "dag/task", 1, 0), "a benchmark")
            store.begin_stage(PIPELINE, self.epoch, RUN)
            number = checkpoint(store, self.epoch)
        with place.opened() as execute:
            lengthen(execute, place.columns, number, size, "'run'" if shape == ONE_RUN else "'old run ' || i")
            if "postgresql" in self.url:
                execute("VACUUM ANALYZE")  # as autovacuum has done with a history that grew step by step
            say(f"  it takes {float(execute(place.size)[0][0]) / 1e6:,.0f} MB")

    def checkpoints(self) -> float:
        """Milliseconds for a checkpoint."""
        with closing(open_store(self.url)) as store:
            began = time.monotonic()
            for _ in range(CHECKPOINTS):
                checkpoint(store, self.epoch)
            return (time.monotonic() - began) * 1000 / CHECKPOINTS


Publication = tuple[int, Segment, SparkPosition, dict[str, dict[str, int]]]


def _publication(store: DecisionLog, number: int) -> Publication:
    segment = Segment(number, f"{number:064x}", f"file:///wal/history/1-1/{number}", {"orders": 1000}, 100_000)
    predecessor = store.pipeline(PIPELINE).last_published
    return predecessor, segment, SparkPosition("file:///spark/1-1", number), {"orders": {"0": number}}


def _publish(store: DecisionLog, epoch: int) -> Segment:
    number = store.trigger(PIPELINE, epoch, RUN)
    given = _publication(store, number)
    store.publish(PIPELINE, epoch, number, *given)
    return given[1]


def _plan(store: DecisionLog, segment: Segment) -> Plan:
    participants = tuple(
        ParticipantPlan(name, "kind", "strategy", promise, store.last_delivered(PIPELINE, name), {name: {"table": "t"}})
        for name, promise in PARTICIPANTS.items()
    )
    return Plan(PIPELINE, store.installation, segment.number, (segment,), participants, "db", ("a benchmark",))


def _proof(plan: Plan, name: str, epoch: int) -> Proof:
    return Proof(name, plan.number, Outcome.COMMITTED, plan.digest, epoch, {"orders": 1000}, {"connection": 7})


def checkpoint(store: DecisionLog, epoch: int) -> int:
    """One, by the calls that a run makes; its number."""
    segment = _publish(store, epoch)
    number = segment.number
    store.open_checkpoints(PIPELINE)
    plan = store.plan(PIPELINE, epoch, _plan(store, segment))
    votes = {}
    for name in PARTICIPANTS:
        votes[name] = store.begin_attempt(PIPELINE, epoch, number, name)
        store.vote(PIPELINE, epoch, number, name, votes[name])
    store.decide(PIPELINE, epoch, number, votes)
    for name in PARTICIPANTS:
        store.record_proof(PIPELINE, epoch, number, _proof(plan, name, epoch))
    store.finalise(PIPELINE, number)
    store.run_checkpoints(PIPELINE, RunKey("dag", "another run"))
    store.latest_confirmed(PIPELINE)
    for old in store.prunable(PIPELINE, 3, 10):
        store.prune(PIPELINE, old.number)
    return number


def lengthen(execute: Execute, columns_of: str, template: int, size: int, run: str) -> None:
    """Adds copies of one checkpoint, with its votes and events, by plain SQL: a million by calls would take hours.

    `columns_of`: the query for the names of a table's columns. `run`: SQL for the run of copy `i`.
    """
    execute("BEGIN")
    last_event = execute("SELECT MAX(id) FROM event WHERE pipeline = ?", PIPELINE)[0][0]
    events = execute("SELECT COUNT(*) FROM event WHERE pipeline = ? AND number = ?", PIPELINE, template)[0][0]
    series = f"WITH RECURSIVE series (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM series WHERE i < {size}) "
    special = {
        "checkpoint": {"number": "t.number + i", "predecessor": "t.number + i - 1", "pruned_at": "t.completed_at",
                       "run_id": run, "delivered_by": "t.number + i"},
        "vote": {"number": "t.number + i"},
        "event": {
            "number": "t.number + i",
            "id": f"{last_event} + (i - 1) * {events} + ROW_NUMBER() OVER (PARTITION BY i ORDER BY t.id)",
        },
    }  # fmt: skip
    for table, changed in special.items():
        columns = [str(name) for (name,) in execute(columns_of, table) if not name.startswith("is_")]  # not generated
        values = ", ".join(changed.get(column, f"t.{column}") for column in columns)
        execute(
            f"{series}INSERT INTO {table} ({', '.join(columns)}) SELECT {values}"
            f" FROM {table} t, series WHERE t.pipeline = ? AND t.number = ?",
            PIPELINE,
            template,
        )
    execute(
        "UPDATE pipeline SET next_number = next_number + ?, published = published + ?, next_event = next_event + ?"
        " WHERE name = ?",
        size,
        size,
        size * events,
        PIPELINE,
    )
    execute("UPDATE delivery SET number = number + ? WHERE pipeline = ?", size, PIPELINE)
    execute("COMMIT")
