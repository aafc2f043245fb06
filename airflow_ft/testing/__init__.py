"""For authors of sinks: what the protocol demands of a participant, as tests (`airflow_ft.testing.conformance`)."""

from airflow_ft.testing.conformance import ParticipantConformance
from airflow_ft.testing.world import Target

__all__ = ["ParticipantConformance", "Target"]
