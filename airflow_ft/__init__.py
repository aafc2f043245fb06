"""Exactly-once delivery of PySpark pipelines, orchestrated by Apache Airflow."""

__version__ = "0.1.0"
