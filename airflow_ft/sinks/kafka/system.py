"""Kafka, as the registry knows it."""

from airflow_ft.sinks.kafka.spec import STRATEGIES, has_second_client, lacking
from airflow_ft.sinks.registry import System

SYSTEM = System(
    kind="kafka",
    title="Kafka",
    package=__package__,
    strategies=STRATEGIES,
    place="topic",
    key="key",
    shares=True,
    clients=("confluent_kafka",),
    lacking=lambda sink: lacking(sink.strategy),
    preload=(
        "confluent_kafka.admin",
        "airflow_ft.sinks.kafka.participant",
        *(["airflow_ft.sinks.kafka.shared_slots"] if has_second_client() else []),
    ),
    conn_type="kafka",
)
