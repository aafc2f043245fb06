"""A connection of a type that leads to another system for certain, refused before anybody talks to that system."""

from __future__ import annotations

from airflow_ft.core.errors import SinkAccessError
from airflow_ft.core.ports import ConnectionInfo

# Others, such as `generic` and those that a cloud's provider brings, may lead anywhere.
_LEAD_TO = {
    "aws": "S3",
    "kafka": "Kafka",
    "mysql": "MySQL",
    "postgres": "PostgreSQL",
    "postgresql": "PostgreSQL",
    "spark": "Spark",
    "sqlite": "SQLite",
}


def require_type(connection: ConnectionInfo, wanted: str) -> None:
    """SinkAccessError when the type of an Airflow connection says that it does not lead to `wanted`, such as "mysql".

    A server of another kind would be asked in words that it does not know: it hangs up, or says nothing until a
    time-out.
    """
    here, there = _LEAD_TO.get(connection.conn_type.strip().lower()), _LEAD_TO[wanted]
    if here is not None and here != there:
        raise SinkAccessError(
            f"the Airflow connection has the type {connection.conn_type!r}, which leads to {here} and not to {there}.",
            remedy=f"name a connection of type {wanted} as conn_id, or mend the type of this one.",
            participant=connection.conn_id,
        )
