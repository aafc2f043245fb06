"""The fixture `job_trial`, which pytest knows where this distribution is installed.

Imports nothing before it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_ft.testing.jobs import JobTrial


@pytest.fixture
def job_trial(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., JobTrial]:
    """A function that makes a `JobTrial` in a folder of its own, of that class's other arguments."""

    def make(**arguments: Any) -> JobTrial:
        from airflow_ft.testing.jobs import JobTrial

        return JobTrial(tmp_path_factory.mktemp("job_trial"), **arguments)

    return make
