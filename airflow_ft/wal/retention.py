"""Delete unneeded files (I10). The caller has checked the store, and has written PRUNING before.

Each function is repeatable, and may die in the middle.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.model import Segment
from airflow_ft.wal import owners
from airflow_ft.wal.filesystem import FileSystem, filesystem
from airflow_ft.wal.markers import MARKER
from airflow_ft.wal.owners import ATTEMPT, SPARK
from airflow_ft.wal.roots import require

_BATCH = re.compile(r"^(?:\d+|\..*)$")  # or what a crash has left under a hidden name
_STRANGE = (SPARK, MARKER)
"""Names that show another log inside this one."""
_ONE_USER = "If its files belong to another user, run all tasks of the pipeline as one user."

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WalArchive:
    """The `Archive` of airflow_ft.protocol.write_ahead_log over the log under `root`."""

    root: str

    def delete(self, segment: Segment) -> None:
        """Delete a delivered segment's folder. A missing one is no error. `sweep` deletes the folder of its attempt."""
        files = filesystem(segment.location)
        location = files.uri(segment.location)
        attempt, _, batch = location.rpartition("/")
        if not batch.isdigit() or not ATTEMPT.match(attempt.rpartition("/")[2]):
            raise ConfigurationError(
                f"{location} is not the folder of a checkpoint's rows. Nothing was deleted.",
                code="path_invalid",
                remedy="Move the write-ahead log back to the place that the decision log has stored.",
                path=location,
            )
        require(location)
        files.remove_tree(location)

    def sweep(
        self, pipeline: str, keep: Collection[str], below_epoch: int, must_stop: Callable[[], bool] = lambda: False
    ) -> bool:
        """See `sweep`, and `Archive.sweep`."""
        for uri in _deleted(self.root, pipeline, keep, below_epoch, lambda epoch, _: epoch < below_epoch):
            if uri is not None:
                log.info("deleted %s: its attempt ended, and no checkpoint needs it", uri)
            if must_stop():
                return False
        return True


def sweep(root: str, pipeline: str, keep: Collection[str], below_epoch: int) -> list[str]:
    """Delete files that attempts of epochs below `below_epoch` left and nothing needs; returns the deleted URIs.

    `keep` holds the locations of all segments that are not pruned. It also holds the Spark locations of the pipeline's
    base, of every undelivered or retained number, of the newest delivered position, and of savepoints. Read it from
    the store AFTER the epoch `below_epoch`. From then on no older attempt can publish (I5), so a location that is not
    named never will be. In the other order, what an older epoch publishes in between would be deleted (I10).
    What `keep` names under another root stays here too, since that may be another spelling of this one.

    Leaves folders of `below_epoch` itself alone: another task of the same run may be writing there. Deletes nothing if
    another decision log uses the folder too, because `keep` does not cover that log. Nor if the folder has a newer
    epoch: `keep` may come from a log that was restored from a backup.
    """
    found = _deleted(root, pipeline, keep, below_epoch, lambda epoch, _: epoch < below_epoch)
    return [uri for uri in found if uri is not None]


def sweep_attempts(root: str, pipeline: str, keep: Collection[str], of_epoch: int, below_attempt: int) -> list[str]:
    """As `sweep`, of the current epoch: delete what its attempts below this one left. They must have ended, and `keep`
    must be read after `StagingOperations.begin_again` returned the newer attempt.
    """
    is_old = lambda epoch, attempt: epoch == of_epoch and 0 < attempt < below_attempt  # noqa: E731
    return [uri for uri in _deleted(root, pipeline, keep, of_epoch, is_old) if uri is not None]


def _deleted(
    root: str, pipeline: str, keep: Collection[str], epoch: int, is_old: Callable[[int, int], bool]
) -> Iterator[str | None]:
    """Yield each URI when it is deleted, and None for each folder that stays, which may have taken long, too.

    `epoch`: the decision log's. An attempt above it belongs to a newer process, or to a newer decision log.
    """
    require(root)
    files = filesystem(root)
    # Compared by names below the pipeline's folder: links, mounts and nameservices give a root several spellings. At
    # worst a file stays because one of that name under another root is needed.
    kept = {end for uri in keep for end in (_end(uri, 1), _end(uri, 2))}
    home = files.uri(root, pipeline)
    names, locations = files.names(home), files.names(files.uri(home, SPARK))
    if sharers := owners.shared(files, home, names):
        log.warning("%s", with_fix(sharers, owners.REMEDY))
        return
    if owners.is_newer(files, home, names, locations, (epoch + 1, -1)):
        log.info("nothing of %s is deleted: it has files of an epoch above %d", home, epoch)
        return
    for folder in _old(files, home, names, is_old):
        if (batches := _listed(files, home, folder)) is None:
            yield None
            continue
        if strange := [name for name in batches if name == MARKER or not _BATCH.match(name)]:
            log.warning("%s stays: %s in it shows that it is not the folder of an attempt", folder, strange[0])
            continue
        unneeded = [uri for name in batches if _end(uri := files.uri(folder, name), 2) not in kept]
        for uri in [folder] if len(unneeded) == len(batches) else unneeded:
            deleted = None
            with _passing_over(files, home, uri):
                files.remove_tree(uri)
                deleted = uri
            yield deleted
    for location in _old(files, files.uri(home, SPARK), locations, is_old):
        if _end(location, 1) not in kept:
            deleted = None
            with _passing_over(files, home, location):
                if strange := [name for name in files.names(location) if name in _STRANGE or ATTEMPT.match(name)]:
                    log.warning("%s stays: %s in it shows that it is not a checkpoint location", location, strange[0])
                    continue
                files.remove_tree(location)
                deleted = location
            yield deleted


def _listed(files: FileSystem, home: str, folder: str) -> list[str] | None:
    """Return the names in a folder. None: it cannot be listed, which is logged. Its rows may be needed.

    Raises what `files` raises if it cannot list `home` either.
    """
    try:
        return files.names(folder)
    except (AirflowFtError, OSError) as error:
        files.names(home)
        why = str(error) if isinstance(error, AirflowFtError) else with_fix(f"{error}.", _ONE_USER)
        log.warning("%s stays because it cannot be listed (the next sweep tries again): %s", folder, why)
        return None


@contextmanager
def _passing_over(files: FileSystem, home: str, folder: str) -> Iterator[None]:
    """Only log why a folder that nothing needs cannot be deleted. Raises what `files` raises if it cannot list `home`
    either.
    """
    try:
        yield
    except (AirflowFtError, OSError) as error:
        files.names(home)
        why = str(error) if isinstance(error, AirflowFtError) else with_fix(f"{error}.", f"Delete it. {_ONE_USER}")
        log.warning("%s is not needed and could not be deleted (the next sweep tries again): %s", folder, why)


def _end(uri: str, names: int) -> tuple[str, ...]:
    """Return the last names of a location: `1-2` of Spark's, `1-2` and `0` of a segment."""
    return PurePosixPath(uri).parts[-names:]


def _old(files: FileSystem, folder: str, names: Collection[str], is_old: Callable[[int, int], bool]) -> list[str]:
    found = [(name, ATTEMPT.match(name)) for name in sorted(names)]
    return [files.uri(folder, name) for name, match in found if match and is_old(int(match[1]), int(match[2]))]
