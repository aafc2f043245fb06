"""Opens a MySQL participant: the strategy that the plan names."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.local import LocalParticipant
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.shared_branches import SharedXaParticipant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import UpsertParticipant

STRATEGIES: Mapping[str, type[ServerParticipant]] = {
    "local": LocalParticipant,
    "upsert": UpsertParticipant,
    "xa": SharedXaParticipant,
}


def open_participant(
    plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader, limits: Limits | None = None
) -> Participant:
    """The participant of a plan; it connects at the first call. `limits` are times and sizes, for tests.

    Raises:
        ConfigurationError: the plan's settings cannot work, or its sinks contradict each other.
    """
    sinks = MySqlSink.all_of(plan)  # first: it refuses a strategy that is unknown
    return STRATEGIES[plan.strategy](plan, sinks, connection, wal, limits or Limits())
