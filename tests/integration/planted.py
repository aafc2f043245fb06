"""Secrets that a test has planted, in each form in which they may turn up, and what processes were told meanwhile."""

from __future__ import annotations

import contextlib
import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

import psutil  # type: ignore[import-untyped]

SECONDS = 0.3
"""Between two looks; Spark's driver and its JVM live for seconds."""


class Secrets:
    """`seen`: command line of each process below this one, and of JVMs and Spark's drivers the environment."""

    def __init__(self, *secrets: str) -> None:
        self._forms = {
            form.encode()
            for secret in secrets
            for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote_plus(secret))
        } | {b64encode(secret.encode()).rstrip(b"=")[:-1] for secret in secrets}
        self.seen: set[tuple[str, str]] = set()

    def shown(self, data: bytes) -> bool:
        """Whether one of them is in it."""
        return any(form in data for form in self._forms)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Looks at all processes below this one, as any user of the machine may."""
        ended = threading.Event()

        def watch() -> None:
            seen: set[tuple[int, str]] = set()
            while not ended.wait(SECONDS):
                for process in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.Error, OSError):
                        line = " ".join(process.cmdline())
                        if line and (process.pid, line) not in seen:  # a process may become another program
                            is_spark = "java" in line or "airflow-ft-stage" in line
                            self.seen.add((line, str(process.environ()) if is_spark else ""))
                            seen.add((process.pid, line))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
