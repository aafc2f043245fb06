"""Confirmed checkpoints of a run, and the counts of its result.

The result of a run also counts checkpoints that earlier runs staged but did not count. So the numbers of a pipeline are
divided among runs: each confirmed run gets the range from the last counted number to the first one that is not settled.
It is written with the end of the run's turn, under the lock of the pipeline's row. So no two ranges overlap, and a
retried task reads the range that its run has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.set_aside import SetAside, of_proof, together
from airflow_ft.store.checkpoint_rows import proof_of, rows_of
from airflow_ft.store.database import Database, Row
from airflow_ft.store.errors import UnknownPipelineError
from airflow_ft.store.reading import OF_RUN, UNSETTLED
from airflow_ft.store.rows import key_of, to_pipeline
from airflow_ft.store.writing import PipelineWrite, pipeline_write

_PAGE = 2000
_SELECT = "SELECT number, segment_rows, delivered_by, dag_id, run_id, map_index FROM checkpoint WHERE"
_IS_CONFIRMED = "(state = 'COMPLETED' OR delivered_by IS NOT NULL)"
_CONFIRMED = f"{_SELECT} {OF_RUN} AND number > ? AND {_IS_CONFIRMED} ORDER BY number LIMIT ?"
_BETWEEN = f"{_SELECT} pipeline = ? AND number > ? AND number <= ? AND {_IS_CONFIRMED} ORDER BY number LIMIT ?"
# Not a join with the above: SQLite and PostgreSQL would read all votes for each page.
_SET_ASIDE = (
    "SELECT number, participant, proof FROM vote WHERE pipeline = ? AND number >= ? AND number <= ? AND proof LIKE ?"
)
_RANGES = f"SELECT above, through FROM counted WHERE {OF_RUN} ORDER BY through"
_COUNT = "INSERT INTO counted (pipeline, above, through, dag_id, run_id, map_index) VALUES (?, ?, ?, ?, ?, ?)"
_FIRST_UNSETTLED = f"SELECT number FROM checkpoint WHERE {UNSETTLED} ORDER BY number LIMIT 1"
_STAGED_THROUGH = f"SELECT published_through FROM run WHERE {OF_RUN} AND staged = 1"
_HAS_OWN = f"SELECT number FROM checkpoint WHERE {OF_RUN} AND number > ? AND number <= ? AND {_IS_CONFIRMED} LIMIT 1"


class CountingOperations:
    """The part of the store that counts for the end of a run, a page at a time."""

    _database: Database

    def confirmed(self, pipeline: str, run: RunKey) -> Confirmed:
        """Return what is confirmed of a run. Reads each of its numbers, a page at a time: for the end of a run."""
        return self._total(pipeline, run, self._pages(_CONFIRMED, (pipeline, *key_of(run)), 0))

    def counted(self, pipeline: str, run: RunKey) -> Confirmed:
        """See `RunLog.counted`."""
        ranges = self._database.read(_RANGES, pipeline, *key_of(run))
        return self._total(
            pipeline,
            run,
            (page for each in ranges for page in self._pages(_BETWEEN, (pipeline,), each["above"], each["through"])),
        )

    def count_run(self, pipeline: str, run: RunKey) -> None:
        """Give the run, which left its turn with `counts=False`, what no run has counted up to the end of its stage.

        Another run may have the turn by now, and counts what came later.
        """
        with pipeline_write(self._database, pipeline) as write:
            staged = write.rows(_STAGED_THROUGH, pipeline, *key_of(run))
            through = min(_settled(write), staged[0]["published_through"]) if staged else 0
            if through > write.row["counted"]:
                _give(write, run, through)

    def _pages(self, sql: str, values: tuple[object, ...], last: int, *through: int) -> Iterator[list[Row]]:
        while page := self._database.read(sql, *values, last, *through, _PAGE):
            yield page
            last = page[-1]["number"]

    def _total(self, pipeline: str, run: RunKey, pages: Iterable[list[Row]]) -> Confirmed:
        found, recovered = Numbers(), Numbers()
        rows, of_others = Counter[str](), Counter[str]()
        aside: dict[tuple[int, str], Mapping[str, SetAside]] = {}  # by delivery and participant
        for page in pages:
            found = found.plus(*(row["number"] for row in page))
            others = [row for row in page if (row["dag_id"], row["run_id"], row["map_index"]) != key_of(run)]
            recovered = recovered.plus(*(row["number"] for row in others))
            for row in page:
                rows.update(rows_of(row))
            for row in others:
                of_others.update(rows_of(row))
            by = {row["delivered_by"] for row in page} - {None}
            for row in self._database.read(_SET_ASIDE, pipeline, min(by), max(by), '%"set_aside"%') if by else ():
                if row["number"] in by:
                    aside[row["number"], row["participant"]] = of_proof(proof_of(row))
        if not found.count and not self._database.read("SELECT name FROM pipeline WHERE name = ?", pipeline):
            raise UnknownPipelineError(pipeline)
        confirmed = Confirmed(found, dict(rows), together(aside[each] for each in sorted(aside)))
        if recovered.count:
            return replace(confirmed, recovered=recovered, recovered_rows=of_others.total())
        return confirmed


def count(write: PipelineWrite, run: RunKey) -> None:
    """Give the run what no run has counted yet, if it has the turn, or if no run has it and numbers of it are there.

    While another run has the turn, that one counts. Numbers that are not settled, and all later ones, wait.
    """
    turn, above = to_pipeline(write.row).turn, write.row["counted"]
    through = _settled(write)
    if through <= above or turn not in (None, run):
        return
    if turn is None and not write.rows(_HAS_OWN, write.name, *key_of(run), above, through):
        return
    _give(write, run, through)


def _settled(write: PipelineWrite) -> int:
    """Return the number before the first one that is not settled."""
    unsettled = write.rows(_FIRST_UNSETTLED, write.name)
    number: int = (unsettled[0]["number"] if unsettled else write.row["next_number"]) - 1
    return number


def _give(write: PipelineWrite, run: RunKey, through: int) -> None:
    write.change(_COUNT, write.name, write.row["counted"], through, *key_of(run))
    write.set_pipeline(counted=through)
