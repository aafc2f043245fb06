"""What the questions of the page cost the decision log, in SQLite, with many pipelines of many checkpoints each.

`python -m benchmarks.page [PIPELINES] [CHECKPOINTS]` prints for each request of the page the median of its CPU
milliseconds (of this process, in which SQLite works), its statements, the rows that they return, and the steps of
SQLite's machine: the last three are the same on every machine. `tests/plugins/test_polling.py` bounds them. The last
line is what writers pay: all calls that a checkpoint needs, from its number until it is pruned.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from airflow_ft.protocol.overview import Only
from airflow_ft.protocol.timing import summary
from airflow_ft.store.sqlite import SqliteStore
from benchmarks.bench import say
from benchmarks.history import PIPELINE, RUNS, Log, Place, checkpoint, sqlite_place

ROUNDS = 51
SHOWN = 25
"""Pipelines on a page of the list."""
_VOTES_OF = 100
"""Only the newest checkpoints are looked at with their votes."""


def write_log(path: Path, pipelines: int, each: int) -> int:
    """A decision log with so many pipelines in this file; the epoch of the first one."""
    place = sqlite_place(path)
    epoch = Log(place, each - 1, RUNS).epoch
    copy_pipeline(place, pipelines, each)
    return epoch


def copy_pipeline(place: Place, pipelines: int, each: int) -> None:
    """Add copies of the log's one pipeline, which has `each` checkpoints, until there are `pipelines`."""
    copied = {
        "pipeline": ("name", ""),
        "checkpoint": ("pipeline", ""),
        "vote": ("pipeline", f" AND t.number > {each - _VOTES_OF}"),
        "run": ("pipeline", ""),
        "lease": ("pipeline", ""),
    }
    series = f"WITH RECURSIVE series (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM series WHERE i < {pipelines - 1}) "
    with place.opened() as execute:
        for table, (of, more) in copied.items():
            columns = [str(name) for (name,) in execute(place.columns, table) if not name.startswith("is_")]
            values = ", ".join("'many-' || i" if column == of else f"t.{column}" for column in columns)
            execute(
                f"{series}INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} t, series"
                f" WHERE t.{of} = ?{more}",
                PIPELINE,
            )


class Asked:
    """A store whose statements, rows and steps are counted."""

    def __init__(self, path: Path) -> None:
        self.store = SqliteStore(path)
        database: Any = self.store._database
        self._connection = database._take()
        database._pool.give(self._connection)
        self._read = database.read
        database.read = self._counted
        self.statements = self.rows = self.steps = 0

    def _counted(self, sql: str, *values: object) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._read(sql, *values)
        self.statements += 1
        self.rows += len(rows)
        return rows

    def cost(self, question: Callable[[SqliteStore], object]) -> str:
        """A line of the table."""
        question(self.store)  # what it reads is in memory from now on
        taken = []
        for _ in range(ROUNDS):
            began = time.process_time()
            question(self.store)
            taken.append(1000 * (time.process_time() - began))
        self.statements = self.rows = self.steps = 0
        self._connection.set_progress_handler(self._step, 1)
        question(self.store)
        self._connection.set_progress_handler(None, 1)
        return f"{median(taken):10.2f} {self.statements:10,} {self.rows:10,} {self.steps:10,}"

    def _step(self) -> int:
        self.steps += 1
        return 0


def the_list(store: SqliteStore) -> None:
    """As `plugins.pipelines` asks for a page of it."""
    store.now()
    store.mark()
    names = [each.name for each in store.overviews()][:SHOWN]
    store.lags(names)
    store.doing(names)
    store.recent(names, 20)


QUESTIONS: dict[str, Callable[[SqliteStore], object]] = {
    "list, nothing is new": lambda store: (store.now(), store.mark()),
    "list": the_list,
    "history, nothing is new": lambda store: (store.origins(PIPELINE, 15), store.mark(PIPELINE)),
    "history": lambda store: (store.origins(PIPELINE, 15), store.mark(PIPELINE), store.checkpoints(PIPELINE, 20)),
    "summary": lambda store: (store.origins(PIPELINE, 15), store.mark(PIPELINE), store.timings(PIPELINE, 1000)),
    "summary, as it is told": lambda store: dict(summary(store.timings(PIPELINE, 1000))),
    "one pipeline": lambda store: (
        store.origins(PIPELINE, 15),
        store.pipeline(PIPELINE),
        store.overview(PIPELINE),
        store.timings(PIPELINE, 1, Only.COMPLETED),
        store.timings(PIPELINE, 1, Only.FAILED),
        store.checkpoint_counts(PIPELINE),
        store.checkpoints(PIPELINE, 10, only=Only.OPEN),
    ),
}


def main(pipelines: int = 1000, each: int = 1000) -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory(prefix="airflow-ft-page-") as folder:
        path = Path(folder) / "page.db"
        epoch = write_log(path, pipelines, each)
        asked = Asked(path)
        with closing(asked.store):
            say(f"{pipelines:,} pipelines of {each:,} checkpoints, the median of {ROUNDS}")
            say(f"{'':24} {'CPU ms':>10} {'statements':>10} {'rows':>10} {'steps':>10}")
            a_checkpoint = {"a checkpoint": lambda store: checkpoint(store, epoch)}
            for name, question in (QUESTIONS | a_checkpoint).items():
                say(f"{name:24} {asked.cost(question)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
