"""The folders that a process imports from, besides those of its interpreter."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import PurePath


def added_folders(path: Sequence[str]) -> list[str]:
    """Return the entries of `path` outside the folders of the interpreter.

    Prefixes say too little: with Python in /usr/local, DAGs may be in /usr/local/airflow, and a virtual environment may
    be Airflow's home.
    """
    standard = sysconfig.get_path("stdlib")
    own = {sysconfig.get_path(name) for name in ("platstdlib", "purelib", "platlib", "scripts")}
    own |= {standard, *site.getsitepackages()}
    archive = PurePath(standard).with_name(f"python{sys.version_info.major}{sys.version_info.minor}.zip")
    own.add(str(archive))
    return [entry for entry in path if not any(PurePath(entry).is_relative_to(folder) for folder in own)]
