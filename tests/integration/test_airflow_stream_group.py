"""A group of streams in a real Airflow: stopped one by one, killed, retried, and taken over by another run."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.integration.airflow_streams import START_SECONDS, Streams, streams_in
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
TOPICS = {"numbers": 1, "copies": 1, **dict.fromkeys(NAMES, 2)}


@pytest.fixture(scope="module")
def streams(mariadb: MariaDb, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    with streams_in(tmp_path_factory.mktemp("airflow"), mariadb, kafka, TOPICS) as found:
        for name in NAMES:
            found.database.sql(f"CREATE TABLE {name} (n BIGINT, random DOUBLE)")
        found.airflow.wait_until_ready("small")
        yield found


class _Small:
    """What was sent to each stream of the group, and what is in its table."""

    def __init__(self, streams: Streams) -> None:
        self.streams, self.sent = streams, dict.fromkeys(NAMES, 0)

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


def test_streams_of_a_group_stop_alone_survive_a_kill_and_are_taken_over_by_another_run(streams: Streams) -> None:
    airflow, small = streams.airflow, _Small(streams)
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
