"""A real Airflow with the DAGs of `stream_dags`, what its streams read and deliver into, and what tests do with it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from confluent_kafka import Producer

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.spark.session.session_leases import kept
from tests.integration.airflow_world import AirflowWorld
from tests.integration.kafka_world import read, value
from tests.waiting import wait_for
from tools.servers import Database, Kafka, MariaDb

DAGS = Path(__file__).parent / "stream_dags"
EXAMPLES = Path(__file__).parents[2] / "dags"
START_SECONDS = 240.0
"""What a task, Spark and a first checkpoint take on a busy machine, at most."""


class Streams:
    """The Airflow, what its streams read and deliver into, and what was put there."""

    def __init__(self, airflow: AirflowWorld, database: Database, kafka: Kafka) -> None:
        self.airflow, self.database, self.kafka = airflow, database, kafka
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap})
        self.sent = 0

    def put(self, topic: str, *values: object) -> None:
        """Into a topic, in this order in each of its partitions; returns when they are there."""
        for each in values:
            self._producer.produce(topic, str(each).encode())
        assert self._producer.flush(120) == 0

    def numbers(self) -> Counter[int]:
        """What is in the table of the stream `copy`."""
        return Counter(row[0] for row in self.database.sql("SELECT n FROM numbers"))

    def deliver(self, rows: int = 20) -> None:
        """Puts numbers, and returns when the stream `copy` has delivered them; AssertionError for doubles."""
        self.put("numbers", *range(self.sent, self.sent + rows))
        self.sent += rows
        what = f"{self.sent} numbers are in the table"
        try:
            wait_for(lambda: self.numbers().total() >= self.sent, START_SECONDS, what)
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.numbers().total()} are. {self._said()}") from None
        assert self.numbers() == Counter(range(self.sent))

    def _said(self) -> str:
        """The end of what the newest try of the stream `copy`, and each component, has logged."""
        logs = [*sorted(self.airflow.home.glob("*.log")), *sorted(self.airflow.home.glob("logs/dag_id=copy/**/*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)

    def check_both_sinks(self) -> None:
        """Table and topic have every number once, with the same random value: computed once (I1)."""
        table = self.database.sql("SELECT n, random FROM numbers")
        topic = [value(message) for message in read(self.kafka.bootstrap, "copies")]
        assert Counter(row[0] for row in table) == Counter(range(self.sent))
        assert sorted((each["n"], each["random"]) for each in topic) == sorted(table)

    def confirm(self, pipeline: str) -> None:
        """Waits until all that is in its sources now is confirmed."""
        with self.airflow.store() as store:
            at = store.now()
            what = f"all that {pipeline} reads is confirmed"
            wait_for(lambda: Gate(as_of=at).is_open(store, pipeline), START_SECONDS, what)

    def start(self) -> str:
        """A run of `copy` that has delivered something; returns its id."""
        run_id = self.airflow.trigger("copy")
        self.deliver()
        return run_id

    def stop(self, pipeline: str, *arguments: str) -> str:
        """What `airflow ft stop` says."""
        return self.airflow.command("ft", "stop", pipeline, "--wait", str(START_SECONDS), *arguments)

    def task(self, pipeline: str = "copy") -> psutil.Process:
        """The process of the stream's task."""
        [lease] = wait_for(lambda: self.airflow.leases(pipeline), START_SECONDS, f"{pipeline} is at work")
        return psutil.Process(int(lease.holder.split(":")[1]))

    def driver(self, pipeline: str = "copy") -> psutil.Process:
        """The Python process in which its job runs: spark-submit's grandchild, or attached to a JVM that is kept."""
        return wait_for(lambda: _python_below(self.task(pipeline)), START_SECONDS, "the driver runs")  # type: ignore[no-any-return]

    def epoch(self) -> int:
        """Of the stream `copy`: a later one for whoever works on it next."""
        with self.airflow.store() as store:
            return store.pipeline("copy").epoch

    def epochs(self) -> list[int]:
        """Of who wrote the newest checkpoints of `copy`, in their order, by the ledger beside the table."""
        found = self.database.sql("SELECT epoch FROM airflow_ft_ledger WHERE pipeline = 'copy' ORDER BY number")
        return [row[0] for row in found]

    def tries(self, run_id: str) -> int:
        """How often Airflow has begun the stream `copy` in this run."""
        [task] = [task for task in self.airflow.tasks("copy", run_id) if task.task_id == "copy.stream"]
        return task.try_number


def _python_below(task: psutil.Process) -> psutil.Process | None:
    for process in task.children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile, or is a zombie
            if "main.py" in " ".join(process.cmdline()[1:2]):
                return process
    return None


@contextmanager
def streams_in(
    home: Path,
    mariadb: MariaDb,
    kafka: Kafka,
    topics: Mapping[str, int],
    *,
    examples: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> Iterator[Streams]:
    """With these topics (name -> partitions), a database of its own, and these of the example DAGs, too."""
    shutil.copytree(DAGS, home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    for example in examples:
        shutil.copy(EXAMPLES / f"{example}.py", home / "dags")
    for topic, partitions in topics.items():
        kafka.create_topic(topic, partitions)
    with Database.fresh(mariadb) as database:
        database.sql("CREATE TABLE numbers (n BIGINT, random DOUBLE)")
        mysql = database.airflow_connection()
        bus = {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": kafka.bootstrap})}
        connections = {"mysql_default": mysql, "kafka_default": bus}
        airflow = AirflowWorld(home, connections, {"airflow_ft__lease_seconds": "3", **(settings or {})})
        airflow.start()
        try:
            for dag_id in ("copy", *examples):
                airflow.wait_until_ready(dag_id)
            yield Streams(airflow, database, kafka)
        finally:
            airflow.stop()
            for one in kept():
                if one.pipeline in ("copy", "always"):
                    one.end()
            for topic in topics:
                kafka.delete_topic(topic)
