"""Memory and idle CPU of many small streams in one driver: `python -m benchmarks.stream_groups [STREAMS] [SECONDS]`.

Each stream reads a topic of Kafka and delivers into a table of one SQLite file; every second one counts rows by key,
with state in RocksDB. They get a few records, which must be delivered. Then their processes are measured while nothing
comes: memory is PSS (shared pages are divided among those that share them), without Kafka.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Producer

from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.sources import KafkaSource
from airflow_ft.store import open_store
from benchmarks.measuring import MeasurementError
from tools.servers import Kafka
from tools.stream_group_task import start_group
from tools.stream_task import Stream

RECORDS = 100
SETTLE_SECONDS = 30.0
_PATIENCE = 400.0


def streams(folder: Path, kafka: Kafka, count: int) -> Sequence[Stream]:
    """Streams with their topics and tables."""
    database = folder / "out.db"
    found = []
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        for number in range(count):
            name = f"small-{number}"
            kafka.create_topic(name, 1)
            connection.execute(f"CREATE TABLE t{number} (k BIGINT, n BIGINT)")
            found.append(
                Stream(
                    folder=str(folder),
                    pipeline=name,
                    jobs=str(Path(__file__).parent),
                    job="job:CountsByKey" if number % 2 else "job:Keys",
                    sources={
                        "rows": KafkaSource(topics=[name], conn_id="kafka", starting_offsets="earliest").to_json()
                    },
                    files={"rows": f"t{number}"},
                    sqlite=str(database),
                    kafka=kafka.bootstrap,
                    lease_seconds=30.0,
                )
            )
        connection.commit()
    return found


def measured(pid: int) -> dict[str, tuple[int, float, float]]:
    """By kind of process: how many, PSS in MB, and CPU seconds so far."""
    root = psutil.Process(pid)
    found: dict[str, tuple[int, float, float]] = {}
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended
            line = " ".join(process.cmdline())
            kind = "task" if process == root else "JVM" if "java" in process.name() else "Python workers"
            kind = "driver" if "main.py" in line and kind != "JVM" else kind
            many, memory, seconds = found.get(kind, (0, 0.0, 0.0))
            times = process.cpu_times()
            memory += process.memory_full_info().pss / 1e6
            found[kind] = many + 1, memory, seconds + times.user + times.system
    return found


def run(folder: Path, count: int, seconds: float) -> str:
    """Measure, and return a table."""
    with Kafka(folder / "kafka") as kafka:
        made = streams(folder, kafka, count)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for stream in made:
            for number in range(RECORDS):
                producer.produce(stream.pipeline, b"%d" % number)
        producer.flush(60)
        del producer  # it would miss Kafka at the end
        log = folder / "log"
        process = start_group(made, log)
        try:
            began = time.monotonic()

            def until(condition: Callable[[], Any]) -> None:
                while not condition():
                    if process.poll() is not None or time.monotonic() - began > _PATIENCE:
                        raise MeasurementError(log.read_text()[-3000:])
                    time.sleep(0.5)

            with closing(sqlite3.connect(folder / "out.db")) as rows:
                until(lambda: all(rows.execute(f"SELECT count(*) FROM t{n}").fetchone()[0] for n in range(count)))
            started = time.monotonic() - began
            time.sleep(SETTLE_SECONDS)
            before, at = measured(process.pid), time.monotonic()
            time.sleep(seconds)
            after, passed = measured(process.pid), time.monotonic() - at
            with closing(open_store(made[0].store_url)) as store:
                for stream in made:
                    store.ask(stream.pipeline, RequestKind.STOP, {}, "the benchmark")
            if process.wait(120):
                raise MeasurementError(log.read_text()[-3000:])
        finally:
            process.kill()
            process.wait()
    lines = [f"{count} streams, all delivered {started:.0f} s after the start, idle for {passed:.0f} s", ""]
    lines += ["| process | PSS (MB) | idle CPU (cores) |", "| --- | ---: | ---: |"]
    total_memory = total_cpu = 0.0
    for kind, (many, memory, cpu) in after.items():
        used = (cpu - before.get(kind, (0, 0.0, cpu))[2]) / passed
        total_memory, total_cpu = total_memory + memory, total_cpu + used
        lines.append(f"| {kind}{f' ({many})' if many > 1 else ''} | {memory:,.0f} | {used:.3f} |")
    return "\n".join([*lines, f"| all | {total_memory:,.0f} | {total_cpu:.3f} |", ""])


def main() -> None:
    """Prints the table."""
    count, seconds = (
        (int(sys.argv[1]) if len(sys.argv) > 1 else 20),
        (float(sys.argv[2]) if len(sys.argv) > 2 else 60.0),
    )
    with tempfile.TemporaryDirectory(prefix="airflow-ft-groups-") as folder:
        sys.stdout.write(run(Path(folder), count, seconds))


if __name__ == "__main__":
    main()
