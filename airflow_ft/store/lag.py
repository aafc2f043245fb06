"""Reports of drivers beside their checkpoints: the lag of their sources, and the size of the state.

No decision depends on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.model import StateSizes
from airflow_ft.store.database import Database
from airflow_ft.store.rows import clean_text, json_text, to_lag
from airflow_ft.store.writing import pipeline_write

_PUT = (
    "INSERT INTO source_lag (pipeline, source, unit, behind, rate, done, expected, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


class LagOperations:
    """The part of the store that knows the lag of sources, and the sizes of state."""

    _database: Database

    def lags(self, pipelines: Collection[str]) -> Mapping[str, Sequence[Lag]]:
        """See `Store.lags`."""
        found: defaultdict[str, list[Lag]] = defaultdict(list)
        if pipelines:
            some = ", ".join("?" * len(pipelines))
            sql = f"SELECT * FROM source_lag WHERE pipeline IN ({some}) ORDER BY pipeline, source"
            for row in self._database.read(sql, *pipelines):
                found[row["pipeline"]].append(to_lag(row))
        return found

    def tell_lags(self, pipeline: str, epoch: int, number: int, lags: Sequence[Lag]) -> None:
        """See `Store.tell_lags`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.change("DELETE FROM source_lag WHERE pipeline = ?", pipeline)
            for each in lags:
                write.change(
                    _PUT,
                    pipeline,
                    clean_text(each.source),
                    str(each.unit),
                    each.behind,
                    each.rate,
                    each.done,
                    each.expected,
                    write.now,
                )
            if number and lags:
                write.change(
                    "UPDATE checkpoint SET lag = ? WHERE pipeline = ? AND number = ?",
                    json_text({each.source: each.behind for each in lags}),
                    pipeline,
                    number,
                )

    def tell_state(self, pipeline: str, epoch: int, number: int, sizes: StateSizes) -> None:
        """See `Store.tell_state`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.change(
                "UPDATE checkpoint SET state_sizes = ? WHERE pipeline = ? AND number = ?",
                json_text(asdict(sizes)),
                pipeline,
                number,
            )
