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
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AirflowFtError,
    SinkAccessError,
    SinkUnavailableError,
    UnfitTargetError,
    WalCorruptError,
)
from airflow_ft.sinks.base.places import S3
from airflow_ft.sinks.files.s3 import config_of, endpoint, store_of

if TYPE_CHECKING:
    from obstore import ReadableFile
    from obstore.store import S3Store

T = TypeVar("T")
_PART = 5 << 20  # the least that S3 takes as a part of an upload; so much of each open file is in memory
_CHUNK = 1 << 20
_AT_ONCE = 2  # parts of one file under way
_COPIES = 8
_SUCCESS = "_SUCCESS"
_REFUSED = re.compile(r"status code: 40[13]\b")


@dataclass(frozen=True)
class Objects:
    """The objects of one bucket. `manifest` is the name of what is put first when a folder is published.

    Methods raise SinkAccessError and SinkUnavailableError, and FileNotFoundError and FileExistsError as files do.
    """

    bucket: str
    store: S3Store
    manifest: str
    open_files: int = 40

    @classmethod
    def of(cls, place: str, connection: ConnectionInfo, manifest: str) -> Objects:
        """Return the store of `s3://BUCKET/...`.

        Raises:
            ConfigurationError: the connection cannot be used.
        """
        bucket = urlsplit(place).hostname or ""
        return cls(bucket, store_of(bucket, tuple(sorted(config_of(connection).items()))), manifest)

    def uri(self, location: str, *names: str) -> str:
        bucket, key = _split(location)
        return "/".join((f"{S3}://{bucket}", *(part for part in (key, *names) if part)))

    def hadoop_path(self, uri: str) -> str:
        return uri

    # --- reading -------------------------------------------------------------------------------------------------

    def exists(self, uri: str) -> bool:
        return any(self._under(uri)) or self._ask(uri, self._size) is not None

    def mark(self, uri: str) -> str | None:
        """Return the identity of an object; None if there is none."""
        import obstore

        try:
            found = self._ask(uri, lambda key: obstore.head(self.store, key))
        except FileNotFoundError:
            return None
        return f"{found['e_tag']} {found['last_modified']} {found['size']}"

    def names(self, uri: str) -> list[str]:
        import obstore

        found = self._ask(uri, lambda key: obstore.list_with_delimiter(self.store, key))
        below = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return [str(path).rpartition("/")[2] for path in below]

    def names_after(self, uri: str, folder: str) -> set[str]:
        """Names of folders (and objects) that come after this one in the order of their bytes."""
        _, key = _split(uri)
        return {path.removeprefix(f"{key}/").partition("/")[0] for path, _ in self._under(uri, f"{key}/{folder}0")}

    def tree(self, uri: str) -> dict[str, int]:
        _, key = _split(uri)
        return {path.removeprefix(f"{key}/"): size for path, size in self._under(uri)}

    def open(self, uri: str) -> BinaryIO:
        import obstore

        source = self._read(uri, lambda key: obstore.open_reader(self.store, key))
        return io.BufferedReader(_Download(self, uri, source), _CHUNK)

    def read(self, uri: str) -> bytes:
        import obstore

        return self._read(uri, lambda key: bytes(obstore.get(self.store, key).bytes()))

    # --- changing ------------------------------------------------------------------------------------------------

    def create(self, uri: str) -> BinaryIO:
        """Its name is its writer's alone; it is there, and durable, when it is closed."""
        return cast(BinaryIO, _Upload(self, uri))

    def write(self, uri: str, data: bytes) -> None:
        import obstore

        try:
            self._ask(uri, lambda key: obstore.put(self.store, key, data, mode="create", use_multipart=False))
        except FileExistsError:
            if self.read(uri) != data:
                raise

    def make_folder(self, uri: str) -> None:
        """There are none; the bucket has to be there."""
        self.names(uri)

    def remove(self, uri: str) -> None:
        import obstore

        self._ask(uri, lambda key: obstore.delete(self.store, key))

    def remove_tree(self, uri: str) -> None:
        import obstore

        keys = [path for path, _ in self._under(uri)]
        first = [key for key in keys if key.rpartition("/")[2] == self.manifest]  # without it nothing counts as whole
        for some in (first, [key for key in keys if key not in first]):
            if some:
                self._ask(uri, lambda _, gone=some: obstore.delete(self.store, gone))  # type: ignore[misc]

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
        """Step 2 for the files of a manifest; those that are there already are let be. Raises as `rename_folder`."""
        with ThreadPoolExecutor(_COPIES) as pool:
            for _ in pool.map(lambda file: self._copy(source, target, file["path"], file["bytes"]), files):
                pass
        if _SUCCESS in self.names(source):
            self._copy(source, target, _SUCCESS, 0)

    def _copy(self, source: str, target: str, path: str, size: int) -> None:
        import obstore

        place = self.uri(target, path)
        there = self._ask(place, self._size)
        if there == size:
            return
        if there is not None:
            raise FileExistsError(errno.EEXIST, "the object exists already", place)
        try:  # one request: who sleeps does so before it, or behind it
            self._ask(self.uri(source, path), lambda key: obstore.copy(self.store, key, _split(place)[1]))
        except FileNotFoundError:
            if self._ask(place, self._size) != size:
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
        raise UnfitTargetError(
            f"the store of bucket {self.bucket!r} overwrites objects although If-None-Match forbids it.",
            code="file_system_unsupported",
            remedy="Use a store, or a version of it, with conditional puts (If-None-Match). Exactly-once needs them.",
            bucket=self.bucket,
            feature="If-None-Match",
        )

    # --- asking --------------------------------------------------------------------------------------------------

    def _under(self, uri: str, after: str | None = None) -> Iterator[tuple[str, int]]:
        import obstore

        _, key = _split(uri)
        with self._telling(uri):
            for some in obstore.list(self.store, key, offset=after):
                for each in some:
                    yield str(each["path"]), int(each["size"])

    def _size(self, key: str) -> int | None:
        import obstore

        try:
            return int(obstore.head(self.store, key)["size"])
        except FileNotFoundError:
            return None

    def _read(self, uri: str, call: Callable[[str], T]) -> T:
        try:
            return self._ask(uri, call)
        except FileNotFoundError as error:
            raise WalCorruptError(f"{uri} is missing.", remedy="Restore it from a backup.", path=uri) from error

    def _ask(self, uri: str, call: Callable[[str], T]) -> T:
        with self._telling(uri):
            return call(_split(uri)[1])

    @contextmanager
    def _telling(self, uri: str) -> Iterator[None]:
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, "the object exists already", uri) from error
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                self._tell(uri, error)
            raise
        except BaseError as error:
            self._tell(uri, error)

    def _tell(self, uri: str, error: Exception) -> NoReturn:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        raise self.explain(uri, str(error), refused=refused) from error

    def explain(self, uri: str, text: str, *, refused: bool = False) -> AirflowFtError:
        """Return the error of a store's client as an error of this package. Its text has no secrets: they travel in
        headers.
        """
        said = text.split("\n", 1)[0].partition("<?xml")[0].rpartition("Error performing ")[2]
        if "NoSuchBucket" in text:
            return SinkAccessError(
                f"there is no bucket {self.bucket!r} at {endpoint(self.store)}.",
                code="bucket_missing",
                remedy="Create it, or name another bucket, or the connection that reaches it:"
                " s3://CONNECTION@BUCKET/FOLDER.",
                bucket=self.bucket,
            )
        if refused or _REFUSED.search(text):
            return SinkAccessError(
                f"the store refuses {uri}: {_code(text) or said}.",
                code="access_refused",
                remedy="Check login and password of the connection. They must allow to list, get, put and delete"
                " objects there.",
                path=uri,
            )
        return SinkUnavailableError(
            f"{uri}: {said}", code="server_unreachable", remedy="Retry when the store answers.", path=uri
        )


class _Download(io.RawIOBase):
    """An object, which comes as it is asked for."""

    def __init__(self, objects: Objects, uri: str, source: ReadableFile) -> None:
        self._objects, self._uri, self._source = objects, uri, source

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        with self._objects._telling(self._uri):
            found = memoryview(self._source.read(len(into)))
        into[: len(found)] = found
        return len(found)

    def seekable(self) -> bool:
        return True

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        return self._source.seek(to, whence)

    def tell(self) -> int:
        return self._source.tell()


class _Upload(io.RawIOBase):
    """A new object, sent part by part."""

    def __init__(self, objects: Objects, uri: str) -> None:
        import obstore

        self._objects, self._uri = objects, uri
        self._out = obstore.open_writer(objects.store, _split(uri)[1], buffer_size=_PART, max_concurrency=_AT_ONCE)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with self._objects._telling(self._uri):
            return self._out.write(bytes(data))  # the client keeps what it is given for a while

    def close(self) -> None:
        if not self.closed:
            try:
                with self._objects._telling(self._uri):
                    self._out.close()
            finally:
                super().close()


def _split(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix(f"{S3}://").partition("/")
    return bucket.rpartition("@")[2], key.strip("/")


def _code(text: str) -> str:
    return text.partition("<Code>")[2].partition("</Code>")[0]
