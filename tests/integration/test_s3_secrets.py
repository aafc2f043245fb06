"""The keys of the log's bucket, after and during whole runs: in no file, argument, environment or table."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from cryptography.fernet import Fernet

from airflow_ft.clients import buckets
from airflow_ft.spark.private import STAGE
from airflow_ft.spark.session.submit import REQUEST
from airflow_ft.wal.filesystem import filesystem
from tests.integration.test_running import Plain
from tests.integration.test_s3 import CONF
from tests.wal.s3.conftest import connection_of
from tools.servers import VersityGw

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.server,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]
PRIVATE = (REQUEST, Path(REQUEST).with_suffix(".new").name)
"""The private file with the keys, while it lives."""
OF_JVMS = ("hadoop-*", "hsperfdata_*", "airflow-ft-*")


class Scan:
    """Where a secret was found."""

    def __init__(self, secret: str) -> None:
        self._forms = [secret.encode(), base64.b64encode(secret.encode())]
        self.found: set[str] = set()
        self.processes: set[str] = set()
        self.names: set[str] = set()
        self._seen: set[tuple[str, int, int]] = set()

    def look(self, where: str, data: bytes) -> None:
        if any(form in data for form in self._forms):
            self.found.add(where)

    def files(self, folder: Path, *, but: Collection[str] = ()) -> int:
        """Look into all files below a folder, but those of some names; how many there were."""
        number = 0
        for parent, _, names in os.walk(folder):  # unlike `rglob` it passes over what is removed meanwhile
            for path in (Path(parent, name) for name in names if name not in but):
                with suppress(OSError):
                    if path.is_file():
                        number += 1
                        status = path.stat()
                        version = (str(path), status.st_size, status.st_mtime_ns)
                        if version not in self._seen:
                            self.look(str(path), path.read_bytes())
                            self._seen.add(version)
                            self.names.add(path.name)
        return number

    @contextmanager
    def watching(self, *folders: Path) -> Iterator[None]:
        """Look at all descendants of this process, and at folders, again and again during the block."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.3):
                for process in psutil.Process().children(recursive=True):
                    with suppress(psutil.Error, OSError):
                        command = " ".join(process.cmdline())
                        if "versitygw" in command:  # the server has its own key
                            continue
                        self.processes.add(process.name())
                        self.look(f"arguments: {command}", command.encode())
                        self.look(f"environment: {command}", Path(f"/proc/{process.pid}/environ").read_bytes())
                for folder in folders:
                    self.files(folder, but=PRIVATE)

        with ThreadPoolExecutor(1) as pool:
            watched = pool.submit(watch)
            try:
                yield
            finally:
                ended.set()
        watched.result()


def event_log(folder: Path) -> dict[str, str]:
    """Return settings for Spark's event log, in plain text."""
    folder.mkdir()
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
    }


def environments(folder: Path) -> int:
    """Return how many drivers have listed their settings there, as Spark's page of the environment does."""
    events = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    return sum('"Event":"SparkListenerEnvironmentUpdate"' in each for each in events)


@pytest.fixture
def plain(tmp_path: Path, versitygw: VersityGw) -> Plain:
    """With the connection in Airflow's database, and Spark's event log switched on."""
    made, folder = Plain(tmp_path), tmp_path / "tmp"
    folder.mkdir()
    conf = {**CONF, "spark.log.level": "INFO", **event_log(tmp_path / "events")}
    made.variables |= {
        "TMPDIR": str(folder),
        "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
        "AIRFLOW__AIRFLOW_FT__WAL_ROOT": versitygw.place(uuid.uuid4().hex),
        "AIRFLOW__AIRFLOW_FT__SPARK_CONF": json.dumps(conf),
    }
    for command in (["db", "migrate"], ["connections", "import", str(tmp_path / "connections.json")]):
        (tmp_path / "connections.json").write_text(json.dumps({"lake": {"conn_type": "aws", **versitygw.connection()}}))
        subprocess.run([sys.executable, "-m", "airflow", *command], env=made.variables, check=True, capture_output=True)
    (tmp_path / "connections.json").unlink()
    return made


def test_keys_are_nowhere_during_and_after_whole_runs(plain: Plain, tmp_path: Path, versitygw: VersityGw) -> None:
    scan, outputs = Scan(versitygw.password), []
    with scan.watching(tmp_path / "tmp"):
        for run, place in (("one", "when a checkpoint is published"), ("one", ""), ("two", "")):
            if place or run == "two":
                plain.add()
            process = plain.start(run, place)
            outputs += process.communicate(timeout=900)
            assert (process.returncode == 0) is not bool(place), outputs[-1]
    plain.check()
    assert "java" in scan.processes and any(name.startswith("python") for name in scan.processes)
    for output in outputs:
        scan.look("output", output.encode())
    assert scan.files(tmp_path) > 20, "home with Airflow's database, event logs, temporary files, rows"
    assert environments(tmp_path / "events") == 3
    for pattern in OF_JVMS:
        for folder in Path("/tmp").glob(pattern):
            scan.files(folder, but=PRIVATE)  # other tests may run
    buckets.resolve_with(lambda conn_id: connection_of(versitygw, conn_id))
    root = plain.variables["AIRFLOW__AIRFLOW_FT__WAL_ROOT"]
    files = filesystem(root)
    for name in files.tree(root):
        scan.look(name, files.read(files.uri(root, *name.split("/"))))
    buckets.forget()
    assert not scan.found
    left = [path for path in (tmp_path / "tmp").glob(f"{STAGE}*") if (path / REQUEST).exists()]
    assert not left, "the next driver sweeps the request of one that was killed"


def test_the_scan_finds_what_it_looks_for(tmp_path: Path) -> None:
    scan = Scan("planted-key")
    (tmp_path / "file").write_bytes(b"x planted-key y")
    (tmp_path / "other").write_bytes(base64.b64encode(b"planted-key"))
    with scan.watching(tmp_path):
        subprocess.run([sys.executable, "-c", "import time; time.sleep(3)", "planted-key"], check=True)
    assert len(scan.found) == 3
