"""The Kubernetes cluster of a master `k8s://https://HOST:PORT`, with the driver in the task's own pod (client mode).

Executors connect to the driver by its address, and end with it only if they belong to its pod. Spark knows neither by
itself: it takes a host name that other pods cannot resolve, and leaves the executors of a dead driver running.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from airflow_ft.clients.reaching import refusal
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session.home import spark_defaults

IMAGES = ("spark.kubernetes.container.image", "spark.kubernetes.executor.container.image")
NAMESPACE, DRIVER_POD, DRIVER_HOST = (
    "spark.kubernetes.namespace",
    "spark.kubernetes.driver.pod.name",
    "spark.driver.host",
)
_PREFIX = "k8s://"
_PORTS = {"https": 443, "http": 80}
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Kubernetes mounts it into a pod: the namespace, and the keys of the pod's service account."""
_SECONDS = 5.0
"""The time that the API server has to accept a connection."""


def is_kubernetes(master: str) -> bool:
    """Return whether a master is Kubernetes."""
    return master.startswith(_PREFIX)


def api_server(master: str) -> tuple[str, int]:
    """Return host and port of the API server; ConfigurationError for a master without them."""
    text = master.removeprefix(_PREFIX)
    parts = urlsplit(text if "://" in text else f"https://{text}")
    try:
        host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:  # a port that is no number
        host, port = None, None
    if not host or not port:
        raise ConfigurationError(
            f"the master {master!r} does not name an API server of Kubernetes.",
            code="master_invalid",
            remedy="Write k8s://https://HOST:PORT. Inside the cluster it is k8s://https://kubernetes.default.svc:443.",
            argument="spark_master",
        )
    return host, port


def settings(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return settings that Spark lacks: the address of the driver, and in a pod the name and namespace of that pod."""
    found = {}
    if DRIVER_HOST not in conf:
        with suppress(OSError):  # then Spark cannot reach the API server either, and says so
            found[DRIVER_HOST] = _own_address(*api_server(master))
    own = _own_namespace()
    if own and conf.get(NAMESPACE, own) == own:
        # Only a pod of their own namespace can own executors.
        found |= {NAMESPACE: own, DRIVER_POD: conf.get(DRIVER_POD, socket.gethostname())}
    return found


def require_cluster(master: str, conf: Mapping[str, str], pipeline: str = "") -> None:
    """Refuse what would let a run wait or fail inside Spark.

    Raises:
        ConfigurationError: `image_missing`: no setting names the image of executors.
        StageError: `server_unreachable`: the API server does not accept a connection. A retry may reach it.
    """
    host, port = api_server(master)
    if not any(conf.get(name) or name in spark_defaults() for name in IMAGES):
        raise ConfigurationError(
            f"spark_conf names no image for the executors on {master}.",
            code="image_missing",
            pipeline=pipeline,
            remedy=f"Set {IMAGES[0]} in spark_conf to an image with the same pyspark and Python as this task.",
            setting=IMAGES[0],
        )
    if refused := refusal(host, port, _SECONDS):
        raise StageError(
            f"the API server of Kubernetes cannot be reached: {refused}.",
            code="server_unreachable",
            pipeline=pipeline,
            remedy="Correct spark_master, or let the network pass connections to it.",
            servers=[f"{host}:{port}"],
        )


def _own_address(host: str, port: int) -> str:
    """Return the address by which this machine, or pod, reaches a server: nothing is sent. Spark wants brackets around
    an IPv6 address.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return f"[{own}]" if family == socket.AF_INET6 else own


def _own_namespace() -> str:
    """Return the namespace of the pod in which this process runs; empty outside of pods."""
    try:
        return (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
