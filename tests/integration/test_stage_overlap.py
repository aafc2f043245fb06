"""Real Spark and a real MariaDB: rows arrive while the stage goes on, and the process that does both is killed."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.model import Checkpoint
from airflow_ft.protocol.steps import commit_step, confirm_step, prepare_step, recover_step
from tests.integration.overlap_task import CONFIG, context, delivery
from tests.integration.stage_world import PIPELINE
from tests.protocol.systems import NoArchive
from tools.servers import Database
from tools.stream_task import start_module

PROJECT = Path(__file__).parents[2]
FILES, ROWS = 12, 50


class Shop:
    """A folder of files, the table that they go into, and the decision log."""

    def __init__(
        self, folder: Path, database: Database, wal_root: str = "", conf: dict[str, str] | None = None
    ) -> None:
        self.folder, self.database = folder, database
        self.wal_root, self.conf = wal_root or str(folder / "wal"), conf or {}
        self.input = folder / "input"
        self.input.mkdir()
        server: Any = database.server
        self.mariadb = {
            "host": server.host,
            "port": server.port,
            "login": server.user,
            "password": server.password,
            "schema": database.name,
        }
        database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(20)) ENGINE=InnoDB")
        for number in range(FILES):
            rows = ({"id": number * ROWS + row, "name": f"ä{row}"} for row in range(ROWS))
            (self.input / f"{number:02}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    @contextmanager
    def task(self, try_number: int) -> Iterator[subprocess.Popen[str]]:
        """The task `stage` of that try, killed at the end of the block if it is still there."""
        given = {
            "folder": str(self.folder),
            "input": str(self.input),
            "try": try_number,
            "mariadb": self.mariadb,
            "wal_root": self.wal_root,
            "conf": self.conf,
        }
        log = self.folder / f"task-{try_number}.log"
        process = start_module("tests.integration.overlap_task", json.dumps(given), log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def log(self, try_number: int) -> str:
        return (self.folder / f"task-{try_number}.log").read_text()

    def checkpoints(self) -> list[Checkpoint]:
        store = context(self.folder, self.mariadb, 1).store
        try:
            store.register(PIPELINE)
            return list(reversed(store.checkpoints(PIPELINE)))
        finally:
            store.close()

    def finish(self, try_number: int) -> None:
        """The tasks behind the stage."""
        run = context(self.folder, self.mariadb, try_number)
        recover_step(run)
        prepare_step(run, delivery(), CONFIG, "shop")
        commit_step(run, "shop")
        confirm_step(run, CONFIG, NoArchive())  # type: ignore[arg-type]
        run.store.close()

    def check_exactly_once(self) -> None:
        found = Counter(row[0] for row in self.database.sql("SELECT id FROM orders"))
        assert found == Counter(range(FILES * ROWS))


@pytest.fixture
def shop(tmp_path: Path, mariadb_database: Database) -> Shop:
    return Shop(tmp_path, mariadb_database)


@pytest.mark.sampled(among="Spark drivers")
@pytest.mark.spark
@pytest.mark.chaos
@pytest.mark.slow
def test_deliveries_during_a_stage_are_exactly_once_after_a_kill(shop: Shop) -> None:
    deadline = time.monotonic() + 240
    with shop.task(1) as process:
        while True:
            assert process.poll() is None, shop.log(1)
            assert time.monotonic() < deadline, shop.log(1)
            checkpoints = shop.checkpoints()
            if sum(c.is_confirmed for c in checkpoints) >= 2 and any(not c.is_confirmed for c in checkpoints):
                break
            time.sleep(0.005)
    delivered = len(shop.database.sql("SELECT id FROM orders"))
    assert 0 < delivered < FILES * ROWS, "the stage was not under way"
    with shop.task(2) as process:
        assert process.wait(240) == 0, shop.log(2)
    assert sum(c.is_confirmed for c in shop.checkpoints()) > 2
    shop.finish(3)
    shop.check_exactly_once()
