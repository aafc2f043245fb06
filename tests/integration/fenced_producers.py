"""How processes end whose producer was fenced in its transaction: `python -m tests.integration.fenced_producers`.

Librdkafka 2.16.0 corrupts its heap now and then while it destroys such a producer (docs/traps.md), so the sink keeps
them, and every run must end with status 0. `--destroy` lets them be destroyed.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.sinks.kafka import transaction
from airflow_ft.sinks.kafka.records import RecordColumns
from airflow_ft.sinks.kafka.sending import ProducerLostError, Tally
from airflow_ft.sinks.kafka.transaction import Transaction
from tests.integration.kafka_children import await_stopped, wake
from tools.servers import Kafka

TOPIC = "rows"


class _Slot:
    def __init__(self, group: str) -> None:
        self.group = group

    def group_metadata(self) -> object:
        raise AssertionError("no token is written here")


def open_transaction(bootstrap: str, group: str) -> Transaction:
    """A transaction of the transactional id `group`, which fences all others of it."""
    connection = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": bootstrap})
    opened = Transaction(KafkaClients(KafkaSettings.from_connection(connection)), _Slot(group), {})
    opened.begin()
    return opened


def zombie(bootstrap: str, group: str, destroy: bool) -> None:
    """Sends, stops itself with its transaction open, is fenced meanwhile, wakes up and sends on."""
    if destroy:
        transaction._keep_for_ever = lambda _: None
    mine = open_transaction(bootstrap, group)
    tally = Tally(TOPIC)
    mine.send(TOPIC, _records(random.randint(1_000, 60_000)), tally)
    os.kill(os.getpid(), signal.SIGSTOP)
    try:
        while True:
            mine.send(TOPIC, _records(2_000), tally)
    except ProducerLostError as lost:
        sys.stdout.write(f"{lost.error.name()}\n")
        sys.stdout.flush()
    finally:
        mine.discard()


def _records(count: int) -> RecordColumns:
    values = pa.array([b"x" * 60] * count, pa.large_binary())
    return RecordColumns(values=values, keys=None, partitions=None, timestamps=None, headers=None)


def main() -> int:
    """Runs zombies one after the other and counts how they ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--destroy", action="store_true", help="let librdkafka destroy the fenced producers")
    parser.add_argument("--zombie", nargs=2, metavar=("BOOTSTRAP", "ID"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.zombie:
        zombie(*options.zombie, options.destroy)
        return 0
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder, Kafka(Path(folder)) as kafka:
        kafka.create_topic(TOPIC, 4)
        for run in range(options.runs):
            command = [
                sys.executable,
                "-m",
                "tests.integration.fenced_producers",
                "--zombie",
                kafka.bootstrap,
                f"id-{run}",
            ]
            process = subprocess.Popen(
                command + ["--destroy"] * options.destroy, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            await_stopped(process)
            open_transaction(kafka.bootstrap, f"id-{run}").discard()
            wake(process)
            text, _ = process.communicate(timeout=120)
            ends[f"status {process.returncode}, {text.strip()}"] += 1
    for end, count in ends.most_common():
        sys.stdout.write(f"{count:5} {end}\n")
    return 0 if all(end.startswith("status 0,") for end in ends) else 1


if __name__ == "__main__":
    sys.exit(main())
