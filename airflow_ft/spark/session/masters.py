"""Spark masters: the forms that a driver beside its task can use, and the addresses of a standalone cluster's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_ft.protocol.arguments import is_template, shown, wrong
from airflow_ft.protocol.errors import ConfigurationError, StageError

_FORMS = re.compile(
    r"local|local\[\s*(\*|\d+)\s*(,\s*\d+\s*)?\]|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn"
    r"|spark://\S+|k8s://\S+"
)
_CONNECTION = "conn:"
_DEPLOY_MODE = "spark.submit.deployMode"
_STANDALONE = "spark://"
_SECONDS = 5.0
"""Seconds that a master has to accept a connection. Spark waits a minute, and does not name the address."""


def check_master(master: str | None) -> None:
    """Raise ConfigurationError for a master that Spark does not know; Jinja and connections are known later."""
    if not master or is_template(master) or master.startswith(_CONNECTION) or _FORMS.fullmatch(master):
        return
    raise wrong(
        "spark_master",
        shown(master),
        "Give local[4], local[*], yarn, spark://HOST:7077, k8s://https://HOST:PORT or conn:CONNECTION_ID.",
        code="master_invalid",
        why=", which is not a master of Spark",
    )


def check_conf(conf: Mapping[str, object]) -> None:
    """Raise ConfigurationError for settings that Spark would ignore, or that put the driver elsewhere."""
    for name in conf:
        if not name.startswith("spark."):
            raise wrong(
                "spark_conf",
                shown(name),
                f"Write spark.{name.removeprefix('.')}, if Spark has it.",
                what=f"spark_conf has {shown(name)}, which Spark ignores: its settings begin with 'spark.'.",
            )
    if str(conf.get(_DEPLOY_MODE, "client")) != "client" and not is_template(conf.get(_DEPLOY_MODE)):
        raise wrong(
            f"spark_conf[{_DEPLOY_MODE!r}]",
            shown(conf[_DEPLOY_MODE]),
            f"Remove {_DEPLOY_MODE}. Executors run on the cluster in any case.",
            why=", but the driver must run beside the task, so that it ends with the task",
        )


def is_standalone(master: str) -> bool:
    """Return whether a master is that of a standalone cluster."""
    return master.startswith(_STANDALONE)


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master; ConfigurationError for text without them, which Spark refuses, too."""
    found = []
    for each in master.removeprefix(_STANDALONE).split(","):
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
    from airflow_ft.clients.reaching import refusal

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
