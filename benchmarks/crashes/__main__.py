"""`make compare`, `python -m benchmarks.crashes`: the same kills against Spark's own writers and this package.

Each round reads one topic into a table without a key and into another topic, in several micro-batches; kill -9 strikes
the process and Spark's JVM at a random moment between the first row that became visible (or was staged) and the end,
then the program is started again until it ends by itself. What both sinks then hold is compared with what was read:
copies too many, and rows that are missing. Nothing of airflow_ft does the counting.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.crashes.rows import TABLE, row
from tools.servers import Kafka, MariaDb

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "crashes"
PROGRAMS = {"Spark's writers": "benchmarks.crashes.plain", "airflow-ft": "benchmarks.crashes.exact"}
PARTITIONS = 2


@dataclass
class Totals:
    """What all rounds of a program came to."""

    kills: int = 0
    rounds_wrong: int = 0
    missing: collections.Counter[str] = field(default_factory=collections.Counter)
    duplicated: collections.Counter[str] = field(default_factory=collections.Counter)
    seconds: list[float] = field(default_factory=list)


class Bench:
    """The servers, the input, and one round after the other."""

    def __init__(self, folder: Path, kafka: Kafka, mysql: MariaDb, rows: int, batches: int) -> None:
        self.folder, self.kafka, self.mysql, self.rows = folder, kafka, mysql, rows
        self.batch = -(-rows // batches)
        self.round = 0
        kafka.create_topic("source", PARTITIONS)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50})
        for number in range(rows):
            while True:
                try:
                    producer.produce("source", json.dumps(row(number)).encode())
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()

    def run(self, module: str, kill_after: float | None) -> tuple[float, bool]:
        """One round: seconds from the first sign of work to the end of its first process, and whether a kill struck."""
        self.round += 1
        table, topic = f"t{self.round}", f"t{self.round}"
        self.mysql.sql(TABLE.format(name=table), DATABASE)
        self.kafka.create_topic(topic, PARTITIONS)
        self.table, self.topic = table, topic
        own = self.folder / f"round-{self.round}"
        own.mkdir()
        jars = sorted(str(jar) for kind in ("spark", "jdbc") for jar in (ROOT / ".local" / "jars" / kind).glob("*.jar"))
        job: dict[str, Any] = {
            "bootstrap": self.kafka.bootstrap,
            "source": "source",
            "batch": self.batch,
            "jars": jars,
            "jdbc_url": f"jdbc:mysql://127.0.0.1:{self.mysql.port}/{DATABASE}?permitMysqlScheme=1&rewriteBatchedStatements=true",
            "mysql_port": self.mysql.port,
            "database": DATABASE,
            "user": self.mysql.user,
            "password": self.mysql.password,
            "table": table,
            "topic": topic,
            "folder": str(own / "state"),
        }
        (own / "state").mkdir()
        took, struck = 0.0, False
        for attempt in range(1, 20):
            (own / "job.json").write_text(json.dumps({**job, "try": attempt}))
            process = self._start(module, own)
            try:
                if attempt == 1:
                    self._await_work(own, process)
                    began = time.monotonic()
                    if kill_after is None:
                        process.wait()
                    else:
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            process.wait(kill_after)
                        struck = process.poll() is None
                    took = time.monotonic() - began
                else:
                    process.wait()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.returncode == 0:
                return took, struck
        raise SystemExit(f"{module} does not end by itself:\n{(own / 'log').read_text()[-5000:]}")

    def _start(self, module: str, own: Path) -> subprocess.Popen[bytes]:
        with (own / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, str(own / "job.json")],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _await_work(self, own: Path, process: subprocess.Popen[bytes]) -> None:
        """The first visible row, or the first staged rows, of this round."""
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            if next(own.glob("state/wal/*/*/*/*/*.parquet"), None) is not None:
                return
            if self.mysql.sql(f"SELECT 1 FROM {self.table} LIMIT 1", DATABASE):
                return
            time.sleep(0.02)
        raise SystemExit(f"no work began:\n{(own / 'log').read_text()[-5000:]}")

    def judge(self, totals: Totals) -> None:
        """Counts what each sink lacks and has too often, as its own reader sees it."""
        found = {"MySQL": self._in_table(), "Kafka": self._in_topic()}
        wrong = False
        for sink, counts in found.items():
            missing = sum(1 for number in range(self.rows) if number not in counts)
            duplicated = sum(count - 1 for count in counts.values())
            totals.missing[sink] += missing
            totals.duplicated[sink] += duplicated
            wrong = wrong or bool(missing or duplicated)
        totals.rounds_wrong += wrong
        self.mysql.sql(f"DROP TABLE {self.table}", DATABASE)
        shutil.rmtree(self.folder / f"round-{self.round}")

    def _in_table(self) -> dict[int, int]:
        rows = self.mysql.sql(f"SELECT id, COUNT(*) FROM {self.table} GROUP BY id", DATABASE)
        return {int(number): int(count) for number, count in rows}

    def _in_topic(self) -> collections.Counter[int]:
        counts: collections.Counter[int] = collections.Counter()
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "group.id": "judge",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        try:
            consumer.assign([TopicPartition(self.topic, partition, 0) for partition in range(PARTITIONS)])
            ended: set[int] = set()
            while len(ended) < PARTITIONS:
                for message in consumer.consume(10_000, 1.0):
                    partition = message.partition()
                    if message.error() is not None:  # the end of a partition
                        ended.add(-1 if partition is None else partition)
                    else:
                        counts[json.loads(message.value() or b"")["id"]] += 1
            return counts
        finally:
            consumer.close()


def main() -> int:
    """Runs both programs through the same number of kills and prints the table; 1 when airflow-ft is not exact."""
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=int(os.environ.get("KILLS") or 10), help="of each program (KILLS=)"
    )
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SEED") or 7), help="of the moments (SEED=)")
    parser.add_argument("--rows", type=int, default=60_000, help="that each round reads")
    parser.add_argument("--batches", type=int, default=4, help="micro-batches of a round")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    totals_by_program = {name: Totals() for name in PROGRAMS}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="crashes-")))
        kafka = stack.enter_context(Kafka(folder / "kafka"))
        mysql = stack.enter_context(MariaDb(folder / "mariadb"))
        mysql.sql(f"CREATE DATABASE {DATABASE}")
        bench = Bench(folder, kafka, mysql, options.rows, options.batches)
        for name, module in PROGRAMS.items():
            totals = totals_by_program[name]
            undisturbed, _ = bench.run(module, None)
            bench.judge(totals)
            say(f"{name}: an undisturbed round works for {undisturbed:.1f} s")
            for _ in range(options.kills * 3):
                if totals.kills == options.kills:
                    break
                moment = dice.uniform(0.0, undisturbed)
                _, struck = bench.run(module, moment)
                totals.kills += struck  # one that comes too late does not count
                bench.judge(totals)
                say(
                    f"{name}: kill {totals.kills} after {moment:.1f} s: in all"
                    f" {sum(totals.duplicated.values()):,} duplicated, {sum(totals.missing.values()):,} missing"
                )
    say(f"\n{options.kills} kills each, {options.rows:,} rows a round, seed {options.seed}")
    say(f"{'':18}{'kills':>7}{'rounds wrong':>14}{'duplicated MySQL':>18}{'Kafka':>9}{'missing MySQL':>15}{'Kafka':>9}")
    for name, totals in totals_by_program.items():
        duplicated, missing = totals.duplicated, totals.missing
        say(
            f"{name:18}{totals.kills:7}{totals.rounds_wrong:14}{duplicated['MySQL']:18,}{duplicated['Kafka']:9,}"
            f"{missing['MySQL']:15,}{missing['Kafka']:9,}"
        )
    return 1 if totals_by_program["airflow-ft"].rounds_wrong else 0


def say(line: str) -> None:
    """A line for people, at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
