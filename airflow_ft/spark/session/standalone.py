"""The masters of Spark's standalone cluster, `spark://HOST:PORT` or `spark://HOST:PORT,HOST:PORT`."""

from __future__ import annotations

from airflow_ft.clients.reaching import refusal
from airflow_ft.protocol.errors import ConfigurationError, StageError

_PREFIX = "spark://"
_SECONDS = 5.0
"""The time that a master has to accept a connection. Spark waits a minute, and then says nothing of the address."""


def is_standalone(master: str) -> bool:
    """Return whether a master is that of a standalone cluster."""
    return master.startswith(_PREFIX)


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master; ConfigurationError for text without them, which Spark refuses, too."""
    found = []
    for each in master.removeprefix(_PREFIX).split(","):
        host, _, port = each.strip().rpartition(":")
        if not host or not (port.isascii() and port.isdigit()):
            raise ConfigurationError(
                f"the master {master!r} does not name host and port.",
                code="master_invalid",
                remedy="Write spark://HOST:7077.",
                argument="spark_master",
            )
        found.append((host.strip("[]"), int(port)))
    return found


def require_master(master: str, pipeline: str = "") -> str:
    """Return the address of a master that accepts connections.

    Raises:
        ConfigurationError: `master_invalid`: an address lacks host or port.
        StageError: `server_unreachable`: no master accepts a connection. A retry may reach one.
    """
    refusals = []
    for host, port in addresses(master):
        refused = refusal(host, port, _SECONDS)
        if refused is None:
            return f"{host}:{port}"
        refusals.append(refused)
    raise StageError(
        f"no Spark master can be reached: {'; '.join(refusals)}.",
        code="server_unreachable",
        pipeline=pipeline,
        remedy="Start it, or correct host and port of spark_master.",
        servers=[f"{host}:{port}" for host, port in addresses(master)],
    )
