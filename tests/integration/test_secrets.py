"""Planted secrets, and everything that fails: none shows in a log, exception, result, store, manifest or sink."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil  # type: ignore[import-untyped]
import pytest

from airflow_ft.pipeline.connections import connection_info
from airflow_ft.pipeline.doctor import Patient, examine
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.doubt import doubts
from airflow_ft.protocol.errors import AirflowFtError
from airflow_ft.protocol.pipelines import HaltReason
from airflow_ft.protocol.verify import Delivered, verify
from airflow_ft.sinks.kafka.verify import verify as verify_kafka
from airflow_ft.sinks.mysql.verify import verify as verify_mysql
from airflow_ft.sources import KafkaSource
from airflow_ft.spark.task.launcher import Driver
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal import open_wal
from tests.integration.real_world import RealWorld, make_world
from tests.integration.stage_world import JARS, StageWorld, with_connection
from tests.integration.stage_world import world as stage_world
from tests.integration.test_store_postgres import url_of
from tools.servers import Database, Kafka, Postgres
from tools.servers.processes import free_port

# With characters that are escaped in URLs, JSON, SQL and JAAS: each form of them is looked for.
DATABASE = "pl4nted-db'p@ss/w0rd"
BROKER = 'pl4nted-br0ker"p%ss'
KEY = "pl4nted-key-p4ss"
STORE = "pl4nted-st0re:p@ss"
JAAS = "pl4nted-jaas-p4ss"
PLANTED = re.compile("pl4nted", re.IGNORECASE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    with closing(open_store(f"sqlite:///{tmp_path}/log/ft.db")) as store:
        yield store


@pytest.fixture
def world(
    store: DecisionLog,
    tmp_path: Path,
    mariadb_database: Database,
    kafka: Kafka,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[RealWorld]:
    """All deliveries by a MySQL user whose password is planted, and Kafka settings that hold planted ones."""
    caplog.set_level(logging.DEBUG)
    world = make_world(store, tmp_path / "wal", mariadb_database, kafka, topic)
    user = f"s{world.database.name}"[:30]
    password = DATABASE.replace("'", "''")
    world.server.sql(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{password}'")
    world.server.sql(f"GRANT ALL ON `{world.database.name}`.* TO '{user}'@'%'")
    world.overrides = {
        "shop": {"login": user, "password": DATABASE},
        "cluster": {
            "password": BROKER,
            "extra": {
                "bootstrap.servers": kafka.bootstrap,
                "airflow_ft_timeout": 10,
                "sasl.password": BROKER,
                "ssl.key.password": KEY,
            },
        },
    }
    yield world
    world.server.sql(f"DROP USER '{user}'@'%'")


def change(world: RealWorld, conn_id: str, **changes: Any) -> None:
    world.overrides[conn_id] = {**world.overrides[conn_id], **changes}


def all_there_is(world: RealWorld, caught: Sequence[BaseException], caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """Everything that a person, a log or a disk gets to see."""
    for error in caught:
        yield from traceback.format_exception(error)
        yield repr(error) + str(vars(error))
    for record in caplog.records:
        yield record.getMessage() + str(record.exc_text or "") + repr(record.args)
    for doubt in doubts(world.store, [world.pipeline], world.participants):
        yield repr(doubt)
    patient = Patient(world.pipeline, str(world.root), {p.name: p for p in world.delivery.participants})
    for check in examine(patient, lambda: open_store(world.store.url), world.connections, world.participants):
        yield json.dumps(check.to_json())

    def verifier(delivered: Sequence[Delivered], plan: Any) -> Any:
        compare = {"mysql": verify_mysql, "kafka": verify_kafka}[plan.kind]
        return compare(delivered, plan, world.connections(plan.name), open_wal())

    decided = [c.number for c in world.store.checkpoints(world.pipeline) if c.decided_at is not None]
    for report in verify(world.store, world.pipeline, verifier, decided):
        yield json.dumps(report.to_json())
    for checkpoint in world.store.checkpoints(world.pipeline):
        yield repr(checkpoint)
    for event in world.store.events(world.pipeline, limit=1000):
        yield repr(event)
    for file in (*world.root.rglob("*"), *Path(world.root.parent, "log").rglob("*")):
        if file.is_file():
            yield file.read_bytes().decode("latin-1")
    for table in ("airflow_ft_ledger", "airflow_ft_head"):
        with contextlib.suppress(Exception):  # not there yet
            yield repr(world.server.sql(f"SELECT * FROM {table}", world.database.name))
    yield repr(world.connections("shop")) + repr(world.connections("cluster"))


def fails(action: Callable[[], Any]) -> BaseException:
    with pytest.raises(AirflowFtError) as caught:
        action()
    return caught.value


def wrong_password(world: RealWorld) -> BaseException:
    change(world, "shop", password=f"{DATABASE}-but-wrong")
    return fails(world.prepare)


def dead_server(world: RealWorld) -> BaseException:
    change(world, "shop", port=free_port())
    return fails(world.prepare)


def dead_broker(world: RealWorld) -> BaseException:
    extra = {**world.overrides["cluster"]["extra"], "bootstrap.servers": f"127.0.0.1:{free_port()}"}
    change(world, "cluster", extra=extra)
    return fails(world.prepare)


def refused_by_the_broker(world: RealWorld) -> BaseException:
    sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ada"}
    change(world, "cluster", extra={**world.overrides["cluster"]["extra"], **sasl})
    return fails(world.prepare)


def unusable_settings(world: RealWorld) -> BaseException:
    jaas = {"sasl.jaas.config": f'Module required password="{JAAS}";', "ssl.key.pem": KEY, "linger.ms": BROKER}
    change(world, "cluster", extra={**world.overrides["cluster"]["extra"], **jaas})
    return fails(world.prepare)


def declined_rows(world: RealWorld) -> BaseException:
    world.database.sql("ALTER TABLE orders MODIFY name VARCHAR(2)")
    return fails(world.prepare)


def decided_and_dead(world: RealWorld) -> BaseException:
    world.prepare()
    world.commit("shop")
    extra = {**world.overrides["cluster"]["extra"], "bootstrap.servers": f"127.0.0.1:{free_port()}"}
    change(world, "cluster", extra=extra)
    return fails(lambda: world.commit("cluster"))


def halted(world: RealWorld) -> BaseException:
    world.deliver()
    world.database.sql("UPDATE airflow_ft_head SET installation = REPEAT('x', 36)")
    world.stage(1)
    error = fails(world.prepare)
    assert world.store.pipeline(world.pipeline).halt_reason is HaltReason.FOREIGN_OWNER
    return error


@pytest.mark.parametrize(
    "failure",
    [
        wrong_password,
        dead_server,
        dead_broker,
        refused_by_the_broker,
        unusable_settings,
        declined_rows,
        decided_and_dead,
        halted,
    ],
)
def test_no_secret_shows_when_a_delivery_fails(
    world: RealWorld, failure: Callable[[RealWorld], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    world.stage(1)
    error = failure(world)
    texts = list(all_there_is(world, [error], caplog))
    assert len(texts) > 20
    shown = [text for text in texts if PLANTED.search(text)]
    assert shown == []


def test_no_secret_shows_when_all_goes_well(world: RealWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.stage(1)
    world.deliver()
    assert [text for text in all_there_is(world, [], caplog) if PLANTED.search(text)] == []
    assert len(world.ids()) == 20, "and the planted password was the one in use"


@pytest.mark.parametrize("how", ["wrong password", "dead server", "no such database", "unusable URL", "half a URL"])
def test_no_secret_of_the_decision_log_shows(
    how: str, postgres: Postgres, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    good = url_of(postgres, "ft_secrets", user="ada", password=STORE)
    url = {
        "wrong password": good,
        "dead server": good.replace(f":{postgres.port}/", f":{free_port()}/"),
        "no such database": good.replace("/postgres?", "/no_such?"),
        "unusable URL": f"postgresql://ada:{STORE}@h:1/db",
        "half a URL": f"postgresql:ada:{quote(STORE)}@h/db",
    }[how]
    with pytest.raises(AirflowFtError) as caught:
        open_store(url)
    checks = examine(Patient("p", str(tmp_path)), lambda: open_store(url), lambda _: None, lambda _: None)  # type: ignore
    texts = [*traceback.format_exception(caught.value), repr(caught.value), *(repr(check) for check in checks)]
    texts += [record.getMessage() for record in caplog.records]
    assert [text for text in texts if PLANTED.search(text)] == []


def test_a_connections_repr_and_its_errors_show_no_secret() -> None:
    class Given:
        conn_type, host, port, login, schema = "mysql", "h", None, "ada", ""
        password = DATABASE
        extra = f'{{"sasl.password": "{KEY}", not json'

    error = fails(lambda: connection_info("shop", Given()))
    assert not PLANTED.search("".join(traceback.format_exception(error)))
    info = ConnectionInfo("shop", "mysql", password=DATABASE, extra={"sasl.password": BROKER})
    assert not PLANTED.search(repr(info)) and not PLANTED.search(repr(replace(info, host="x")))


# --- Spark --------------------------------------------------------------------------------------------------------


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[StageWorld]:
    yield from stage_world(tmp_path)


def pages(port: int) -> Iterator[str]:
    """What Spark's UI shows of environment, queries and jobs."""
    base = f"http://127.0.0.1:{port}"

    def get(path: str) -> str:
        with urllib.request.urlopen(base + path, timeout=90) as answer:
            return str(answer.read().decode())

    application = json.loads(get("/api/v1/applications"))[0]["id"]
    for path in ("environment", "sql?details=true", "jobs", "stages", "allexecutors"):
        yield get(f"/api/v1/applications/{application}/{path}")
    for path in ("/environment/", "/StreamingQuery/", "/SQL/", "/jobs/"):
        yield get(path)


@pytest.mark.sampled(among="Spark drivers")
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_secret_of_a_source_leaks_from_a_spark_driver(staging: StageWorld) -> None:
    """The brokers do not answer for as long as Kafka's client tries; meanwhile everything is looked at."""
    port = free_port()
    source = KafkaSource(topics=["orders"])
    conf = {"spark.ui.enabled": "true", "spark.ui.port": str(port), "spark.log.level": "INFO"}
    request = staging.request("stage_jobs:Orders", {"orders": source}, jars=(str(JARS),), conf=conf)
    extra = {
        "bootstrap.servers": f"127.0.0.1:{free_port()}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ada",
        "sasl.password": JAAS,
        "default.api.timeout.ms": "400000",  # the driver is ended when all is seen
    }
    request = with_connection(request, ConnectionInfo("kafka_default", "kafka", extra=extra))
    seen: list[str] = []
    looked = threading.Event()

    def look(driver: Driver) -> None:
        def wait_and_look() -> None:
            deadline = time.monotonic() + 240
            try:
                while time.monotonic() < deadline and not any("Config values" in line for line in staging.lines):
                    time.sleep(0.05)
                for process in [psutil.Process(driver.pid), *psutil.Process(driver.pid).children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        seen.append(" ".join(process.cmdline()) + str(process.environ()))
                seen.extend(pages(port))
            finally:
                looked.set()
                driver.kill()

        threading.Thread(target=wait_and_look, daemon=True).start()

    with pytest.raises(AirflowFtError) as caught:
        staging.stage(request, look)
    assert looked.wait(240)
    assert len(seen) > 9, "the driver, its helpers and all pages were looked at"
    assert any("spark.app.name" in text for text in seen)
    assert any("sasl.jaas.config" in line for line in staging.lines), "Kafka's client prints its settings"
    texts = [*seen, *staging.lines, *traceback.format_exception(caught.value)]
    assert [text[:300] for text in texts if PLANTED.search(text)] == []
