"""DAG files of tests: written, and imported as Airflow does."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from airflow_ft.protocol.inline_job import InlineJob, declared_job

DagFile = Callable[[str], ModuleType]
HEAD = "import airflow_ft as ft\n"


def imported(path: Path, text: str) -> ModuleType:
    """The module of a file with this text, which is new, or another one than before."""
    path.write_text(text)
    name = f"unusual_prefix_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        # Compiled here: bytecode of the same second would be taken for that of the new text.
        exec(compile(text, str(path), "exec"), module.__dict__)
    finally:
        del sys.modules[name]
    return module


def job_of(path: Path, text: str, name: str = "transform") -> InlineJob:
    """The job of this name in a file with this text below `import airflow_ft as ft`."""
    found = declared_job(getattr(imported(path, f"{HEAD}{text}"), name))
    assert isinstance(found, InlineJob)
    return found
