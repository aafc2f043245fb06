"""The sinks of examples/sinks, installed as a reader of docs/writing-a-sink.md would."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from airflow_ft.sinks import registry
from airflow_ft.testing import nursery

DISTRIBUTION = Path(__file__).resolve().parents[1] / "examples" / "sinks"
KINDS = ("shelf", "drawer", "binder")
PACKAGES = tuple(f"{kind}_for_airflow" for kind in KINDS)


def copy(folder: Path) -> None:
    """The distribution, without what its use has left there."""
    shutil.copytree(DISTRIBUTION, folder, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", ".*"))


def install(source: Path, target: Path) -> None:
    """By pip, into a folder that is put on the path; nothing is downloaded."""
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def forget() -> None:
    """What this process has imported of it, and found by its entry point; and the one that forks others."""
    nursery.forget()
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    for found in (registry._ours, registry._all, registry._load):
        found.cache_clear()
