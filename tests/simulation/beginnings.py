"""Where the source begins, and what attempts have frozen of that: what a full refresh has to forget.

The source loses its start with each full refresh: who begins where it began before that is told that it has gone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state import beginnings
from airflow_ft.spark.state.locations import SparkLocation, behind_the_beginning, first_offsets, incarnation_of
from tests.simulation.laws import PIPELINE
from tests.simulation.source import ORDERS

if TYPE_CHECKING:
    from tests.simulation.world import World

_FIRST = "sources/0/0"


class Beginnings:
    """Of a world in which somebody has everything read anew; in others nobody asks where the source begins."""

    def __init__(self, world: World, sources: dict[str, Any]) -> None:
        self._world, self._sources = world, sources
        self._are_played = "beginning" in world.scenario.person and not world.scenario.sources

    def base(self, base: SparkPosition | None) -> SparkPosition | None:
        """Of an attempt; None: it begins where the source does."""
        return behind_the_beginning(base) if self._are_played else base

    def begin(self, uri: str, base: SparkPosition | None) -> None:
        """A run that is no stream has a new location: it begins where one before it has."""
        if not self._are_played:
            return
        incarnation = incarnation_of(base)
        try:
            frozen = self._frozen(incarnation)
            frozen.restore(self._location(uri), frozen.read({0: ORDERS}), {}, {})
            self.look(uri)
            self.freeze(uri, incarnation)
        except OSError as error:  # as the driver tells it
            raise StageError("where the source begins could not be read, or written.") from error

    def look(self, uri: str) -> None:
        """Spark looks where the source begins, unless that is told in its location."""
        wal = self._world.wal
        if not self._are_played or wal.states.get(uri):
            return

        def look() -> None:
            offsets = wal.files.setdefault(uri, {}).setdefault(_FIRST, _offsets(wal.first))
            if first_offsets(offsets.decode())[1]["orders"]["0"] < wal.first:
                raise StageError("the source has lost what it is to be read from.")

        self._world.spark.perform("looks where the source begins", look)

    def freeze(self, uri: str, incarnation: str) -> None:
        """Before anything is published of it."""
        if self._are_played:
            self._frozen(incarnation).freeze(self._location(uri), {0: ORDERS}, lambda _: {})

    def _frozen(self, incarnation: str) -> beginnings.Beginnings:
        return beginnings.Beginnings("file:///wal", PIPELINE, incarnation, self._sources)

    def _location(self, uri: str) -> SparkLocation:
        return SparkLocation("file:///wal", PIPELINE, uri, -1)


def _offsets(first: int) -> bytes:
    return b"\0v1\n" + json.dumps({"orders": {"0": first}}).encode()
