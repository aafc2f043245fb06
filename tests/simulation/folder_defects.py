"""Mistakes in folders and buckets, one at a time, in the files sink's own code (see `tests.simulation.defects`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.files import ownership
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.sinks.files.participant import FilesParticipant
from airflow_ft.sinks.files.staged import Rank, Staged
from tests.simulation.defect import NAMED, Change, defect

DISK, BUCKET = NAMED["files on a disk"], NAMED["files in a bucket"]


@defect(DISK, "I5")
def head_of_a_folder_not_compared(change: Change) -> None:
    change(ownership, "check_owner", lambda *_: None)


@defect(DISK, "I6")
def marker_before_the_rename(change: Change) -> None:
    published = FilesParticipant._published

    def late(self: Any, plan: Plan, fence: Fence, rank: Rank, manifest: Mapping[str, Any]) -> Marker:
        self.ledger.write_marker(plan.number, self._marker(plan.number, manifest))
        return published(self, plan, fence, rank, manifest)

    change(FilesParticipant, "_published", late)


@defect(BUCKET, "I7", at=922)
def markers_beside_a_head_that_was_looked_for_before(change: Change) -> None:
    """A late process of the first prepare takes what its successor has delivered for a ledger that lost its head."""
    change(FilesParticipant, "_begun_since", lambda self: None)


@defect(BUCKET, "I6 I10")
def half_copied_checkpoint_taken_for_whole(change: Change) -> None:
    change(Staged, "finish", lambda *_: None)


@defect(BUCKET, "I6")
def files_copied_before_their_manifest(change: Change) -> None:
    """Nothing says then whose files come."""
    rename = Objects.rename_folder

    def copied(self: Any, source: str, target: str) -> None:
        self.copy(source, target, json.loads(self.read(self.uri(source, self.manifest)))["files"])
        rename(self, source, target)

    change(Objects, "rename_folder", copied)
