"""What a table remembers of a pipeline: files beside its log; its app transaction says which one counts.

    <table>/_airflow_ft/<pipeline>/<participant>/0000000007-1a2b3c4d.json     head and markers

A commit of ours carries an app transaction (`txn` of the Delta protocol) with the pipeline's app id. Its version is
made of the number and the checksum of such a file. So the commit that adds rows also makes the file count that holds
their marker, in one step. The file is written and synced before, and never changed; one that no commit names is waste.

Why not in the commit's own metadata: that goes with log cleanup (30 days by default), while checkpoints of the log keep
app transactions. Vacuum, OPTIMIZE and readers pass names that begin with an underscore.
"""

from __future__ import annotations

import errno
import hashlib
import re
from contextlib import suppress

from airflow_ft.protocol.errors import StoreBehindSinkError, WalCorruptError
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.delta.place import OURS, Place

_KEPT = 16  # files that counted before
_NAME = re.compile(r"(\d{10})-[0-9a-f]{8}\.json")


class Ledger(DocumentLedger):
    """The memory as of one version of the table; what is written into it counts with the next commit."""

    def __init__(self, table: Place, app: str, version: int | None) -> None:
        """`app` is the app id, `version` that of its app transaction; None: the table has none.

        FileNotFoundError: the file is not there (any more).
        """
        self._table, self._version = table, version or 0
        self._names = (OURS, *app.split("/")[1:])
        # `synced`: up to which version the table's log survives a power cut.
        super().__init__(self._read() if version else None, self.uri, synced=-1)

    @property
    def uri(self) -> str:
        """Return where the file that counts lies."""
        return self._table.uri(*self._names, f"{self._version >> 32:010}-{self._version & 0xFFFFFFFF:08x}.json")

    def write(self) -> int:
        """Writes the file, durably; returns the version for the app transaction that makes it count."""
        data = self.text.encode()
        self._version = ((self._version >> 32) + 1) << 32 | _checksum(data)
        with suppress(FileExistsError):  # one name, one content
            self._table.files.write(self.uri, data)
        self._table.files.sync_folders(self._table.uri(*self._names), self._table.root)
        return self._version

    def sweep(self) -> None:
        """Delete outdated files; a process that still reads one reads again."""
        for name in self._table.files.names(self._table.uri(*self._names)):
            if (match := _NAME.fullmatch(name)) and int(match[1]) + _KEPT <= self._version >> 32:
                self._table.files.remove(self._table.uri(*self._names, name))

    def _read(self) -> bytes:
        try:
            data = self._table.files.read(self.uri)
        except WalCorruptError as error:
            raise FileNotFoundError(errno.ENOENT, "the file is gone", self.uri) from error
        if _checksum(data) != self._version & 0xFFFFFFFF:
            what = f"{self.uri} is damaged: it does not match the checksum in the table's log."
            remedy = "Restore the file from a backup. Compare table and decision log before you resume."
            raise StoreBehindSinkError(what, code="ledger_damaged", remedy=remedy, path=self.uri)
        return data


def _checksum(data: bytes) -> int:
    return int(hashlib.sha256(data).hexdigest()[:8], 16)
