"""Streams in a real Airflow: asked to stop, paused, marked, cleared and killed; the example DAGs with their promises.

One Airflow serves the module; the tests use it one after the other.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from airflow_ft.protocol.model import AfterAbort
from tests.integration.airflow_streams import EXAMPLES, START_SECONDS, Streams, streams_in
from tests.integration.kafka_world import read, value
from tests.waiting import wait_for
from tools.servers import Kafka, MariaDb, processes

pytestmark = [
    pytest.mark.sampled(among="Airflow"),
    pytest.mark.server,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

TOPICS = {"numbers": 2, "copies": 2, "always": 1, "always_copies": 1, "t_test": 1}
TOPICS |= dict.fromkeys(("lines", "word_counts", "words", "counts"), 3)


@pytest.fixture(scope="module")
def streams(mariadb: MariaDb, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streams]:
    home = tmp_path_factory.mktemp("airflow")
    lineage = {"type": "file", "log_file_path": str(home / "lineage.jsonl"), "append": True}
    settings = {"openlineage__transport": json.dumps(lineage)}
    with streams_in(home, mariadb, kafka, TOPICS, examples=("t_test", "word_count"), settings=settings) as found:
        found.database.sql((EXAMPLES / "t_test.sql").read_text().partition("\n")[2].rstrip().rstrip(";"))
        yield found


# --- a stream and Airflow ---------------------------------------------------------------------------------------------


def test_a_stream_delivers_opens_gates_and_stops_when_asked(streams: Streams) -> None:
    airflow = streams.airflow
    first = streams.start()
    second = airflow.trigger("copy")
    streams.put("numbers", *range(streams.sent, streams.sent + 50))
    streams.sent += 50
    gate = airflow.trigger("gate", {"as_of": datetime.now(UTC).isoformat()})
    assert airflow.finish("gate", gate) == {"gate": "success"}
    assert streams.numbers() == Counter(range(streams.sent)), "all that was there as of then, and nothing twice"
    assert airflow.states("copy", first)["copy.stream"] == "running"
    data = [json.loads(line) for line in (airflow.home / "lineage.jsonl").read_text().splitlines()]
    newest = [each for each in data if each["eventType"] == "RUNNING" and each["job"]["name"] == "copy.copy.stream"][-1]
    assert [each["name"] for each in newest["inputs"]] == ["numbers"]
    assert {each["name"] for each in newest["outputs"]} == {f"{streams.database.name}.numbers", "copies"}
    assert newest["run"]["facets"]["airflow_ft_checkpoint"]["last"] >= 1
    wait_for(
        lambda: airflow.states("copy", second)["copy.stream"] == "deferred", START_SECONDS, "the second run waits", 0.5
    )

    said = streams.stop("copy")
    assert airflow.finish("copy", first) == {"copy.stream": "success", "report": "success"}
    latest = airflow.xcom("copy", first, "report")
    assert f"stopped; {latest} is the newest confirmed checkpoint" in said

    streams.deliver()
    assert airflow.states("copy", second)["copy.stream"] == "running", "it goes on where the first one stopped"
    streams.put("numbers", streams.sent)
    streams.sent += 1
    streams.stop("copy", "--now")
    assert airflow.finish("copy", second)["copy.stream"] == "success"
    assert "no process works on copy" in streams.stop("copy")
    third = airflow.trigger("copy")
    streams.deliver(1)
    streams.stop("copy")
    assert airflow.finish("copy", third)["copy.stream"] == "success"
    streams.check_both_sinks()
    [*_, event] = airflow.asset_events("airflow-ft://copy/")
    assert event["numbers"] == airflow.xcom("copy", third, "copy.stream")["numbers"]


def test_a_paused_dag_stops_its_stream_and_the_next_run_goes_on(streams: Streams) -> None:
    airflow = streams.airflow
    run_id = streams.start()
    airflow.pause("copy")
    wait_for(
        lambda: airflow.states("copy", run_id)["copy.stream"] == "success", START_SECONDS, "the stream has stopped", 0.5
    )
    assert "the DAG copy is paused" in airflow.log_text("copy", run_id, "copy.stream")
    following = streams.start()
    assert airflow.finish("copy", run_id)["report"] == "success"
    streams.stop("copy")
    assert airflow.finish("copy", following)["copy.stream"] == "success"
    streams.check_both_sinks()


def test_a_marked_or_cleared_stream_ends_and_can_continue(streams: Streams) -> None:
    airflow = streams.airflow
    run_id = streams.start()
    spark = [streams.task().pid, streams.driver().pid]
    airflow.mark("copy", run_id, "copy.stream", "failed")
    wait_for(lambda: not airflow.leases("copy") and processes.await_end(spark, 1), START_SECONDS, "all of it has ended")
    assert airflow.finish("copy", run_id)["copy.stream"] == "failed"

    airflow.clear("copy", run_id, ["copy.stream"])  # one that has ended
    streams.deliver()
    epoch = streams.epoch()
    airflow.clear("copy", run_id, ["copy.stream"])  # one that runs
    wait_for(lambda: streams.epoch() > epoch, START_SECONDS, "another try is at work")
    streams.deliver()

    airflow.mark("copy", run_id, "copy.stream", "success")
    wait_for(lambda: not airflow.leases("copy"), START_SECONDS, "it has ended")
    following = streams.start()
    streams.stop("copy")
    assert airflow.finish("copy", following)["copy.stream"] == "success"
    streams.check_both_sinks()


@pytest.mark.parametrize("victim", ["task", "driver"])
def test_a_stream_whose_process_is_killed_goes_on(streams: Streams, victim: str) -> None:
    airflow = streams.airflow
    run_id = streams.start()
    task = streams.task()
    (task if victim == "task" else streams.driver()).kill()
    streams.deliver()
    assert streams.tries(run_id) == (2 if victim == "task" else 1), "Airflow's retry; or a restart in the task"
    assert (streams.task() == task) is (victim == "driver")
    streams.stop("copy")
    assert airflow.finish("copy", run_id)["copy.stream"] == "success"
    streams.check_both_sinks()


@pytest.mark.release
def test_a_continuous_dag_restarts_its_stream_until_it_is_paused(streams: Streams) -> None:
    airflow = streams.airflow

    def numbers() -> list[int]:
        return [value(message)["n"] for message in read(streams.kafka.bootstrap, "always_copies")]

    def runs(what: str) -> list[str]:
        return [run[what] for run in airflow.get("/api/v2/dags/always/dagRuns?order_by=start_date")["dag_runs"]]

    airflow.pause("always", False)
    for number in (1, 2):
        streams.put("always", number)
        wait_for(lambda n=number: n in numbers(), START_SECONDS, f"{number} is delivered", 0.5)
        if number == 1:
            said = streams.stop("always")
            wait_for(lambda: runs("state") == ["success", "running"], START_SECONDS, "the next run has begun", 0.5)
            assert "its checkpoints are deleted" in said
    airflow.pause("always")
    wait_for(lambda: not airflow.leases("always"), START_SECONDS, "the stream has stopped")
    streams.put("always", 3)
    airflow.pause("always", False)
    wait_for(lambda: 3 in numbers(), START_SECONDS, "3 is delivered", 0.5)
    airflow.pause("always")
    last = runs("dag_run_id")[-1]  # of a paused DAG the run itself does not end
    wait_for(lambda: airflow.states("always", last)["always.stream"] == "success", START_SECONDS, "it has stopped")
    assert numbers() == [1, 2, 3], "each run begins with new state, where the one before stood"
    left = airflow.home / "airflow_ft" / "wal" / "always"
    assert left.is_dir() and not list(left.glob("[0-9]*")), "and leaves nothing"
    assert runs("state")[:2] == ["success", "success"] and len(runs("state")) == 3


# --- examples ---------------------------------------------------------------------------------------------------------


def test_a_failing_checkpoint_shows_nothing_and_loses_nothing(streams: Streams) -> None:
    airflow = streams.airflow

    def values() -> list[int]:
        return [row[0] for row in streams.database.sql("SELECT value FROM t_test ORDER BY id")]

    run_id = airflow.trigger("t_test", {"interval": 1})
    for last in (4, 8, 12):
        streams.put("t_test", *range(last - 3, last + 1))
        wait_for(lambda n=last: n in values(), START_SECONDS, f"{last} is in the table")

    def unconfirmed() -> list[int]:  # a row is in the table a moment before its checkpoint is confirmed
        return [c.number for c in airflow.checkpoints("t-test") if c.segment is not None and not c.is_confirmed]

    wait_for(lambda: not unconfirmed(), START_SECONDS, "all of them are confirmed")
    confirmed = [c.number for c in airflow.checkpoints("t-test") if c.is_confirmed]
    assert len(confirmed) >= 3
    streams.put("t_test", 15, 13, 14, *range(16, 21))  # so that no checkpoint ends before the bad value
    assert airflow.finish("t_test", run_id) == {"t-test.stream": "failed"}
    assert values() == list(range(1, 13)), "nothing of the checkpoint that failed, in four tries"
    log = airflow.log_text("t_test", run_id, "t-test.stream")
    assert "ValueError: the value 15 is bad" in log
    assert log.count("the job is restarted in 2.0 s") == 3
    assert [c.number for c in airflow.checkpoints("t-test") if c.is_confirmed] == confirmed

    run_id = airflow.trigger("t_test", {"interval": 1, "bad": 0})
    wait_for(lambda: len(values()) >= 20, START_SECONDS, "the rest is in the table")
    streams.stop("t-test")
    assert airflow.finish("t_test", run_id) == {"t-test.stream": "success"}
    assert sorted(values()) == list(range(1, 21))
    times = [row[0] for row in streams.database.sql("SELECT insert_time FROM t_test ORDER BY id")]
    assert times == sorted(times) and len(set(times)) >= 4, "each checkpoint when it was delivered"


WORDS = ["all", "your", "base", "are", "belong", "to", "us", "for", "great", "justice"]


def check_counts(streams: Streams, pipeline: str, source: str, sink: str) -> None:
    """A read_committed reader sees exactly what a model says: for each checkpoint the words that it has changed, each
    with its true count, in the checkpoints' order, and nothing else.
    """
    lines: dict[int, list[tuple[int, list[str]]]] = defaultdict(list)
    for message in read(streams.kafka.bootstrap, source):
        lines[message.partition()].append((message.offset(), (message.value() or b"").decode().split()))
    expected: dict[str, list[int]] = defaultdict(list)
    counts: Counter[str] = Counter()
    reached: Counter[int] = Counter()
    with streams.airflow.store() as store:
        checkpoints = list(reversed(store.checkpoints(pipeline, 10_000)))
    for checkpoint in checkpoints:
        if checkpoint.segment is None or checkpoint.after_abort is AfterAbort.REWOUND:
            continue
        assert checkpoint.is_confirmed, checkpoint
        changed: set[str] = set()
        for partition, end in checkpoint.positions["lines"]["end"][source].items():
            for offset, words in lines[int(partition)]:
                if reached[int(partition)] <= offset < end:
                    counts.update(words)
                    changed.update(words)
            reached[int(partition)] = end
        for word in changed:
            expected[word].append(counts[word])
    found: dict[str, list[int]] = defaultdict(list)
    for message in read(streams.kafka.bootstrap, sink):
        found[(message.key() or b"").decode()].append(value(message)["count"])
    assert found == expected
    assert counts == Counter(word for part in lines.values() for _, words in part for word in words), "all was read"
    for word, sequence in found.items():
        assert sequence == sorted(set(sequence)) and sequence[-1] == counts[word]


class Talker:
    """Puts lines into a topic, until it is told to end."""

    def __init__(self, streams: Streams, topic: str) -> None:
        self._streams, self._topic = streams, topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def _talk(self) -> None:
        while not self._end.wait(0.05):
            self._streams.put(self._topic, " ".join(random.choices(WORDS, k=random.randint(1, 6))))

    def __enter__(self) -> Talker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def _attempts(streams: Streams, pipeline: str) -> int:
    with streams.airflow.store() as store, suppress(KeyError):
        return sum(event.kind == "STAGE_BEGUN" for event in store.events(pipeline, None, 10_000))
    return 0


def test_word_counts_stay_exact_though_the_job_fails_and_dies(streams: Streams) -> None:
    airflow = streams.airflow
    run_id = airflow.trigger("word_count", {"failing": 0.05})
    with Talker(streams, "lines"):
        for attempts in (4, 7):  # those that failed by themselves, and those that are killed
            wait_for(lambda n=attempts: _attempts(streams, "word-count") >= n, START_SECONDS, f"{attempts} attempts")
            streams.driver("word-count").kill()
        streams.task("word-count").kill()
        before = _attempts(streams, "word-count")
        wait_for(lambda: _attempts(streams, "word-count") > before, START_SECONDS, "Airflow's retry")
    streams.confirm("word-count")
    streams.stop("word-count")
    assert airflow.finish("word_count", run_id) == {"word-count.stream": "success"}
    log = airflow.log_text("word_count", run_id, "word-count.stream")
    assert "this job fails at random" in log
    check_counts(streams, "word-count", "lines", "word_counts")


@pytest.mark.parametrize("victim", ["worker", "jvm", "task"])
def test_counts_are_exact_though_stateful_code_is_killed_at_work(streams: Streams, victim: str) -> None:
    airflow = streams.airflow
    deaths = airflow.home / "deaths"
    before = len(_confirmed(streams, "counting"))
    run_id = airflow.trigger("counting", {"deaths": str(deaths)})
    with Talker(streams, "words"):
        wait_for(lambda: len(_confirmed(streams, "counting")) > before, START_SECONDS, "it delivers")
        deaths.write_text(victim)
        wait_for(lambda: not deaths.exists(), START_SECONDS, f"{victim} has been killed")
    streams.confirm("counting")
    streams.stop("counting")
    assert airflow.finish("counting", run_id) == {"counting.stream": "success"}
    check_counts(streams, "counting", "words", "counts")


def _confirmed(streams: Streams, pipeline: str) -> list[int]:
    with suppress(KeyError):
        return [c.number for c in streams.airflow.checkpoints(pipeline) if c.is_confirmed]
    return []


def test_the_command_drains_a_stream_and_a_later_run_is_refused(streams: Streams) -> None:
    airflow = streams.airflow
    no_deaths = {"deaths": str(airflow.home / "nobody-dies")}
    before = len(_confirmed(streams, "counting"))  # of the test before
    run_id = airflow.trigger("counting", no_deaths)
    streams.put("words", "a b a")
    wait_for(lambda: len(_confirmed(streams, "counting")) > before, START_SECONDS, "it delivers")
    said = streams.stop("counting", "--drain")
    assert airflow.finish("counting", run_id) == {"counting.stream": "success"}
    last = max(_confirmed(streams, "counting"))
    assert f"stopped; {last} is the newest confirmed checkpoint; checkpoint {last} has drained the state" in said
    shown = airflow.command("ft", "show", "counting", str(last))
    assert "drains    file:" in shown and "open windows, joins and timers" in shown
    shown = airflow.command("ft", "show", "counting", str(last - 1))
    assert "bytes of changes; full snapshot" in shown

    second, states = airflow.run("counting", no_deaths)
    assert states == {"counting.stream": "failed"}
    [task] = airflow.tasks("counting", second)
    assert task.try_number == 1, "no retry mends it"
    log = airflow.log_text("counting", second, "counting.stream")
    assert f"checkpoint {last} drained the pipeline" in log and "airflow ft reset-state counting" in log
    airflow.command("ft", "reset-state", "counting", "--yes")
    third = airflow.trigger("counting", no_deaths)
    streams.put("words", "c")
    wait_for(lambda: max(_confirmed(streams, "counting")) > last, START_SECONDS, "it goes on, without its counts")
    streams.stop("counting")
    assert airflow.finish("counting", third) == {"counting.stream": "success"}
