"""Folders of an object store, through the S3 API: the part of `FileSystem` that this sink needs.

There are no folders and no renames. But a store puts an object exactly once on the condition that there is none
(If-None-Match). All memory of a folder depends on that. A rename of a prepared folder takes three steps here, and any
process can repeat each of them:

1. Put its manifest beside the place of the rows, if there is none. The manifest decides whose files become visible, so
   only one of several attempts is ever shown.
2. Let the store copy each file to its visible place, in one request. A repetition copies the same.
3. Delete the prepared files, after the marker is written.

A process that wakes up late finds the manifest of another attempt, or no files left to copy. Readers see each file as
a whole, but the files of one checkpoint one after the other. Its marker says that all are there.

A client that repeats a request after a lost answer may meet its own object: then the object equals what it has put.
"""

from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar, cast
from urllib.parse import urlsplit

from airflow_ft.clients.buckets import BucketSettings
from airflow_ft.clients.objects import PART, Bucket, is_refused, lacks_conditions, remedy_of_refusal, said, split
from airflow_ft.clients.s3 import SCHEME, endpoint, store_of
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AirflowFtError,
    SinkAccessError,
    SinkUnavailableError,
    WalCorruptError,
)

T = TypeVar("T")
_AT_ONCE = 2  # parts of one file under way
_COPIES = 8
_SUCCESS = "_SUCCESS"


def keys_of(place: str, connection: ConnectionInfo) -> BucketSettings | None:
    """Return the settings for a place; None if it names no connection: those of the environment.

    Raises:
        ConfigurationError: the connection cannot be used.
        SinkAccessError: it is of another type.
    """
    return BucketSettings.of(connection) if urlsplit(place).username else None


@dataclass(frozen=True)
class Objects(Bucket):
    """The objects of one bucket. `manifest` is the name of what is put first when a folder is published.

    Methods raise SinkAccessError and SinkUnavailableError, and FileNotFoundError and FileExistsError as files do.
    """

    manifest: str
    open_files: int = 40

    @classmethod
    def of(cls, place: str, connection: ConnectionInfo, manifest: str) -> Objects:
        """Return the store of `s3://BUCKET/...`. Raises as `keys_of` does."""
        bucket = urlsplit(place).hostname or ""
        return cls(bucket, store_of(bucket, keys_of(place, connection)), manifest)

    def uri(self, location: str, *names: str) -> str:
        bucket, key = split(location)
        return "/".join((f"{SCHEME}://{bucket}", *(part for part in (key, *names) if part)))

    def hadoop_path(self, uri: str) -> str:
        return uri

    # --- reading -------------------------------------------------------------------------------------------------

    def exists(self, uri: str) -> bool:
        return any(self.under(uri)) or self.size_of(uri) is not None

    def names_after(self, uri: str, folder: str) -> set[str]:
        """Names of folders (and objects) that come after this one in the order of their bytes."""
        _, key = split(uri)
        return {path.removeprefix(f"{key}/").partition("/")[0] for path, _ in self.under(uri, f"{key}/{folder}0")}

    def tree(self, uri: str) -> dict[str, int]:
        _, key = split(uri)
        return {path.removeprefix(f"{key}/"): size for path, size in self.under(uri)}

    def open(self, uri: str) -> BinaryIO:
        return self._found(uri, self.reader)

    def read(self, uri: str) -> bytes:
        return self._found(uri, self.bytes_of)

    def _found(self, uri: str, look: Callable[[str], T]) -> T:
        try:
            return look(uri)
        except FileNotFoundError as error:
            raise WalCorruptError(f"{uri} is missing.", remedy="Restore it from a backup.", path=uri) from error

    # --- changing ------------------------------------------------------------------------------------------------

    def create(self, uri: str) -> BinaryIO:
        """Its name is its writer's alone; it is there, and durable, when it is closed."""
        return cast(BinaryIO, _Upload(self, uri))

    def make_folder(self, uri: str) -> None:
        """There are none; the bucket has to be there."""
        self.names(uri)

    def make_like(self, uri: str, model: str) -> bool:
        """There are neither modes nor groups."""
        return True

    def remove_tree(self, uri: str) -> None:
        import obstore

        keys = [path for path, _ in self.under(uri)]
        first = [key for key in keys if key.rpartition("/")[2] == self.manifest]  # without it nothing counts as whole
        for some in (first, [key for key in keys if key not in first]):
            if some:
                self.ask(uri, lambda _, gone=some: obstore.delete(self.store, gone))  # type: ignore[misc]

    def sync_file(self, file: BinaryIO) -> None:
        """Do nothing: a closed object is durable."""

    def sync_folders(self, uri: str, up_to: str) -> None:
        """There are none."""

    def sync_tree(self, uri: str, up_to: str, synced: object) -> None:
        """As `sync_file`."""

    def rename_folder(self, source: str, target: str) -> None:
        """Steps 1 and 2 (see the module). FileExistsError: another manifest or file is there; FileNotFoundError: what
        was prepared is gone.
        """
        claim = self.uri(target, self.manifest)
        try:
            manifest = self.read(self.uri(source, self.manifest))
        except WalCorruptError as error:
            raise FileNotFoundError(errno.ENOENT, "the prepared files are gone", source) from error
        self.write(claim, manifest)
        try:
            self.copy(source, target, json.loads(manifest)["files"])
        except FileNotFoundError:
            if not set(self.tree(target)) - {self.manifest}:  # it was shown, and deleted, while this one slept
                self.remove(claim)
            raise

    def copy(self, source: str, target: str, files: Sequence[Mapping[str, Any]]) -> None:
        """Do step 2 for the files of a manifest, and skip those that exist. Raises as `rename_folder`."""
        with ThreadPoolExecutor(_COPIES) as pool:
            for _ in pool.map(lambda file: self._copy(source, target, file["path"], file["bytes"]), files):
                pass
        if _SUCCESS in self.names(source):
            self._copy(source, target, _SUCCESS, 0)

    def _copy(self, source: str, target: str, path: str, size: int) -> None:
        import obstore

        place = self.uri(target, path)
        there = self.size_of(place)
        if there == size:
            return
        if there is not None:
            raise FileExistsError(errno.EEXIST, "the object exists already", place)
        try:  # one request: who sleeps does so before it, or behind it
            self.ask(self.uri(source, path), lambda key: obstore.copy(self.store, key, split(place)[1]))
        except FileNotFoundError:
            if self.size_of(place) != size:
                raise

    def require_conditions(self, probe: str) -> None:
        """Raise UnfitTargetError if the store does not prevent the replacement of an object.

        `probe` is an unused name. Some stores do not know If-None-Match, and replace objects silently.
        """
        self.write(probe, b"1")
        try:
            self.write(probe, b"2")
        except FileExistsError:
            return
        finally:
            self.remove(probe)
        raise lacks_conditions(self.bucket, "overwrites objects although If-None-Match forbids it")

    def explain(self, uri: str, text: str, *, refused: bool = False) -> AirflowFtError:
        """Return the error of a store's client as an error of this package. Its text has no secrets: they travel in
        headers.
        """
        if "NoSuchBucket" in text:
            return SinkAccessError(
                f"there is no bucket {self.bucket!r} at {endpoint(self.store)}.",
                code="bucket_missing",
                remedy="Create it, or name another bucket, or the connection that reaches it:"
                " s3://CONNECTION@BUCKET/FOLDER.",
                bucket=self.bucket,
            )
        if refused or is_refused(text):
            return SinkAccessError(
                f"the store refuses {uri}: {said(text)}.",
                code="access_refused",
                remedy=remedy_of_refusal(text),
                path=uri,
            )
        return SinkUnavailableError(
            f"{uri}: {said(text)}", code="server_unreachable", remedy="Retry when the store answers.", path=uri
        )


class _Upload(io.RawIOBase):
    """A new object, sent part by part."""

    def __init__(self, objects: Objects, uri: str) -> None:
        import obstore

        self._objects, self._uri = objects, uri
        self._out = obstore.open_writer(objects.store, split(uri)[1], buffer_size=PART, max_concurrency=_AT_ONCE)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with self._objects.translated_errors(self._uri):
            return self._out.write(bytes(data))  # the client keeps what it is given for a while

    def close(self) -> None:
        if not self.closed:
            try:
                with self._objects.translated_errors(self._uri):
                    self._out.close()
            finally:
                super().close()
