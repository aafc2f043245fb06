"""Opens a Kafka participant: the strategy that the plan names."""

from __future__ import annotations

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.protocol.write_ahead_log import WalReader
from airflow_ft.sinks.kafka.cluster import KafkaParticipant
from airflow_ft.sinks.kafka.plain import PlainParticipant
from airflow_ft.sinks.kafka.spec import lacking
from airflow_ft.sinks.registry import require_clients


def open_participant(plan: ParticipantPlan, connection: ConnectionInfo, wal: WalReader) -> KafkaParticipant:
    """Opens the Kafka participant of a plan; connects at the first call that needs a broker.

    Raises:
        ConfigurationError: the plan's settings are not known to this version, or a package is not installed.
        SinkAccessError: the connection's extra cannot work.
    """
    clients = KafkaClients(KafkaSettings.from_connection(connection))
    if not plan.keeps_markers:
        return PlainParticipant(plan, clients, wal)
    if plan.strategy == "held":
        require_clients((), more=lacking(plan.strategy))
        from airflow_ft.sinks.kafka.shared_slots import SharedHeldParticipant

        return SharedHeldParticipant(plan, clients, wal)
    return KafkaParticipant(plan, clients, wal)
