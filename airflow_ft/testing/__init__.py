"""For authors of sinks: what the protocol demands of a participant, as tests (`airflow_ft.testing.conformance`)."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in ("conformance", "kills", "value_cases")))

from airflow_ft.testing.conformance import ParticipantConformance  # noqa: E402
from airflow_ft.testing.values import Values, plain  # noqa: E402
from airflow_ft.testing.world import Target  # noqa: E402

__all__ = ["ParticipantConformance", "Target", "Values", "plain"]
