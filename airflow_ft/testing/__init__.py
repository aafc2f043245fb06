"""For authors of sinks: what the protocol demands of a participant, as tests (`airflow_ft.testing.conformance`).

For authors of jobs: `airflow_ft.testing.jobs`, and its fixture `job_trial` (`airflow_ft.testing.plugin`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

_CASES = (
    "bags", "beginnings", "conformance", "dead_letters", "decisions", "deliveries", "fencing", "findings", "histories",
    "keys", "kills", "lost_messages", "owners", "parts", "upserts", "value_cases", "world", "zombies",
)  # fmt: skip
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _CASES))

if TYPE_CHECKING:
    from airflow_ft.testing.conformance import ParticipantConformance as ParticipantConformance
    from airflow_ft.testing.tables import Bag as Bag
    from airflow_ft.testing.tables import Pairs as Pairs
    from airflow_ft.testing.tables import Upserts as Upserts
    from airflow_ft.testing.values import Values as Values
    from airflow_ft.testing.values import plain as plain
    from airflow_ft.testing.world import Target as Target

_WHERE = {
    "Bag": "airflow_ft.testing.tables",
    "Pairs": "airflow_ft.testing.tables",
    "ParticipantConformance": "airflow_ft.testing.conformance",
    "Target": "airflow_ft.testing.world",
    "Upserts": "airflow_ft.testing.tables",
    "Values": "airflow_ft.testing.values",
    "plain": "airflow_ft.testing.values",
}

__all__ = ["Bag", "Pairs", "ParticipantConformance", "Target", "Upserts", "Values", "plain"]


def __getattr__(name: str) -> Any:  # pytest imports this package at each start, for its plugin
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
