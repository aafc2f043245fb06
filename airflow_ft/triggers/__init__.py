"""Conditions of deferred tasks. Triggers only read, because Airflow may run one twice."""
