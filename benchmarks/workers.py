"""Child processes that stay: a measured process is started once (warm), or once a measurement (cold).

A command is one JSON line on the child's standard input, its answer a line on its standard output that begins with
`ANSWER`; everything else that the child prints goes into its log. Passwords travel this way too, and so are in no
list of arguments.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.measuring import MeasurementError

ROOT = Path(__file__).resolve().parents[1]
ANSWER = "=> "


class Worker:
    """A module of this package as a child; it must call `serve`.

    Args:
        module: what to run, such as "benchmarks.delivering".
        folder: for its log.
        tree: measure the airflow_ft of this source tree instead of this one's.
        arguments: for the module, never secret.
        program: a command line to run instead; `module` only names its log then.
    """

    def __init__(
        self,
        module: str,
        folder: Path,
        tree: Path | None = None,
        arguments: Sequence[str] = (),
        program: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{module}-{time.monotonic_ns()}.log"
        search = [str(ROOT)]
        if tree is not None:
            # A folder with nothing but that package in it, and first in the search path.
            only = folder / f"only-{abs(hash(tree))}"
            only.mkdir(exist_ok=True)
            link = only / "airflow_ft"
            if not link.exists():
                link.symlink_to(tree / "airflow_ft", target_is_directory=True)
            search.insert(0, str(only))
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(search),
            "PYTHONSAFEPATH": "1",  # else the current folder would come first
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_profiled(self.log), *(program or (sys.executable, "-m", module)), *arguments],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; MeasurementError with the end of its log when there is none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended(command) from None
        with self.log.open("a") as log:
            for line in self._process.stdout:
                if line.startswith(ANSWER):
                    answer: dict[str, Any] = json.loads(line.removeprefix(ANSWER))
                    return answer
                log.write(line)
        raise self._ended(command)

    def _ended(self, command: str) -> MeasurementError:
        self._process.wait()
        end = "".join(self.log.read_text(errors="replace").splitlines(keepends=True)[-30:])
        return MeasurementError(f"{self.log.name} ended at {command!r} with status {self._process.returncode}:\n{end}")

    def close(self) -> None:
        """Lets it end, and waits for that."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended already, and said why
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _profiled(log: Path) -> list[str]:
    """What comes before a command line so that its flame graph is written into $PROFILE, if that is set.

    Native frames too: most of the time is spent in PyArrow, librdkafka and OpenSSL.
    """
    if not (folder := os.environ.get("PROFILE")):
        return []
    py_spy = str(Path(sys.executable).with_name("py-spy"))
    target = Path(folder).absolute() / log.with_suffix(".svg").name
    target.parent.mkdir(parents=True, exist_ok=True)
    return [py_spy, "record", "--native", "--threads", "--rate", "200", "--output", str(target), "--"]


def serve(commands: Mapping[str, Callable[..., Mapping[str, Any]]]) -> None:
    """Answers commands until the standard input ends; an error ends the process."""
    for line in sys.stdin:
        request = json.loads(line)
        answer = commands[request.pop("command")](**request)
        sys.stdout.write(f"{ANSWER}{json.dumps(dict(answer))}\n")
        sys.stdout.flush()


def peak_memory() -> float:
    """The largest resident size that this process has had, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kilobytes * 1024 / 1e6
