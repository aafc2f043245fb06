"""Branches in mapped tasks of a real Airflow: tasks that are killed, and one that wakes up beside its successors."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import OffsetSpec

from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.votes import Vote
from tests.integration.airflow_world import AirflowWorld
from tests.integration.kafka_world import read_ids
from tests.waiting import wait_for
from tools.servers import Database, Kafka, MariaDb, Postgres

pytestmark = [
    pytest.mark.release,
    pytest.mark.server,
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.timeout(2400),
]

HERE = Path(__file__).parent
ROWS = 15_000  # three branches of 5,000 rows


class Table:
    """Where the rows of the pipeline `mapped` go."""

    branches = ("0001", "0002", "0003")

    def __init__(self, database: Database) -> None:
        self.database, self.server = database, database.server
        self.secrets: Sequence[str] = [self.server.password]
        database.sql("CREATE TABLE mapped (id BIGINT)")

    def ids(self) -> list[int]:
        """The ids of all rows, sorted."""
        return [row[0] for row in self.database.sql("SELECT id FROM mapped ORDER BY id")]

    def prepared(self) -> Sequence[Any]:
        """What waits for its decision."""
        if isinstance(self.server, Postgres):
            return self.database.sql("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return self.server.sql("XA RECOVER")

    def check(self, vote: Vote) -> None:
        """The newest checkpoint was delivered by its branches."""
        assert vote.proof is not None and set(vote.proof.detail["branches"]) == set(self.branches)


class Topic:
    """The same of Kafka, read by a consumer that sees only what is committed."""

    branches = ("0", "1", "2")
    secrets: Sequence[str] = ()

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka
        kafka.create_topic("mapped", 2)

    def ids(self) -> list[int]:
        return read_ids(self.kafka.bootstrap, "mapped")

    def prepared(self) -> Sequence[Any]:
        """Partitions in which a transaction is open: there a consumer does not get to the end."""
        committed, written = self._ends(IsolationLevel.READ_COMMITTED), self._ends(IsolationLevel.READ_UNCOMMITTED)
        return [partition for partition, end in written.items() if committed[partition] < end]

    def _ends(self, level: IsolationLevel) -> dict[int, int]:
        places = {TopicPartition("mapped", partition): OffsetSpec.latest() for partition in range(2)}
        admin = self.kafka.admin()
        found = admin.list_offsets(places, isolation_level=level, request_timeout=60)
        return {place.partition: answer.result(60).offset for place, answer in found.items()}

    def check(self, vote: Vote) -> None:
        """The transactions that the vote names were committed, and no row was sent again."""
        assert len(vote.notes["held"]) == len(self.branches)
        assert vote.proof is not None and vote.proof.detail["attempt"] == vote.prepared


class Mapped:
    """An Airflow with one mapped pipeline, its sink, and what was put into its source."""

    def __init__(self, airflow: AirflowWorld, sink: Table | Topic) -> None:
        self.airflow, self.sink = airflow, sink
        self.rows = 0

    def put(self, rows: int = ROWS) -> None:
        """The rows that the next run computes."""
        (self.airflow.home / "ids.json").write_text(json.dumps([self.rows, self.rows + rows]))
        self.rows += rows

    def fault(self, name: str, what: str) -> None:
        (self.airflow.home / "faults" / name).write_text(what)

    def taken(self) -> set[str]:
        return {path.stem for path in (self.airflow.home / "faults").glob("*.taken")}

    def run(self) -> tuple[str, dict[str, list[str]]]:
        """Run to the end; returns the states of all instances of each task."""
        run_id = self.airflow.trigger("mapped")
        self.airflow.finish("mapped", run_id, 1200)
        states: dict[str, list[str]] = {}
        for task in self.airflow.tasks("mapped", run_id):
            states.setdefault(task.task_id.removeprefix("mapped."), []).append(task.state)
        return run_id, states

    def announced(self, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.airflow.xcom("mapped", run_id, "mapped.prepare.shop-announce")
        return found

    def check(self) -> None:
        assert self.sink.ids() == list(range(self.rows))
        assert not self.sink.prepared()
        checkpoints = self.airflow.checkpoints("mapped")
        assert {each.state for each in checkpoints} == {CheckpointState.COMPLETED}
        vote = checkpoints[-1].votes["shop"]
        assert vote.proof is not None
        assert vote.proof.counts == {"orders": ROWS} and "redelivered" not in vote.proof.detail
        self.sink.check(vote)


@contextmanager
def _sink(kind: str, server: Callable[[str], Any]) -> Iterator[tuple[Table | Topic, Mapping[str, Any]]]:
    """The sink, and the fields of its Airflow connection."""
    if kind == "kafka":
        kafka: Kafka = server("kafka")
        yield Topic(kafka), {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": kafka.bootstrap})}
        kafka.delete_topic("mapped")
        return
    with Database.fresh(server("mariadb" if kind == "mysql" else "postgres")) as database:
        yield Table(database), database.airflow_connection()


@pytest.fixture(scope="module", params=["mysql", "postgres", "kafka"])
def mapped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapped]:
    home = tmp_path_factory.mktemp("airflow")
    for name in ("dags", "faults"):
        (home / name).mkdir()
    (home / "kind").write_text(request.param)
    shutil.copy(HERE / "mapped_dags" / "mapped_dag.py", home / "dags")
    with _sink(request.param, request.getfixturevalue) as (sink, connection):
        airflow = AirflowWorld(
            home,
            {"shop": connection},
            {"scheduler__task_instance_heartbeat_timeout": "45", "airflow_ft__lease_seconds": "5"},
        )
        airflow.start()
        try:
            airflow.wait_until_ready("mapped")
            yield Mapped(airflow, sink)
        finally:
            stopped = home / "stopped"
            for pid in json.loads(stopped.read_text()) if stopped.exists() else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            airflow.stop()
            if isinstance(sink, Table) and isinstance(sink.server, MariaDb):
                sink.server.end_prepared()


def test_killed_tasks_and_a_sleeper_change_nothing(mapped: Mapped) -> None:
    """Each kind of task is killed once; one sleeps before its branch is prepared.

    Its next try and a later checkpoint are delivered meanwhile.
    """
    killed, sleeper, _ = mapped.sink.branches
    mapped.put()
    for name in ("announce", killed, "vote"):
        mapped.fault(name, "kill")
    mapped.fault(sleeper, "stop")
    run_id, states = mapped.run()
    assert {state for found in states.values() for state in found} == {"success"}, states
    assert len(states["prepare.shop-load"]) == 3
    assert mapped.taken() == {"announce", killed, sleeper, "vote"}
    mapped.check()
    found = mapped.announced(run_id)
    assert [each["branch"] for each in found] == list(mapped.sink.branches)
    assert not any(secret in json.dumps(found) for secret in mapped.sink.secrets)
    mapped.put()
    assert mapped.run()[1]["confirmed"] == ["success"]
    task, supervisor = json.loads((mapped.airflow.home / "stopped").read_text())
    for pid in (task, supervisor):
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not Path(f"/proc/{task}").exists(), 240, "the sleeper has ended")
    mapped.check()


def test_prepare_loads_the_branch_of_a_task_that_fails_for_good(mapped: Mapped) -> None:
    mapped.put()
    mapped.fault(f"refuse-{mapped.sink.branches[-1]}", "")
    _, states = mapped.run()
    assert sorted(states["prepare.shop-load"]) == ["failed", "success", "success"], states
    assert states["prepare.shop"] == states["confirmed"] == ["success"]
    mapped.check()


def test_a_checkpoint_with_one_branch_is_delivered_without_loads(mapped: Mapped) -> None:
    mapped.put(10)
    _, states = mapped.run()
    assert {state for found in states.values() for state in found} == {"success"}, states
    assert len(states["prepare.shop-load"]) == 1
    assert mapped.sink.ids() == list(range(mapped.rows))
