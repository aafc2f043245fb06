"""Connections of Airflow, translated for the core: participants, the decision log, the write-ahead log."""
