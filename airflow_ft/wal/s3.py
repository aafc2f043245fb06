"""Object storage under the log: `s3://CONNECTION@BUCKET/FOLDER`, through the S3 API and without a JVM.

- Publication: an object is put on the condition that there is none (`airflow_ft.clients.objects`).
- Durability: an answered put is durable, so nothing is synced. A file of several parts is there when all are sent.
- Folders are made by an object `_airflow_ft_made` on the same condition, so one of two processes makes them. Listings
  hide it, and Spark passes over names that begin so. S3A marks folders by objects `folder/`, which are skipped, too.
- A copy is made by the store, one request a file. It replaces what is there, so only names that one attempt owns are
  copied to.
- No folder is renamed at once. Sinks that need it use buckets in their own way.
"""

from __future__ import annotations

import errno
import io
import os
import uuid
from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import quote

from airflow_ft.clients.buckets import BucketPlace, BucketSettings, settings_of
from airflow_ft.clients.objects import PART, Bucket, is_refused, remedy_of_refusal, said, split
from airflow_ft.clients.s3 import private_store
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, StorageUnavailableError
from airflow_ft.wal import markers
from airflow_ft.wal.copying import copy_each, copy_file, copy_tree

if TYPE_CHECKING:
    from obstore.store import S3Store

TIMEOUT = 120
"""Seconds for one request."""
MADE = "_airflow_ft_made"
LARGEST_COPY = 5 << 30
"""Bytes that a store copies in one request."""
SMALL = 4 << 20
"""Bytes. An object up to this size is read whole, in one request."""
_AT_ONCE = 2  # parts of one file under way
_COPIES = 16  # by the store: this process holds no bytes of them
FOREIGN_COPIES = 2
"""Copies at once by this process, each with up to four parts in memory."""


class LogBucket(Bucket):
    """A bucket of the log, with errors of the log's storage."""

    def explain(self, uri: str, text: str, *, refused: bool = False) -> AirflowFtError:
        if "NoSuchBucket" in text:
            what, code, number = f"there is no bucket {self.bucket!r}", "bucket_missing", errno.ENODEV
            remedy = "Create the bucket, or correct the folder or the endpoint of its connection."
        elif refused or is_refused(text):
            what, code, number = f"the store refuses it ({said(text)})", "access_refused", errno.EACCES
            remedy = remedy_of_refusal(text)
        else:
            what, code, number = said(text), "server_unreachable", errno.EIO
            remedy = "Check that the store runs, and the endpoint of the connection."
        return StorageUnavailableError(
            f"{uri} cannot be reached: {what.rstrip('.')}.", code=code, number=number, remedy=remedy, path=uri
        )


class S3FileSystem(markers.RootedFiles):
    """Buckets; see the module, and `airflow_ft.wal.filesystem.FileSystem` for what the methods promise.

    `open_files`: how many may be written at once. Each has some parts in memory.
    """

    open_files = 40
    returns_unnoticed = False

    def uri(self, location: str, *names: str) -> str:
        return "/".join((str(BucketPlace.of(location)), *(name for name in names if name)))

    def hadoop_path(self, uri: str) -> str:
        place = BucketPlace.of(uri)
        return f"s3a://{place.bucket}/{place.key}"

    def exists(self, uri: str) -> bool:
        return self._looked(uri, lambda _: self.seen(uri) or self.seen_folder(uri))

    def marks(self, uri: str) -> dict[str, tuple[object, ...]]:
        """Return the files of `tree`, each with its bytes and with the identity of its contents."""
        tags = _bucket(uri).tags(uri)
        return {name: (size, tags.get(name)) for name, size in self.tree(uri).items()}

    def seen(self, uri: str) -> bool:
        return _bucket(uri).size_of(uri) is not None

    def seen_folder(self, uri: str) -> bool:
        return next(iter(_bucket(uri).under(uri)), None) is not None

    def _names(self, uri: str) -> list[str]:
        return [name for name in _bucket(uri).names(uri) if name != MADE]

    def _tree(self, uri: str) -> dict[str, int]:
        bucket, (_, key) = _bucket(uri), split(uri)
        found = {path.removeprefix(f"{key}/"): size for path, size in bucket.under(uri) if path != key}
        folders = {str(parent) for name in found for parent in PurePosixPath(name).parents}
        return {
            name: size
            for name, size in found.items()
            if name.rpartition("/")[2] != MADE
            and (size or (name not in folders and bucket.size_of(self.uri(uri, name)) is not None))
        }

    def open_plain(self, uri: str) -> BinaryIO:
        import obstore

        bucket = _bucket(uri)
        found = bucket.ask(uri, lambda key: obstore.get(bucket.store, key))
        if int(found.meta["size"]) > SMALL:
            return bucket.reader(uri)
        with bucket.translated_errors(uri):
            return io.BytesIO(bytes(found.bytes()))

    def read(self, uri: str) -> bytes:
        for is_last in (False, True):
            try:
                return _bucket(uri).bytes_of(uri)  # one request
            except FileNotFoundError as error:
                markers.require(self, uri)
                if is_last:
                    raise markers.missing(uri) from error
        raise AssertionError

    def size(self, uri: str) -> int:
        found = _bucket(uri).size_of(uri)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", uri)
        return found

    def create(self, uri: str) -> BinaryIO:
        return cast(BinaryIO, _Upload(_bucket(uri), uri))

    def write(self, uri: str, data: bytes) -> None:
        _bucket(uri).write(uri, data)

    def write_marker(self, uri: str, data: bytes) -> None:
        self.write(uri, data)

    def replace(self, uri: str, data: bytes) -> None:
        import obstore

        bucket = _bucket(uri)
        bucket.ask(uri, lambda key: obstore.put(bucket.store, key, data, use_multipart=False))

    def make_folder(self, uri: str) -> None:
        if self.seen_folder(uri):
            raise FileExistsError(errno.EEXIST, "it exists already", uri)
        _bucket(uri).write(self.uri(uri, MADE), uuid.uuid4().hex.encode())

    def remove(self, uri: str) -> None:
        _bucket(uri).remove(uri)

    def sync_file(self, file: BinaryIO) -> None:
        """Do nothing: a closed object is durable."""

    def sync_folders(self, uri: str, up_to: str) -> None:
        """There are none."""

    def sync_tree(self, uri: str, up_to: str, synced: object) -> None:
        """As `sync_file`."""

    def link_tree(self, source: str, target: str, keep: Callable[[PurePosixPath], bool]) -> int:
        if not _is_one_store(source, target):
            return copy_tree(self, source, self, target, keep, at_once=FOREIGN_COPIES)

        def copy(name: str, size: int) -> None:
            self._copy(self.uri(source, name), self.uri(target, name), size)

        return copy_each(self, source, self, target, keep, copy, _COPIES)

    def make_like(self, uri: str, model: str) -> bool:
        """Do nothing: objects have neither mode nor group."""
        return True

    def link_file(self, source: str, target: str) -> None:
        if self.seen(target):
            raise FileExistsError(errno.EEXIST, "it exists already", target)
        if _is_one_store(source, target):
            self._copy(source, target, self.size(source))
        else:
            copy_file(self, source, self, target)

    def _copy(self, source: str, target: str, size: int) -> None:
        import obstore

        bucket = _bucket(target)
        if size > LARGEST_COPY:
            return copy_file(self, source, self, target)
        bucket.ask(source, lambda key: obstore.copy(bucket.store, key, split(target)[1]))

    def rename_folder(self, source: str, target: str) -> None:
        raise ConfigurationError(
            f"{source} cannot become {target}: a bucket renames no folder at once.",
            code="file_system_unsupported",
            remedy="Use a local folder or HDFS.",
            path=source,
        )

    def remove_tree(self, uri: str) -> None:
        import obstore

        markers.require(self, uri)
        bucket, (_, key) = _bucket(uri), split(uri)
        found = dict(bucket.under(uri))
        # Readers know what is whole by these, so they go first. The folder's own object goes last: until then another
        # process finds something to remove.
        first = [path for path in found if path.rpartition("/")[2] in ("manifest.json", "_metadata")]
        own = [path for path in found if path == f"{key}/{MADE}"]
        rest = [path for path in found if path not in {*first, *own}]
        for some in (first, rest):
            if some:
                bucket.ask(uri, lambda _, gone=some: obstore.delete(bucket.store, gone))  # type: ignore[misc]
        for path in sorted((path for path, size in found.items() if not size), reverse=True):
            self._remove_mark(uri, path)
        if own:
            bucket.ask(uri, lambda _: obstore.delete(bucket.store, own))

    def _remove_mark(self, uri: str, path: str) -> None:
        """Delete the object `path/`, with which S3A marks a folder. The client's own paths cannot end so."""
        import obstore

        place = BucketPlace.of(uri)
        bucket = LogBucket(place.bucket, _folder_store(os.getpid(), place.bucket, path, settings_of(place)))
        bucket.ask(uri, lambda _: obstore.delete(bucket.store, ""))


class _Upload(io.RawIOBase):
    """A new object. One that fits into a part is put on the condition that there is none, others part by part.

    Left by an error, it never appears. Parts that were sent stay until a lifecycle rule of the bucket removes them.
    """

    def __init__(self, bucket: LogBucket, uri: str) -> None:
        self._bucket, self._uri, self._size = bucket, uri, 0
        self._first: bytearray | None = bytearray()
        self._out: Any = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._first is not None and len(self._first) + len(view) <= PART:
            self._first += view
        else:
            self._send(view)
        self._size += len(view)
        return len(view)

    def _send(self, view: memoryview) -> None:
        import obstore

        if self._first is not None:
            if self._bucket.size_of(self._uri) is not None:
                raise FileExistsError(errno.EEXIST, "the object exists already", self._uri)
            self._out = self._bucket.ask(
                self._uri,
                lambda key: obstore.open_writer(self._bucket.store, key, buffer_size=PART, max_concurrency=_AT_ONCE),
            )
            first, self._first = self._first, None
            self._send(memoryview(first))
        for begin in range(0, len(view), PART):
            with self._bucket.translated_errors(self._uri):
                self._out.write(bytes(view[begin : begin + PART]))  # the client keeps it for a while

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        self._out, self._first = None, None

    def close(self) -> None:
        if not self.closed:
            first, out, self._first, self._out = self._first, self._out, None, None
            super().close()
            if first is not None:
                self._bucket.write(self._uri, bytes(first))
            elif out is not None:
                with self._bucket.translated_errors(self._uri):
                    out.close()


def _bucket(uri: str) -> LogBucket:
    place = BucketPlace.of(uri)
    return LogBucket(place.bucket, _store(os.getpid(), place.bucket, settings_of(place)))


@lru_cache(16)
def _store(pid: int, bucket: str, settings: BucketSettings) -> S3Store:
    """By process: a client does not survive a fork."""
    return private_store(bucket, settings.endpoint, settings, TIMEOUT)


@lru_cache(64)
def _folder_store(pid: int, bucket: str, path: str, settings: BucketSettings) -> S3Store:
    """A client whose root is the object `path/`."""
    return private_store(bucket, f"{settings.endpoint}/{bucket}/{quote(path)}", settings, TIMEOUT, is_root=True)


def _is_one_store(source: str, target: str) -> bool:
    one, other = BucketPlace.of(source), BucketPlace.of(target)
    return (one.conn_id, one.bucket) == (other.conn_id, other.bucket)
