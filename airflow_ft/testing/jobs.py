"""For authors of jobs: a job with small data, from files into SQLite, without any server."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_ft.pipeline.run import PlainRun, ending_with_the_message
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.sources.files import FileSource

_CONNECTION = "trial"


class JobTrial:
    """A pipeline of a test: it reads rows from files and delivers them into a SQLite file, exactly once::

        def test_large_orders_alone(job_trial):
            trial = job_trial(job=transform, sources={"orders": "id bigint, amount double"}, sinks=["large"])
            trial.add("orders", [{"id": 1, "amount": 5.0}, {"id": 2, "amount": 20_000.0}])
            assert trial.run() == {"large": [{"id": 2, "amount": 20_000.0}]}

    The fixture `job_trial` makes one in its own folder (`airflow_ft.testing.plugin`).

    The next `run` continues with the job's state and the rows added since. The first one starts Spark, which waits a
    minute for the next runs, also those of other tests.

    Args:
        folder: empty, and of this test alone.
        job: as a pipeline's: a definition below `@airflow_ft.job`, or the name of a module.
        sources: their names, and the columns of each as Spark writes a schema.
        sinks: their names. A decimal comes back as text, with all its digits; times are text, too (docs/sqlite.md).
        arguments: other ones of `PipelineSpec`, such as `job_args`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        job: str | Callable[..., Any],
        sources: Mapping[str, str],
        sinks: Sequence[str],
        **arguments: Any,
    ) -> None:
        self._folder = folder
        self._input = {name: folder / "in" / name for name in sources}
        for each in self._input.values():
            each.mkdir(parents=True)
        self._added, self._began = 0, int(time.time()) - 100_000
        self._sinks = list(sinks)
        usual = {
            "pipeline": "trial",
            "store": f"sqlite:///{folder / 'ft.db'}",
            "wal_root": str(folder / "wal"),
            "spark_master": "local[2]",
            "keep_session": timedelta(minutes=1),
        }
        self._spec = PipelineSpec(
            job=job,
            sources={name: FileSource(path=str(self._input[name]), schema=sources[name]) for name in sources},
            sinks={name: SqliteSink(table=name, conn_id=_CONNECTION) for name in sinks},
            **{**usual, **arguments},
        )

    def add(self, source: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add a file with these rows to a source. Files are read in the order in which they were added."""
        self._added += 1
        hidden = self._folder / f"{self._added}.json"
        hidden.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows), encoding="utf-8")
        # Spark goes by the times of files, of which several may be made within a tick of the clock.
        os.utime(hidden, (self._began + self._added,) * 2)
        hidden.rename(self._input[source] / hidden.name)

    @ending_with_the_message
    def run(self) -> dict[str, list[dict[str, Any]]]:
        """Deliver what was added, and return all rows of each sink. Raises JobError for a mistake in the job."""
        PlainRun(self._spec, self._connection).deliver()
        return {sink: self.rows(sink) for sink in self._sinks}

    def rows(self, sink: str) -> list[dict[str, Any]]:
        """Return the rows of a sink, in the order of delivery."""
        if not self._file.exists():
            return []
        with closing(sqlite3.connect(self._file)) as found:
            found.row_factory = sqlite3.Row
            name = sink.replace('"', '""')
            if not found.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (sink,)).fetchone():
                return []
            return [dict(row) for row in found.execute(f'SELECT * FROM "{name}" ORDER BY rowid')]

    @property
    def _file(self) -> Path:
        return self._folder / "out.db"

    def _connection(self, conn_id: str) -> ConnectionInfo:
        return ConnectionInfo(conn_id, "sqlite", host=str(self._file))
