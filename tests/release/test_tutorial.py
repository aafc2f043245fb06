"""The tutorial as a stranger has it: a wheel, an empty folder, and every command as it stands, the installation too.

`tests/integration/test_tutorial.py` types the same without installing, and without Airflow's servers.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_tutorial import AIRFLOW, KILL, RUN, WRITE, blocks, section
from tests.waiting import wait_for
from tools.release.build import build
from tools.servers.processes import await_end, free_port, send, tree

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.release, pytest.mark.timeout(3600)]

CHECKOUT = "/path/to/the/checkout"
MINUTES = 10
END = "*** status "
"""What the shell says behind each line that was typed."""


class Shell:
    """A shell of a person: lines are typed into it one after the other, and each has to succeed."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )

    def type(self, line: str) -> str:
        """What it prints."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{{ {line}\n}} </dev/null; printf '\\n{END}%s\\n' $?\n")
        printed: list[str] = []
        for text in self.process.stdout:
            if text.startswith(END):
                assert text == f"{END}0\n", f"{line}: {''.join(printed)}"
                break
            printed.append(text)
        return "".join(printed)

    def close(self) -> None:
        """What it has started in the background goes on."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def lines(title: str) -> Iterator[str]:
    return (line for block in blocks(section(title), "console") for line in block.splitlines())


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Nothing is known of this checkout, nothing was downloaded before; ports are free ones."""
    port = free_port()
    inherited = re.compile(r"HOME|LANG|JAVA_HOME|TMPDIR|SSL_CERT_FILE|PIP_.*|https?_proxy", re.IGNORECASE)
    yield {
        **{name: value for name, value in os.environ.items() if inherited.fullmatch(name)},
        "PATH": f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}",
        "PIP_CACHE_DIR": str(tmp_path / "cache"),
        "NO_PROXY": "localhost,127.0.0.1",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
    }
    started = [pid for file in tmp_path.rglob("standalone.pid") for pid in tree(int(file.read_text()))]
    send(started, signal.SIGKILL)
    await_end(started, 30)


def test_the_tutorial_confirms_a_checkpoint_within_ten_minutes(tmp_path: Path, stranger: dict[str, str]) -> None:
    """The same tutorial then runs the pipeline in Airflow."""
    wheel, _ = build(tmp_path / "dist")
    (tmp_path / "empty").mkdir()
    shell = Shell(tmp_path / "empty", stranger)
    began = time.monotonic()
    for line in lines("Install"):
        shell.type(line.replace(CHECKOUT, str(wheel)))
    installed = time.monotonic()
    shop = tmp_path / "empty" / "shop"
    [pipeline] = blocks(section(WRITE), "python")
    (shop / "dags" / "orders.py").write_text(pipeline)
    confirmed, exports = 0.0, list[str]()
    for line in lines(RUN):
        printed = shell.type(line)
        exports += [line] if line.startswith("export") else []
        if not confirmed and "'numbers': [1], 'count': 1" in printed:
            confirmed = time.monotonic()
    assert confirmed
    took = [installed - began, confirmed - installed]
    print(f"installation {took[0]:.0f} s, from there to a confirmed checkpoint {took[1]:.0f} s", file=sys.stderr)

    [rows] = [text.strip() for text in blocks(section(KILL), "text")]
    assert rows in "".join(shell.type(line) for line in lines(KILL))

    [maintenance] = blocks(section(AIRFLOW), "python")
    (shop / "dags" / "maintenance.py").write_text(maintenance)
    other = Shell(shop, stranger)
    for line in (". venv/bin/activate", *exports):
        other.type(line)
    for line in lines(AIRFLOW):
        if line == "airflow standalone":
            shell.type("airflow standalone > standalone.log 2>&1 & echo $! > standalone.pid")
            wait_for(lambda: found(shop / "airflow/airflow.db", "SELECT 1 FROM dag WHERE dag_id = 'orders'"), 600, line)
        else:
            (shell if line.startswith("export") else other).type(line)
            if line.startswith("export"):
                other.type(line)
        if line.startswith("airflow dags trigger"):
            wait_for(lambda: found(shop / "shop.db", "SELECT 1 FROM orders WHERE customer = 'dan'"), 600, line)
    for each in (shell, other):
        each.close()
    assert sum(took) < MINUTES * 60, took


def found(database: Path, question: str) -> list[Any]:
    """The answer; none while the file or the table is not there, or somebody writes."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as asked:
        return asked.execute(question).fetchall()
    return []
