"""Dead letters: rows that a sink refused after the decision, and that a person set aside.

    <root>/<pipeline>/dead-letter/<number>/<sink>/<segment>-<digest>.parquet

The folder is beside the attempts' folders, so neither retention nor a sweep touches it: a person removes the files. A
file is named by its content, so an attempt that sets the same rows aside again finds the file. The proof of the
checkpoint names the files that count; files of attempts without a commit do not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.protocol.model import Plan, canonical_json
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "dead-letter"


@dataclass(frozen=True, slots=True)
class ParquetDeadLetters:
    """See `airflow_ft.protocol.write_ahead_log.DeadLetters`; `pipeline` is the URI of the pipeline's folder."""

    pipeline: str
    number: int

    @classmethod
    def of(cls, plan: Plan) -> ParquetDeadLetters:
        """Return the dead letters beside the newest of the plan's segments: only the plan counts, not today's
        configuration.
        """
        pipeline, attempt, batch = filesystem(plan.segments[-1].location).uri(plan.segments[-1].location).rsplit("/", 2)
        if not batch.isdigit() or "-" not in attempt:
            raise ConfigurationError(
                f"{plan.segments[-1].location} is not the folder of a checkpoint's rows.",
                code="path_invalid",
                remedy="Move the write-ahead log back to the place that the decision log has stored.",
                path=plan.segments[-1].location,
            )
        return cls(pipeline, plan.number)

    def folder(self, sink: str) -> str:
        """Return where the dead letters of a sink are."""
        return filesystem(self.pipeline).uri(self.pipeline, FOLDER, str(self.number), sink)

    def write(self, sink: str, label: str, rows: pa.Table) -> str:
        """See `DeadLetters.write`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = pa.BufferOutputStream()
        pq.write_table(rows, buffer, coerce_timestamps="us", store_schema=False, compression="lz4")
        return self._write(self.folder(sink), label, ".parquet", buffer.getvalue().to_pybytes())

    def write_note(self, label: str, note: Mapping[str, Any]) -> str:
        """See `DeadLetters.write_note`."""
        return self._write(self._notes, label, ".json", canonical_json(dict(note)).encode()).rpartition("/")[2]

    def read_note(self, name: str) -> Mapping[str, Any]:
        """See `DeadLetters.read_note`."""
        files = filesystem(self.pipeline)
        uri = files.uri(self._notes, name)
        data = files.read(uri)
        if hashlib.sha256(data).hexdigest()[:16] not in name:
            raise WalCorruptError(
                f"{uri} does not match the digest in its name.",
                code="checksum_mismatch",
                remedy=f"Restore {uri} from a backup.",
                path=uri,
            )
        found: Mapping[str, Any] = json.loads(data)
        return found

    @property
    def _notes(self) -> str:
        return filesystem(self.pipeline).uri(self.pipeline, FOLDER, str(self.number))

    def _write(self, folder: str, label: str, suffix: str, data: bytes) -> str:
        files = filesystem(self.pipeline)
        uri = files.uri(folder, f"{label}-{hashlib.sha256(data).hexdigest()[:16]}{suffix}")
        with suppress(FileExistsError):  # complete: a file appears whole, named by its content
            files.write(uri, data)
        files.sync_folders(folder, self.pipeline)  # also when it was there: its writer may have died
        return uri
