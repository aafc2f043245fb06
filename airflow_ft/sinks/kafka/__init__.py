"""Kafka: rows and a token in one transaction, repeated under its token until it succeeds (promise REDO)."""

from airflow_ft.sinks.kafka.spec import KafkaSink

__all__ = ["KafkaSink"]
