"""Say in the task's log that Spark starts, and when it is up. Spark itself logs nothing meanwhile."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from airflow_ft.spark.request import StageRequest, is_local
from airflow_ft.spark.session.connector import installed_version

_STARTED = re.compile(r"Spark (\S+) started in [\d.]+ s(?: \(([^()]+)\))?$")


class Beginning:
    """The start of a driver, from the moment when this is made; `say` receives a line."""

    def __init__(self, request: StageRequest, say: Callable[[str], None]) -> None:
        self._master = request.master or request.conf.get("spark.master", "local[*]")
        self._keep, self._say = bool(request.keep_session), say
        self._began = time.monotonic()

    def starts(self) -> None:
        """Say that a JVM starts, and what may take long."""
        waits = "" if is_local(self._master) else " It may wait until the cluster has room."
        version = " ".join(filter(None, ("Spark", installed_version())))
        self._say(f"Starting {version} ({self._master}) ...{waits}")

    def continues(self) -> None:
        """Say that the JVM of an earlier run is used."""
        self._say(f"Using the Spark session ({self._master}) that an earlier run has kept ...")

    def shown(self, line: str) -> str:
        """Return a line of the driver; one that says that Spark has started also counts the start of its JVM."""
        if not (found := _STARTED.match(line)):
            return line
        application = f", as {found[2]}" if found[2] else ""
        stays = " It stays for later runs (keep_session)." if self._keep else ""
        seconds = time.monotonic() - self._began
        return f"Spark {found[1]} is up after {seconds:.1f} s{application}.{stays} The job begins."
