"""The Spark master: as text, or "conn:<id>" of an Airflow connection of type `spark`."""

from __future__ import annotations

from airflow_ft.pipeline.connections import task_connections
from airflow_ft.protocol.connections import ConnectionResolver, connection_of_type
from airflow_ft.protocol.errors import ConfigurationError

_CONNECTION = "conn:"
_WITHOUT_HOST = ("local", "yarn")


def spark_master(setting: str, connections: ConnectionResolver = task_connections) -> str:
    """The master for spark-submit; "" leaves the choice to the launcher.

    Of a connection host and port are used, as Airflow's Spark provider does: "spark://master" and 7077, "yarn",
    "k8s://https://...", "local[4]". ConfigurationError for one that asks for the deploy mode `cluster`: the driver
    runs beside the task, so that it dies with it.
    """
    if not setting.startswith(_CONNECTION):
        return setting
    conn_id = setting.removeprefix(_CONNECTION)
    connection = connection_of_type("spark", conn_id, connections)
    mode = str(connection.extra.get("deploy-mode") or connection.extra.get("deploy_mode") or "client")
    if mode != "client":
        raise ConfigurationError(
            f"its deploy mode is {mode!r}, but the driver must run beside the task.",
            code="connection_invalid",
            remedy="Set deploy-mode to 'client' in the connection's extra.",
            participant=conn_id,
            fields=["extra"],
            value=repr(mode),
        )
    if not connection.host:
        raise ConfigurationError(
            "it has no host.",
            code="connection_invalid",
            remedy="Write the Spark master as its host, such as spark://master, yarn or local[4].",
            participant=conn_id,
            fields=["host"],
        )
    master = connection.host
    if "://" not in master and not master.startswith(_WITHOUT_HOST):
        master = f"spark://{master}"  # a connection given as a URI loses its scheme to the connection's type
    return f"{master}:{connection.port}" if connection.port else master
