"""The driver that changes savepoints: its files are private, and it dies with the process that started it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import StageError
from airflow_ft.spark.private import STAGE
from airflow_ft.spark.savepoints import offline
from tests.raising import raises

DRIVER = """
import ctypes, fcntl, json, os, stat, sys
folder, signal = sys.argv[1], ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # PR_GET_PDEATHSIG
try:
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    locked = False
except BlockingIOError:
    locked = True
modes = sorted({stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) for name in os.listdir(folder)})
print(json.dumps([folder, signal.value, locked, modes]))
print("ValueError: password=planted")
sys.exit(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal on a parent's death")
def test_its_folder_is_private_and_it_dies_with_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "submit", lambda folder, _: [sys.executable, "-c", DRIVER, str(folder)])
    lines: list[str] = []
    before = os.umask(0o022)
    try:
        with raises(StageError, "state_not_rewritten", pipeline="orders") as failed:
            offline.drive("jobs:f", (), "rescale it", "orders", {}, lines.append)
    finally:
        os.umask(before)
    folder, signal, locked, modes = json.loads(lines[0])
    assert Path(folder).name.startswith(STAGE), "the next task removes such folders of killed processes"
    assert (signal, locked, modes) == (9, True, [0o600]) and not Path(folder).exists()
    assert failed.error is not None and "ValueError: password=***" in failed.error.headline
