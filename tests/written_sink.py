"""The sinks that docs/writing-a-sink.md writes out, taken from the page and installed as its reader would."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from airflow_ft.sinks import registry
from airflow_ft.testing import nursery

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "writing-a-sink.md").read_text()
KINDS = ("shelf", "drawer", "binder")
PACKAGES = tuple(f"{kind}_for_airflow" for kind in KINDS)


def files() -> dict[str, str]:
    """The files of the page's distribution: blocks of code whose first line names them."""
    return dict(re.findall(r"```(?:python|toml)\n# (\S+\.(?:py|toml))\n(.*?)```", PAGE, re.DOTALL))


def write(folder: Path) -> None:
    """The distribution, as the page has it."""
    for name, text in files().items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


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
