"""Folders for tasks that compute rows: handed out, and read when their checkpoint is staged.

    <wal_root>/<pipeline>/inbox/<epoch>-<installation>/

Each folder belongs to one execution of the task that hands it out. That takes an epoch, so a stage of an earlier folder
can no longer publish (I5). A writer that was replaced writes into an earlier folder, which nothing reads. Epochs are
those of one decision log, so another log that uses the same root has folders of its own.

What if the process dies ...
- after the epoch, before the folder: the next try takes another epoch.
- after the rows are published, before the folder is removed: the next folder's task removes it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_ft.clients.buckets import BucketPlace, is_bucket
from airflow_ft.clients.s3 import SCHEME
from airflow_ft.pipeline import ready
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.pipeline.given_rows import GivenRows
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import AirflowFtError, ExternalRowsError
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.wal.filesystem import FileSystem, filesystem, identity, is_remote
from airflow_ft.wal.local import local_path

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.pipeline.resolved import ResolvedPipeline
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.wal.incoming import Rows
    from airflow_ft.wal.writer import SegmentFolder

log = logging.getLogger(__name__)

_INBOX = "inbox"
_OF_SPARK = re.compile(r"part-(\d+)-(?:tid-\w+-)?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(-c\d)?")
"""Groups: number, job, and the mark of writes without partitions and buckets, which always have a first part."""
_REMEDY = "Clear the task that hands out the folder, so that all tasks after it run again."


def hand_out(
    pipeline: ResolvedPipeline, run: steps.Context[DecisionLog], connections: ConnectionResolver
) -> str | None:
    """Return a new, empty folder; None: all that the run waits for is settled. Looks at the sinks first.

    If the run has staged its rows already, its next tasks deliver those, and ignore the folder. Earlier folders are
    removed: the turn is this run's, so no other run needs them. Text of a path, or a URI of HDFS or of a bucket
    (s3://BUCKET/FOLDER, as other programs understand it: without the connection).

    Raises:
        TurnHeldError: another run has the turn.
    """
    from airflow_ft.spark.task.stage import look_first
    from airflow_ft.wal import owners

    store, name = run.store, pipeline.pipeline
    store.register(name)
    steps.require_active(store, name)
    if run.is_finished() or not steps.take_turn(run):
        return None
    look_first(run, replace(pipeline_steps.staging(pipeline, run, connections, lambda _: None), resume_drained=True))
    with new_epoch(store, name, run.worker, f"folder for {run.run}", run.lease_seconds) as (epoch, keeper):
        ready.require_log(name, pipeline.wal_root, store)  # `look_first` leaves it out while a plan waits
        files, inbox = filesystem(pipeline.wal_root), _inbox(pipeline)
        found = files.names(inbox)
        newest = store.pipeline(name).epoch  # a higher one is left of a decision log that was lost
        # Looked for after the folders: each log registers before it makes one.
        shared_with = owners.register(store, pipeline.wal_root, name)
        for earlier in found:
            is_removable = not shared_with or store.installation in earlier
            if is_removable and not epoch < _epoch_of(earlier) <= newest:  # the folder of a successor stays
                _remove(files, files.uri(inbox, earlier))
        keeper.check()
        row = store.run(name, run.run)
        if row is not None and row.staged:  # its tasks go on in this epoch
            store.adopt_run(name, epoch, run.run)
        folder = files.uri(inbox, f"{epoch}-{store.installation}")
        files.make_folder(folder)
    if is_bucket(folder):
        place = BucketPlace.of(folder)
        return f"{SCHEME}://{place.bucket}/{place.key}"
    return folder if is_remote(folder) else str(local_path(folder))


class HandedOut:
    """The rows in a folder that `hand_out` has returned to this decision log, or in one of the author's."""

    def __init__(self, pipeline: ResolvedPipeline, folder: str, installation: str) -> None:
        self._installation = installation
        self._files, self._inbox = filesystem(pipeline.wal_root), _inbox(pipeline)
        place = identity(folder)
        below = place.removeprefix(f"{identity(self._inbox)}/")
        self.is_own = below != place
        # Its own folder is reached as the log is: the text of a folder in a bucket lacks the connection.
        self._folder = self._files.uri(self._inbox, below) if self.is_own else folder
        self._name = below.partition("/")[0]  # the rows may lie in a folder below the one that was handed out
        self._rows = GivenRows(self._folder, pipeline.required_sinks)

    def open(self, folder: SegmentFolder) -> Mapping[str, Rows]:
        """Return the rows by sink. ExternalRowsError if a newer folder was handed out, or two jobs wrote here."""
        if self.is_own:
            self._require_newest()
        found = self._rows.open(folder)
        if self.is_own:
            for sink, rows in found.items():
                _require_one_whole_job(sink, rows.sources)
        return found

    def columns(self) -> Mapping[str, pa.Schema]:
        """Return the columns by sink, where they can be read."""
        return self._rows.columns()

    def remove(self) -> None:
        """Remove the folder when its rows are published."""
        if self.is_own and self._name.endswith(f"-{self._installation}"):
            _remove(self._files, self._files.uri(self._inbox, self._name))

    def _require_newest(self) -> None:
        there = [name for name in self._files.names(self._inbox) if name.endswith(f"-{self._installation}")]
        newest = max(there, key=_epoch_of, default="")
        if newest != self._name:
            raise ExternalRowsError(
                f"{self._folder} is no longer the folder of this pipeline"
                + (f": folder {newest} was handed out since." if newest else ": it was removed."),
                code="folder_replaced",
                remedy=_REMEDY,
                path=self._folder,
            )


def _remove(files: FileSystem, folder: str) -> None:
    """Remove a folder that nothing reads again. If that fails, as with files of another user, only the log says so."""
    try:
        files.remove_tree(folder)
    except (AirflowFtError, OSError) as error:
        log.warning(
            "%s is not needed and could not be removed: %s. Delete it. If the task that writes runs as another user,"
            " let both users belong to one group, and let it write with umask 002.",
            folder,
            error,
        )


def _epoch_of(folder: str) -> int:
    """Return the epoch that a folder was handed out in, also while it is removed; -1: it is no such folder."""
    found = re.match(r"\.?(\d+)", folder)
    return int(found[1]) if found else -1


def _inbox(pipeline: ResolvedPipeline) -> str:
    return filesystem(pipeline.wal_root).uri(pipeline.wal_root, pipeline.pipeline, _INBOX)


def _require_one_whole_job(sink: str, names: Sequence[str]) -> None:
    """Raise ExternalRowsError for files of two Spark jobs, or for those that one has left of another.

    An earlier try of the task may be alive. If it fails, it deletes `_temporary` with what its successor has done so
    far, and the successor succeeds with the rest. Spark writes part 0 also without rows (`FileFormatWriter`). It leaves
    out other empty parts, so not every loss is noticed.
    """
    found = [(name, match) for name in names if (match := _OF_SPARK.match(name))]
    jobs = {match[2]: name for name, match in found}
    if len(jobs) > 1:
        one, other = sorted(jobs.values())[:2]
        raise ExternalRowsError(
            f"two Spark jobs wrote into the folder: {one} and {other}. An earlier try of the task may have continued.",
            code="writers_mixed",
            sink=sink,
            remedy=f"{_REMEDY} Let the job write once, with mode('overwrite').",
            files=[one, other],
        )
    if any(match[3] for _, match in found) and all(int(match[1]) for _, match in found):
        raise ExternalRowsError(
            f"{found[0][0]} has no part 0 beside it. An earlier try of the task may have deleted files of this one.",
            code="part_missing",
            sink=sink,
            remedy=f"End the earlier try. {_REMEDY}",
            file=found[0][0],
        )
