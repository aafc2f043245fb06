"""Making sense of files; see airflow_ft.protocol.formats."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from typing import Any

from airflow_ft.protocol.errors import WalCorruptError
from airflow_ft.protocol.formats import understood
from airflow_ft.protocol.model import canonical_json
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.markers import OR_A_SAVEPOINT

_DIGEST, _DATA = "sha256", "data"


def parsing(where: str) -> AbstractContextManager[None]:
    """For what makes sense of a file or folder: WalCorruptError when it makes none."""
    return understood(
        lambda mistake: WalCorruptError(
            f"{where} is damaged: {mistake}.",
            code="file_damaged",
            remedy=f"Restore {where} from a backup. Or run `airflow ft rewind`: the next run computes undelivered rows"
            f" again. {OR_A_SAVEPOINT}",
            path=where,
        )
    )


def json_with_digest(data: Any) -> bytes:
    """Return a file for `read_json`, which notices when it is not what was written."""
    plain = json.loads(canonical_json(data))  # as it is read back: all keys are texts
    return canonical_json({_DIGEST: digest_of(plain), _DATA: plain}).encode()


def read_json(where: str) -> Any:
    """Return what `json_with_digest` has made a file of; WalCorruptError when it is damaged, or gone."""
    data = filesystem(where).read(where)
    with parsing(where):
        found = json.loads(data)
        if digest_of(found[_DATA]) != found[_DIGEST]:
            raise ValueError("it does not match its digest")
        return found[_DATA]


def digest_of(data: Any) -> str:
    """Return the SHA-256 (hex) of plain data."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()
