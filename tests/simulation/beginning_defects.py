"""Mistakes in how a pipeline is made to read everything anew, as in `defects`: each must be found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.savepoints import beginning
from airflow_ft.spark.savepoints import settling as settlement
from airflow_ft.spark.state import locations
from airflow_ft.spark.state.beginnings import Beginnings
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.model_store import ModelStore
from tests.simulation.savepoint_defects import by_anybody, unconditional

FULL_REFRESH = NAMED["everything is read anew"]
ONCE = NAMED["everything is read anew, a run does it once"]
REPLACED = NAMED["everything is read anew, where rows are replaced"]
REFUSED = NAMED["everything is to be read anew, and is refused"]
_FILE = Beginnings._file


@defect(FULL_REFRESH, "I2 I3 I4 I7 I10")
def a_beginning_that_settles_nothing(change: Change) -> None:
    """Both have to be switched off: who begins anew settles, and the decision log refuses where nobody has."""

    @contextmanager
    def holding(store: Any, name: str, participants: Any, worker: Any, why: str, lease_seconds: float) -> Iterator[int]:
        with new_epoch(store, name, worker, why, lease_seconds) as (epoch, _):
            yield epoch

    change(beginning, "settled", holding)
    unconditional(change)


@defect(FULL_REFRESH, "I2 I3 I4 I10")
def decided_rows_that_nobody_delivers_before_a_beginning(change: Change) -> None:
    """Both have to be switched off, too."""
    change(settlement, "_settle", lambda *_: None)
    unconditional(change)


@defect(REFUSED, "I2")
def sinks_that_nobody_looks_at_again_when_all_is_settled(change: Change) -> None:
    """What was PREPARED when it began to begin anew is delivered by it."""
    examine, settle, settled = beginning._examine, settlement._settle, list[str]()

    def settling(store: Any, name: str, *of: Any) -> None:
        settle(store, name, *of)
        settled.append(name)

    def examining(*of: Any) -> None:
        if not settled:
            examine(*of)
        settled.clear()

    change(settlement, "_settle", settling)
    change(beginning, "_examine", examining)


@defect(REFUSED, "I2")
def rows_that_would_stand_twice_not_minded(change: Change) -> None:
    """Whoever does not want them to come again is not refused."""
    change(beginning, "_examine", lambda *_: None)


@defect(replace(FULL_REFRESH, person="restore beginning again, restore beginning again"), "I5 I9 I10")
def a_late_beginning_that_nobody_refuses(change: Change) -> None:
    """The one write does not compare the epoch."""
    by_anybody(change)


@defect(FULL_REFRESH, "I10")
def a_beginning_at_the_old_location(change: Change) -> None:
    """Nothing is read anew: it goes on where it stands."""
    made = beginning.new_beginning

    def old(root: str, pipeline: str, epoch: int) -> SparkPosition:
        return replace(made(root, pipeline, epoch), location=f"{root}/{pipeline}/spark/1-1", batch=1)

    change(beginning, "new_beginning", old)


@defect(FULL_REFRESH, "I7")
def an_origin_that_outlives_a_beginning(change: Change) -> None:
    """It begins where the source began in its former life, which has lost that."""
    change(Beginnings, "_file", lambda self, *use: _FILE(replace(self, incarnation=""), *use))


@defect(NAMED["everything is read anew, and again"], "I7", schedule=("P2:6:SLEEP", "B1:21:YIELD:P2"))
def an_origin_that_is_forgotten_before_the_one_write(change: Change) -> None:
    """As if it were not of a life: a late attempt of a former one freezes it for the next."""
    made = beginning.new_beginning

    def forgetting(root: str, pipeline: str, epoch: int) -> SparkPosition:
        files = locations.filesystem(root)
        folder = files.uri(root, pipeline, "spark")
        for name in files.names(folder):
            files.remove(files.uri(folder, name))
        return made(root, pipeline, epoch)

    change(beginning, "new_beginning", forgetting)
    change(Beginnings, "_file", lambda self, *use: _FILE(replace(self, incarnation=""), *use))


@defect(ONCE, "I9")
def a_beginning_of_nothing_that_its_run_forgets(change: Change) -> None:
    """Its next try, or the run when it is cleared, would do it once more, over what it has delivered itself."""
    restore = ModelStore.restore

    def forgetting(self: Any, pipeline: str, epoch: int, position: SparkPosition | None, *of: Any, **more: Any) -> None:
        if position is not None:
            restore(self, pipeline, epoch, position, *of, **more)

    change(ModelStore, "restore", forgetting)
