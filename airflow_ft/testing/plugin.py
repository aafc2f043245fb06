"""The fixture `job_trial`, which pytest knows where this distribution is installed.

Imports nothing before it is used.
"""

from __future__ import annotations

import ast
import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_ft.testing.jobs import JobTrial

# Two threads at once in ast.parse, one of them in a finalizer: "SystemError: AST constructor recursion depth mismatch".
# CPython keeps one depth for all (gh-106905), until 3.11.8 and 3.12.2.
PARSES_ONE_AT_A_TIME = sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2)


def pytest_configure() -> None:
    """One thread at a time parses, where Python cannot do more.

    pytest parses each module of a distribution with a plugin, and threads of ours import what they need when they need
    it: a test would fail now and then, for nothing that it tests.
    """
    if PARSES_ONE_AT_A_TIME and not hasattr(ast.parse, "__wrapped__"):
        ast.parse = _one_at_a_time(ast.parse)


def _one_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.RLock()  # a finalizer may parse within

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return function(*args, **kwargs)

    return locked


@pytest.fixture
def job_trial(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., JobTrial]:
    """A function that makes a `JobTrial` in a folder of its own, of that class's other arguments."""

    def make(**arguments: Any) -> JobTrial:
        from airflow_ft.testing.jobs import JobTrial

        return JobTrial(tmp_path_factory.mktemp("job_trial"), **arguments)

    return make
