"""State of streams in a group, with real Spark, Kafka and MariaDB: one drains, one stops with a savepoint, and one
starts from that savepoint beside the stream from which it was taken.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.overview import Condition
from airflow_ft.spark.savepoints.metadata import verify
from airflow_ft.spark.savepoints.taking import take
from tests.conftest import TopicFactory
from tests.integration.kafka_world import read, value
from tests.integration.test_stream_group import NAMES, Group
from tools.servers import Database, Kafka

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.release,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
]


@pytest.fixture
def group(tmp_path: Path, kafka: Kafka, mariadb_database: Database, topic_factory: TopicFactory) -> Iterator[Group]:
    made = Group(tmp_path, kafka, mariadb_database, topic_factory)
    yield made
    made.store.close()
    print(made.log()[-20_000:])


@pytest.mark.chaos
@pytest.mark.parametrize("dies", ["", "driver", "task"])
def test_one_stream_drains_and_the_others_continue(group: Group, dies: str) -> None:
    """Its open windows are delivered once, also if the driver or the task dies with the request open."""
    windows: dict[str, Any] = {"a": {"job": "Windows"}}
    with group.task(**windows) as process:
        group.send("a", 25)
        group.deliver("b", "c")
        group.until(lambda: group.store.latest_confirmed(group.pipelines["a"]))
        assert group.rows("a") == [], "nothing is late enough"
        asked = group.ask("a", drain=True)
        if dies == "task":
            process.kill()
            process.wait()
        else:
            if dies == "driver":
                os.kill(group.driver(), signal.SIGKILL)
            outcome = group.answer("a", asked)
            group.deliver("b", "c")
            group.stop("b", "c")
            assert process.wait(120) == 0
    if dies == "task":
        with group.task(**windows) as process:
            outcome = group.answer("a", asked)
            group.deliver("b", "c")
            group.stop("b", "c")
            assert process.wait(120) == 0
    assert outcome.endswith(" has drained the state"), outcome
    with group.task("run-2", **windows) as process:
        group.until(lambda: group.condition("a") is Condition.FAILED)
        failure = group.store.overview(group.pipelines["a"]).failure
        assert failure is not None and failure.code == "pipeline_drained"
        group.deliver("b", "c")
        group.stop("b", "c")
        assert process.wait(120) != 0, "one was refused"
    found = group.database.sql("SELECT n, at FROM numbers_a ORDER BY n")
    assert [tuple(row) for row in found] == [(0, 10.0), (10, 10.0), (20, 5.0)]
    for name in ("b", "c"):
        assert Counter(group.rows(name)) == Counter(range(group.sent[name]))


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["driver", "task"])
def test_a_stream_starts_from_a_savepoint_beside_its_original(
    group: Group, topic_factory: TopicFactory, victim: str
) -> None:
    """Both continue the state of one savepoint, and each has its own query (`renew_query_id`)."""
    for name in ("b", "d"):
        columns = "(n BIGINT, k BIGINT, place BIGINT, random DOUBLE)"
        group.database.sql(f"CREATE TABLE totals_{name} {columns} ENGINE=InnoDB")
        group.tables[name] = f"totals_{name}"
    totals: Callable[[str], dict[str, Any]] = lambda name: {"job": "Totals", "tables": {"totals": f"totals_{name}"}}  # noqa: E731
    folder = group.folder / "savepoints"
    with group.task(b=totals("b")) as process:
        group.deliver(*NAMES)
        group.until(lambda: group.store.latest_confirmed(group.pipelines["b"]))
        uri, taken = take(group.store, group.pipelines["b"], str(folder), "a test")
        verify(uri, taken)
        outcome = group.answer("b", group.ask("b", savepoint=str(folder)))
        group.deliver("a", "c")
        group.stop("a", "c")
        assert process.wait(120) == 0
    found = re.search(r"; savepoint of checkpoint \d+: (\S+)", outcome)
    assert found is not None, outcome
    before = group.sent["b"]
    group.pipelines["d"] = f"{group.pipelines['b']}-copy"
    group.topics["d"] = (group.topics["b"][0], topic_factory(partitions=2))
    changes = {"b": totals("b"), "d": {**totals("d"), "savepoint": found[1]}}

    def deliver() -> None:
        group.deliver(*NAMES)
        group.until(lambda: len(group.rows("d")) >= group.sent["b"] - before)

    with group.task("run-2", **changes) as process:
        deliver()
        for name in NAMES:
            group.send(name, 20)
        if victim == "driver":
            driver = group.driver()
            os.kill(driver, signal.SIGKILL)
            group.until(lambda: group.driver() != driver)
            deliver()
        process.kill()
        process.wait()
    with group.task("run-2", **changes) as process:
        deliver()
        assert "has already restored the savepoint" in group.log()
        group.stop(*group.pipelines)
        assert process.wait(120) == 0
    group.check_exactly_once()
    assert Counter(group.rows("d")) == Counter(range(before, group.sent["b"]))
    copies = [value(message)["n"] for message in read(group.kafka.bootstrap, group.topics["d"][1])]
    assert Counter(copies) == Counter(group.rows("d"))
    places = [
        {tuple(row) for row in group.database.sql(f"SELECT n, k, place FROM totals_{name} WHERE n >= {before}")}
        for name in ("b", "d")
    ]
    assert places[0] == places[1], "both have counted on from the savepoint"
    counts = Counter(n % 7 for n in range(group.sent["b"]))
    ranks = sorted(tuple(row) for row in group.database.sql("SELECT k, place FROM totals_b"))
    assert ranks == [(k, place) for k in range(7) for place in range(1, counts[k] + 1)]
