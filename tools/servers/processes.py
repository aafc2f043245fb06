"""Starting and ending the processes of a server: without privileges, and never outliving who started them."""

import fcntl
import os
import pwd
import queue
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

# Below the ports that the kernel hands to outgoing connections (32768 and up), so that none of those takes the port of
# a server while the server is down.
_PORTS = range(20_000, 32_768)
_UNPRIVILEGED = "nobody"
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2  # bits of linux/capability.h

_given_out: set[int] = set()


def free_port() -> int:
    """A TCP port of the loopback interface on which nothing listens.

    It is this process's alone until it ends: a server that is down for a moment finds its port free when it comes
    back, whatever other tests, demonstrations and benchmarks start on the machine meanwhile.
    """
    candidates = random.Random().sample(_PORTS, 200)  # seeded by the system, whatever a test does to random.seed()
    for port in candidates:
        if port in _given_out:
            continue
        with socket.socket() as probe:
            try:
                fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                probe.bind(("127.0.0.1", port))
            except OSError:  # claimed by another process, or in use
                continue
        _given_out.add(port)
        return port
    raise RuntimeError("no free port found between 20000 and 32767")


@cache
def _claims() -> int:
    """A file of this user; byte n is locked by the process that was given port n. Closing it would give up all."""
    path = Path(tempfile.gettempdir()) / f"airflow-ft-ports-{os.getuid()}"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)


def unprivileged_ids() -> tuple[int, int] | None:
    """User and group id that servers run as, or None when this process is not root and they just run as it."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(_UNPRIVILEGED)
    return entry.pw_uid, entry.pw_gid


def _passable(path: Path) -> bool:
    """Whether any user may walk through all folders down to `path`."""
    return all(folder.stat().st_mode & 0o001 for folder in path.resolve().parents)


def _capability(*paths: Path) -> list[str]:
    """Arguments for setpriv that let the server reach `paths` below a private folder, such as root's home."""
    if all(_passable(path) for path in paths):
        return []
    bounding = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd"))
    bits = int(bounding.split()[1], 16)
    for bit, name in ((_DAC_READ_SEARCH, "dac_read_search"), (_DAC_OVERRIDE, "dac_override")):
        if bits >> bit & 1:
            # Without the secure bit, access(2) would not count the capability.
            return [f"--inh-caps=-all,+{name}", f"--ambient-caps=-all,+{name}", "--securebits=+no_setuid_fixup"]
    raise RuntimeError(f"the user '{_UNPRIVILEGED}' cannot reach {' or '.join(map(str, paths))}; move the project")


def wrapped(command: Sequence[str], environment: Mapping[str, str], *reached: Path) -> list[str]:
    """The command line that runs `command` unprivileged and ends it when the thread that spawned it ends.

    `reached` are the folders that the program has to get at. `setpriv` sets the death signal after the change of
    user, which would clear it, and `env` comes last, so that no library of the server is loaded by the wrappers.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise RuntimeError("setpriv is lacking: install util-linux")
    line = [setpriv, "--pdeathsig=KILL"]
    if (ids := unprivileged_ids()) is not None:
        line += [f"--reuid={ids[0]}", f"--regid={ids[1]}", "--clear-groups", *_capability(*reached)]
    return [*line, "env", "-i", *(f"{key}={value}" for key, value in environment.items()), *command]


class _Spawner:
    """A thread that lives as long as the process and spawns all children.

    PR_SET_PDEATHSIG fires when the *thread* that forked the child ends, so a server started by a short-lived thread
    would die with that thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] | None = None
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:  # a forked process has no other threads
        self._lock, self._queue = threading.Lock(), None

    def _serve(self, jobs: "queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]") -> None:
        while True:
            job, future = jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    def spawn(self, command: Sequence[str], log: Path, cwd: Path) -> "subprocess.Popen[bytes]":
        """Start `command` in a process group of its own, its output appended to `log`, no stream inherited."""

        def job() -> "subprocess.Popen[bytes]":
            with log.open("ab") as output:
                return subprocess.Popen(
                    command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
                )

        with self._lock:
            if self._queue is None:
                self._queue = queue.SimpleQueue()
                threading.Thread(target=self._serve, args=(self._queue,), name="server-spawner", daemon=True).start()
        future: Future[subprocess.Popen[bytes]] = Future()
        self._queue.put((job, future))
        return future.result()


_spawner = _Spawner()
spawn = _spawner.spawn


def _status(pid: int) -> tuple[int, str] | None:
    """Parent and state of a process, None when there is no such process (a zombie counts as none)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), fields[0])


def tree(pid: int) -> list[int]:
    """`pid` and all its living descendants, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _status(int(entry.name))) is not None:
            children.setdefault(status[0], []).append(int(entry.name))
    found = [pid] if _status(pid) is not None else []
    for parent in found:
        found += children.get(parent, [])
    return found


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to each process; one that is gone already is no error."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def command_line(pid: int) -> str:
    """The command line or title of a process; '' when there is none."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return text.rstrip(b"\0 ").replace(b"\0", b" ").decode(errors="replace")


def has_ended(pid: int) -> bool:
    """Whether the process exists no more."""
    return _status(pid) is None


def await_end(pids: Sequence[int], seconds: float) -> bool:
    """Wait until none of the processes exists any more; False if that took longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not all(map(has_ended, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
