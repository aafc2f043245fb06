"""What Airflow learns about this provider before anything else is imported."""

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Describe the provider; `package-name` must equal the name of the distribution."""
    return {
        "package-name": "airflow-ft",
        "name": "Fault tolerance",
        "description": "Exactly-once delivery of PySpark pipelines into MySQL and Kafka.",
    }
