"""For how long one sink shows rows and Kafka does not yet: the commit of a checkpoint that another sink has decided.

With `transaction` all records are sent after the decision, with `held` before it, so that only its end is to be told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from benchmarks.bench import Bench
from benchmarks.data import ORDERS, segment
from benchmarks.into_kafka import PARTITIONS, kafka_job
from benchmarks.measuring import Claim, Comparison, Contender

ROWS = (1, 100_000, 1_000_000)


def gap(bench: Bench) -> list[Comparison]:
    """One comparison for each number of rows."""
    found = []
    for rows in (each for each in ROWS if each <= bench.rows):
        some = replace(bench, rows=rows, dataset=replace(ORDERS, name=f"orders-{rows}"))
        contenders = [Contender(strategy, _commit(some, strategy)) for strategy in ("held", "transaction")]
        claim = Claim(f"From the decision to readable records, {rows:,} rows: `held`", "held", ("transaction",), None)
        title = f"From the decision to readable records in Kafka, {rows:,} rows"
        found.append(Comparison(f"gap/{rows}", title, contenders, [claim], rows=rows))
    return found


def _commit(bench: Bench, strategy: str) -> Callable[[], float]:
    written = segment(bench.folder / "wal", f"gap-{strategy}-{bench.rows}", {"orders": bench.records}, 1)
    worker, kafka = bench.servers.worker("benchmarks.delivering"), bench.servers.kafka

    def run() -> float:
        topic = f"bench-{next(bench.servers.numbers)}"
        kafka.create_topic(topic, PARTITIONS)
        job = kafka_job(bench, written, topic, strategy)
        notes = worker.ask("prepare", **job)["notes"]
        seconds: float = worker.ask("commit", **job, attempt=2, notes=notes)["commit_seconds"]
        bench.check_topic(topic, strategy)
        kafka.delete_topic(topic)
        return seconds

    return run
