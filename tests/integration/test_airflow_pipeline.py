"""The task group in a real Airflow, with real Spark, MariaDB and Kafka: exactly once, whatever is cleared or doubled.

One Airflow serves the module; the tests use it one after the other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from pyarrow.fs import S3FileSystem

from airflow_ft.protocol.model import CheckpointState, RunKey
from airflow_ft.spark.session.session_leases import Kept, kept
from tests.integration.airflow_world import AirflowWorld
from tests.integration.planted import Secrets
from tests.sinks.delta.world import options_of
from tests.waiting import wait_for
from tools.servers import S3, Database, Kafka, MariaDb, processes

pytestmark = [pytest.mark.server, pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

DAGS = Path(__file__).parent / "airflow_dags"
EXAMPLES = Path(__file__).parents[2] / "dags"
PASSWORD = f"pw-{uuid.uuid4().hex}"
BROKER = f'pw"{uuid.uuid4().hex}/%'
"""Of a broker that asks for none. It is written otherwise in JSON and in URLs."""

LISTENER = """
import json, os
from pathlib import Path

def notify(problem):
    with (Path(os.environ["AIRFLOW_HOME"]) / "problems.jsonl").open("a") as file:
        file.write(json.dumps([problem.pipeline, problem.condition, problem.text]) + "\\n")
"""


class Shop:
    """The Airflow, the table and topic that its DAGs deliver into, and what was put into their source."""

    def __init__(
        self,
        airflow: AirflowWorld,
        database: Database,
        examples: Database,
        kafka: Kafka,
        topic: str,
        secrets: Secrets,
    ) -> None:
        self.airflow, self.database, self.examples, self.secrets = airflow, database, examples, secrets
        self.kafka, self.topic = kafka, topic
        self.expected: Counter[tuple[int, str]] = Counter()
        self._next = self._files = 0
        self._began = int(time.time()) - 10_000

    def put(self, folder: str, rows: int) -> None:
        """One more file in a source's folder, all at once."""
        target = self.airflow.home / folder
        lines = []
        for _ in range(rows):
            self._next += 1
            lines.append(json.dumps({"id": self._next, "amount": f"{self._next * 7 % 200}.50", "note": "ä'\\\t"}))
            if folder == "orders":
                self.expected[(self._next, f"{self._next * 7 % 200}.50")] += 1
        hidden = target.parent / f"{uuid.uuid4().hex}.tmp"
        hidden.write_text("\n".join(lines) + "\n")
        self._files += 1  # Spark reads files in the order of their modification, which ties within a clock tick
        os.utime(hidden, (self._began + self._files, self._began + self._files))
        hidden.rename(target / f"{uuid.uuid4().hex}.json")

    def check_exactly_once(self) -> None:
        """Every row that was put is in the table once; those of 100 and more are in the topic once, with its values."""
        rows = self.database.sql("SELECT id, amount, random FROM orders")
        assert Counter((row[0], str(row[1])) for row in rows) == self.expected
        randoms = {row[0]: row[2] for row in rows if row[1] >= 100}
        records = [json.loads(value) for value in self.records()]
        assert Counter(record["id"] for record in records) == Counter(randoms.keys())
        assert {record["id"]: record["random"] for record in records} == randoms  # computed once (I1)

    def records(self) -> list[bytes]:
        """What a read_committed reader of the topic sees."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka.bootstrap,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "auto.offset.reset": "earliest",
            }
        )
        partitions = consumer.list_topics(self.topic, 30).topics[self.topic].partitions
        consumer.assign([TopicPartition(self.topic, number, 0) for number in partitions])
        values: list[bytes] = []
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                ended += 1
            else:
                values.append(message.value() or b"")
        consumer.close()
        return values


@pytest.fixture(scope="module")
def shop(mariadb: MariaDb, kafka: Kafka, s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("airflow")
    topic = f"t-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(topic, 2)
    (home / "world.json").write_text(json.dumps({"topic": topic}))
    for name in ("orders", "few", "kept", "config"):
        (home / name).mkdir()
    (home / "config" / "notifying.py").write_text(LISTENER)
    shutil.copytree(DAGS, home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    for example in ("files_to_mysql", "files_to_sqlite", "files_to_files"):
        shutil.copy(EXAMPLES / f"{example}.py", home / "dags")
    again = (EXAMPLES / "files_to_files.py").read_text()
    again = again.replace("files_to_files", "files_to_bucket").replace("files-to-files", "files-to-bucket")
    again = again.replace("FilesSink\n", "FilesSink, DeltaSink\n").replace(
        'FilesSink(folder="{{ params.lake }}/rejected", name="rejected", format="csv")',
        'DeltaSink(table="{{ params.lake }}/rejected", name="rejected")',
    )
    (home / "dags" / "files_to_bucket.py").write_text(again)
    with Database.fresh(mariadb) as database, Database.fresh(mariadb) as examples:
        for statement in (EXAMPLES / "files_to_mysql.sql").read_text().split(";")[:-1]:
            examples.sql(statement)
        database.sql("CREATE TABLE orders (id BIGINT, amount DECIMAL(12,2), note VARCHAR(20), random DOUBLE)")
        for table in (
            "templated",
            "kept",
            "mapped",
            "same_name",
            "broken_job",
            "wrong_password",
            "server_down",
            "slow",
            "no_connection",
        ):
            database.sql(f"CREATE TABLE {table} (id BIGINT, amount DECIMAL(20,2))")
        database.sql("CREATE TABLE failing_rows (id BIGINT, amount DECIMAL(20,2), note TEXT, inverse TEXT)")
        database.sql("CREATE TABLE too_narrow (id BIGINT)")
        mysql = database.airflow_connection()
        bus = {"bootstrap.servers": kafka.bootstrap, "sasl.password": BROKER, "ssl.key.password": BROKER}
        airflow = AirflowWorld(
            home,
            {
                "shop": mysql,
                "mysql_default": {**mysql, "schema": examples.name},
                "sqlite_default": {"conn_type": "sqlite", "host": str(home / "orders.db")},
                "shop_wrong_password": {**mysql, "password": PASSWORD},
                "shop_down": {**mysql, "port": 1, "password": PASSWORD},
                "bus": {"conn_type": "kafka", "extra": json.dumps(bus)},
                "lake": {
                    "conn_type": "aws",
                    "login": s3.login,
                    "password": s3.password,
                    "extra": json.dumps({"endpoint_url": s3.url, "region_name": "us-east-1"}),
                },
            },
            {
                # A hundred tasks start here. What they do without it, the recovery's tests and the demonstration show.
                "airflow_ft__preload": "True",
                "openlineage__selective_enable": "True",
                "openlineage__transport": json.dumps(
                    {"type": "file", "log_file_path": str(home / "lineage.jsonl"), "append": True}
                ),
            },
        )
        shop = Shop(airflow, database, examples, kafka, topic, Secrets(PASSWORD, BROKER, mariadb.password, s3.password))
        shop.put("few", 4)
        airflow.start()
        try:
            airflow.wait_until_ready("orders")
            with shop.secrets.watching():
                yield shop
        finally:
            airflow.stop()
            kafka.delete_topic(topic)


def test_a_run_reports_the_checkpoints_it_delivers_to_all_sinks(shop: Shop) -> None:
    airflow = shop.airflow
    for rows in (20, 10, 5):
        shop.put("orders", rows)
    airflow.trigger("on_orders")  # unpauses it; this first run has no event to see
    airflow.trigger("on_checkpoint")
    airflow.parse("on_checkpoint")
    wait_for(lambda: [*kept_of(airflow, "orders-confirmed").values()] == [0], 240, "the pipeline is watched")
    waiting = airflow.trigger("waiting")
    run_id, states = airflow.run("orders")
    assert set(states.values()) == {"success"}, states
    shop.check_exactly_once()
    checkpoints = airflow.checkpoints("orders")
    assert all(c.is_confirmed for c in checkpoints)
    # 25 rows a delivery: the first checkpoint goes alone, the other two together.
    assert [c.state for c in checkpoints] == [
        CheckpointState.COMPLETED,
        CheckpointState.SUBSUMED,
        CheckpointState.COMPLETED,
    ]
    assert airflow.xcom("orders", run_id, "report") == [1, 2, 3]
    [event] = airflow.asset_events("airflow-ft://orders/")
    assert event["pipeline"] == "orders" and event["number"] == 3 and event["numbers"] == [1, 2, 3]

    table = f"mysql://{shop.database.server.host}:{shop.database.server.port}/{shop.database.name}/orders"
    [event] = airflow.asset_events(table)
    assert (event["sink"], event["rows"], event["number"]) == ("orders", 35, 3), event
    [event] = airflow.asset_events(f"kafka://{shop.kafka.bootstrap}/{shop.topic}")
    assert (event["sink"], event["rows"]) == ("alerts", len(shop.records()))
    wait_for(lambda: [*kept_of(airflow, "orders-confirmed").values()] == [3], 240, "the event is acknowledged")

    # One event of both deliveries, or one of each. A second one that comes before the scheduler has made a run of the
    # first one waits for the next: before Airflow 3.4 the scheduler forgets that it has not told it (docs/traps.md).
    events = [event["payload"] for event in airflow.asset_events("orders-confirmed")]
    assert [each["pipeline"] for each in events] == ["orders"] * len(events)
    assert [(each["after"], each["number"]) for each in events] in ([(0, 3)], [(0, 1), (1, 3)])
    runs = triggered(airflow, "on_checkpoint")
    reported = sorted(
        (each for run in runs for each in airflow.xcom("on_checkpoint", run, "events_of")), key=itemgetter("number")
    )
    assert reported and reported == events[: len(reported)]

    states = airflow.finish("waiting", waiting)
    assert states == {"number": "success", "poking": "success", "too_late": "failed"}
    assert airflow.xcom("waiting", waiting, "number")["number"] >= 1
    assert airflow.xcom("on_orders", triggered(airflow, "on_orders")[0], "seen") == [3]


def triggered(airflow: AirflowWorld, dag_id: str) -> list[str]:
    """The runs that an asset has started, when there are any and all of them have succeeded."""

    def runs() -> list[str]:
        found = airflow.get(f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
        started = [run for run in found if run["run_type"] == "asset_triggered"]
        return [run["dag_run_id"] for run in started] if all(run["state"] == "success" for run in started) else []

    ids: list[str] = wait_for(runs, 240, f"the asset starts a run of {dag_id}", 0.5)
    return ids


def kept_of(airflow: AirflowWorld, asset: str) -> dict[str, Any]:
    """What Airflow keeps for an asset, for its watchers."""
    with closing(sqlite3.connect(f"file:{airflow.home / 'airflow.db'}?mode=ro", uri=True, timeout=30)) as database:
        query = "SELECT key, value FROM asset_state_store JOIN asset ON asset.id = asset_id WHERE asset.name = ?"
        return {key: json.loads(value) for key, value in database.execute(query, (asset,))}


@pytest.mark.sampled("one run beside another")
def test_a_run_without_new_rows_confirms_and_updates_nothing(shop: Shop) -> None:
    airflow = shop.airflow
    before = len(airflow.asset_events("airflow-ft://orders/"))
    run_id, states = airflow.run("orders")
    assert states.pop("orders.commit.shop") == states.pop("orders.commit.bus") == "skipped"
    assert set(states.values()) == {"success"}, states
    assert airflow.xcom("orders", run_id, "orders.confirmed")["numbers"] == []
    assert len(airflow.asset_events("airflow-ft://orders/")) == before
    shop.check_exactly_once()


@pytest.mark.sampled("one run beside another")
def test_a_cleared_run_that_is_finished_changes_nothing(shop: Shop) -> None:
    airflow = shop.airflow
    shop.put("orders", 3)
    run_id, states = airflow.run("orders")
    assert set(states.values()) == {"success"}, states
    shop.put("orders", 2)  # not for the cleared run: it has staged
    with airflow.store() as store:
        epoch, numbers = store.pipeline("orders").epoch, [c.number for c in store.checkpoints("orders")]
    for tasks in (["orders.stage"], None):
        airflow.clear("orders", run_id, tasks)
        states = airflow.finish("orders", run_id)
        assert set(states.values()) == {"success"}, states
        with airflow.store() as store:
            assert store.pipeline("orders").epoch == epoch, "nobody was fenced"
            assert [c.number for c in store.checkpoints("orders")] == numbers
    _, states = airflow.run("orders")
    assert set(states.values()) == {"success"}, states
    shop.check_exactly_once()


@pytest.mark.sampled("one run beside another")
def test_two_runs_at_once_take_turns(shop: Shop) -> None:
    airflow = shop.airflow
    for rows in (5, 5, 5):
        shop.put("orders", rows)
    first = airflow.trigger("orders")
    second = airflow.trigger("orders")
    for run_id in (first, second):
        states = airflow.finish("orders", run_id)
        assert {state for task, state in states.items() if "commit" not in task} == {"success"}, states
    shop.check_exactly_once()
    logs = [airflow.log_text("orders", run_id, "orders.recover") for run_id in (first, second)]
    assert any("DEFERRED" in text for text in logs), "one of them waited without a worker"
    with airflow.store() as store:
        assert store.pipeline("orders").turn is None


@pytest.mark.sampled("a DAG of its own")
def test_specifications_are_rendered_for_each_run(shop: Shop) -> None:
    airflow = shop.airflow
    run_id, states = airflow.run("templated")
    assert set(states.values()) == {"success"}, states
    assert Counter(shop.database.sql("SELECT id, amount FROM templated")).total() == 4
    fields = airflow.rendered("templated", run_id, "templated.prepare.shop")
    assert fields["sinks"]["orders"]["table"] == "templated"
    asked = airflow.rendered("templated", run_id, "templated.stage")["sinks"]  # before anything is computed
    assert asked["orders"]["table"] == "templated"
    assert "the job's columns fit connection shop" in airflow.log_text("templated", run_id, "templated.stage")
    data = [json.loads(line) for line in (airflow.home / "lineage.jsonl").read_text().splitlines()]
    completed = {each["job"]["name"]: each for each in data if each["eventType"] == "COMPLETE"}
    confirmed = completed["templated.templated.confirmed"]
    assert [each["name"] for each in confirmed["inputs"]] == [str(airflow.home / "few")]
    [output] = confirmed["outputs"]
    assert output["name"] == f"{shop.database.name}.templated"
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 4
    fields = output["facets"]["columnLineage"]["fields"]
    assert set(fields) == {"id", "amount"}
    for column, made_of in fields.items():
        [field] = made_of["inputFields"]
        assert (field["name"], field["field"]) == (str(airflow.home / "few"), column)
    assert confirmed["run"]["facets"]["airflow_ft_checkpoint"]["last"] == 1
    assert completed["templated.templated.stage"]["run"]["facets"]["airflow_ft_checkpoint"]["numbers"] == [1]


@pytest.mark.sampled("a DAG of its own")
def test_a_missed_deadline_tells_what_is_late(shop: Shop) -> None:
    airflow, file = shop.airflow, shop.airflow.home / "problems.jsonl"
    shop.put("orders", 1)
    airflow.run("orders")
    run_id = airflow.trigger("too_slow")
    lines = wait_for(
        lambda: lines if file.exists() and len(lines := file.read_text().splitlines()) == 2 else [],
        240,
        "executor and triggerer tell of it",
    )
    for line in lines:
        pipeline, condition, text = json.loads(line)
        assert (pipeline, condition) == ("orders", "LATE") and "Fix: " in text
    airflow.fail("too_slow", run_id, "never")


@pytest.mark.sampled("a DAG of its own")
def test_a_missing_column_is_reported_before_rows_are_computed(shop: Shop) -> None:
    airflow = shop.airflow
    run_id, states = airflow.run("templated", {"table": "too_narrow"})
    assert states["templated.stage"] == "failed", states
    text = airflow.log_text("templated", run_id, "templated.stage")
    assert "too_narrow has no column 'amount'" in text and "Nothing was computed yet" in text
    assert re.search(r'"event": ?"Fix: ', text), "on a line of its own"
    assert all(checkpoint.is_settled for checkpoint in airflow.checkpoints("templated"))


def of_map_indexes(airflow: AirflowWorld, dag_id: str, run_id: str) -> dict[tuple[str, int], str]:
    """The states of a run's tasks, by task id and map index."""
    found = airflow.get(f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=100")["task_instances"]
    return {(task["task_id"], task["map_index"]): task["state"] for task in found}


@pytest.mark.sampled("a DAG of its own")
def test_each_map_index_delivers_through_a_pipeline_of_its_own(shop: Shop) -> None:
    airflow = shop.airflow
    airflow.trigger("on_half")  # unpauses it; nothing is confirmed yet, so this run waits for the first confirmation
    run_id, _ = airflow.run("mapped")
    states = of_map_indexes(airflow, "mapped", run_id)
    assert set(states.values()) == {"success"}, states
    assert {index for _, index in states} == {0, 1}
    few = Counter((row[0], row[1]) for row in shop.database.sql("SELECT id, amount FROM mapped"))
    lines = [json.loads(line) for path in (airflow.home / "few").iterdir() for line in path.read_text().splitlines()]
    assert few == Counter((line["id"], Decimal(line["amount"]) * factor) for line in lines for factor in (1, 2))
    for index in (0, 1):
        [checkpoint] = airflow.checkpoints(f"half-{index + 1}")
        assert checkpoint.is_confirmed and checkpoint.run == RunKey("mapped", run_id, index)
    assert f"mapped/{run_id}[1]" in airflow.command("ft", "checkpoints", "half-2")
    pipeline = airflow.get("/airflow-ft/v1/pipelines/half-2/checkpoints")
    assert pipeline["checkpoints"][0]["map_index"] == 1
    # Cleared, each finds its own run again, and computes nothing.
    airflow.clear("mapped", run_id)
    airflow.finish("mapped", run_id)
    states = of_map_indexes(airflow, "mapped", run_id)
    assert {state for (name, _), state in states.items() if ".commit." not in name} == {"success"}, states
    assert Counter((row[0], row[1]) for row in shop.database.sql("SELECT id, amount FROM mapped")) == few
    assert [c.number for c in airflow.checkpoints("half-1")] == [1]


@pytest.mark.sampled("a DAG of its own")
def test_a_gate_derives_its_default_condition_from_its_run(shop: Shop) -> None:
    airflow = shop.airflow
    with airflow.store() as store:
        is_there = store.register("half-1").last_published
    if not is_there:  # the test before did not run
        airflow.trigger("on_half")
        airflow.run("mapped")
    run_id, states = airflow.run("by_hand")
    assert states == {"poke": "success", "reschedule": "success", "deferred": "success"}
    assert airflow.xcom("by_hand", run_id, "deferred") == {"pipeline": "half-1", "number": 1}

    def runs(dag_id: str, kind: str) -> list[str]:
        found = airflow.get(f"/api/v2/dags/{dag_id}/dagRuns")["dag_runs"]
        return [run["dag_run_id"] for run in found if run["run_type"] == kind]

    triggered = wait_for(
        lambda: runs("on_half", "asset_triggered"), 240, "the asset of one map index starts a run", 0.5
    )
    assert set(airflow.finish("on_half", triggered[0]).values()) == {"success"}
    assert "checkpoint 1 and all before it" in airflow.log_text("on_half", triggered[0], "gate")
    airflow.pause("yearly", False)
    scheduled = wait_for(lambda: runs("yearly", "scheduled"), 240, "the schedule starts a run", 0.5)
    assert set(airflow.finish("yearly", scheduled[0]).values()) == {"success"}
    assert "everything that was in the sources at" in airflow.log_text("yearly", scheduled[0], "gate")


@pytest.mark.sampled("a DAG of its own")
def test_map_indexes_that_render_to_one_pipeline_are_told(shop: Shop) -> None:
    airflow = shop.airflow
    run_id, _ = airflow.run("same_name")
    states = of_map_indexes(airflow, "same_name", run_id)
    confirmed = {index: states[("same.same.confirmed", index)] for index in (0, 1)}
    assert sorted(confirmed.values()) == ["failed", "success"], states
    [refused] = [index for index, state in confirmed.items() if state == "failed"]
    assert states[("same.same.recover", refused)] == "failed", "not a row of it is computed, and it says so"
    output = airflow.log_text("same_name", run_id, "same.same.recover")
    assert "[map_index_conflict]" in output and f"same_name/{run_id}[{1 - refused}]" in output
    assert len(shop.database.sql("SELECT id FROM same_name")) == 4


@pytest.mark.sampled("a DAG of its own")
@pytest.mark.parametrize(
    "command", [("tasks", "test", "templated", "templated.recover"), ("dags", "test", "templated")]
)
def test_a_test_run_acts_on_no_checkpoint(shop: Shop, command: tuple[str, ...]) -> None:
    airflow = shop.airflow
    airflow.pause("templated")  # else the scheduler takes some of the test run's tasks

    def snapshot() -> Any:
        wal = airflow.home / "airflow_ft"
        with airflow.store() as store:
            store.register("templated")
            known = store.pipeline("templated"), store.checkpoints("templated"), store.events("templated", limit=1000)
        tables = shop.database.sql("SELECT * FROM templated ORDER BY 1"), shop.database.sql("SHOW TABLES")
        return (
            known,
            tables,
            sorted(path for path in wal.rglob("*") if "templated" in path.parts or ".dry-run" in str(path)),
        )

    before = snapshot()
    try:
        output = airflow.command(*command)
    except CalledProcessError as error:
        raise AssertionError(error.output[-5000:]) from None
    assert f"`airflow {command[0]} test` would act on the checkpoints of other runs. So this is a dry run" in output
    assert snapshot() == before
    if command[0] == "dags":
        assert re.search(r"templated: (\d+ checkpoints? would be delivered|nothing is new)", output), output[-3000:]


@pytest.mark.release
def test_a_token_that_vanished_while_all_was_settled_is_set_anew(shop: Shop) -> None:
    airflow = shop.airflow
    shop.put("orders", 2)
    _, states = airflow.run("orders")
    assert set(states.values()) == {"success"}, states
    admin = shop.kafka.admin()  # kept in a variable: its requests end with it
    admin.delete_consumer_groups(["airflow_ft.orders.bus.0"])["airflow_ft.orders.bus.0"].result(60)
    shop.put("orders", 3)
    run_id, states = airflow.run("orders")
    assert set(states.values()) == {"success"}, states
    assert "expired. Nothing is unsettled" in airflow.log_text("orders", run_id, "orders.prepare.bus")
    assert "ACTIVE" in airflow.command("ft", "pipelines")
    shop.check_exactly_once()


def test_the_page_is_for_those_who_may_see_it(shop: Shop) -> None:
    airflow = shop.airflow
    of_first = "/airflow-ft/v1/pipelines/orders/checkpoints/1/spec"
    for path in ("/airflow-ft/v1/pipelines", "/airflow-ft/v1/pipelines/orders", "/airflow-ft/page.js", of_first):
        assert httpx.get(airflow.url + path, trust_env=False).status_code == 401
    found = {row["name"]: row for row in airflow.get("/airflow-ft/v1/pipelines?search=ORDERS")["pipelines"]}
    assert found["orders"]["dags"] == ["orders"] and found["orders"]["confirmed"] > 0
    newest = airflow.get("/airflow-ft/v1/pipelines/orders/checkpoints")["checkpoints"][0]
    assert newest["state"] == "COMPLETED" and newest["dag_id"] == "orders"
    assert any("carries the commit point" in reason for reason in newest["reasons"])
    assert {p["name"]: p["proof"] for p in newest["participants"]} == {"shop": True, "bus": True}
    made_with = airflow.get(of_first)
    assert set(made_with["sinks"]) == set(newest["rows_of"]) and made_with["pipeline"] == "orders"
    assert made_with["wal_root"], "as it counts, not as it is written in the DAG"
    assert newest["spec"] and made_with["job"] in airflow.command("ft", "spec", "orders", str(newest["number"]))
    for part in ("savepoints", "state"):  # the job keeps no state, and no savepoint was taken
        assert httpx.get(f"{airflow.url}/airflow-ft/v1/pipelines/orders/{part}", trust_env=False).status_code == 401
        assert airflow.get(f"/airflow-ft/v1/pipelines/orders/{part}")["checkpoints"], part
    assert airflow.get("/airflow-ft/v1/pipelines/orders/savepoints")["savepoints"] == []
    [plugin] = [p for p in airflow.get("/api/v2/plugins")["plugins"] if p["name"] == "airflow_ft"]
    assert plugin["react_apps"][0]["url_route"] == "airflow-ft"
    path = f"/api/v2/dags/orders/dagRuns/{quote(newest['run_id'])}/taskInstances/orders.confirmed/links"
    assert airflow.get(path)["extra_links"] == {"Checkpoints": "plugin/airflow-ft?pipeline=orders"}


@pytest.mark.sampled("a DAG of its own")
def test_example_dags_load_files_and_separate_unreadable_lines(shop: Shop, s3: S3) -> None:
    airflow = shop.airflow
    folder = airflow.home / "csv"
    folder.mkdir()
    lines = ["id,customer,ordered_at,amount", "1,Ann,2026-01-01 10:00:00,3.50", "x,Eve,2026-01-01 11:00:00,1.00"]
    (airflow.home / "one.csv").write_text("\n".join(lines) + "\n")
    (airflow.home / "one.csv").rename(folder / "one.csv")
    run_id, states = airflow.run("files_to_mysql", {"folder": str(folder)})
    assert set(states.values()) == {"success"}, states
    at = datetime(2026, 1, 1, 10)  # without a zone, as MySQL's DATETIME
    assert shop.examples.sql("SELECT * FROM orders") == [(1, "Ann", at, Decimal("3.50"), "one.csv")]
    assert shop.examples.sql("SELECT * FROM rejected_orders") == [(lines[2], "one.csv")]
    assert "2 rows are in the tables" in airflow.log_text("files_to_mysql", run_id, "report")
    # The same without a server.
    run_id, states = airflow.run("files_to_sqlite", {"folder": str(folder)})
    assert set(states.values()) == {"success"}, states
    with closing(sqlite3.connect(airflow.home / "orders.db")) as found:
        row = (1, "Ann", "2026-01-01 10:00:00.000000", "3.50", "one.csv")
        assert found.execute("SELECT * FROM orders").fetchall() == [row]
        assert found.execute("SELECT * FROM rejected_orders").fetchall() == [(lines[2], "one.csv")]
    assert "INCOMPLETE" not in airflow.command("ft", "verify", "files-to-sqlite")
    run_id, states = airflow.run("files_to_files", {"folder": str(folder), "lake": str(airflow.home / "lake")})
    assert set(states.values()) == {"success"}, states
    [row] = ds.dataset(airflow.home / "lake" / "orders").to_table().to_pylist()
    assert (row["id"], row["customer"], row["amount"], row["file"]) == (1, "Ann", Decimal("3.50"), "one.csv")
    [rejected] = (airflow.home / "lake" / "rejected").glob("checkpoint=*/*.csv")
    assert rejected.read_text() == '"line","file"\n"x,Eve,2026-01-01 11:00:00,1.00","one.csv"\n'
    output = airflow.command("ft", "verify", "files-to-files")
    assert "orders: sink orders" in output and "complete: 1 of 1" in output and "INCOMPLETE" not in output
    # The same in a bucket.
    lake = f"{s3.bucket}/{uuid.uuid4().hex}"
    run_id, states = airflow.run("files_to_bucket", {"folder": str(folder), "lake": f"s3://lake@{lake}"})
    assert set(states.values()) == {"success"}, states
    reader = S3FileSystem(access_key=s3.login, secret_key=s3.password, endpoint_override=s3.url, region="us-east-1")
    [row] = ds.dataset(f"{lake}/orders", filesystem=reader).to_table().to_pylist()
    assert (row["id"], row["customer"], row["amount"], row["file"]) == (1, "Ann", Decimal("3.50"), "one.csv")
    rejected_in_bucket = DeltaTable(f"s3://{lake}/rejected", storage_options=options_of(s3)).to_pyarrow_table()
    assert rejected_in_bucket.to_pylist() == [{"line": lines[2], "file": "one.csv"}]
    output = airflow.command("ft", "verify", "files-to-bucket")
    assert "orders: sink orders" in output and "complete: 1 of 1" in output and "INCOMPLETE" not in output
    assert "rejected: sink rejected" in output
    for task in ("prepare.orders", "commit.rejected"):
        assert s3.password not in airflow.log_text("files_to_bucket", run_id, f"files-to-bucket.{task}")


@pytest.mark.sampled("a DAG of its own")
def test_a_mistake_of_the_job_is_told_once_and_not_tried_again(shop: Shop) -> None:
    _check_failures(
        shop,
        (
            "broken_job",
            "stage",
            1,
            ["JobError [job_failed]: ", "ValueError: this job is broken on purpose (", "job_of_tests.py, line"],
        ),
        ("failing_rows", "stage", 1, ["no such order"]),
    )


@pytest.mark.sampled("a DAG of its own")
def test_a_wrong_connection_fails_the_run_before_spark_starts(
    shop: Shop,
) -> None:
    """A server that is down fails only prepare, and the rows stay staged."""
    failures = (
        ("wrong_password", "stage", 2, ["shop_wrong_password", "Access denied", "Nothing was computed yet"]),
        ("no_connection", "stage", 2, ["shop_undefined", "airflow connections add"]),
        ("server_down", "prepare.shop_down", 2, ["shop_down"]),
    )
    _check_failures(shop, *failures)
    for name in ("wrong_password", "no_connection"):
        assert shop.airflow.checkpoints(name.replace("_", "-")) == []
    [checkpoint] = shop.airflow.checkpoints("server-down")
    assert checkpoint.state is CheckpointState.STAGED, "its rows stay valid until the server is back"


def _check_failures(shop: Shop, *failures: tuple[str, str, int, list[str]]) -> dict[str, str]:
    """Runs these DAGs: the task that fails after so many tries, with these words in its log. Returns the runs' ids."""
    airflow = shop.airflow
    runs = {name: airflow.trigger(name) for name, *_ in failures}
    for name, task, tries, words in failures:
        pipeline = name.replace("_", "-")
        states = airflow.finish(name, runs[name])
        assert states[f"{pipeline}.{task}"] == "failed", (name, states)
        assert states[f"{pipeline}.confirmed"] == "failed", (name, states)
        text = airflow.log_text(name, runs[name], f"{pipeline}.{task}")
        for word in words:
            assert word in text, (name, word, text[-3000:])
        attempts = list(
            (airflow.task_logs(name) / f"run_id={runs[name]}" / f"task_id={pipeline}.{task}").rglob("*.log")
        )
        assert len(attempts) == tries, (name, "only what trying again can mend is tried again")
        assert shop.database.sql(f"SELECT * FROM {name}") == []
    return runs


@pytest.mark.release
def test_the_next_run_reuses_the_spark_session_of_the_last_one(shop: Shop) -> None:
    def of_ours() -> list[Kept]:
        return [one for one in kept() if one.pipeline == "kept"]

    try:
        jvms = []
        for rows in (3, 2):
            shop.put("kept", rows)
            _, states = shop.airflow.run("kept")
            assert set(states.values()) == {"success"}, states
            jvms += [one.jvm for one in of_ours()]
        assert len(jvms) == 2 and len(set(jvms)) == 1, "the environment of both tasks is equal"
        assert len(shop.database.sql("SELECT id FROM kept")) == 5
    finally:
        for one in of_ours():
            one.end()


@pytest.mark.sampled("a DAG of its own")
def test_a_task_that_is_ended_takes_spark_with_it(shop: Shop) -> None:
    airflow = shop.airflow
    run_id = airflow.trigger("slow")

    def at_work() -> list[int]:
        with airflow.store() as store, suppress(KeyError):
            for lease in store.leases("slow"):
                pids = processes.tree(int(lease.holder.split(":")[1]))
                if any("java" in processes.command_line(pid) for pid in pids):
                    return pids
        return []

    pids = wait_for(at_work, 240, "Spark is at work")
    airflow.fail("slow", run_id, "slow.stage")
    wait_for(lambda: processes.await_end(pids, 1), 240, "Spark has ended")
    airflow.finish("slow", run_id)
    wait_for(lambda: not airflow.leases("slow"), 240, "the lease is given back")


def test_no_password_is_in_any_file_of_airflow(shop: Shop) -> None:
    """Logs, Airflow's database with its XComs and rendered fields, the decision log, the write-ahead log."""
    files = [path for path in shop.airflow.home.rglob("*") if path.is_file() and path.name != "passwords.json"]
    assert {".log", ".db", ".parquet"} <= {path.suffix for path in files}
    assert [path for path in files if shop.secrets.shown(path.read_bytes())] == []


def test_no_password_is_in_an_answer_or_on_a_page(shop: Shop) -> None:
    asked = ["/api/v2/dags/~/dagRuns/~/taskInstances?limit=100", "/api/v2/connections", "/plugin/airflow-ft"]
    asked += ["/airflow-ft/v1/pipelines?limit=100", "/airflow-ft/v1/openapi.json", "/airflow-ft/page.js"]
    for pipeline in shop.airflow.get("/airflow-ft/v1/pipelines?limit=100")["pipelines"]:
        base = f"/airflow-ft/v1/pipelines/{quote(pipeline['name'], safe='')}"
        numbers = [each["number"] for each in shop.airflow.get(f"{base}/checkpoints")["checkpoints"]]
        asked += [base, *(f"{base}/{part}" for part in ("checkpoints", "timings", "job", "state", "savepoints"))]
        asked += [f"{base}/checkpoints/{number}{part}" for number in numbers for part in ("", "/spec")]
    answers = {path: shop.airflow.answer(path) for path in asked}
    assert [path for path, answer in answers.items() if shop.secrets.shown(answer.content)] == []
    assert any(b"rendered_fields" in answer.content for answer in answers.values())
    assert Counter(answer.status_code for answer in answers.values())[200] > 10


def test_no_password_was_told_to_a_process(shop: Shop) -> None:
    """Every process has seen the list of processes; a JVM's environment is shown by Spark's own page."""
    seen = shop.secrets.seen
    assert any("airflow-ft" in line for line, _ in seen) and any(environment for _, environment in seen)
    assert [line for line, environment in seen if shop.secrets.shown((line + environment).encode())] == []
