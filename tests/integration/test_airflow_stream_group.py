"""A group of streams in a real Airflow: stopped one by one, killed, retried, and taken over by another run.

One of them is drained by a DAG, and starts from its savepoint.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.integration.airflow_streams import START_SECONDS, Streams, streams_in
from tests.integration.kafka_world import read, value
from tests.waiting import wait_for
from tools.servers import Kafka, MariaDb

pytestmark = [
    pytest.mark.sampled(among="Airflow"),
    pytest.mark.server,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

NAMES = ("small_a", "small_b")
TOPICS = {"numbers": 1, "copies": 1, "windows": 1, "windows_copies": 1, **dict.fromkeys((*NAMES, "beside"), 2)}


@pytest.fixture(scope="module")
def streams(mariadb: MariaDb, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    with streams_in(tmp_path_factory.mktemp("airflow"), mariadb, kafka, TOPICS) as found:
        for name in (*NAMES, "beside"):
            found.database.sql(f"CREATE TABLE {name} (n BIGINT, random DOUBLE)")
        found.database.sql("CREATE TABLE windows (n BIGINT PRIMARY KEY, size BIGINT, v BIGINT)")
        for dag_id in ("small", "windows", "take", "drain"):
            found.airflow.wait_until_ready(dag_id)
        yield found


class _Small:
    """What was sent to each stream of a group, and what is in its table."""

    def __init__(self, streams: Streams, *names: str) -> None:
        self.streams, self.sent = streams, dict.fromkeys(names, 0)

    def put(self, name: str, count: int = 5) -> None:
        self.streams.put(name, *range(self.sent[name], self.sent[name] + count))
        self.sent[name] += count

    def rows(self, name: str) -> Counter[int]:
        return Counter(row[0] for row in self.streams.database.sql(f"SELECT n FROM {name}"))

    def deliver(self, *names: str) -> None:
        for name in names:
            self.put(name)
        for name in names:
            self.wait(name)

    def wait(self, name: str) -> None:
        expected = Counter(range(self.sent[name]))
        wait_for(lambda: self.rows(name) == expected, START_SECONDS, f"{expected.total()} rows of {name}", 0.5)


def test_streams_of_a_group_stop_and_continue_independently(streams: Streams) -> None:
    airflow, small = streams.airflow, _Small(streams, *NAMES)
    first = airflow.trigger("small")
    small.deliver(*NAMES)
    task = streams.task("small_a").pid
    assert streams.task("small_b").pid == task, "one process"
    assert "stopped; " in streams.stop("small_a")
    small.deliver("small_b")
    assert airflow.states("small", first) == {"streams": "running"}

    os.kill(task, signal.SIGKILL)
    small.put("small_a")
    small.deliver("small_b")
    assert streams.task("small_b").pid != task
    assert small.rows("small_a").total() == small.sent["small_a"] - 5, "a retry does not start it"

    second = airflow.trigger("small")
    small.wait("small_a")
    small.deliver(*NAMES)
    assert streams.task("small_a").pid != streams.task("small_b").pid, "two runs have one each"
    streams.stop("small_b")
    assert airflow.finish("small", first) == {"streams": "success"}
    small.deliver(*NAMES)
    assert streams.task("small_a").pid == streams.task("small_b").pid
    airflow.pause("small")
    wait_for(lambda: airflow.states("small", second) == {"streams": "success"}, START_SECONDS, "both stopped", 0.5)
    airflow.pause("small", False)

    result = airflow.xcom("small", second, "streams")
    assert set(result) == set(NAMES) and all(result[name]["rows"] > 0 for name in NAMES)
    stopped = airflow.xcom("small", first, "streams")["small_a"]
    assert stopped["rows"] == 5, "of the try that was killed afterwards"
    for name in NAMES:
        [*_, event] = airflow.asset_events(f"airflow-ft://{name}/")
        assert event["numbers"] == result[name]["numbers"]


@pytest.mark.release
def test_one_stream_drains_and_restarts_while_the_other_runs(streams: Streams) -> None:
    """Its windows are counted by the state of the savepoint, also when the task is killed after the start."""
    airflow, small = streams.airflow, _Small(streams, "beside", "windows")

    def windows(count: int) -> None:
        small.put("windows", count)
        streams.confirm("windows")
        small.deliver("beside")

    def dag(dag_id: str) -> str:
        run_id, states = airflow.run(dag_id)
        assert states == {dag_id: "success"}
        found: str = airflow.xcom(dag_id, run_id, dag_id)
        return found

    def emitted() -> Counter[tuple[int, int]]:
        found = [value(message) for message in read(streams.kafka.bootstrap, "windows_copies")]
        return Counter((each["n"], each["size"]) for each in found)

    first = airflow.trigger("windows")
    windows(25)
    savepoint = dag("take")
    windows(10)
    assert not emitted(), "nothing is late enough"
    dag("drain")
    drained = {0: 10, 10: 10, 20: 10, 30: 5}
    assert emitted() == Counter(drained.items())
    small.deliver("beside")
    assert airflow.states("windows", first) == {"streams": "running"}

    second = airflow.trigger("windows", {"savepoint": savepoint, "savepoint_later": "write-again"})
    windows(10)
    task = streams.task("windows")
    assert streams.task("beside") != task, "the other stream is in the first run"
    task.kill()
    windows(10)
    assert streams.task("windows") != task
    dag("drain")
    again = {0: 10, 10: 10, 20: 10, 30: 10, 40: 10, 50: 5}
    assert emitted() == Counter(drained.items()) + Counter(again.items())
    assert dict(streams.database.sql("SELECT n, size FROM windows")) == again
    for run_id in (first, second):
        small.deliver("beside")
        streams.stop("beside")
        assert airflow.finish("windows", run_id) == {"streams": "success"}
