"""Opens a MySQL participant: the strategy that the plan names."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import ParticipantPlan
from airflow_ft.core.ports import ConnectionInfo, Participant, WalReader
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.local import LocalParticipant
from airflow_ft.sinks.mysql.parallel import ParallelParticipant
from airflow_ft.sinks.mysql.server import ServerParticipant
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sinks.mysql.upsert import UpsertParticipant
from airflow_ft.sinks.mysql.xa import XaParticipant

STRATEGIES: Mapping[str, type[ServerParticipant]] = {
    "local": LocalParticipant,
    "parallel": ParallelParticipant,
    "upsert": UpsertParticipant,
    "xa": XaParticipant,
}


def open_participant(
    plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader, limits: Limits | None = None
) -> Participant:
    """The participant of a plan; it connects at the first call. `limits` are times and sizes, for tests.

    Raises:
        ConfigurationError: the plan's settings cannot work, or its sinks contradict each other.
    """
    sinks = {name: MySqlSink.from_settings(plan.name, plan.strategy, settings) for name, settings in plan.sinks.items()}
    if len({sink.ledger_schema for sink in sinks.values()}) > 1:
        raise ConfigurationError(
            f"the sinks {', '.join(sorted(sinks))} of connection {plan.name!r} name different ledger schemas.",
            remedy="give all of them the same ledger_schema: they share one ledger.",
            participant=plan.name,
        )
    return STRATEGIES[plan.strategy](plan, sinks, connection, wal, limits or Limits())
