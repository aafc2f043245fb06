"""Rows of one batch, as they are sent: those of a large batch are on disk, so memory does not grow with their size."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO
from weakref import finalize

from airflow_ft.protocol.errors import StorageUnavailableError

_IN_MEMORY = 32_000_000
"""Bytes of a batch in memory: one is made while another one is sent."""


class PackedRows:
    """Packed rows by key. A temporary file has those beyond some MB; it vanishes with this object.

    StorageUnavailableError from each method: the disk is full or fails.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes | tuple[int, int]] = {}  # or the place in the file, and the length
        self._size = 0
        self._file: IO[bytes] | None = None

    def add(self, rows: Mapping[bytes, bytes]) -> None:
        """Add rows, which replace those with the same keys."""
        self._size += sum(map(len, rows.values()))
        if self._size <= _IN_MEMORY:
            self._rows |= rows
            return
        with _on_disk():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="airflow-ft-")  # noqa: SIM115  it lives as long as this
                finalize(self, self._file.close)
            at = self._file.seek(0, 2)
            for key, row in rows.items():
                self._file.write(row)
                self._rows[key] = (at, len(row))
                at += len(row)

    def get(self, key: bytes) -> bytes | None:
        """Return the row of a key; None: there is none."""
        return None if (found := self._rows.get(key)) is None else self._read(found)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield each key with its row."""
        for key, found in self._rows.items():
            yield key, self._read(found)

    def _read(self, found: bytes | tuple[int, int]) -> bytes:
        if isinstance(found, bytes):
            return found
        assert self._file is not None
        with _on_disk():
            self._file.seek(found[0])
            return self._file.read(found[1])


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        raise StorageUnavailableError(
            f"large rows cannot be kept in the temporary folder {folder}: {error.strerror or error}.",
            code="file_system_failed",
            remedy=f"Free space in {folder}, or set TMPDIR for the workers to a folder on a larger disk.",
            number=error.errno or 0,
            folder=folder,
        ) from error
