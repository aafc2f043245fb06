"""An attempt's prepared folder for a number, which readers do not see until it is renamed.

    _<folder>.airflow_ft/<number>.<epoch>-<attempt>/        (or <folder>/_airflow_ft/staged, see `Ledger.staging`)
        part-00000.parquet, country=DE/part-00001.parquet ...
        _airflow_ft        written last: who, of which plan, and each file with its rows, bytes and checksum

One rename makes all of it visible, with the manifest inside: rows and the proof of their owner appear together. The
rename removes the folder from its old place, so it can happen once; and it fails if the checkpoint exists already.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from airflow_ft.protocol.errors import StoreBehindSinkError, UnfitTargetError, WalCorruptError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.set_aside import detail as set_aside_detail
from airflow_ft.protocol.write_ahead_log import SegmentReader, WalFile
from airflow_ft.sinks.ahead import made_of
from airflow_ft.sinks.files import partitions
from airflow_ft.sinks.files.columns import layout
from airflow_ft.sinks.files.ledger import Ledger
from airflow_ft.sinks.files.markers import OURS, sealed
from airflow_ft.sinks.files.objects import Objects
from airflow_ft.sinks.files.spec import LARGEST, FilesSink
from airflow_ft.sinks.files.writing import Files, large, lines, refused
from airflow_ft.sinks.refused import Refused, accepted
from airflow_ft.wal.filesystem import FileSystem
from airflow_ft.wal.local import LocalFileSystem, local_path

_NAME = re.compile(r"\.?(\d+)\.(\d+)-(\d+)(\.removed)?")  # also what a process that died had half removed
Rank = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Staged:
    """The prepared folders of a pipeline's folder."""

    ledger: Ledger
    sink: FilesSink
    name: str  # of the sink

    def uri(self, number: int, rank: Rank) -> str:
        """Return where an attempt prepares a number."""
        return self.ledger.files.uri(self.ledger.staging()[0], f"{number}.{rank[0]}-{rank[1]}")

    def all(self) -> list[tuple[int, Rank]]:
        """Numbers and attempts that have a folder, ascending."""
        matches = map(_NAME.fullmatch, self.ledger.files.names(self.ledger.staging()[0]))
        return sorted({(int(m[1]), (int(m[2]), int(m[3]))) for m in matches if m})

    def remove(self, which: Callable[[int, Rank], bool]) -> None:
        """Removes the folders that `which` names by number and attempt."""
        for number, rank in self.all():
            if which(number, rank):
                self.ledger.files.remove_tree(self.uri(number, rank))

    def manifest(self, number: int, rank: Rank) -> dict[str, Any] | None:
        """Return the manifest of a complete folder; None: it is missing, its attempt died early, or it lost files."""
        folder = self.uri(number, rank)
        found = self.ledger.manifest(folder)
        if found is None:
            return None
        there = self.ledger.files.tree(folder)
        return found if all(there.get(each["path"]) == each["bytes"] for each in found["files"]) else None

    def layout_behind(self, predecessor: int, last: int) -> Mapping[str, Any] | None:
        """Return the layout of the preceding rows: those of the predecessor, which may still be prepared, or the
        newest visible ones. None if there are none. `last` is the number that was delivered last.
        """
        if predecessor > last:
            for number, rank in reversed(self.all()):
                found = self.manifest(number, rank) if number == predecessor else None
                if found is not None and "columns" in found:
                    return found
        return self.ledger.newest_layout(last)

    def build(
        self,
        plan: Plan,
        fence: Fence,
        readers: Sequence[SegmentReader],
        dead_letters: Refused | None,
        before: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Write all rows of the number, durably; returns the manifest.

        With `dead_letters` refused rows are set aside there. `before` is the layout of the preceding rows
        (`layout_behind`).

        Raises:
            DeclinedError: rows are refused.
        """
        sink, files = self.sink, self.ledger.files
        folder = self.uri(plan.number, fence.rank)
        self.ledger.guard_staging()
        files.remove_tree(folder)  # of this very attempt, whose process has lost what came of it
        out = Files(files, folder, sink.format, sink.compression, sink.file_bytes)
        mine = [reader for reader in readers if self.name in reader.sinks()]
        try:
            for reader in mine:
                linked = self._linked(reader, len(mine)) if dead_letters is None else []
                for file in reader.files(self.name):
                    if file in linked:
                        out.adopt(reader, file, self.name)
                    else:
                        self._write(reader, file, out, dead_letters)
            written = out.close()
        except BaseException:
            out.abandon()
            raise
        self._require_apart(folder, [file.path for file in written])
        self._require_copyable(written)
        schemas = [schema for reader in mine if len(schema := reader.schema(self.name))]
        for schema in schemas:
            before = layout(sink, schema, before)
        aside = set_aside_detail(dead_letters.write()) if dead_letters is not None else {}
        manifest = {
            "pipeline": plan.pipeline,
            "installation": fence.installation,
            "sink": self.name,
            "number": plan.number,
            "digest": plan.digest,
            "rank": list(fence.rank),
            "rows": sum(file.rows for file in written),
            "files": [asdict(file) for file in written],
            "detail": {"segments": [each.number for each in plan.segments], **aside},
            **(before if schemas and before is not None else {}),
        }
        if written and sink.success_file:
            files.write(files.uri(folder, "_SUCCESS"), b"")
        files.write(files.uri(folder, OURS), sealed(manifest))
        files.sync_tree(folder, self.ledger.staging()[1], {})
        self.ledger.require_room(folder)
        return manifest

    def _require_apart(self, folder: str, paths: Sequence[str]) -> None:
        """UnfitTargetError where the file system takes the folders of two partitions for one: values would change."""
        folders = {path.rpartition("/")[0] for path in paths}
        if len({unicodedata.normalize("NFC", each).casefold() for each in folders}) == len(folders):
            return
        there = self.ledger.files.tree(folder)
        if lost := sorted(path for path in paths if path not in there):
            folder_of = lost[0].rpartition("/")[0]
            raise UnfitTargetError(
                f"the file system of {self.ledger.path(self.ledger.root)} ignores case or the form of letters. It takes"
                f" the folder of partition {folder_of} for that of another value.",
                code="file_system_unsupported",
                remedy="Name a folder on a file system that distinguishes them, or make them one value in the job.",
                sink=self.name,
                path=self.ledger.path(self.ledger.root),
                feature="case",
                partition=folder_of,
            )

    def _require_copyable(self, written: Sequence[WalFile]) -> None:
        """UnfitTargetError for a file that the store could not copy to its visible place, after the decision."""
        if not isinstance(self.ledger.files, Objects):
            return
        for file in written:
            if file.bytes > LARGEST:
                raise UnfitTargetError(
                    f"{file.path} would have {file.bytes:,} bytes, but S3 copies at most {LARGEST:,}.",
                    code="limit_reached",
                    remedy="Set file_bytes of the sink to a smaller number, for example 128 << 20.",
                    sink=self.name,
                    path=file.path,
                    limit=LARGEST,
                )

    def publish(self, number: int, rank: Rank) -> None:
        """Makes it visible, durably. FileExistsError: something is there; FileNotFoundError: it is gone."""
        ledger = self.ledger
        ledger.files.rename_folder(self.uri(number, rank), ledger.published(number))
        self.sync()

    def finish(self, number: int, manifest: Mapping[str, Any]) -> None:
        """Complete and sync a published folder whose process died, so that it survives a power cut."""
        files = self.ledger.files
        if isinstance(files, Objects):
            target = self.ledger.published(number)
            try:
                files.copy(self.uri(number, tuple(manifest["rank"])), target, manifest["files"])
            except FileNotFoundError as error:
                raise StoreBehindSinkError(
                    f"{target} lacks files of its manifest, and the prepared files are gone.",
                    remedy=f"Remove everything below {target}. The write-ahead log delivers it again.",
                    path=target,
                ) from error
        self.sync()

    def sync(self) -> None:
        """Returns when what was published survives a power cut."""
        self.ledger.files.sync_folders(self.ledger.root, self.ledger.root)

    def _linked(self, reader: SegmentReader, segments: int) -> list[WalFile]:
        """The files of the log that become files here as they are."""
        files = list(reader.files(self.name))
        if self.sink.format != "parquet" or self.sink.partition_by or self.sink.compression:
            return []
        found = large(files, segments, self.sink.file_bytes)
        most = LARGEST if isinstance(self.ledger.files, Objects) else math.inf
        return [file for file in found if file.bytes <= most]

    def _write(self, reader: SegmentReader, file: WalFile, out: Files, dead_letters: Refused | None) -> None:
        parts = (
            (folder, part)
            for rows in accepted(reader, self.name, file, dead_letters, lambda batch: (batch, self._refused(batch)))
            for folder, part in partitions.split(rows, self.sink.partition_by)
            if part.num_rows
        )
        with closing(made_of(parts, lambda part: lines(self.sink.format, part[1]))) as made:
            for (folder, part), text in made:
                out.put(folder, part, text)

    def _refused(self, rows: Any) -> Mapping[int, str]:
        left = rows.drop_columns(list(self.sink.partition_by)) if self.sink.partition_by else rows
        longest = room(self.ledger.files, self.ledger.root)
        return {**refused(self.sink.format, left), **partitions.refused(rows, self.sink.partition_by, longest)}


def others(staged: Staged, installation: str, above: int) -> Iterator[tuple[int, Rank, dict[str, Any]]]:
    """Whole folders above a number that another decision log has prepared; of several attempts the newest."""
    found: dict[int, tuple[Rank, dict[str, Any]]] = {}
    for number, rank in staged.all():
        with suppress(WalCorruptError):
            manifest = staged.manifest(number, rank)
            if number > above and manifest is not None and manifest["installation"] != installation:
                found[number] = (rank, manifest)
    for number, (rank, manifest) in sorted(found.items()):
        yield number, rank, manifest


# Limits of file systems and object stores on the path of a partition below a folder.
_LOCAL = 4095  # PATH_MAX of Linux, without the NUL at its end
_HDFS = 8000  # characters (org.apache.hadoop.hdfs.server.common.HdfsServerConstants.MAX_PATH_LENGTH)
_S3 = 1024  # bytes of a key (docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html)
_OURS = 200
"""Bytes kept free for names around it: `_<folder>.airflow_ft/<number>.<epoch>-<attempt>/`, and the file's own name."""


def room(files: FileSystem | Objects, root: str) -> int:
    """Return how many bytes a path below the folder `root` (a URI) may have; at least 1."""
    if isinstance(files, Objects):
        most, taken = _S3, len(root.split("://", 1)[-1].partition("/")[2].encode())
    elif isinstance(files, LocalFileSystem):
        path = local_path(root)
        most, taken = _most(path), len(os.fsencode(path))
    else:
        most, taken = _HDFS, len(root.split("://", 1)[-1].partition("/")[2].encode()) + 1
    return max(1, most - taken - _OURS)


def _most(path: Path) -> int:
    """Return PATH_MAX of the file system that a folder lies in, or will lie in."""
    for there in (path, *path.parents):
        with suppress(OSError, ValueError):
            return min(_LOCAL, os.pathconf(there, "PC_PATH_MAX") - 1)
    return _LOCAL
