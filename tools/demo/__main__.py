"""`make demo`, or `python -m tools.demo [--keep] [--report FILE]`.

Exit status 0 only if everything was exact and every kill hit an unfinished checkpoint.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO

from tools.demo.console import Console
from tools.demo.copies import COPIES
from tools.servers.base import local_folder

ALL_FLIGHTS = 336_776


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        default=os.environ.get("KEEP", "") not in ("", "0"),
        help="leave Airflow and the servers running (KEEP=1)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=Path(os.environ["REPORT"]).absolute() if os.environ.get("REPORT") else None,
        help="write the report as JSON, too (REPORT=file)",
    )
    parser.add_argument("--flights", type=int, metavar="N", help=f"load N flights instead of all {ALL_FLIGHTS:,}")
    parser.add_argument("--folder", type=Path, help="where everything is written (default: .local/demo)")
    parser.add_argument("--seed", type=int, help="of the moments of the kills")
    parser.add_argument(
        "--stream",
        action="store_true",
        default=os.environ.get("STREAM", "") not in ("", "0"),
        help="the flights come in while a stream delivers them, second by second (STREAM=1)",
    )
    parser.add_argument(
        "--savepoint",
        action="store_true",
        default=os.environ.get("SAVEPOINT", "") not in ("", "0"),
        help="the stream is stopped with a savepoint, which is moved, rescaled, and gone on from by a changed job"
        " (SAVEPOINT=1)",
    )
    parser.add_argument(
        "--sinks",
        default=os.environ.get("SINKS", ""),
        help=f"copies of all flights beside MySQL and Kafka, in one checkpoint: {' '.join(COPIES)} (SINKS=)",
    )
    parser.add_argument(
        "--executor",
        choices=("local", "celery"),
        default="local",
        help="celery: PostgreSQL, Redis and a Celery worker, which is killed once: `make celery`",
    )
    parser.add_argument("--calm", action="store_true", help="kill nothing: does the installation work?")
    parser.add_argument(
        "--installed",
        action="store_true",
        help="as a user has it: the package comes from the environment, the Kafka connector from where it finds it",
    )
    parser.add_argument("--stop", action="store_true", help="only end what an earlier demonstration has kept running")
    arguments = parser.parse_args()
    arguments.sinks = list(dict.fromkeys(arguments.sinks.replace(",", " ").split()))
    if unknown := sorted(set(arguments.sinks) - COPIES.keys()):
        parser.error(f"SINKS: there is no {' '.join(unknown)}; choose from {' '.join(COPIES)}")
    if arguments.sinks and (arguments.stream or arguments.savepoint):
        parser.error("SINKS goes with neither STREAM nor SAVEPOINT: run them one after the other")
    if arguments.executor == "celery" and (arguments.stream or arguments.savepoint):
        parser.error("--executor celery goes with neither STREAM nor SAVEPOINT")
    return arguments


def main() -> int:
    arguments = _arguments()
    folder = (arguments.folder or local_folder() / "demo").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)
    lock = (folder / "lock").open("a+")
    stopped = _stop_kept(lock)
    if arguments.stop:
        return 0 if stopped else 1
    if not stopped:
        return 2
    if arguments.keep:
        return _in_background(lambda done: _demonstrate(arguments, folder, lock, done))
    return _demonstrate(arguments, folder, lock, None)


# --- one demonstration at a time -------------------------------------------------------------------------------------


def _stop_kept(lock: IO[str]) -> bool:
    """Takes the lock, ending what an earlier demonstration kept running; False when another one is at work."""
    for attempt in range(2):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        lock.seek(0)
        try:
            owner = json.loads(lock.read() or "{}")
        except ValueError:
            owner = {}
        if attempt or not owner.get("kept"):
            print(
                f"another demonstration is at work (process {owner.get('pid', 'unknown')}): let it finish first",
                flush=True,
            )
            return False
        print(f"ending the demonstration that was kept running (process {owner['pid']})", flush=True)
        os.kill(owner["pid"], signal.SIGTERM)  # the lock is held, so the process lives and is that one
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(0.1)
        print(f"process {owner['pid']} did not end within 60 seconds: look at its log, then kill it", flush=True)
    return False


def _sign(lock: IO[str], kept: bool) -> None:
    lock.seek(0)
    lock.truncate()
    json.dump({"pid": os.getpid(), "kept": kept}, lock)
    lock.flush()


# --- life ------------------------------------------------------------------------------------------------------------


def _in_background(work: Callable[[Callable[[int], None]], int]) -> int:
    """Runs `work` in a child that may outlive this process; returns the status that it reports.

    The servers end with the process that started them, so keeping them means keeping that process.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)

        def done(status: int) -> None:
            os.write(writer, bytes([status]))
            os.close(writer)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):  # whoever reads our output is not kept waiting
                os.dup2(nowhere, stream)

        os._exit(work(done))
    os.close(writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    with os.fdopen(reader, "rb") as pipe:
        status = pipe.read(1)
    return status[0] if status else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt


def _demonstrate(arguments: argparse.Namespace, folder: Path, lock: IO[str], done: Callable[[int], None] | None) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    _sign(lock, kept=False)
    console = Console()
    from tools.demo.run import Demo, Options

    run_folder = folder / "run"
    options = Options(
        run_folder,
        arguments.flights,
        arguments.seed,
        arguments.calm,
        arguments.installed,
        arguments.stream or arguments.savepoint,
        arguments.savepoint,
        tuple(arguments.sinks),
        arguments.executor == "celery",
    )
    demo = Demo(options, console)
    try:
        report = demo.run("make demo-stop" if done else None)
        console.plain(str(report))
        if arguments.report is not None:
            arguments.report.write_text(report.to_json())
        status = 0 if report.exact else 1
        if status:
            console.plain(f"logs: {run_folder}")
        if done is not None:
            _sign(lock, kept=True)
            done(status)
            while True:
                time.sleep(1)  # not pause(): a signal that comes right before it would be slept over
        return status
    except KeyboardInterrupt:
        if done is None or not json.loads(Path(lock.name).read_text())["kept"]:
            console.plain("interrupted: ending everything")
        return 130
    except Exception:
        console.plain(f"{traceback.format_exc()}\nthe demonstration failed; logs: {run_folder}")
        return 1
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # the end is not interrupted
        demo.close()


if __name__ == "__main__":
    sys.exit(main())
