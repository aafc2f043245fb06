"""`make soak`: one stream, as fast as it goes, for CHECKPOINTS checkpoints; what it holds has to stay as it is.

A stateful job (Python in its state) from Kafka into MariaDB and Kafka, by one task and one driver, without a fault.
Now and then it is looked at from outside: memory, file handles and threads of the task, of the driver's Python, of its
workers and of the JVM (which collects its heap first), and the files in its folders. What they are in the last quarter
is compared with the second one. Of the memory of Python's processes it is told what 100,000 checkpoints at the pace of
the second half would add, and from 5,000 checkpoints on that is judged, too. The decision log keeps a row for each
checkpoint, by design: its bytes are told, and not judged. In the end an outside judge counts the rows.
Exit status 0 only if nothing has grown, and every row is there once.

`LEAN=1` plays what is between source and sink alone, for a life of 100,000 checkpoints in hours: numbers that Spark
makes by itself, without state, into a SQLite file; all of it in memory, where there is /dev/shm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol, Self

import psutil  # type: ignore[import-untyped]

from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.chaos.streams.world import PIPELINE, Feeder, Servers, Task, await_delivery, judge, judge_numbers
from tools.servers.base import local_folder
from tools.servers.processes import tree
from tools.stream_task import Stream

SAMPLES = 60
LOG_SIZE = "decision log MB"
"""It is told, and not judged."""
MORE, SOME = 1.1, {"MB": 40.0, "files": 40.0}
"""What counts as growth: more than this times, and beyond so much (handles and threads: 8)."""

PACED = ("task MB", "driver MB", "Python workers MB")
"""Memory that nothing bounds, unlike the JVM's heap."""
AHEAD, KNOWN_FROM, TOO_MUCH = 100_000, 5_000, 100.0
"""So many checkpoints are looked ahead, from so many that were played; what they may add, in MB."""

MEMORY = Path("/dev/shm")  # the time of a disk is no part of a lean life
LEAN_ROWS = 3  # of a micro-batch
LEAN_CONF = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"}

Sample = Mapping[str, float]


class Life(Protocol):
    """A stream, what it reads and writes, and who judges it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def open_store(self) -> DecisionLog:
        """Its decision log."""

    def stream(self, **more: Any) -> Stream:
        """The pipeline."""

    def run_dry(self, task: Task) -> None:
        """Nothing comes any more, and all is delivered; where the source ends."""

    def judge(self) -> tuple[int, list[str]]:
        """Of a stream that has ended: how many rows there should be, and what is wrong in the sinks."""


class Full(Servers):
    """From Kafka, with state in Python, into MariaDB and Kafka."""

    def __enter__(self) -> Self:
        super().__enter__()
        self._feeder = Feeder(self.kafka, at_a_time=1).__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._feeder.__exit__(*error)
        super().__exit__(*error)

    def run_dry(self, task: Task) -> None:
        """See `Life`."""
        self._feeder.stop()
        await_delivery(self, self._feeder.sent, task)

    def judge(self) -> tuple[int, list[str]]:
        """See `Life`."""
        return self._feeder.sent, judge(self, self._feeder.sent)


class Lean:
    """From Spark into SQLite."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "rows.db"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def open_store(self) -> DecisionLog:
        """See `Life`."""
        return open_store(self.stream().store_url)

    def stream(self, **more: Any) -> Stream:
        """See `Life`."""
        usual: dict[str, Any] = {
            "folder": str(self._folder),
            "pipeline": PIPELINE,
            "job": "stream_jobs:Counting",
            "job_args": {"rows": LEAN_ROWS},
            "sources": {},
            "files": {"numbers": "numbers"},
            "sqlite": str(self._file),
            "conf": LEAN_CONF,
        }
        return Stream(**usual | more)

    def run_dry(self, task: Task) -> None:
        """The source has no end: the stream ends somewhere."""

    def judge(self) -> tuple[int, list[str]]:
        """See `Life`."""
        with closing(self.open_store()) as store, closing(sqlite3.connect(self._file)) as file:
            latest = store.latest_confirmed(PIPELINE)
            assert latest is not None
            made = int(latest.positions["source-0"]["end"]["offset"])
            problems = judge_numbers("SQLite", [n for (n,) in file.execute("SELECT n FROM numbers")], made)
            if latest.number != (last := store.pipeline(PIPELINE).last_published):
                problems.append(f"checkpoint {last} is published, and {latest.number} the last one that is delivered")
            return made, problems


def look(task: Task, folder: Path) -> dict[str, float]:
    """What the stream holds now, by name and unit."""
    found: dict[str, float] = {}
    for pid in tree(task.process.pid):
        try:
            process = psutil.Process(pid)
            who = _role(pid, task, process.cmdline())
            if who == "JVM":  # it takes its heap up to -Xmx before it collects, and gives back what it then has free
                subprocess.run(["jcmd", str(pid), "GC.run"], check=True, stdout=subprocess.DEVNULL)
            held = (process.memory_info().rss / 2**20, process.num_fds(), process.num_threads())
        except psutil.Error:
            continue  # it has just ended
        for what, number in zip(("MB", "handles", "threads"), held, strict=True):
            found[f"{who} {what}"] = found.get(f"{who} {what}", 0.0) + number
    names = [Path(root, name) for root, _, files in os.walk(folder / "wal") for name in files]
    found["log and state files"] = len(names)
    found["log and state MB"] = sum(_size(name) for name in names) / 2**20
    found["decision log MB"] = sum(_size(path) for path in folder.glob("ft.db*")) / 2**20
    return found


_WHO = ("task", "driver", "Python workers", "JVM")
_HEAD = f"{'checkpoint':>10} {'s':>6}" + "".join(f"   {who + ': MB, handles, threads':>38}" for who in _WHO)
_HEAD += f"   {'log and state: files, MB':>25}   {'decision log: MB':>17}"


def _line(number: int, seconds: float, sample: Sample) -> str:
    """A line of the table."""
    parts = [
        ", ".join(f"{sample.get(f'{who} {what}', 0):,.0f}" for what in ("MB", "handles", "threads")) for who in _WHO
    ]
    stored = f"{sample['log and state files']:,.0f}, {sample['log and state MB']:,.1f}"
    held = "".join(f"   {part:>38}" for part in parts)
    return f"{number:>10,} {seconds:>6,.0f}{held}   {stored:>25}   {sample['decision log MB']:>17,.1f}"


def _role(pid: int, task: Task, words: Sequence[str]) -> str:
    if pid == task.process.pid:
        return "task"
    if words and words[0].endswith("java"):
        return "JVM"
    return "Python workers" if any("daemon" in word for word in words) else "driver"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def grown(samples: Sequence[Sample]) -> list[str]:
    """What is more in the last quarter than in the second one, as sentences."""
    quarter = len(samples) // 4
    found = []
    for name in samples[-1]:
        second, last = (
            [sample.get(name, 0.0) for sample in part] for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        before, after = statistics.median(second), statistics.median(last)
        # Files gather for a minute, until old checkpoints are pruned: what goes up and down by itself is no growth.
        some = max(SOME.get(name.rsplit(" ", 1)[1], 8.0), (max(second) - min(second)) / 2)
        if name != LOG_SIZE and after > before * MORE and after - before > some:
            found.append(f"{name}: {before:,.0f} in the second quarter, {after:,.0f} in the last one")
    return found


def paces(numbers: Sequence[int], samples: Sequence[Sample]) -> dict[str, float]:
    """By name, what `AHEAD` checkpoints would add at the pace of the second half (Theil and Sen's estimate)."""
    half = len(samples) // 2
    later = list(zip(numbers[half:], samples[half:], strict=True))
    return {
        name: AHEAD
        * statistics.median(
            (after[name] - before[name]) / (number - earlier)
            for (earlier, before), (number, after) in combinations(later, 2)
            if number > earlier and name in before and name in after
        )
        for name in PACED
        if name in samples[-1]
    }


def run(folder: Path, checkpoints: int, *, lean: bool = False) -> int:
    """Plays the stream; the exit status."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o711)
    began, samples, numbers = time.monotonic(), list[Sample](), list[int]()
    seconds = list[float]()
    opened: Life = Lean(folder) if lean else Full(folder)
    _say(_HEAD)
    with opened as incarnation, closing(incarnation.open_store()) as store:
        store.register(PIPELINE)
        task = Task(folder, incarnation.stream(checkpointing={"interval": 0}), 1)
        try:
            for wanted in range(1, SAMPLES + 1):
                newest = _await(store, task, checkpoints * wanted // SAMPLES)
                numbers.append(newest)
                seconds.append(time.monotonic() - began)
                samples.append(look(task, folder))
                _say(_line(newest, seconds[-1], samples[-1]))
            incarnation.run_dry(task)
            store.ask(PIPELINE, RequestKind.STOP, {}, "the soak")
            if task.process.wait(120):
                raise RuntimeError(task.log.read_text()[-3000:])
        finally:
            task.process.kill()
            task.process.wait()
        rows, problems = incarnation.judge()
    problems += [f"grown: {each}" for each in grown(samples)]
    for name, more in paces(numbers, samples).items():
        line = f"{name}: {more:+,.0f} in {AHEAD:,} checkpoints, at the pace of the second half"
        _say(line)
        if checkpoints >= KNOWN_FROM and more > TOO_MUCH:
            problems.append(f"growing: {line}")
    half = len(numbers) // 2
    pace = 1000 * (seconds[-1] - seconds[half]) / (numbers[-1] - numbers[half])
    _say(f"{numbers[-1]:,} checkpoints, {rows:,} rows, {seconds[-1]:,.0f} s; {pace:.0f} ms each in the second half")
    _say("FLAT and EXACT." if not problems else "\n".join(["NOT FLAT, OR NOT EXACT:", *problems]))
    return 1 if problems else 0


def _await(store: DecisionLog, task: Task, number: int) -> int:
    while True:
        latest = store.latest_confirmed(PIPELINE)
        if latest is not None and latest.number >= number:
            return latest.number
        if task.is_over:
            raise RuntimeError(f"the stream has ended:\n{task.log.read_text()[-3000:]}")
        time.sleep(0.2)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    usual = int(os.environ.get("CHECKPOINTS") or 10_000)
    parser.add_argument("--checkpoints", type=int, default=usual, help="how many (CHECKPOINTS=)")
    lean = os.environ.get("LEAN") not in (None, "", "0")
    parser.add_argument("--lean", action="store_true", default=lean, help="without servers and state (LEAN=1)")
    given = parser.parse_args()
    if not given.lean:
        return run(local_folder() / "soak", given.checkpoints)
    folder = Path(tempfile.mkdtemp(prefix="airflow-ft-soak-", dir=MEMORY if MEMORY.is_dir() else local_folder()))
    status = run(folder, given.checkpoints, lean=True)
    if status:
        _say(f"all of it is in {folder}, and takes memory until you remove it")
    else:
        shutil.rmtree(folder)
    return status


if __name__ == "__main__":
    sys.exit(main())
