"""The process that keeps Spark's JVM between the runs of a pipeline.

`python -m airflow_ft.spark.session.session_keeper FOLDER FIRST LOCK` starts the JVM, lends it to one stage at a time
(`airflow_ft.spark.session.session_leases`), and ends it when

- a stage did not return it: the process at the other end of the connection died, or its driver failed;
- it was idle for `idle` seconds, or has served `USES` stages, so that leftovers of jobs do not add up;
- a client requests it (`END`), and it is idle.

When this process dies, the JVM reads the end of its standard input, and ends. No guarantee depends on this: a JVM that
survives would write only into folders of its own attempt. Only the Python driver publishes.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from airflow_ft.spark.private import PROPERTIES
from airflow_ft.spark.process import signal_group, spawn

SPEC, SOCKET, ADDRESS, JVM = "session.json", "socket", "address", "jvm"
# The keeper greets a client that it has time for with FREE, the client asks to USE or END, and gives back with KEPT.
FREE, USE, KEPT, END = b"f", b"u", b"k", b"e"
USES = 100
_END_SECONDS = 10.0
_CHUNK = 64 * 1024


class SessionKeeper:
    """`spec`: command, idle (seconds), and what the others look for: pipeline, key."""

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self._folder, self._idle = folder, float(spec["idle"])
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._client: socket.socket | None = None
        self._lent = False
        self._output: int | None = None  # of the client, for what the JVM says
        self._address: bytes | None = None
        self._uses = 0
        self._since = time.monotonic()
        self._jvm = spawn(
            spec["command"],
            {**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / ADDRESS)},
            stdin=subprocess.PIPE,
        )
        (folder / JVM).write_text(str(self._jvm.pid), encoding="utf-8")

    def run(self, first: socket.socket) -> None:
        """Serve `first`, then other clients, until the JVM has ended."""
        assert self._jvm.stdout is not None
        try:
            self._greet(first)
            self._listen()  # pass on the output of a JVM that cannot start
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._selector.register(self._jvm.stdout, selectors.EVENT_READ, self._forward)
            while self._client is not None or time.monotonic() < self._since + self._idle:
                starting = self._address is None
                for key, _ in self._selector.select(0.02 if starting else 1.0):
                    key.data()
                if starting:
                    self._look_for_address()
                if self._jvm.poll() is not None:  # what it has started may hold its output
                    raise _Over
            self._end_kindly()
        except _Over:
            pass
        finally:
            signal_group(self._jvm.pid, signal.SIGKILL)
            self._send({"ended": self._jvm.wait()})
            shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._uses and not self._lent and self._has_left():
            self._dismiss()
        if self._client is None:
            self._greet(client)
        else:
            client.close()  # busy

    def _has_left(self) -> bool:
        """Return whether there is a client, and it has closed its end."""
        try:
            return self._client is not None and not self._client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # nothing to read yet
            return False

    def _greet(self, client: socket.socket) -> None:
        self._client = client
        self._selector.register(client, selectors.EVENT_READ, self._listen)
        with suppress(OSError):
            client.sendall(FREE)

    def _listen(self) -> None:
        """Read the client's request with the file for the JVM's output; at last, that it returns the JVM."""
        assert self._client is not None
        try:
            said, files, _, _ = socket.recv_fds(self._client, 1, 1)
        except OSError:
            said, files = b"", []
        if said == USE and files and not self._lent:
            (self._output,) = files
            self._lent, self._uses = True, self._uses + 1
            self._send_address()
        elif said == KEPT and self._lent and self._uses < USES:
            self._lent, self._since = False, time.monotonic()
            self._drop_output()
            self._end_workers()
            self._dismiss()
        elif not said and not self._lent and self._uses:  # it has only looked
            self._dismiss()
        else:
            raise _Over

    def _dismiss(self) -> None:
        assert self._client is not None
        self._selector.unregister(self._client)
        self._client.close()
        self._client = None

    def _forward(self) -> None:
        assert self._jvm.stdout is not None
        data = os.read(self._jvm.stdout.fileno(), _CHUNK)
        if not data:
            raise _Over
        try:
            while data and self._output is not None:
                data = data[os.write(self._output, data) :]
        except OSError:  # its reader has gone; the connection will say so
            self._drop_output()

    def _look_for_address(self) -> None:
        path = self._folder / ADDRESS
        if not path.exists():
            return
        port, length = struct.unpack(">ii", (text := path.read_bytes())[:8])
        self._address = json.dumps({"port": port, "secret": text[8 : 8 + length].decode()}).encode() + b"\n"
        path.unlink()
        (self._folder / PROPERTIES).unlink(missing_ok=True)  # it holds credentials, and has been read
        self._send_address()

    def _send_address(self) -> None:
        if self._client is not None and self._lent and self._address is not None:
            with suppress(OSError):
                self._client.sendall(self._address)

    def _send(self, what: Mapping[str, Any]) -> None:
        if self._client is not None:
            with suppress(OSError):
                self._client.sendall(json.dumps(what).encode() + b"\n")

    def _drop_output(self) -> None:
        if self._output is not None:
            os.close(self._output)
            self._output = None

    def _end_workers(self) -> None:
        """Ends Python workers: they hold modules of the job as they were, and are not used again (`attach`)."""
        import psutil  # type: ignore[import-untyped]

        with suppress(psutil.Error):
            for child in psutil.Process(self._jvm.pid).children(recursive=True):
                with suppress(psutil.Error):
                    child.kill()

    def _end_kindly(self) -> None:
        """Lets the JVM tidy up: it ends with its standard input."""
        assert self._jvm.stdin is not None
        self._jvm.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._jvm.wait(_END_SECONDS)


class _Over(Exception):
    """The JVM must end, or has ended."""


def main(folder: str, first: str, lock: str) -> None:
    """Run the keeper. `first`: the connection of the first client. `lock` is held open: this process is alive."""
    if os.fork():  # detached: it outlives the task
        os._exit(0)
    os.set_inheritable(int(lock), False)
    spec = json.loads((Path(folder) / SPEC).read_text(encoding="utf-8"))
    SessionKeeper(Path(folder), spec).run(socket.socket(fileno=int(first)))


if __name__ == "__main__":
    main(*sys.argv[1:])
