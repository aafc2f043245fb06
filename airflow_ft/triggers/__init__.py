"""What deferred tasks wait for. Triggers only read: Airflow may run one twice."""
