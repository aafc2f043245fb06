"""The keeper and its protocol, with a program in the place of the JVM that says something all the time."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_ft.spark import private
from airflow_ft.spark.session.session_keeper import FREE, KEPT, SPEC, USE
from airflow_ft.spark.session.session_leases import Kept, kept
from tests.waiting import wait_for
from tools.servers.processes import has_ended

pytestmark = pytest.mark.slow

CHATTERBOX = """
import os, struct, sys, threading, time
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
path = os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(path + ".new", "wb") as file:
    file.write(struct.pack(">ii", 4711, 6) + b"secret")
os.rename(path + ".new", path)
while True:
    print("a line", flush=True)
    time.sleep(0.005)
"""

# As a driver listens that is in the middle of its work.
DRIVER = """
import socket, sys, threading
from airflow_ft.spark.session.session_leases import _read_message
keeper = socket.socket(fileno=int(sys.argv[1])).makefile("rb")
print(_read_message(keeper)["port"], flush=True)
listening = threading.Thread(target=_read_message, args=(keeper,))
listening.start()
listening.join()
print("nobody listens any more")
"""


class Client:
    """What the launcher does: a connection, and a pipe for what the JVM says."""

    open: ClassVar[list[socket.socket]] = []

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.open.append(connection)
        self.reader, writer = os.pipe()
        socket.send_fds(connection, [USE], [writer])
        os.close(writer)
        connection.settimeout(120)
        assert json.loads(connection.makefile("rb").readline()) == {"port": 4711, "secret": "secret"}

    def close_pipe(self) -> None:
        os.close(self.reader)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="ft-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        # One that is too busy to greet within 2 s counts as gone.
        monkeypatch.setattr("airflow_ft.spark.session.session_leases._GREETING_SECONDS", 60.0)
        yield
        while Client.open:
            Client.open.pop().close()
        for one in kept():
            with suppress(psutil.Error):
                psutil.Process(one.jvm).kill()
        wait_for(lambda: not kept(), 60, "none is left")


def _started(idle: float = 60.0) -> tuple[Client, Kept]:
    folder, lock = private.make(private.SESSION)
    spec = {"pipeline": "p", "key": "k", "idle": idle, "command": [sys.executable, "-c", CHATTERBOX]}
    private.write(folder / SPEC, json.dumps(spec))
    ours, theirs = socket.socketpair()
    command = [
        sys.executable,
        "-m",
        "airflow_ft.spark.session.session_keeper",
        str(folder),
        str(theirs.fileno()),
        str(lock),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(command, check=True, env=environment, pass_fds=(theirs.fileno(), lock))
    theirs.close()
    os.close(lock)
    assert ours.recv(1) == FREE
    client = Client(ours)
    (one,) = kept()
    return client, one


def test_a_returned_jvm_is_lent_again_and_writes_to_its_borrower() -> None:
    client, one = _started()
    assert os.read(client.reader, 6) == b"a line"
    assert one.borrow() is None, "it is busy"
    client.connection.sendall(KEPT)
    loan = wait_for(one.borrow, 60, "it is idle")
    second = Client(loan._connection)
    assert os.read(second.reader, 6) == b"a line"
    second.connection.sendall(KEPT)
    wait_for(one.is_idle, 60, "it is idle again")
    assert one.end()
    wait_for(lambda: has_ended(one.jvm), 60, "it has ended")


def test_the_jvm_ends_when_a_client_that_stopped_reading_dies() -> None:
    """Nobody reads what the JVM says, and then the connection ends: it was lent, and is not to be lent again."""
    client, one = _started()
    client.close_pipe()
    with pytest.raises(AssertionError):  # the JVM writes, and nothing happens yet
        wait_for(lambda: has_ended(one.jvm), 0.3, "")
    client.connection.close()
    wait_for(lambda: has_ended(one.jvm), 60, "it has ended")
    wait_for(lambda: not kept(), 60, "nothing is left")


def test_who_looks_only_does_not_keep_it_alive() -> None:
    client, one = _started(idle=4.0)
    client.connection.sendall(KEPT)
    wait_for(one.is_idle, 60, "it is idle")
    wait_for(lambda: not one.is_idle() and has_ended(one.jvm), 60, "it has ended though somebody looks all the time")


def test_a_jvm_that_ends_is_told_and_leaves_nothing() -> None:
    client, one = _started()
    psutil.Process(one.jvm).kill()
    assert json.loads(client.connection.makefile("rb").readline()) == {"ended": -9}
    wait_for(lambda: not kept(), 60, "nothing is left")


@pytest.mark.parametrize("left", ["nothing", "half a line", "something unread"])
def test_a_driver_dies_when_the_connection_to_its_keeper_ends(left: str) -> None:
    """Else it would go on, and meet a JVM that is gone wherever it happens to be: or wait for it for ever."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", DRIVER, str(theirs.fileno())]
    driver = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    with driver, ours, theirs:
        ours.sendall(b'{"port": 4711}\n')
        assert driver.stdout is not None and driver.stdout.readline() == b"4711\n"
        if left == "half a line":
            ours.sendall(b'{"ended"')
        elif left == "something unread":
            theirs.sendall(KEPT)
        ours.close()
        assert driver.communicate(timeout=60) == (b"", None)
        assert driver.returncode == 128 + signal.SIGKILL
