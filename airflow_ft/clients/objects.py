"""Objects of a bucket, through the S3 API: what the log and the sinks of files need of it.

A store puts an object exactly once on the condition that there is none (If-None-Match). A client that repeats a
request after a lost answer may meet its own object: then the object equals what it has put. An answer 409 says that
another request is under way, so it proves nothing: the put is repeated until there is an object to compare with.
"""

from __future__ import annotations

import errno
import io
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from airflow_ft.clients.s3 import SCHEME
from airflow_ft.protocol.errors import AirflowFtError, UnfitTargetError

if TYPE_CHECKING:
    from obstore import ReadableFile
    from obstore.store import S3Store

T = TypeVar("T")
PART = 5 << 20
"""Bytes: the least that S3 takes as a part of an upload. One part of each open file is in memory."""
CHUNK = 1 << 20
_CONFLICTS = 12
"""Tries of a put that meets other requests, and no object."""
_PAUSE = 0.1  # seconds by which the mean pause grows with each try, from none
_REGION = r"<Code>(AuthorizationHeaderMalformed|PermanentRedirect)</Code>|incorrectly configured region"
_TOKEN = r"<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>"
_UNSAID = r"status code: 400 [^:\n]*:\s*(\n|$)"  # a HEAD gets 400 without a body, so the reason is unknown
_REFUSED = re.compile(rf"status code: 40[13]\b|{_TOKEN}|{_REGION}|{_UNSAID}")


@dataclass(frozen=True)
class Bucket(ABC):
    """The objects of one bucket, by URI. Methods raise what `explain` returns, FileNotFoundError and FileExistsError.

    S3A marks folders by empty objects `folder/`. The client lists them without the slash, and finds them under
    neither name.
    """

    bucket: str
    store: S3Store

    @abstractmethod
    def explain(self, uri: str, text: str, *, refused: bool = False) -> AirflowFtError:
        """Return the error of a store's client as an error of this package, without secrets."""

    # --- reading -------------------------------------------------------------------------------------------------

    def mark(self, uri: str) -> str | None:
        """Return the identity of an object; None if there is none."""
        import obstore

        try:
            found = self.ask(uri, lambda key: obstore.head(self.store, key))
        except FileNotFoundError:
            return None
        return f"{found['e_tag']} {found['last_modified']} {found['size']}"

    def names(self, uri: str) -> list[str]:
        """Return the names directly in a folder."""
        import obstore

        found = self.ask(uri, lambda key: obstore.list_with_delimiter(self.store, key))
        below = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return [str(path).rpartition("/")[2] for path in below if str(path) != split(uri)[1]]

    def under(self, uri: str, after: str | None = None) -> Iterator[tuple[str, int]]:
        """Yield key and size of each object below a folder, and of marks of folders; `after`: a key."""
        import obstore

        _, key = split(uri)
        with self.translated_errors(uri):
            for some in obstore.list(self.store, key, offset=after):
                for each in some:
                    yield str(each["path"]), int(each["size"])

    def tags(self, uri: str) -> dict[str, tuple[object, ...]]:
        """Return what identifies the contents of each object below a folder, by relative key."""
        import obstore

        _, key = split(uri)
        with self.translated_errors(uri):
            listed = [each for some in obstore.list(self.store, key) for each in some]
        return {str(each["path"]).removeprefix(f"{key}/"): (each["e_tag"], each["last_modified"]) for each in listed}

    def size_of(self, uri: str) -> int | None:
        """Return the bytes of an object; None if there is none."""
        return self.ask(uri, self._size)

    def bytes_of(self, uri: str) -> bytes:
        """Return an object as a whole; FileNotFoundError if there is none."""
        import obstore

        return self.ask(uri, lambda key: bytes(obstore.get(self.store, key).bytes()))

    def reader(self, uri: str) -> io.BufferedReader:
        """Open an object for reading; FileNotFoundError if there is none."""
        import obstore

        source = self.ask(uri, lambda key: obstore.open_reader(self.store, key))
        return io.BufferedReader(_Download(self, uri, source), CHUNK)

    # --- changing ------------------------------------------------------------------------------------------------

    def write(self, uri: str, data: bytes) -> None:
        """Put an object where none is. FileExistsError if there is another one.

        UnfitTargetError if the store does not know the condition.
        """
        for tried in range(_CONFLICTS):
            try:
                self.ask(uri, lambda key: self._create(key, data))
            except FileExistsError:
                try:
                    found = self.bytes_of(uri)
                except FileNotFoundError:  # another put is under way (409), or it was deleted since
                    time.sleep(random.uniform(0, 2 * _PAUSE * tried))
                    continue
                if found != data:
                    raise
            return
        raise self.explain(uri, f"{_CONFLICTS} puts met other requests (409 Conflict), and no object")

    def _create(self, key: str, data: bytes) -> None:
        import obstore
        from obstore.exceptions import BaseError

        try:
            obstore.put(self.store, key, data, mode="create", use_multipart=False)
        except BaseError as error:
            if "status code: 501 " in str(error):
                raise lacks_conditions(self.bucket, "answers puts with If-None-Match by 501 Not Implemented") from error
            raise

    def remove(self, uri: str) -> None:
        """Delete an object if it is there."""
        import obstore

        self.ask(uri, lambda key: obstore.delete(self.store, key))

    # --- asking --------------------------------------------------------------------------------------------------

    def _size(self, key: str) -> int | None:
        import obstore

        try:
            return int(obstore.head(self.store, key)["size"])
        except FileNotFoundError:
            return None

    def ask(self, uri: str, call: Callable[[str], T]) -> T:
        """Return what the client says of a key."""
        with self.translated_errors(uri):
            return call(split(uri)[1])

    @contextmanager
    def translated_errors(self, uri: str) -> Iterator[None]:
        """Raise errors of the client as those of this package, or of files."""
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            yield
        except AlreadyExistsError as error:
            raise FileExistsError(errno.EEXIST, "the object exists already", uri) from error
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                self._raise_translated(uri, error)
            raise FileNotFoundError(errno.ENOENT, "there is no such object", uri) from error
        except BaseError as error:
            self._raise_translated(uri, error)
        except OSError as error:
            if error.errno is not None:
                raise
            self._raise_translated(uri, error)  # ReadableFile raises errors of the client as OSError

    def _raise_translated(self, uri: str, error: Exception) -> NoReturn:
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        raise self.explain(uri, str(error), refused=refused) from error


def is_refused(text: str) -> bool:
    """Return whether the store did not accept the keys, their privileges or the region."""
    return _REFUSED.search(text) is not None


def remedy_of_refusal(text: str) -> str:
    """Return what to do about an answer that `is_refused`."""
    if re.search(_REGION, text):
        return "Set region_name in the connection's extra to the bucket's region. Without a connection, set AWS_REGION."
    return (
        "Check login and password of the connection, and aws_session_token and region_name in its extra. The keys must"
        " allow to list, get, put and delete objects there."
    )


def lacks_conditions(bucket: str, what: str) -> UnfitTargetError:
    """Return the error for a store that does not prevent the replacement of an object; `what` it does instead."""
    return UnfitTargetError(
        f"the store of bucket {bucket!r} {what}.",
        code="file_system_unsupported",
        remedy="Use a store, or a version of it, with conditional puts (If-None-Match). Exactly-once needs them.",
        bucket=bucket,
        feature="If-None-Match",
    )


def said(text: str) -> str:
    """Return the code of a store's answer, else what the client says in its first line."""
    code = text.partition("<Code>")[2].partition("</Code>")[0]
    return code or text.split("\n", 1)[0].partition("<?xml")[0].rpartition("Error performing ")[2]


def split(uri: str) -> tuple[str, str]:
    """Return the bucket and the key of a URI, which may name a connection."""
    bucket, _, key = uri.removeprefix(f"{SCHEME}://").partition("/")
    return bucket.rpartition("@")[2], key.strip("/")


class _Download(io.RawIOBase):
    """An object, which comes as it is asked for."""

    def __init__(self, objects: Bucket, uri: str, source: ReadableFile) -> None:
        self._objects, self._uri, self._source = objects, uri, source

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        with self._objects.translated_errors(self._uri):
            found = memoryview(self._source.read(len(into)))
        into[: len(found)] = found
        return len(found)

    def seekable(self) -> bool:
        return True

    def seek(self, to: int, whence: int = io.SEEK_SET) -> int:
        return self._source.seek(to, whence)

    def tell(self) -> int:
        return self._source.tell()
