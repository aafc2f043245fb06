"""What a checkpoint costs in the decision log, against how many there were before: it must stay the same."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from airflow_ft.core.model import (
    Lease,
    Outcome,
    ParticipantPlan,
    Plan,
    Promise,
    Proof,
    RunKey,
    Segment,
    SparkPosition,
)
from airflow_ft.core.ports import Store
from airflow_ft.store import open_store
from benchmarks.bench import Bench, say
from benchmarks.measuring import Claim, Comparison, Contender

PIPELINE, RUN = "history", RunKey("dag", "run")
FLAT = 1 / 1.2
CHECKPOINTS = 30  # in a measurement
PARTICIPANTS = {"db": Promise.ATOMIC, "log": Promise.REDO}


def history(bench: Bench) -> list[Comparison]:
    """For each database two logs, one with a long history; each measurement adds some checkpoints to it."""
    sizes = (1_000, 20_000) if bench.quick else (1_000, 1_000_000)
    found = []
    for name, log in (("SQLite", _sqlite), ("PostgreSQL", _postgres)):
        contenders = [Contender(f"{name}, {size:,} before", _log(size, *log(bench, size))) for size in sizes]
        small, large = (contender.name for contender in contenders)
        claims = [Claim(f"a checkpoint in the store: {small} against {large}", large, (small,), FLAT)]
        title = f"One checkpoint in the decision log ({name}), from TRIGGERED to finalised and pruned"
        found.append(Comparison(f"history/{name}", title, contenders, claims, unit="ms"))
    return found


Execute = Callable[..., list[tuple[Any, ...]]]
"""(statement with `?`, values) -> its rows, if any."""
Opened = Callable[[], AbstractContextManager[Execute]]

_COLUMNS_SQLITE = "SELECT name FROM pragma_table_info(?)"
_COLUMNS_POSTGRES = (
    "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema() AND table_name = ?"
)


def _sqlite(bench: Bench, size: int) -> tuple[str, str, Opened]:
    path = bench.folder / f"history-{size}.db"

    @contextmanager
    def opened() -> Iterator[Execute]:
        with closing(sqlite3.connect(path, isolation_level=None)) as log:
            log.execute("PRAGMA synchronous = OFF")
            yield lambda sql, *values: log.execute(sql, values).fetchall()

    return f"sqlite:///{path}", _COLUMNS_SQLITE, opened


def _postgres(bench: Bench, size: int) -> tuple[str, str, Opened]:
    server, schema = bench.servers.postgres, f"history_{size}"

    @contextmanager
    def opened() -> Iterator[Execute]:
        with closing(server.connect(options=f"-c search_path={schema}")) as log, log.cursor() as cursor:

            def execute(sql: str, *values: object) -> list[tuple[Any, ...]]:
                cursor.execute(sql.replace("?", "%s"), values or None)
                return list(cursor.fetchall()) if cursor.description else []

            yield execute
            cursor.execute("VACUUM ANALYZE")  # as autovacuum has done with a history that grew step by step

    url = f"postgresql://{server.user}:{server.password}@{server.host}:{server.port}/postgres?schema={schema}"
    return url, _COLUMNS_POSTGRES, opened


def _log(size: int, url: str, columns_of: str, opened: Opened) -> Callable[[], float]:
    say(f"writing a history of {size:,} checkpoints")
    with closing(open_store(url)) as store:
        store.register(PIPELINE)
        epoch = store.take_epoch(PIPELINE, 0, {}, Lease("bench", 0, "dag/task", 1, 0), "a benchmark")
        store.begin_stage(PIPELINE, epoch, RUN)
        number = checkpoint(store, epoch)
    with opened() as execute:
        lengthen(execute, columns_of, number, size)

    def run() -> float:
        with closing(open_store(url)) as store:
            began = time.monotonic()
            for _ in range(CHECKPOINTS):
                checkpoint(store, epoch)
            return (time.monotonic() - began) * 1000 / CHECKPOINTS

    return run


def checkpoint(store: Store, epoch: int) -> int:
    """One, by the calls that a run makes; its number."""
    number = store.trigger(PIPELINE, epoch, RUN)
    segment = Segment(number, f"{number:064x}", f"file:///wal/history/1-1/{number}", {"orders": 1000}, 100_000)
    predecessor, position = store.pipeline(PIPELINE).last_published, SparkPosition("file:///spark/1-1", number)
    store.publish(PIPELINE, epoch, number, predecessor, segment, position, {"orders": {"0": number}})
    store.open_checkpoints(PIPELINE)
    participants = tuple(
        ParticipantPlan(name, "kind", "strategy", promise, store.last_delivered(PIPELINE, name), {name: {"table": "t"}})
        for name, promise in PARTICIPANTS.items()
    )
    plan = store.plan(
        PIPELINE, epoch, Plan(PIPELINE, store.installation, number, (segment,), participants, "db", ("a benchmark",))
    )
    votes = {}
    for name in PARTICIPANTS:
        votes[name] = store.begin_attempt(PIPELINE, epoch, number, name)
        store.vote(PIPELINE, epoch, number, name, votes[name])
    store.decide(PIPELINE, epoch, number, votes)
    for name in PARTICIPANTS:
        proof = Proof(name, number, Outcome.COMMITTED, plan.digest, epoch, {"orders": 1000}, {"connection": 7})
        store.record_proof(PIPELINE, epoch, number, proof)
    store.finalise(PIPELINE, number)
    store.run_checkpoints(PIPELINE, RunKey("dag", "another run"))
    store.latest_confirmed(PIPELINE)
    for old in store.prunable(PIPELINE, 3, 10):
        store.prune(PIPELINE, old.number)
    return number


def lengthen(execute: Execute, columns_of: str, template: int, size: int) -> None:
    """Adds copies of one checkpoint, with its votes and events, by plain SQL: a million by calls would take hours.

    `columns_of`: the query for the names of a table's columns.
    """
    execute("BEGIN")
    last_event = execute("SELECT MAX(id) FROM event WHERE pipeline = ?", PIPELINE)[0][0]
    events = execute("SELECT COUNT(*) FROM event WHERE pipeline = ? AND number = ?", PIPELINE, template)[0][0]
    series = f"WITH RECURSIVE series (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM series WHERE i < {size}) "
    special = {
        "checkpoint": {"number": "t.number + i", "predecessor": "t.number + i - 1", "pruned_at": "t.completed_at",
                       "run_id": "'old run ' || i", "delivered_by": "t.number + i"},
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
