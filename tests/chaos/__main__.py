"""`make chaos`, or `python -m tests.chaos [--kills N] [--seed N] [--report FILE]`.

Two stages: *deliveries* (real steps in real processes over real servers, every strategy, a second or two a fault) and
*pipelines* (whole Airflow runs of the demonstration's DAG with Spark, half a minute a kill). One of twenty faults is a
kill of a whole pipeline. Four more by themselves, of one long stream with Spark, a quarter of a minute a fault:
`--only streams`; `--only savepoints`, in which savepoints are taken and restored meanwhile; `--only at-most-once`, in
which rows may be lost, and `--only sources`, before whose faults it is stopped, and goes on with other sources.
Exit status 0 only if every fault hit unfinished work and everything is exact.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from tests.chaos.deliveries.faults import FAULTS as DELIVERY_FAULTS
from tests.chaos.deliveries.run import Deliveries
from tests.chaos.deliveries.run import Options as DeliveryOptions
from tests.chaos.deliveries.targets import TARGETS, targets_of
from tests.chaos.faults import FAULTS
from tests.chaos.hazards import HAZARDS
from tests.chaos.run import Chaos, Options
from tests.chaos.savepoints.run import SAVEPOINT_FAULTS, Savepoints
from tests.chaos.streams.at_most_once import AtMostOnce
from tests.chaos.streams.changed_sources import ChangedSources
from tests.chaos.streams.run import FAULTS as STREAM_FAULTS
from tests.chaos.streams.run import Options as StreamOptions
from tests.chaos.streams.run import Streams, possible
from tests.chaos.world import Size
from tools.demo.console import Console
from tools.servers.base import local_folder

KILLS = 100
STREAMING = {
    "streams": Streams,
    "savepoints": Savepoints,
    "at-most-once": AtMostOnce,
    "sources": ChangedSources,
}
SYSTEMS = ("redis", "hbase", "cassandra", "iceberg", "paimon", "hive")
SHARE = 20  # one of so many faults is a kill of a whole pipeline


class Report(Protocol):
    """What a stage has found."""

    violations: list[str]

    @property
    def interrupted(self) -> bool: ...

    @property
    def exact(self) -> bool: ...

    def data(self) -> Mapping[str, Any]: ...


class Stage(Protocol):
    """One half of a chaos run."""

    @property
    def report(self) -> Report: ...

    def run(self) -> object: ...

    def close(self) -> None: ...


def _arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=int(os.environ.get("KILLS") or KILLS), help="how many (KILLS=)")
    parser.add_argument(
        "--seed",
        type=int,
        default=int(os.environ["SEED"]) if os.environ.get("SEED") else random.SystemRandom().randrange(10**6),
        help="of faults, moments and delays (SEED=); by default another one each time",
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=Path(os.environ["REPORT"]).absolute() if os.environ.get("REPORT") else None,
        help="write the report as JSON, too (REPORT=)",
    )
    stages = ["deliveries", "pipelines", *SYSTEMS, *STREAMING]
    parser.add_argument("--only", choices=stages, help="one stage, with all the kills; of a system: deliveries into it")
    parser.add_argument("--pipelines", type=int, help=f"kills of whole pipelines (default: 1 of {SHARE})")
    parser.add_argument("--folder", type=Path, help="where everything is written (default: .local/chaos)")
    deliveries = parser.add_argument_group("deliveries")
    deliveries.add_argument(
        "--fault", action="append", default=[], choices=sorted(DELIVERY_FAULTS), help="only these, repeatable"
    )
    deliveries.add_argument(
        "--target", action="append", default=[], choices=sorted(TARGETS), help="only these, repeatable"
    )
    deliveries.add_argument("--no-mount", action="store_true", help="mount no small disks: limit the process's files")
    pipelines = parser.add_argument_group("pipelines")
    pipelines.add_argument("--kill", action="append", default=[], choices=sorted(FAULTS), help="only these, repeatable")
    pipelines.add_argument("--flights", type=int, default=Size.flights, help="of each run")
    pipelines.add_argument("--baseline", action="store_true", help="begin with a run in peace, for comparison")
    pipelines.add_argument(
        "--hazard",
        action="append",
        default=[],
        choices=["all", *HAZARDS],
        help="afterwards: zombies, cleared tasks, ...",
    )
    streams = parser.add_argument_group("streams")
    streams.add_argument(
        "--stream-fault",
        action="append",
        default=[],
        choices=sorted([*STREAM_FAULTS, *SAVEPOINT_FAULTS]),
        help="only these, repeatable",
    )
    streams.add_argument(
        "--store", choices=["sqlite", "postgres"], default="sqlite", help="what holds the decision log"
    )
    streams.add_argument(
        "--wal", choices=["local", "s3", "hdfs"], default="local", help="what holds the write-ahead log"
    )
    streams.add_argument("--master", choices=["local", "yarn"], default="local", help="where Spark works")
    found = parser.parse_args(arguments)
    for name in {*found.stream_fault} - {*possible(found.stream_fault, found.store, found.wal, found.master)}:
        parser.error(f"--stream-fault {name!r} needs --store postgres, --wal s3, or --master yarn")
    if found.master == "yarn" and (found.wal == "local" or found.only == "savepoints"):
        parser.error("--master yarn needs --wal hdfs or --wal s3, and was not tried with savepoints")
    return found


def split(kills: int, only: str | None, pipelines: int | None) -> tuple[int, int]:
    """How many faults for deliveries and for pipelines; none for either when it is all about streams."""
    if only in STREAMING:
        return 0, 0
    if only is not None:
        return (0, kills) if only == "pipelines" else (kills, 0)
    share = kills // SHARE if pipelines is None else min(pipelines, kills)
    return kills - share, share


def _stages(arguments: argparse.Namespace, folder: Path, console: Console) -> list[tuple[str, Stage]]:
    hazards = list(HAZARDS) if "all" in arguments.hazard else arguments.hazard
    deliveries, pipelines = split(arguments.kills, arguments.only, arguments.pipelines)
    stages: list[tuple[str, Stage]] = []
    if deliveries:
        options = DeliveryOptions(
            folder / "deliveries",
            deliveries,
            arguments.seed,
            arguments.fault,
            arguments.target or (targets_of(arguments.only) if arguments.only in SYSTEMS else []),
            not arguments.no_mount,
        )
        stages.append(("deliveries", Deliveries(options, console)))
    if pipelines or hazards:
        whole = Options(
            folder / "run",
            pipelines,
            arguments.seed,
            arguments.flights,
            arguments.kill,
            arguments.baseline,
            hazards,
        )
        stages.append(("pipelines", Chaos(whole, console)))
    if arguments.only in STREAMING:
        streams = StreamOptions(
            folder / arguments.only,
            arguments.kills,
            arguments.seed,
            arguments.stream_fault,
            arguments.store,
            arguments.wal,
            arguments.master,
        )
        stages.append((arguments.only, STREAMING[arguments.only](streams, console)))
    return stages


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


def _listen(how: Any) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, how)


def _run(name: str, stage: Stage, console: Console) -> None:
    """One stage, to its end and its report, whatever happens."""
    _listen(_interrupt)
    try:
        stage.run()
    except KeyboardInterrupt as interrupt:
        console.plain(f"{interrupt}: ending everything")
    except Exception:
        console.plain(traceback.format_exc())
        stage.report.violations.append(f"the {name} stage itself failed, see above")
    finally:
        _listen(signal.SIG_IGN)  # the end is not interrupted
        console.plain(f"{name}:\n{stage.report}")
        stage.close()


def main() -> int:
    arguments = _arguments()
    folder = (arguments.folder or local_folder() / "chaos").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)  # servers run as another user, who has to pass
    lock = (folder / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"another chaos run is at work in {folder}: let it finish first, or give --folder", flush=True)
        return 2
    for earlier in ("deliveries", *STREAMING):
        shutil.rmtree(folder / earlier, ignore_errors=True)  # of the run before
    console = Console()
    stages = _stages(arguments, folder, console)
    counts = split(arguments.kills, arguments.only, arguments.pipelines)
    summary = f"{counts[0]} faults in deliveries, {counts[1]} kills in whole pipelines"
    console.plain(
        f"seed {arguments.seed}: " + (f"{arguments.kills} faults in {arguments.only}" if not any(counts) else summary)
    )
    reports: dict[str, Report] = {}
    for name, stage in stages:
        _run(name, stage, console)
        reports[name] = stage.report
        if stage.report.interrupted:
            break
    exact = len(reports) == len(stages) and all(report.exact for report in reports.values())
    if arguments.report is not None:
        found = {name: report.data() for name, report in reports.items()}
        text = json.dumps({"exact": exact, "seed": arguments.seed, **found}, indent=2)
        arguments.report.write_text(text + "\n")
    if exact:
        shutil.rmtree(folder / "deliveries", ignore_errors=True)
    else:
        console.plain(f"logs: {folder}; the same again: SEED={arguments.seed}")
    return 130 if any(report.interrupted for report in reports.values()) else 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
