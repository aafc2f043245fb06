"""Seeded defects of savepoints (see `defects`): of what is taken, of what is restored, and of who is told what."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.savepoints import metadata, restoring, taking
from airflow_ft.spark.savepoints import settling as settlement
from airflow_ft.spark.state import locations
from airflow_ft.spark.state.locations import SparkLocation
from tests.simulation.defect import NAMED, Change, defect
from tests.simulation.model_store import ModelStore

KEPT, STREAM = NAMED["a savepoint, which is restored"], NAMED["a stream, its savepoint is restored"]
AT_ONCE = NAMED["savepoints, two restores at once"]
ONLY_NEWEST = NAMED["savepoints, restored only where nothing is later"]
CLAIMED = NAMED["savepoints that are claimed"]


# --- taking -----------------------------------------------------------------------------------------------------


@defect(STREAM, "I3 I10")
def a_savepoint_of_what_is_published(change: Change) -> None:
    """Not of what is confirmed: its rows may still be refused."""

    def newest(store: Any, pipeline: str, number: int | None) -> tuple[int, SparkPosition]:
        row = store.pipeline(pipeline)
        return row.last_published, row.base

    change(taking, "confirmed_position", newest)


@defect(STREAM, "I1 I4 I9 I10")
def a_savepoint_that_is_not_cut_back(change: Change) -> None:
    """What Spark had done beyond the checkpoint is in it."""
    change(locations, "_survives", lambda *_: True)
    change(locations, "_ends_at", lambda *_: True)


@defect(KEPT, "I10")
def metadata_written_before_the_files(change: Change) -> None:
    """Whoever finds it takes the folder for whole."""
    copy = taking._copy

    def copying(pipeline: str, base: SparkPosition, uri: str) -> SparkLocation:
        early = _Early(pipeline, base)
        metadata.write_metadata(uri, early)  # type: ignore[arg-type]
        return copy(pipeline, base, uri)

    change(taking, "_copy", copying)
    change(taking, "write_metadata", lambda *_: None)


class _Early:
    """What can be said of a savepoint before anything of it is there."""

    def __init__(self, pipeline: str, base: SparkPosition) -> None:
        self._pipeline, self._base = pipeline, base

    def to_json(self) -> dict[str, Any]:
        return {
            **dict.fromkeys(("id", "installation", "taken_by", "backend"), ""),
            **{name: {} for name in ("positions", "spec", "versions")},
            "files": {"offsets/1": {"size": 1, "sha256": ""}},
            "pipeline": self._pipeline,
            "number": 1,
            "batch": self._base.batch,
            "taken_at": "2026-01-01T00:00:00+00:00",
            "operators": [],
            "drained": False,
        }


# --- restoring --------------------------------------------------------------------------------------------------


@defect(AT_ONCE, "I5")
def a_late_restore_that_nobody_refuses(change: Change) -> None:
    """The one write does not compare the epoch."""
    by_anybody(change)


def by_anybody(change: Change) -> None:
    restore = ModelStore.restore

    def late(self: Any, pipeline: str, epoch: int, *of: Any, **more: Any) -> None:
        restore(self, pipeline, max(epoch, self._known(pipeline).epoch), *of, **more)

    change(ModelStore, "restore", late)


@defect(KEPT, "I2 I4 I10")
def undecided_rows_that_outlive_a_restore(change: Change) -> None:
    """Both have to be switched off: who restores gives them up, and the decision log refuses while there are some."""
    change(settlement, "give_up_undecided", lambda *_: None)
    unconditional(change)


@defect(KEPT, "I2 I3 I4 I10")
def decided_rows_that_nobody_delivers_before_a_restore(change: Change) -> None:
    def settle(store: Any, name: str, coordinator: Any, why: str) -> None:
        pass

    change(settlement, "_settle", settle)
    unconditional(change)


def unconditional(change: Change) -> None:
    def moving(self: Any, pipeline: str, epoch: int, position: SparkPosition) -> None:
        self._require_epoch(pipeline, epoch)
        self._set(base=position, base_is_clean=True)
        self.version += 1

    change(ModelStore, "_move_base", moving)


@defect(replace(KEPT, events=("prepare declines item 2",), event_weight=10), "I1 I2 I4 I10")
def a_rewind_that_goes_behind_a_restore(change: Change) -> None:
    """The newest number keeps the position that it had; a refusal of the next one brings that back."""

    def moving(self: Any, pipeline: str, epoch: int, position: SparkPosition) -> None:
        self._require_epoch(pipeline, epoch)
        self._set(base=position, base_is_clean=True)
        self.version += 1

    change(ModelStore, "_move_base", moving)


@defect(ONLY_NEWEST, "I2")
def later_checkpoints_that_nobody_looks_for_again(change: Change) -> None:
    """What was PREPARED when the restore began is delivered by it."""
    examine, settle, settled = restoring.examine, settlement._settle, list[str]()

    def settling(store: Any, name: str, *of: Any) -> None:
        settle(store, name, *of)
        settled.append(name)

    def examining(*of: Any, **more: Any) -> tuple[int, ...]:
        return () if settled and settled.pop() else examine(*of, **more)

    change(settlement, "_settle", settling)
    change(restoring, "examine", examining)


@defect(KEPT, "I10", schedule=("B1:100:SLEEP", "P2:26:YIELD:B1"))
def a_copy_in_a_folder_of_an_older_epoch(change: Change) -> None:
    """A sweep deletes it while it is being made, or when it is the base."""
    change(restoring, "location_of_epoch", lambda root, name, epoch: locations.new_location(root, name, 0, epoch))


@defect(CLAIMED, "I9 I10")
def a_savepoint_that_is_claimed_before_it_is_copied(change: Change) -> None:
    """Who is overtaken then has deleted what his successor restores."""
    settle = settlement._settle

    def settling(store: Any, name: str, coordinator: Any, why: str) -> None:
        settle(store, name, coordinator, why)
        for uri, _ in list(metadata.listing("file:///savepoints"))[:1]:
            with suppress(OSError):
                metadata.dispose(uri)

    change(settlement, "_settle", settling)


@defect(NAMED["a savepoint, damaged"], "I10")
def a_savepoint_that_nobody_reads_before_it_is_restored(change: Change) -> None:
    change(restoring, "verify", lambda *_: None)
