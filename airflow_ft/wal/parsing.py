"""Making sense of files; see airflow_ft.core.damaged."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

from airflow_ft.core.damaged import understood
from airflow_ft.core.errors import WalCorruptError
from airflow_ft.wal.filesystem import filesystem

REMEDY = "restore it from a backup, or rewind the pipeline to compute it again"


def parsing(where: str) -> AbstractContextManager[None]:
    """For what makes sense of a file or folder: WalCorruptError when it makes none."""
    return understood(lambda mistake: WalCorruptError(f"{where} is damaged: {mistake}", remedy=REMEDY))


def read_json(where: str) -> Any:
    """The JSON in a file; WalCorruptError when it is none, or gone."""
    data = filesystem(where).read(where)
    with parsing(where):
        return json.loads(data)
