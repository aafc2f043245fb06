"""Spark's JVMs that staging tests share (`stage_world`), and the servers of YARN."""

import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from airflow_ft.spark.session.session_leases import kept
from tests.integration.stage_world import sessions_in
from tests.waiting import wait_for
from tools.servers import Hdfs, Yarn


@pytest.fixture(scope="session")
def sessions() -> Iterator[Path]:
    """The folder in which JVMs wait for the next stage of this process; they end with it."""
    with _sessions() as folder:
        yield folder


@pytest.fixture
def own_sessions() -> Iterator[Path]:
    """The same for JVMs of this test alone: its stages set something in them, each of them the same."""
    with _sessions() as folder:
        yield folder


@contextmanager
def _sessions() -> Iterator[Path]:
    # The path of a socket has to be short.
    with tempfile.TemporaryDirectory(prefix="ft-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        with sessions_in(Path(folder)), suppress(AssertionError):
            for one in kept():
                one.end()
            wait_for(lambda: not kept(), 30, "no session is left")  # they remove their folders, too


@pytest.fixture
def shop_folder(tmp_path: Path, sessions: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For runs in this process: a folder, in which `shop.db` is the SQLite file of the connection `shop`."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}))
    with sessions_in(sessions):
        yield tmp_path


@pytest.fixture(scope="module")
def yarn(hdfs: Hdfs, servers_folder: Path) -> Iterator[Yarn]:
    with Yarn(servers_folder / f"yarn-{uuid.uuid4().hex[:8]}", hdfs=hdfs) as server:
        yield server


@pytest.fixture
def folder(servers_folder: Path) -> Path:
    """Containers are of another user, who cannot enter pytest's own folders."""
    made = servers_folder / uuid.uuid4().hex
    made.mkdir(mode=0o755)
    return made
