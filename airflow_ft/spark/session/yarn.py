"""The YARN cluster of the master `yarn`, as $HADOOP_CONF_DIR describes it.

Without these checks spark-submit fails with a stack trace, and Hadoop's client waits 15 minutes for a ResourceManager
that does not answer.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_ft.clients.hadoop import LOCAL, read_site
from airflow_ft.clients.reaching import refusal
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session.home import conf_file

FOLDERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
"""Variables of which spark-submit wants one."""
QUEUE = "spark.yarn.queue"
ADDRESS, WEB = "yarn.resourcemanager.address", "yarn.resourcemanager.webapp.address"
_HOST, _IDS = "yarn.resourcemanager.hostname", "yarn.resourcemanager.ha.rm-ids"
_PORTS = {ADDRESS: 8032, WEB: 8088}
_HADOOP = "spark.hadoop."
_SECONDS = 5.0
"""That a ResourceManager has to accept a connection. Whether it is the active one is for Spark to find out."""
_VARIABLE = re.compile(r"\$\{([^${}\s]+)\}")
_MOST_VARIABLES = 20
_UNKNOWN_QUEUE = re.compile(r"unknown queue:?\s*(\S+)", re.IGNORECASE)


def is_yarn(master: str) -> bool:
    """Return whether a master is YARN."""
    return master == "yarn"


class HadoopConfiguration:
    """Settings of core-site.xml and yarn-site.xml on this machine, and over them those of `spark_conf`.

    Raises:
        ConfigurationError: `hadoop_conf_missing`: nothing names a ResourceManager.
    """

    def __init__(self, conf: Mapping[str, str]) -> None:
        named = [os.environ[name] for name in FOLDERS if os.environ.get(name)]
        with_site = [each for each in named if (Path(each) / "yarn-site.xml").is_file()]
        self.folder = Path((with_site or named or [""])[0])
        self._values = {**read_site(self.folder / "core-site.xml"), **read_site(self.folder / "yarn-site.xml")}
        self._values |= {name.removeprefix(_HADOOP): each for name, each in conf.items() if name.startswith(_HADOOP)}
        if named and (with_site or self.addresses()):
            return
        found = f"{', '.join(named)} has no yarn-site.xml" if named else f"{' and '.join(FOLDERS)} are not set"
        raise ConfigurationError(
            f"spark_master is 'yarn', but {found}.",
            code="hadoop_conf_missing",
            remedy="Set HADOOP_CONF_DIR for Airflow's workers to the folder of the cluster's core-site.xml and"
            " yarn-site.xml.",
            folders=named,
        )

    def get(self, name: str, default: str = "") -> str:
        """Return a setting, with variables resolved as far as they are known."""
        text = self._values.get(name, default)
        for _ in range(_MOST_VARIABLES):
            found = _VARIABLE.search(text)
            value = self._values.get(found[1]) if found else None
            if found is None or value is None:
                break
            text = text.replace(found[0], value)
        return text

    @property
    def file_system(self) -> str:
        """The file system of paths without a scheme."""
        return self.get("fs.defaultFS", LOCAL)

    def addresses(self, name: str = ADDRESS) -> list[tuple[str, int]]:
        """Return host and port of each ResourceManager; addresses that these files lack are left out."""
        ids = [each.strip() for each in self.get(_IDS).split(",") if each.strip()]
        found = []
        for suffix in [f".{each}" for each in ids] or [""]:
            host = self.get(_HOST + suffix)
            text = self.get(name + suffix) or (f"{host}:{_PORTS[name]}" if host else "")
            parts = urlsplit(f"//{text}")
            if text and "${" not in text and parts.hostname:
                found.append((parts.hostname, parts.port or _PORTS[name]))
        return found


def require_cluster(conf: Mapping[str, str], pipeline: str = "") -> HadoopConfiguration | None:
    """Return the configuration if a ResourceManager accepts connections. None: spark-env.sh sets it, where we cannot
    look.

    Raises:
        ConfigurationError: `hadoop_conf_missing`.
        StageError: `server_unreachable`: no ResourceManager accepts a connection. A retry may find one.
    """
    if not any(os.environ.get(name) for name in FOLDERS) and conf_file("spark-env.sh").is_file():
        return None
    try:
        found = HadoopConfiguration(conf)
    except ConfigurationError as error:
        raise error.located(pipeline=pipeline) from error.__cause__
    refusals = []
    for host, port in found.addresses():
        refused = refusal(host, port, _SECONDS)
        if refused is None:
            return found
        refusals.append(refused)
    if refusals:
        raise StageError(
            f"no ResourceManager of YARN can be reached: {'; '.join(refusals)}.",
            code="server_unreachable",
            pipeline=pipeline,
            remedy=f"Start it. Or correct {ADDRESS} in {found.folder}/yarn-site.xml.",
            servers=[f"{host}:{port}" for host, port in found.addresses()],
        )
    return found


def queues(found: HadoopConfiguration) -> list[str]:
    """Return the leaf queues that the ResourceManager's page lists; empty without such a page."""
    for host, port in found.addresses(WEB):
        try:
            page = f"http://{host}:{port}/ws/v1/cluster/scheduler"
            with urllib.request.urlopen(page, timeout=_SECONDS) as answer:  # always http
                data = json.load(answer)["scheduler"]["schedulerInfo"]
        except (OSError, HTTPException, ValueError, KeyError, TypeError):  # another scheduler, or a login, or TLS
            continue
        return list(_leaves(data))
    return []


def _leaves(queue: Any) -> Iterator[str]:
    """The leaf queues of the capacity scheduler below one, by their short names and their paths."""
    children = (queue.get("queues") or {}).get("queue") or []
    for child in children:
        yield from _leaves(child)
    if not children and queue.get("queueName"):
        yield queue["queueName"]
        if queue.get("queuePath"):
            yield queue["queuePath"]


def unknown_queue(reason: str, master: str) -> ConfigurationError | None:
    """Return the error for what the ResourceManager says of a queue; None: it says something else."""
    found = _UNKNOWN_QUEUE.search(reason) if is_yarn(master) else None
    if found is None:
        return None
    queue = found[1].rstrip(".,;")
    return ConfigurationError(
        f"YARN has no queue {queue!r} that takes applications.",
        code="queue_unknown",
        remedy=f"Name one of the cluster's leaf queues in spark_conf: {QUEUE}. `airflow ft doctor {{}}` lists them.",
        queue=queue,
    )
