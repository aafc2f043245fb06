"""`make chaos`, or `python -m tests.chaos [--kills N] [--seed N] [--report FILE]`.

Exit status 0 only if every kill hit unfinished work and everything is exact.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

from tests.chaos.faults import FAULTS
from tests.chaos.hazards import HAZARDS
from tests.chaos.run import Chaos, Options
from tests.chaos.world import Size
from tools.demo.console import Console
from tools.servers.base import local_folder

KILLS = 25


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
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
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS), help="only these, repeatable")
    parser.add_argument("--flights", type=int, default=Size.flights, help="of each run")
    parser.add_argument("--folder", type=Path, help="where everything is written (default: .local/chaos)")
    parser.add_argument("--baseline", action="store_true", help="begin with a run in peace, for comparison")
    parser.add_argument(
        "--hazard",
        action="append",
        default=[],
        choices=["all", *HAZARDS],
        help="afterwards: zombies, cleared tasks, ...",
    )
    return parser.parse_args()


def _interrupt(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)


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
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    console = Console()
    console.plain(f"seed {arguments.seed}, {arguments.kills} kills, {arguments.flights:,} flights a run")
    options = Options(
        folder / "run",
        arguments.kills,
        arguments.seed,
        arguments.flights,
        arguments.fault,
        arguments.baseline,
        list(HAZARDS) if "all" in arguments.hazard else arguments.hazard,
    )
    chaos = Chaos(options, console)
    try:
        chaos.run()
    except KeyboardInterrupt as interrupt:
        console.plain(f"{interrupt}: ending everything")
    except Exception:
        console.plain(traceback.format_exc())
        chaos.report.violations.append("the chaos run itself failed, see above")
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # the end is not interrupted
        console.plain(str(chaos.report))
        if arguments.report is not None:
            arguments.report.write_text(chaos.report.to_json())
        if not chaos.report.exact:
            console.plain(f"logs: {options.folder}; the same again: SEED={arguments.seed}")
        chaos.close()
    return 130 if chaos.report.interrupted else 0 if chaos.report.exact else 1


if __name__ == "__main__":
    sys.exit(main())
