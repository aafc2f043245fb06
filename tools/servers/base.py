"""What all test servers have in common: a folder, a port, and a life that is started, cut short and resumed."""

import os
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tools.servers import processes

Options = Mapping[str, str | int]


class ServerError(RuntimeError):
    """A server did not do what was asked of it; the message ends with the last lines of its log."""


def local_folder() -> Path:
    """The folder that tools/bootstrap.sh installs into; AIRFLOW_FT_LOCAL names another project's."""
    return Path(os.environ.get("AIRFLOW_FT_LOCAL") or Path(__file__).resolve().parents[2] / ".local")


def installed(component: str, folder: Path) -> Path:
    """`folder` inside `.local`; says how to install `component` when it is not there."""
    found = local_folder() / folder
    if not found.exists():
        raise ServerError(f"{component} is not installed in {local_folder()}: run tools/bootstrap.sh {component}")
    return found


def library_path(root: Path) -> str:
    """Where the dynamic loader finds the libraries of packages that are unpacked into `root`."""
    folders = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
    return ":".join(str(folder) for folder in folders)


class Server(ABC):
    """One server process with its data in `folder`, listening on the loopback interface.

    Args:
        folder: where data, log and password lie; created when it does not exist, never removed.
        port: TCP port; None takes a free one. It stays the same over `restart`.
        options: settings of the server, by the server's own names; they go before the defaults of the class.
    """

    name: ClassVar[str]
    host: ClassVar[str] = "127.0.0.1"
    start_seconds: ClassVar[float] = 180
    stop_seconds: ClassVar[float] = 30
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, folder: Path, port: int | None = None, options: Options | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.port = port if port is not None else processes.free_port()
        self.options = dict(options or {})
        self._process: subprocess.Popen[bytes] | None = None

    # --- what a server has to say about itself ---

    @abstractmethod
    def _initialise(self, data: Path) -> None:
        """Fill the empty folder `data` with what a new server needs."""

    @abstractmethod
    def _command(self, data: Path) -> Sequence[str]:
        """The command line that runs the server in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server does work for a client; False while it starts."""

    def _before_start(self, data: Path) -> None:
        """What has to happen between the death of one process and the start of the next."""
        return

    def _environment(self) -> dict[str, str]:
        # TMPDIR: MariaDB and MySQL delete every '#sql*' of it when they start, and a MariaDB that runs dies of that.
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
        }

    def _programs(self) -> Path:
        """The folder that the server's programs lie in."""
        return local_folder()

    # --- life ---

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise ServerError(f"{self.name} in {self.folder} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists (it may be paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> Path:
        """Everything that the server printed, over all its starts."""
        return self.folder / "log"

    def start(self) -> Self:
        """Start the server and wait until it answers; initialises the data folder when there is none.

        Raises:
            ServerError: it is running already, ended by itself or did not answer in time.
        """
        if self.running:
            raise ServerError(f"{self.name} in {self.folder} is running already")
        self._prepare_folder()
        data = self.folder / "data"
        if not data.exists():
            fresh = self.folder / "data.new"  # a folder named 'data' is always complete
            shutil.rmtree(fresh, ignore_errors=True)
            self._make(fresh)
            self._initialise(fresh)
            fresh.rename(data)
        self._before_start(data)
        self._process = self._spawn(self._command(data))
        deadline = time.monotonic() + self.start_seconds
        try:
            while not self._answers():
                if self._process.poll() is not None:
                    raise self._error(f"ended by itself with status {self._process.returncode}")
                if time.monotonic() > deadline:
                    raise self._error(f"did not answer on port {self.port} within {self.start_seconds:.0f} s")
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Shut down cleanly; what is left after `stop_seconds` is killed. Does nothing when it is not running."""
        if self._process is None:
            return
        family = processes.tree(self._process.pid)
        processes.send(family, signal.SIGCONT)
        processes.send([self._process.pid], self.stop_signal)
        try:
            self._process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return
        self._bury(family)

    def kill(self) -> None:
        """End the server and its children by SIGKILL, as a power cut would; returns when they are gone."""
        if self._process is None:
            return
        # A stopped process forks no child that this would miss. A dead one that nobody waited for is left to `wait`.
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
        family = processes.tree(self._process.pid)
        processes.send(family, signal.SIGKILL)
        self._process.wait()
        self._bury(family)

    def restart(self) -> None:
        """Start again on the same port and data, after a clean stop if it still runs."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Stop the server and its children where they are (SIGSTOP): connections stay open, nothing answers."""
        processes.send([self.pid], signal.SIGSTOP)
        processes.send(processes.tree(self.pid), signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        processes.send(list(reversed(processes.tree(self.pid))), signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.host}:{self.port}, {self.folder})"

    # --- for the servers ---

    def _make(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (ids := processes.unprivileged_ids()) is not None:
            os.chown(folder, *ids)

    def _prepare_folder(self) -> None:
        self._make(self.folder)
        self._make(self.folder / "tmp")

    def _write(self, path: Path, text: str) -> Path:
        """Write a file that only the server may read."""
        path.touch(mode=0o600)
        path.write_text(text)
        if (ids := processes.unprivileged_ids()) is not None:
            os.chown(path, *ids)
        return path

    def _spawn(self, command: Sequence[str], log: Path | None = None) -> "subprocess.Popen[bytes]":
        line = processes.wrapped(command, self._environment(), self._programs(), self.folder / "data")
        return processes.spawn(line, log or self.log, self.folder)

    def _run(self, command: Sequence[str], seconds: float = 120) -> None:
        """Run a program of the server to its end, as the server's user."""
        process = self._spawn(command)
        try:
            status = process.wait(seconds)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if status != 0:
            raise self._error(f"{Path(command[0]).name} failed with status {status}")

    def _error(self, what: str) -> ServerError:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return ServerError(f"{self.name} in {self.folder}: {what}\n" + "\n".join(lines))

    def _bury(self, family: Sequence[int]) -> None:
        self._process = None
        # Backends of PostgreSQL notice within moments that their postmaster is gone.
        if not processes.await_end(family, 5):
            processes.send(family, signal.SIGKILL)
            if not processes.await_end(family, 60):  # a killed process ends after the write that it waits for
                raise self._error("left processes behind that SIGKILL does not end")
