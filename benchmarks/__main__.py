"""`make bench`: every figure a ratio to a baseline that did the same work in the same run.

Contenders take turns, at least three rounds; what each has written is counted and summed up before its figure counts.
ONLY chooses measurements by their names, QUICK=1 takes fewer rows and leaves out what takes long.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks import (
    cpu,
    gap,
    history,
    imports,
    in_doubt,
    into_branches,
    into_delta,
    into_files,
    into_hive,
    into_iceberg,
    into_kafka,
    into_keyed,
    into_mysql,
    into_paimon,
    into_postgres,
    jobs,
    latency,
    memory,
    redis_silence,
    savepoints,
    small,
    staging_cost,
    state,
    streams,
    tasks,
)
from benchmarks.bench import Bench, Servers, say
from benchmarks.data import FLIGHTS
from benchmarks.flink import flink
from benchmarks.measuring import Comparison
from benchmarks.picture import svg
from benchmarks.reporting import costs_table, machine, verdict_table
from benchmarks.workers import ROOT

ROWS, QUICK_ROWS = 2_000_000, 100_000
PICTURE = ROOT / ".local" / "bench.svg"


def flights(bench: Bench) -> list[Comparison]:
    """What is measured with made rows first, with the real flights of the demonstration."""
    real = bench.over(FLIGHTS)
    return [*into_mysql.mysql(real), *into_kafka.kafka(real)]


MEASUREMENTS: Mapping[str, Callable[[Bench], Iterable[Comparison]]] = {
    "mysql": into_mysql.mysql,
    "postgres": into_postgres.postgres,
    "postgres-by-key": into_postgres.by_key,
    "files": into_files.files,
    "delta": into_delta.delta,
    "iceberg": into_iceberg.iceberg,
    "paimon": into_paimon.paimon,
    "hive": into_hive.hive,
    "redis": into_keyed.redis,
    "redis-silence": redis_silence.silence,
    "cassandra": into_keyed.cassandra,
    "hbase": into_keyed.hbase,
    "kafka": into_kafka.kafka,
    "gap": gap.gap,
    "staging": staging_cost.staging,
    "job-mysql": jobs.into_tables,
    "job-kafka": jobs.into_topics,
    "job-both": jobs.into_both,
    "small": small.small,
    "imports": imports.imports,
    "tasks": tasks.tasks,
    "memory": memory.memory,
    "history": history.history,
    "state": state.state,
    "in-doubt": in_doubt.in_doubt,
    "flights": flights,
    "flink": flink,
    "latency": latency.latency,
    "latency-fast": latency.fast,
    "streams": streams.streams,
    "standby": streams.standby,
    "savepoints": savepoints.savepoints,
    "cpu": cpu.cpu,
    "branches": into_mysql.branches,
    "mapped": into_branches.mapped,
    "mapped-kafka": into_branches.mapped_kafka,
    "postgres-branches": into_postgres.branches,
}
# Left out of a quick run, unless they are asked for.
LONG = frozenset(
    {
        "branches",
        "cassandra",
        "cpu",
        "delta",
        "files",
        "flights",
        "flink",
        "gap",
        "hbase",
        "history",
        "hive",
        "iceberg",
        "in-doubt",
        "job-both",
        "job-kafka",
        "job-mysql",
        "latency",
        "latency-fast",
        "mapped",
        "mapped-kafka",
        "paimon",
        "postgres-branches",
        "postgres-by-key",
        "redis",
        "redis-silence",
        "savepoints",
        "standby",
        "state",
        "streams",
        "tasks",
    }
)


def _count(text: str) -> int:
    """A number of rows or rounds."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _file(text: str) -> Path:
    """A file that can be written when the measurements are done."""
    if not Path(text).absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder for {text}")
    return Path(text)


def main() -> int:
    """Measures, prints and writes; 1 when something that is wanted was not reached."""
    environment = os.environ.get
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    quick = bool(environment("QUICK"))
    parser.add_argument("--only", default=environment("ONLY") or "", help=f"some of: {' '.join(MEASUREMENTS)} (ONLY=)")
    parser.add_argument("--quick", action="store_true", default=quick, help="fewer rows, no long ones (QUICK=1)")
    report, picture = environment("REPORT") or None, environment("PICTURE") or str(PICTURE)
    parser.add_argument("--report", type=_file, default=report, help="write JSON here (REPORT=)")
    parser.add_argument("--picture", type=_file, default=picture, help="write an SVG here (PICTURE=)")
    parser.add_argument("--rows", type=_count, default=environment("ROWS") or None, help="of a run (ROWS=)")
    parser.add_argument(
        "--rounds", type=_count, default=environment("ROUNDS") or "3", help="at least 3 count (ROUNDS=)"
    )
    options = parser.parse_args()
    names = options.only.split() or [name for name in MEASUREMENTS if not (options.quick and name in LONG)]
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        parser.error(f"there is no {' '.join(unknown)}; choose from {' '.join(MEASUREMENTS)}")
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and folder go, as at any other end
    about = machine()
    began = time.monotonic()
    done: list[Comparison] = []
    failed: list[str] = []

    def keep() -> None:
        """Writes what there is so far: a run takes long."""
        if options.report:
            report = {"machine": about, "servers": bench.servers.versions, "rows": rows, "rounds": options.rounds}
            report |= {"results": [c.to_json() for c in done], "failed": failed}
            options.report.write_text(json.dumps(report, indent=1) + "\n")
        caption = f"{rows:,} rows, {options.rounds} rounds; commit {about['commit']}, {about['time']}"
        options.picture.write_text(svg(done, caption))

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="airflow-ft-bench-")))
        folder.chmod(0o755)  # the servers run as somebody else
        bench = Bench(Servers(folder, options.quick, stack), rows, options.rounds)
        for position, name in enumerate(names, 1):
            say(f"[{position} of {len(names)}, {(time.monotonic() - began) / 60:.0f} min] {name}")
            try:
                for comparison in MEASUREMENTS[name](bench):
                    comparison.measure(options.rounds, say)
                    for line in costs_table(comparison):
                        say(line)
                    say("")
                    done.append(comparison)
            except Exception as error:  # it has no figure; the others have theirs
                say(traceback.format_exc())
                failed.append(f"{name}: {error}")
            keep()
    say(f"\n{rows:,} rows, {options.rounds} rounds, {time.monotonic() - began:.0f} s; {about['processor']},")
    say(f"{about['cores']} cores; load {about['load'][0]:.1f} at the start, {os.getloadavg()[0]:.1f} at the end;")
    versions = {**bench.servers.versions, **about["packages"]}
    say(f"commit {about['commit']}; {about['java']}; {', '.join(f'{name} {v}' for name, v in versions.items())};")
    say(f"{', '.join(about['jars'])}\na picture of what follows: {options.picture}\n")
    for line in [*verdict_table(done), *(f"FAILED: {each}" for each in failed)]:
        say(line)
    return 1 if failed or any(verdict.is_reached is False for c in done for verdict in c.verdicts()) else 0


if __name__ == "__main__":
    sys.exit(main())
