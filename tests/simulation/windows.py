"""A job with windows, without Spark: window n holds item n, and closes when item n + 1 is read.

So a micro-batch emits the item that the one before it has read, and the last item stays open in the state, until
something newer is read, the state is drained, or it is dropped with the state.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError, WalCorruptError
from airflow_ft.protocol.model import Checkpoint, SparkPosition
from airflow_ft.spark.state import draining
from airflow_ft.spark.state.locations import START_FILE
from tests.simulation.laws import PIPELINE
from tests.simulation.source import CLOSED, Item, opened
from tests.simulation.spark import OPERATOR, Location

if TYPE_CHECKING:
    from tests.simulation.world import World

NOTHING = Item(0, "", "")


class Windows:
    """What is done to operator state in a world: by its job, by a drain, and by who drops it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._has_windows = world.scenario.windows

    def emitted(self, batch: Location, number: int, state: Mapping[int, str]) -> Item:
        """By a micro-batch after which the state is so."""
        if not self._has_windows:
            return opened(state, number)
        if state.get(number - 1) == CLOSED:
            self._world.kernel.violate("I10", f"item {number} is too late for {batch.uri}, which was drained")
        item = opened(state, number - 1) if state.get(number - 1) else NOTHING
        return replace(item, drained=state[number] == CLOSED)

    def has_state(self, uri: str) -> bool:
        """In place of `airflow_ft.spark.state.files.has_state`."""
        return self._has_windows or OPERATOR in self._world.wal.files.get(uri, {})

    def drain_of(self, store: Any, pipeline: str, at: tuple[int, SparkPosition] | None = None) -> Checkpoint | None:
        """See `airflow_ft.spark.state.draining.drain_of`. Where there are no windows nobody asks."""
        return draining.drain_of(store, pipeline, at) if self._has_windows else None

    def terminal_copy(self, location: Location, request: Any) -> Location:
        """See `airflow_ft.spark.state.draining.terminal_copy`."""
        wal, last = location.wal, location.batch
        uri = f"file:///wal/{PIPELINE}/spark/{request.epoch}-{request.attempt}-drain"

        def copy() -> None:
            wal.states[uri] = {batch: read for batch, read in wal.states[location.uri].items() if batch <= last}
            wal.ends[uri] = {batch: end for batch, end in wal.ends[location.uri].items() if batch <= last}

        self._world.spark.perform("copies its location", copy)
        return Location(wal, uri, last)

    # --- in place of what airflow_ft.spark.state.reset does to files ----------------------------------------------

    def location(self, root: str, pipeline: str, uri: str, batch: int) -> Location:
        return Location(self._world.wal, uri, batch, root, pipeline)

    def location_of_epoch(self, root: str, pipeline: str, epoch: int) -> str:
        return f"file:///wal/{PIPELINE}/spark/{epoch}-0"

    def require_batch(self, location: Location) -> None:
        if not self._world.wal.has(SparkPosition(location.uri, location.batch)):
            self._world.kernel.violate("I10", f"the state at {location} is needed and gone")

    def write_source_positions(self, _: Any, old: Location, new: Location, forget: Collection[str]) -> None:
        assert not forget  # no schedule names sources to forget
        wal = self._world.wal

        def write() -> None:
            if old.uri not in wal.ends:
                raise WalCorruptError(f"{old.uri} is missing")
            wal.begin(new.uri, old.batch, wal.ends[old.uri].get(old.batch, 0))
            wal.files[new.uri] = {START_FILE: json.dumps(old.offsets(old.batch)).encode()}

        def failed(_: bool) -> Exception:
            return StageError("the new location could not be written.")

        self._world.kernel.call("files: a location without state", write, failed, local=True)
