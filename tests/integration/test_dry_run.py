"""`airflow_ft.dry_run`: counts, samples and what the sinks would say, and nothing is left anywhere."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

import airflow_ft as ft
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import AirflowFtError, JobError
from airflow_ft.spark.session.session_leases import kept
from airflow_ft.store import open_store
from airflow_ft.wal.markers import MARKER
from tests.integration.stage_world import JARS, with_connection, world
from tests.raising import raises
from tools.servers import Kafka

pytestmark = [pytest.mark.sampled(among="Spark drivers"), pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]


@ft.job
class Totals:
    output_mode = "update"

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def transform(self, spark: Any, sources: Any) -> Any:
        from pyspark.sql import functions as F

        amount = F.sum(F.raise_error(F.lit("no such amount")).cast("long")) if self.broken else F.sum("amount")
        return sources["orders"].groupBy("customer").agg(amount.alias("total"))

    def split(self, batch: Any) -> Any:
        return {"totals": batch, "large": batch.where("total > 10")}


class Shop:
    """A folder with files, a SQLite file, and the pipeline between them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._files = folder, 0
        (folder / "in").mkdir()
        self.spec = ft.PipelineSpec(
            pipeline="shop",
            job=Totals,
            sources={
                "orders": ft.FileSource(
                    path=str(folder / "in"), schema="customer string, amount bigint", max_files_per_trigger=1
                )
            },
            sinks={name: ft.SqliteSink(table=name, conn_id="shop") for name in ("totals", "large")},
            store=f"sqlite:///{folder / 'ft.db'}",
            wal_root=str(folder / "wal"),
            spark_master="local[2]",
            keep_session=timedelta(minutes=10),
        )

    def add(self, customer: str, amount: int) -> None:
        self._files += 1
        hidden = self.folder / f"{self._files}.json"
        hidden.write_text(json.dumps({"customer": customer, "amount": amount}))
        hidden.rename(self.folder / "in" / hidden.name)

    def delivered(self) -> dict[str, list[tuple[Any, ...]]]:
        with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
            return {name: list(shop.execute(f"SELECT * FROM {name} ORDER BY rowid")) for name in ("totals", "large")}

    def snapshot(self) -> Any:
        with closing(open_store(self.spec.store or "")) as store:
            return store.pipeline("shop"), store.checkpoints("shop", 100), store.events("shop")

    def left(self) -> set[str]:
        root = self.folder / "wal"
        return {each.name for each in root.iterdir()} - {MARKER} if root.exists() else set()


@pytest.fixture
def shop(shop_folder: Path) -> Shop:
    return Shop(shop_folder)


def test_it_tells_what_the_next_run_delivers_and_leaves_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    # A keeper that is too busy to greet within 2 s counts as gone.
    monkeypatch.setattr("airflow_ft.spark.session.session_leases._GREETING_SECONDS", 60.0)
    shop.add("Ann", 4)
    shop.add("Ann", 8)
    first = ft.dry_run(shop.spec)
    assert (first.checkpoints, first.has_more, first.would_be_refused) == (1, True, False)
    assert first.rows == {"totals": 1, "large": 0} and list(first.samples["totals"]) == [
        {"customer": "Ann", "total": 4}
    ]
    assert first.columns == {name: {"customer": "string", "total": "int64"} for name in ("totals", "large")}
    assert not (shop.folder / "shop.db").exists() and not (shop.folder / "ft.db").exists() and shop.left() == set()

    warned = [check.subject for check in first.checks if check.name == "output mode"]  # its sinks append
    assert warned == ["sink totals", "sink large"] and "WARNING sink totals" in "\n".join(first.lines())

    everything = ft.dry_run(shop.spec, everything=True)
    assert (everything.checkpoints, everything.has_more) == (2, False)
    assert everything.rows == {"totals": 2, "large": 1}
    assert list(everything.samples["large"]) == [{"customer": "Ann", "total": 12}]

    ft.run(shop.spec)
    assert shop.delivered() == {"totals": [("Ann", 4), ("Ann", 12)], "large": [("Ann", 12)]}
    shop.add("Ann", 1)
    before, sessions = shop.snapshot(), kept()
    again = ft.dry_run(shop.spec, samples=1)  # with the state that the run has left
    assert again.rows == {"totals": 1, "large": 1} and list(again.samples["totals"]) == [
        {"customer": "Ann", "total": 13}
    ]
    ft.dry_run(shop.spec, columns_only=True)
    assert shop.snapshot() == before and shop.left() == {"shop"}
    assert kept() == sessions and all(each.is_idle() for each in sessions)  # of the run alone, for its next one
    assert ft.run(shop.spec)["rows"] == 2
    assert shop.delivered()["totals"][-1] == ("Ann", 13)
    nothing = ft.dry_run(shop.spec)
    assert (nothing.checkpoints, nothing.rows) == (0, {}) and "nothing is new" in "\n".join(nothing.lines())


def test_what_a_sink_would_refuse_is_told_with_its_remedy(shop: Shop) -> None:
    shop.add("Ann", 4)
    with closing(sqlite3.connect(shop.folder / "shop.db")) as made:
        made.execute("CREATE TABLE totals (customer TEXT) STRICT")
    for only in (False, True):
        found = ft.dry_run(shop.spec, columns_only=only)
        assert found.would_be_refused and found.checkpoints == (not only)
        assert any("total" in check.text and check.remedy for check in found.problems)
        assert any(check.name == "output mode" for check in found.checks)
        assert "PROBLEM" in "\n".join(found.lines())
    assert shop.left() == set()


def test_missing_tables_are_proposed(shop: Shop) -> None:
    tables = {name: ft.SqliteSink(table=name, conn_id="shop", create=False) for name in ("totals", "large")}
    found = ft.dry_run(replace(shop.spec, sinks=tables), columns_only=True)
    assert {check.code for check in found.problems} == {"table_missing"} and len(found.tables) == 2
    assert "--dag" not in "\n".join(found.lines())
    with closing(sqlite3.connect(shop.folder / "shop.db")) as db:
        db.executescript("".join(found.tables))
    assert not ft.dry_run(replace(shop.spec, sinks=tables), columns_only=True).would_be_refused


def test_a_stream_is_cut_once(shop: Shop) -> None:
    shop.add("Ann", 4)
    stream = replace(shop.spec, streaming=True, checkpointing=CheckpointConfig(interval=timedelta(seconds=1)))
    assert ft.dry_run(stream).rows == {"totals": 1, "large": 0}


def test_a_mistake_in_the_job_is_raised_and_nothing_stays(shop: Shop) -> None:
    shop.add("Ann", 4)
    with raises(JobError, "job_failed") as caught:
        ft.dry_run(replace(shop.spec, job_args={"broken": True}))
    assert caught.error and "no such amount" in caught.error.what
    assert shop.left() == set()


def test_what_a_dead_one_has_left_is_deleted_by_a_later_one(shop: Shop) -> None:
    old, young = ".dry-run-1600000000-0123abcd", ".dry-run-9999999999-0123abcd"
    for name in (old, young):
        (shop.folder / "wal" / name / "shop").mkdir(parents=True)
    ft.dry_run(shop.spec, columns_only=True)
    assert shop.left() == {young}


def test_what_an_earlier_run_has_left_is_told_beside_it(shop: Shop) -> None:
    shop.add("Ann", 4)
    shop.add("Ann", 8)
    with closing(sqlite3.connect(shop.folder / "shop.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(AirflowFtError) as caught:
            ft.run(replace(shop.spec, restart=ft.NoRestart()))
    assert "shop" in caught.value.headline
    shop.add("Ann", 1)
    found = ft.dry_run(shop.spec)
    assert found.waiting == {1: {"totals": 1, "large": 0}, 2: {"totals": 1, "large": 1}}
    assert list(found.samples["totals"]) == [{"customer": "Ann", "total": 13}]
    assert any("checkpoints 1, 2 (rows: large 1, totals 2)" in line for line in found.lines())
    ft.run(shop.spec)
    assert shop.delivered() == {"totals": [("Ann", 4), ("Ann", 12), ("Ann", 13)], "large": [("Ann", 12), ("Ann", 13)]}
    assert not ft.dry_run(shop.spec, columns_only=True).waiting


def test_it_begins_where_an_attempt_that_failed_has_frozen_it(
    shop_folder: Path, sessions: Path, kafka: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))  # where `stage_jobs` is found
    broker = ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": kafka.bootstrap})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": dict(broker.extra)}))
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    def send(value: str) -> None:
        producer.produce(topic, value.encode())
        assert producer.flush(30) == 0

    def frozen() -> dict[Path, bytes]:
        return {each: each.read_bytes() for each in (shop_folder / "wal").rglob("begun-*")}

    sources = {"numbers": ft.KafkaSource(topics=[topic], starting_offsets="latest")}
    send("before")
    with contextmanager(world)(shop_folder, sessions) as pipeline:
        faulty = pipeline.request("stage_jobs:Faulty", sources, jars=(str(JARS),), job_arguments={"fault": "split"})
        with raises(JobError, "job_failed", exception="KeyError"):
            pipeline.stage(with_connection(faulty, broker))
    send("behind")
    before = frozen()
    spec = ft.PipelineSpec(
        pipeline="orders",
        job="stage_jobs:Plain",
        sources=sources,
        sinks={"orders": ft.SqliteSink(table="orders", conn_id="shop")},
        store=pipeline.url,
        wal_root=str(pipeline.root),
        spark_master="local[2]",
        jars=str(JARS),
    )
    assert ft.dry_run(spec).rows == {"orders": 1}
    assert len(before) == 1 and frozen() == before


DAG_FILE = """
from airflow.sdk import DAG

import airflow_ft as ft


@ft.job
class Orders:
    def transform(self, spark, sources):
        return sources["orders"]

    def split(self, batch):
        return {"sold": batch, "events": batch}


with DAG("d", schedule=None, params={"table": "sales.sold"}):
    ft.CheckpointedPipeline(
        pipeline="orders",
        job=Orders,
        sources={"orders": ft.FileSource(path="%s/in", schema="customer string, amount decimal(12,2)")},
        sinks={
            "sold": ft.MySqlSink(table="{{ params.table }}", conn_id="shop"),
            "events": ft.KafkaSink(topic="events"),
        },
        spark_master="local[2]",
        wal_root="%s/wal",
    )
"""


def test_the_commands_say_what_a_pipeline_that_never_ran_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from airflow.cli.cli_parser import get_parser

    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "home"))
    # Neither server is there: tables are proposed nevertheless, and a dry run says what is in the way.
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "mysql://ada:planted-Secret-9@127.0.0.1:1/shop")
    broker = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1", "airflow_ft_timeout": 2}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(broker))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text(json.dumps({"customer": "Ann", "amount": 4.5}))
    dag = tmp_path / "a_dag.py"
    dag.write_text(DAG_FILE % (tmp_path, tmp_path))
    store = ["--dag", str(dag), "--store", f"sqlite:///{tmp_path / 'ft.db'}"]

    def command(*arguments: str) -> None:
        args = get_parser().parse_args(["ft", *arguments, *store])
        args.func(args)

    command("setup", "orders", "--print", "--tables")
    text = capsys.readouterr().out
    for words in (
        "CREATE TABLE IF NOT EXISTS `sales`.`sold` (\n  `customer` LONGTEXT,\n  `amount` DECIMAL(12,2)\n) ENGINE",
        "GRANT INSERT ON `sales`.`sold`",
        "--create --if-not-exists --topic events --partitions 3",
    ):
        assert words in text, text
    with pytest.raises(SystemExit) as ended:
        command("setup", "orders", "--tables")
    assert f"--dag {dag} --print" in f"{ended.value}"
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        command("dry-run", "orders", "--samples", "1")
    captured = capsys.readouterr()
    assert ended.value.code == 1
    for words in ("1 checkpoint would be delivered", "customer=Ann, amount=4.50", "PROBLEM connection shop: connect"):
        assert words in captured.out, captured.out
    assert "planted" not in captured.out + captured.err
