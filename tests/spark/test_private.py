"""Private folders are removed with what keeps them, also if its process is killed."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import pytest

from airflow_ft.spark.private import GIVEN, KeptFolder, folders


def test_a_kept_folder_is_removed_also_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if (pid := os.fork()) == 0:
        kept = KeptFolder(GIVEN)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    [dead] = folders(GIVEN)
    kept = KeptFolder(GIVEN)
    assert folders(GIVEN) == [kept.path] != [dead]
    del kept
    assert folders(GIVEN) == []
