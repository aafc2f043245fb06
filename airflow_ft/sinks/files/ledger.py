"""A folder's memory of its pipeline, in files that are created once and never changed.

    <folder>/_airflow_ft/
        pipeline.json             whose folder it is
        head/00000007.json        who may write; the highest version counts
        markers/0000000042.json   how a number was settled
    <folder>/checkpoint=0000000042/
        _airflow_ft               what attempt prepared it, and each of its files with its checksum
    _<folder>.airflow_ft/         beside it: prepared, hidden files (`airflow_ft.sinks.files.staged`)

Each of these files of JSON holds its own checksum.

Files have no transactions, and no lock survives a suspended process. But a file system creates a free name exactly
once (`FileSystem.write`, a hard link). All memory depends on that. An object store has the same
(`airflow_ft.sinks.files.objects`).

- The head is a register with compare-and-set: of all processes that have read version 7, one can create version 8. Old
  versions are deleted, the newest ones are always kept. So a process that has slept since may create 8 again, but then
  sees many newer ones, and has lost.
- Markers and manifests: `airflow_ft.sinks.files.markers`.
- When a pipeline continues under another name, the head names it from then on. The version that says so is created
  once, as any other one, and shuts the old name out.
- The number delivered last is not stored twice: it is the highest number that has a marker, or is visible.
"""

from __future__ import annotations

import errno
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError, UnfitTargetError
from airflow_ft.protocol.model import Former
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.memory import Head, damaged
from airflow_ft.sinks.base.places import is_object_store
from airflow_ft.sinks.files.failures import lacks_links
from airflow_ft.sinks.files.markers import OURS, Markers, sealed
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.hdfs import HdfsFileSystem
from airflow_ft.wal.local import LocalFileSystem

log = logging.getLogger(__name__)

_KEPT = 16  # versions of the head
_TRIES = 100
_ABORTED = "aborted"
_NEVER_BESIDE = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EXDEV, errno.ENOTSUP
}  # fmt: skip
"""Errors that rule a place out for good. All others are raised, because the choice of the place is final."""


def _probe() -> str:
    return f"probe-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned(Head):
    """A head that also says whose the folder is, where that has changed since it was claimed.

    `pipeline` is the newest name ("": the one that has claimed it), `former` are those before. Numbers below `since`
    are theirs, and `inherited` is the one that they delivered last.
    """

    pipeline: str = ""
    since: int = 0
    inherited: int = 0
    former: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Leave these out while the folder has had one owner."""
        own = {"pipeline", "since", "inherited", "former"}
        return {name: value for name, value in asdict(self).items() if value or name not in own}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        return cls(**{**found, "former": tuple(found.get("former", ()))})


def refused(folder: str, owner: str, pipeline: str, former: Former | None) -> UnfitTargetError | None:
    """Return why a folder of `owner` cannot be a pipeline's; None if it can: its own, its former's, unowned."""
    if owner in ("", pipeline) or (former is not None and owner == former.pipeline):
        return None
    return UnfitTargetError(
        f"{folder} is the folder of pipeline {owner!r}.",
        code="target_shared",
        remedy="Name another folder.",
        path=folder,
        owner=owner,
    )


@dataclass(frozen=True, slots=True)
class _Version:
    """A version of the head, and the aborted numbers above the last delivered one that it knows."""

    version: int = 0
    head: Owned | None = None
    aborted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Ledger(Markers):
    """The memory of one folder: the head, beside its markers. Methods raise what the file system raises."""

    _known: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, folder: str, connection: ConnectionInfo) -> Self:
        """Return the ledger of a folder as an author names it.

        Raises:
            ConfigurationError: it is no place.
        """
        files = Objects.of(folder, connection, OURS) if is_object_store(folder) else filesystem(folder)
        return cls(files, files.uri(folder))

    def require_folder(self) -> None:
        """Makes the folder where it is lacking."""
        with suppress(FileExistsError):
            self.files.make_folder(self.root)

    # --- whose folder it is --------------------------------------------------------------------------------------

    def pipeline(self) -> str:
        """The pipeline that the folder belongs to; "": none yet."""
        return self.owner(self._newest().head) if self.claimed_by else ""

    def owner(self, head: Owned | None) -> str:
        """The same by a head that was read."""
        return head.pipeline if head is not None and head.pipeline else self.claimed_by

    def has_been_of(self, pipeline: str) -> bool:
        """Return whether it belongs, or has belonged, to that pipeline: what it has settled here stays settled."""
        if self.claimed_by in ("", pipeline):
            return bool(self.claimed_by)
        head = self._newest().head
        return head is not None and pipeline in (head.pipeline, *head.former)

    @property
    def claimed_by(self) -> str:
        """The pipeline that it has belonged to first; "": it never belonged to one."""
        return str(self._claimed().get("pipeline", ""))

    def _claimed(self) -> Mapping[str, Any]:
        """Return what never changes once it is there."""
        if not self._known:
            self._known.update(self._json(self.uri("pipeline.json")) or {})
        return self._known

    def claim(self, pipeline: str) -> None:
        """Assign the folder to that pipeline, if it has no owner yet; see `require_owner`."""
        if not self.claimed_by:
            says = {"pipeline": pipeline, "staged": "beside" if self._is_best_beside() else "inside"}
            with suppress(FileExistsError):
                self.files.write(self.uri("pipeline.json"), sealed(says))
            self.files.sync_folders(self.uri(), self.root)

    def require_owner(self, head: Owned | None, pipeline: str) -> None:
        """UnfitTargetError when the folder is another pipeline's, by a head that was read."""
        if (owner := self.owner(head)) != pipeline:
            raise UnfitTargetError(
                f"{self.path(self.root)} is the folder of pipeline {owner!r}, and {pipeline!r} counts its own"
                " checkpoints.",
                code="target_shared",
                remedy="Give each pipeline its own folder. Readers can read several. Has the pipeline been renamed?"
                f" Then run `airflow ft savepoint restore PATH --pipeline {pipeline} --rename` with a savepoint of"
                f" {owner}, and it keeps the folder.",
                path=self.path(self.root),
                owner=owner,
            )

    # --- where rows are prepared ---------------------------------------------------------------------------------

    def staging(self) -> tuple[str, str]:
        """Return where folders are prepared, and the folder that has been there before.

        Beside the folder: some readers (PyArrow) walk through hidden folders, too, and fail when one vanishes
        meanwhile. Else in `_airflow_ft`: no rename leads from beside into the folder, or the place beside cannot get
        the folder's mode, group and ACLs. `claim` decides this once.
        """
        if not self._is_beside:
            return self.uri("staged"), self.root
        return self._beside, f"{self.root.rpartition('/')[0]}/"

    def guard_staging(self) -> None:
        """Let the same users read prepared rows as visible ones: the rename keeps modes and groups."""
        if self._is_beside and not self.files.make_like(self._beside, self.root):
            log.warning(
                "%s lacks the mode, group or ACLs of %s, and this user cannot set them: readers may lack access to the"
                " rows prepared there, or other users may have it. Fix: run `chgrp`, `chmod` and `setfacl` on it (`hdfs"
                " dfs -chgrp` in HDFS).",
                self.path(self._beside),
                self.path(self.root),
            )

    def require_room(self, prepared: str) -> None:
        """Raise StorageUnavailableError if a quota of the folder does not allow the one that is prepared beside it."""
        if self._is_beside and isinstance(self.files, HdfsFileSystem):
            self.files.require_room(self.root, prepared, self.files.uri(prepared, OURS))

    @property
    def _is_beside(self) -> bool:
        return bool(self._claimed().get("staged") == "beside")

    @property
    def _beside(self) -> str:
        parent, _, name = self.root.rpartition("/")
        return f"{parent}/_{name}.airflow_ft"

    def _is_best_beside(self) -> bool:
        if isinstance(self.files, Objects):  # a bucket has no folders to walk through
            self.files.require_conditions(self.uri(_probe()))
            return False
        if isinstance(self.files, LocalFileSystem) and not self.files.has_links(self.uri(_probe())):
            raise lacks_links(self.path(self.root), "create files atomically")
        return self._can_rename_from(self._beside)

    def _can_rename_from(self, place: str) -> bool:
        name = _probe()
        source, target = self.files.uri(place, name), self.uri(name)
        try:
            with suppress(FileExistsError):
                self.files.make_folder(self.uri())
            if not self.files.make_like(place, self.root):
                return False
            self.files.write(self.files.uri(source, "file"), b"")
            self.files.rename_folder(source, target)
        except OSError as error:
            if error.errno not in _NEVER_BESIDE:
                raise
            return False
        finally:
            for probe in (source, target):
                with suppress(OSError):
                    self.files.remove_tree(probe)
        return True

    # --- the head ------------------------------------------------------------------------------------------------

    def stored(self) -> Owned | None:
        """Return the newest version as it is stored. It says who may write, but not always what was delivered last."""
        return self._newest().head

    def head(self) -> Owned | None:
        """Return what it remembers, with what was delivered last as of now: this lists all checkpoints of a folder."""
        return self._as_of_now(self._newest()).head

    def change(self, new: Callable[[Owned | None], Owned]) -> Owned:
        """Puts a head in the place of the one that `new` was given; returns it.

        `new` may be asked again, and what it wants may be done twice: it says who writes, and a floor, which twice
        changes nothing more. SinkUnavailableError when others are always faster.
        """
        for _ in range(_TRIES):
            stored = self._newest()
            version, found = stored.version, self._as_of_now(stored)
            head = new(found.head)
            if head == found.head and found.aborted == stored.aborted:
                return head
            last, floor = (stored.head.last_delivered, stored.head.floor) if stored.head else (0, 0)
            if head.floor > floor:  # the markers that say it go; else it is not written down a second time
                last = max(last, head.floor, self._marked(found.aborted)[0])
            says = {**replace(head, last_delivered=last).to_json(), _ABORTED: sorted(found.aborted)}
            data = sealed(says)
            try:
                self.files.write(self._version(version + 1), data)
            except FileExistsError:
                continue
            versions = self._versions()
            if versions and versions[-1] > version + _KEPT:  # perhaps it was made, and deleted, while this one slept
                self.files.remove(self._version(version + 1))
                continue
            if version == 0:
                self.files.sync_folders(self.uri("head"), self.root)
            for old in versions[:-_KEPT]:
                self.files.remove(self._version(old))
            return head
        raise self._too_fast()

    def _newest(self) -> _Version:
        """The newest version; 0: there is none."""
        for _ in range(_TRIES):
            versions = self._versions()
            if not versions:
                return _Version()
            found = self._json(self._version(versions[-1]))
            if found is not None:  # else newer ones were made since
                with damaged(self.path(self._version(versions[-1]))):
                    aborted = frozenset(found.pop(_ABORTED, ()))
                    return _Version(versions[-1], Owned.from_json(found), aborted)
        raise self._too_fast()

    def _as_of_now(self, stored: _Version) -> _Version:
        if stored.head is None:
            return stored
        marked, aborted = self._marked(stored.aborted)
        last = max(stored.head.last_delivered, marked)
        # Visible without a marker: the process died before it wrote one.
        for number in reversed(self.visible(last)):
            if self.manifest(self.published(number)) is not None:
                last = number
                break
        return _Version(stored.version, replace(stored.head, last_delivered=last), aborted)

    def _marked(self, aborted: frozenset[int]) -> tuple[int, frozenset[int]]:
        """Return the highest number with a COMMITTED marker (0: none), and the aborted ones above it.

        `aborted` are those known already, so that their markers are not read each time. A number that lost its marker
        is forgotten when the head is raised, which precedes every new marker.
        """
        above: set[int] = set()
        for number in reversed(self._numbers("markers")):
            marker = None if number in aborted else self.marker(number)
            if marker is not None and marker.outcome is Outcome.COMMITTED:
                return number, frozenset(above)
            if marker is not None or number in aborted:
                above.add(number)
        return 0, frozenset(above)

    def _too_fast(self) -> SinkUnavailableError:
        where = self.path(self.uri("head"))
        return SinkUnavailableError(
            f"other processes keep changing the fence in {where}.",
            code="changed_meanwhile",
            remedy="Retry. If it happens again, check whether two processes deliver this pipeline.",
            path=where,
        )

    def _versions(self) -> list[int]:
        return self._numbers("head")

    def _version(self, version: int) -> str:
        return self.uri("head", f"{version:08}.json")

    # --- what is visible -----------------------------------------------------------------------------------------

    def newest_layout(self, last: int | None = None) -> dict[str, Any] | None:
        """Format, partitioning and columns of the newest rows that are visible; None: there are none of ours.

        `last`: the number that was delivered last; None: it is read.
        """
        if last is None:
            head = self.head()
            last = head.last_delivered if head else 0
        for number in self._newest_first(last):
            found = self.manifest(self.published(number))
            if found is not None and "columns" in found:
                return found
        return None

    def _newest_first(self, last: int) -> Iterator[int]:
        if last:
            yield last
        yield from reversed(self.visible())
