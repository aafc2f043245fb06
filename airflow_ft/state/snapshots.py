"""A full snapshot of RocksDB, opened for reading where it lies: `<version>.zip` and the files that it names.

It is opened in a folder of its own, with the small files of the archive and a symbolic link to each large one. RocksDB
opens them all at once (`max_open_files=-1`), so that what is removed afterwards stays readable: what Spark removes, and
that folder, which goes at once. No large file is copied (from HDFS all are), and nothing is locked or written in the
location.
"""

from __future__ import annotations

import errno
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_ft.protocol.errors import StorageUnavailableError, WalCorruptError
from airflow_ft.wal.checksums import RESTORE_STATE, read_checked
from airflow_ft.wal.filesystem import filesystem, is_remote
from airflow_ft.wal.local import local_path

_MOST_BYTES = 256 << 20
"""Bytes that the small files of an archive may have, unpacked."""


class Snapshot:
    """Keys and values, by their bytes. The caller closes it."""

    def __init__(self, folder: str, name: str) -> None:
        """Opens `name` in the folder of a store; WalCorruptError when a file is not there (any more), or is damaged."""
        from rocksdict import AccessType, Options, Rdict

        try:
            with tempfile.TemporaryDirectory(prefix="airflow-ft-state-") as work:
                metadata = _unpack(folder, name, Path(work))
                options, _ = Options.load_latest(work, ignore_unknown_options=True)
                options.set_max_open_files(-1)
                self._db = Rdict(work, options, access_type=AccessType.read_only())
        except StorageUnavailableError:  # it says nothing of the state
            raise
        except Exception as error:  # rocksdict raises this very class, with RocksDB's words
            if os.strerror(errno.EMFILE) in str(error):  # that of ENFILE begins with the same words
                raise _out_of_descriptors(f"{folder}/{name}", error) from error
            raise _damaged(f"the snapshot {name} of Spark's state in {folder} cannot be opened", error) from error
        self._name = f"the snapshot {name} of Spark's state in {folder}"
        self.families: Mapping[str, int] = metadata.get("columnFamilyMapping") or {}
        """Number of each column family that there was, by name."""

    def get(self, key: bytes) -> bytes | None:
        """The value, or None; WalCorruptError when a block of RocksDB's is not what its checksum says."""
        with self._reading():
            found: bytes | None = self._db.get(key)
            return found

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries whose key begins with `prefix`, in the order of their bytes. WalCorruptError as `get`."""
        with self._reading():
            entries = self._db.iter()
            entries.seek(prefix)
        while True:
            with self._reading():
                if not entries.valid():
                    entries.status()  # an error ends it, too
                    return
                key, value = entries.key(), entries.value()
                entries.next()
            if not key.startswith(prefix):
                return
            yield key, value

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise _damaged(f"{self._name} cannot be read", error) from error

    def close(self) -> None:
        """Lets go of the files."""
        self._db.close()


def _damaged(what: str, error: Exception) -> WalCorruptError:
    return WalCorruptError(
        f"{what}: {error}",
        code="state_damaged",
        remedy=RESTORE_STATE,
    )


def _out_of_descriptors(path: str, error: Exception) -> StorageUnavailableError:
    return StorageUnavailableError(
        f"{path} cannot be opened, because this process has too many open files: {error}",
        number=errno.EMFILE,
        remedy="Raise its limit of open files (`ulimit -n`, LimitNOFILE of systemd), or close other handles on state.",
        path=path,
    )


def _unpack(folder: str, name: str, into: Path) -> dict[str, Any]:
    files = filesystem(folder)
    with zipfile.ZipFile(io.BytesIO(read_checked(files, files.uri(folder, name)))) as archive:
        small = [each for each in archive.infolist() if "/" not in each.filename]
        if (size := sum(each.file_size for each in small)) > _MOST_BYTES:
            raise ValueError(f"its files have {size:,} bytes, and at most {_MOST_BYTES:,} are allowed")
        for each in small:
            (into / _inside(each.filename)).write_bytes(archive.read(each))
        metadata: dict[str, Any] = json.loads(archive.read("metadata").decode().partition("\n")[2])
    for each in metadata.get("sstFiles") or ():
        here, there = into / _inside(each["localFileName"]), _inside(each["dfsSstFileName"])
        if is_remote(folder):
            here.write_bytes(files.read(files.uri(folder, "SSTs", there)))
        else:
            here.symlink_to(local_path(folder) / "SSTs" / there)
    return metadata


def _inside(name: object) -> str:
    """Return the name of a file, which a snapshot gives; ValueError if it could lead out of the snapshot's folders."""
    if not isinstance(name, str) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of a file")
    return name
