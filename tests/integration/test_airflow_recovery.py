"""The periodic recovery DAG under a live scheduler: what killed runs left is finished, and gauges say how it stands.

Each pipeline runs once, and a commit task of it is killed for good: after the decision, or before it.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.protocol.model import CheckpointState
from tests.integration.airflow_world import AirflowWorld
from tests.integration.kafka_world import read
from tests.waiting import wait_for
from tools.servers import Database, Kafka, MariaDb

pytestmark = [
    pytest.mark.release,
    pytest.mark.server,
    pytest.mark.airflow,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

HERE = Path(__file__).parent
EXAMPLE = Path(__file__).parents[2] / "dags" / "airflow_ft_recovery.py"
DIES_IN = {"decided": "bus", "undecided": "shop"}
ROWS = 6

STATSD = '''
"""A client of StatsD, as far as Airflow calls it: gauges by UDP (the package itself is an extra of Airflow's)."""
import socket

class StatsClient:
    def __init__(self, host, port, prefix, ipv6):
        self.where, self.prefix = (host, port), prefix
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def gauge(self, stat, value, rate=1, delta=False):
        self.socket.sendto(f"{self.prefix}.{stat}:{value}|g".encode(), self.where)

    def __getattr__(self, name):
        return lambda *args, **kwargs: None
'''


class Gauges:
    """A StatsD server: the newest value of each gauge."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.values: dict[str, float] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                text = self._socket.recv(65536).decode()
            except OSError:
                return
            for line in text.splitlines():
                name, _, value = line.partition(":")
                if value.endswith("|g"):
                    self.values[name] = float(value[:-2])

    def of(self, pipeline: str) -> dict[str, float]:
        """A pipeline's gauges."""
        prefix = "airflow.airflow_ft."
        return {
            name.removeprefix(prefix).removesuffix(f".{pipeline}"): value
            for name, value in self.values.items()
            if name.startswith(prefix) and name.endswith(f".{pipeline}")
        }

    def once(self, pipeline: str, in_doubt: int) -> dict[str, float]:
        """A pipeline's gauges when so many are in doubt, and all of that sending have come."""

        def found() -> dict[str, float]:
            gauges = self.of(pipeline)
            complete = gauges.get("in_doubt") == in_doubt and (in_doubt or "since_confirmed" in gauges)
            return gauges if complete and "needs_attention" in gauges else {}

        result: dict[str, float] = wait_for(found, 240, f"the gauges of {pipeline}")
        return result

    def close(self) -> None:
        self._socket.close()


class Left:
    """An Airflow, whose pipelines were killed in the middle, and what they deliver into."""

    def __init__(
        self, airflow: AirflowWorld, database: Database, kafka: Kafka, topics: dict[str, str], gauges: Gauges
    ) -> None:
        self.airflow, self.database, self.kafka, self.topics = airflow, database, kafka, topics
        self.gauges = gauges

    def ids(self, pipeline: str) -> list[int]:
        return [int(row[0]) for row in self.database.sql(f"SELECT id FROM {pipeline} ORDER BY id")]

    def records(self, pipeline: str) -> list[int]:
        values = [message.value() for message in read(self.kafka.bootstrap, self.topics[pipeline])]
        return sorted(json.loads(value)["id"] for value in values if value is not None)

    def state(self, pipeline: str) -> CheckpointState:
        [checkpoint] = self.airflow.checkpoints(pipeline)
        return checkpoint.state


@pytest.fixture(scope="module")
def left(mariadb: MariaDb, kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Left]:
    home = tmp_path_factory.mktemp("airflow")
    topics = {name: f"t-{uuid.uuid4().hex[:12]}" for name in DIES_IN}
    (home / "world.json").write_text(json.dumps(topics))
    (home / "dags").mkdir()
    (home / "config").mkdir()
    (home / "config" / "statsd.py").write_text(STATSD)
    shutil.copy(HERE / "recovery_dags" / "dying_dags.py", home / "dags")
    shutil.copy(HERE / "airflow_dags" / "job_of_tests.py", home / "dags")
    text = EXAMPLE.read_text()
    (home / "dags" / "as_it_is.py").write_text(text)
    for old, new in (
        ('"airflow_ft_recovery",', '"soon",'),
        ("orphan_age=timedelta(minutes=10)", "orphan_age=timedelta(0)"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (home / "dags" / "soon.py").write_text(text)
    with Database.fresh(mariadb) as database:
        for name, victim in DIES_IN.items():
            (home / name).mkdir()
            lines = [json.dumps({"id": i, "amount": "150.00", "note": ""}) for i in range(ROWS)]
            (home / name / "orders.json").write_text("\n".join(lines) + "\n")
            (home / f"dies-{name}").write_text(victim)
            database.sql(f"CREATE TABLE {name} (id BIGINT, amount DECIMAL(12,2), note VARCHAR(20), random DOUBLE)")
            kafka.create_topic(topics[name], 1)
        mysql = database.airflow_connection()
        bus = {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": kafka.bootstrap})}
        gauges = Gauges()
        airflow = AirflowWorld(
            home,
            {"shop": mysql, "bus": bus},
            {
                "metrics__statsd_on": "True",
                "metrics__statsd_host": "127.0.0.1",
                "metrics__statsd_port": str(gauges.port),
                "airflow_ft__lease_seconds": "2",
            },
        )
        left = Left(airflow, database, kafka, topics, gauges)
        airflow.start()
        try:
            for dag_id in ("decided", "undecided", "airflow_ft_recovery", "soon"):
                airflow.wait_until_ready(dag_id)
            runs = {name: airflow.trigger(name) for name in DIES_IN}
            for name, run_id in runs.items():
                states = airflow.finish(name, run_id)
                assert states[f"{name}.commit.{DIES_IN[name]}"] == "failed", states
                assert airflow.run_state(name, run_id) == "failed"
            yield left
        finally:
            airflow.stop()
            gauges.close()
            mariadb.end_prepared()  # what a failed test left would keep the database from being dropped
            for topic in topics.values():
                kafka.delete_topic(topic)


def test_recovery_only_reports_before_its_safety_interval_ends(left: Left) -> None:
    assert (left.state("decided"), left.state("undecided")) == (CheckpointState.COMMITTING, CheckpointState.PREPARED)
    assert (left.ids("decided"), left.records("decided")) == (list(range(ROWS)), [])
    assert (left.ids("undecided"), left.records("undecided")) == ([], [])
    run_id, states = left.airflow.run("airflow_ft_recovery")
    assert states == {"recover": "success"}
    found = left.airflow.xcom("airflow_ft_recovery", run_id, "recover")
    assert {name: each["settled"] for name, each in found.items()} == {"decided": {}, "undecided": {}}
    for name in DIES_IN:
        gauges = left.gauges.once(name, in_doubt=1)
        assert gauges["needs_attention"] == 0
        assert gauges["undelivered_age"] > 0
        assert "since_confirmed" not in gauges
    assert left.gauges.of("decided")["undecided_age"] == 0 < left.gauges.of("undecided")["undecided_age"]


def test_the_scheduler_runs_it_and_what_is_in_doubt_is_finished(left: Left) -> None:
    airflow = left.airflow
    airflow._request("PATCH", "/api/v2/dags/soon", json={"is_paused": False}).raise_for_status()
    settled = CheckpointState.COMPLETED
    wait_for(lambda: all(left.state(name) is settled for name in DIES_IN), 300, "both are settled by a scheduled run")
    for name in DIES_IN:
        assert left.ids(name) == left.records(name) == list(range(ROWS))
    assert left.database.sql("XA RECOVER") == []
    runs = airflow.get("/api/v2/dags/soon/dagRuns")["dag_runs"]
    assert {run["run_type"] for run in runs} == {"scheduled"}
    for name in DIES_IN:
        gauges = left.gauges.once(name, in_doubt=0)
        assert (gauges["undecided_age"], gauges["undelivered_age"], gauges["needs_attention"]) == (0, 0, 0)
        assert gauges["since_confirmed"] >= 0


def test_the_pipelines_own_next_run_goes_on(left: Left) -> None:
    for name in DIES_IN:
        (left.airflow.home / f"dies-{name}").unlink()
    for name in DIES_IN:
        _, states = left.airflow.run(name)
        assert set(states.values()) <= {"success", "skipped"}, states
        assert left.ids(name) == left.records(name) == list(range(ROWS))


def test_clearing_only_failed_tasks_repairs_both_runs(left: Left) -> None:
    airflow, runs = left.airflow, {}
    for name, victim in DIES_IN.items():
        (airflow.home / f"dies-{name}").write_text(victim)
        line = json.dumps({"id": ROWS, "amount": "150.00", "note": ""})
        (airflow.home / name / "more.json").write_text(f"{line}\n")
        runs[name] = airflow.trigger(name)
    for name, run_id in runs.items():
        states = airflow.finish(name, run_id)
        assert states[f"{name}.commit.bus"] == states[f"{name}.confirmed"] == "failed", states
        (airflow.home / f"dies-{name}").unlink()
        airflow.clear(name, run_id, only_failed=True)
        states = airflow.finish(name, run_id)
        assert set(states.values()) == {"success"}, states
        assert left.ids(name) == left.records(name) == list(range(ROWS + 1))
