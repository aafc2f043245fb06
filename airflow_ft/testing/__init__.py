"""For authors of sinks: what the protocol demands of a participant, as tests (`airflow_ft.testing.conformance`).

For authors of jobs: `airflow_ft.testing.jobs`, and its fixture `job_trial` (`airflow_ft.testing.plugin`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

pytest.register_assert_rewrite(f"{__name__}.conformance")

if TYPE_CHECKING:
    from airflow_ft.testing.conformance import ParticipantConformance as ParticipantConformance
    from airflow_ft.testing.world import Target as Target

_WHERE = {"ParticipantConformance": "airflow_ft.testing.conformance", "Target": "airflow_ft.testing.world"}

__all__ = ["ParticipantConformance", "Target"]


def __getattr__(name: str) -> Any:  # pytest imports this package at each start, for its plugin
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
