"""Opens a PostgreSQL participant: the strategy that the plan names."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.postgres.local import LocalParticipant
from airflow_ft.sinks.postgres.prepared import PreparedParticipant
from airflow_ft.sinks.postgres.session import Limits
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.sinks.postgres.upsert import UpsertParticipant

STRATEGIES: Mapping[str, type[LocalParticipant]] = {
    "local": LocalParticipant,
    "prepared": PreparedParticipant,
    "upsert": UpsertParticipant,
}


def open_participant(
    plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader, limits: Limits | None = None
) -> Participant:
    """The participant of a plan; it connects at the first call. `limits` are times, for tests.

    Raises:
        ConfigurationError: the plan's settings cannot work, or its sinks contradict each other.
    """
    return STRATEGIES[plan.strategy](plan.name, PostgresSink.all_of(plan), connection, wal, limits or Limits())
