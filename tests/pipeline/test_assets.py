"""The assets of a pipeline, its sources and its sinks, as Airflow checks, compares and updates them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Asset, AssetAlias

from airflow_ft import (
    CheckpointedPipeline,
    DeltaSink,
    FileSource,
    FilesSink,
    KafkaSink,
    KafkaSource,
    MySqlSink,
    PipelineSpec,
    PostgresSink,
    SqliteSink,
    pipeline_asset,
)
from airflow_ft.pipeline.assets import emit_sink_events, sink_assets, source_assets
from airflow_ft.pipeline.lineage import Delivered, delivered
from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, folder
from airflow_ft.protocol.errors import ConfigurationError, SinkAccessError
from airflow_ft.protocol.model import ParticipantPlan, Plan
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.planning import participant_name
from airflow_ft.protocol.set_aside import SetAside
from airflow_ft.sinks.registry import system

pytestmark = pytest.mark.airflow


def test_it_equals_what_a_dag_author_writes() -> None:
    assert pipeline_asset("orders") == Asset("airflow-ft://orders") == Asset("airflow-ft://orders")
    assert pipeline_asset("orders") != pipeline_asset("other")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        pipeline_asset("No Such Name")


@pytest.mark.parametrize("uri", ["airflow-ft://orders/1", "airflow-ft://orders?number=1", "airflow-ft://No_Such/"])
def test_a_uri_that_names_no_pipeline_is_refused_at_parse_time(uri: str) -> None:
    with pytest.raises(ValueError):
        Asset(uri)


SINKS: dict[str, Any] = {
    "orders": MySqlSink(table="shop.orders", conn_id="shop"),
    "daily": MySqlSink(table="orders_{{ ds_nodash }}", conn_id="shop"),
    "copy": PostgresSink(table="orders", conn_id="copies"),
    "alerts": KafkaSink(topic="alerts"),
    "files": FilesSink(folder="/data/orders"),
    "late": FilesSink(folder="/data/{{ ds }}", name="late"),
    "small": SqliteSink(table="orders", conn_id="small"),
    "lake": DeltaSink(table="/lake/orders"),
}
CONNECTIONS = {
    "shop": ConnectionInfo("shop", "mysql", "db.example", schema="other"),
    "copies": ConnectionInfo("copies", "postgres", "pg.example", 6432, schema="shop"),
    "kafka_default": ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": "k1:9092,k2:9092"}),
    "small": ConnectionInfo("small", "sqlite", "/data/small.db"),
}


COPIES: dict[str, Any] = {"pipeline": "copies", "job": "jobs.copies", "sinks": {"files": SINKS["files"]}}


def a_spec(**changes: Any) -> PipelineSpec:
    sources = {
        "topics": KafkaSource(topics=["orders", "alerts"]),
        "folder": FileSource(path="/data/in/", schema="id bigint"),
        "pattern": KafkaSource(pattern="o.*"),
    }
    return PipelineSpec(pipeline="orders", job="jobs.orders", sources=sources, sinks=SINKS, **changes)


def test_places_are_aliases() -> None:
    """Airflow runs no task that declares an asset whose URI another DAG has given another name."""
    assert sink_assets(a_spec()) == {
        "orders": AssetAlias("mysql:shop/shop.orders"),
        "daily": AssetAlias("mysql:shop/orders_*"),
        "copy": AssetAlias("postgres:copies/orders"),
        "alerts": AssetAlias("kafka:kafka_default/alerts"),
        "files": AssetAlias("files:/data/orders"),
        "late": AssetAlias("files:/data/*"),
        "small": AssetAlias("sqlite:small/orders"),
        "lake": AssetAlias("delta:/lake/orders"),
    }
    topics = [AssetAlias("kafka:kafka_default/orders"), AssetAlias("kafka:kafka_default/alerts")]
    assert source_assets(a_spec()) == [*topics, AssetAlias("files:/data/in")]
    [alias] = source_assets(
        PipelineSpec(**COPIES, sources={"a": FileSource(path="/data/Auftr\u00e4ge x", format="text")})
    )
    assert alias.name == "files:/data/Auftr%C3%A4ge%20x", "MySQL below Airflow takes ASCII alone"


def test_the_graph_connects_who_writes_a_topic_with_who_reads_it() -> None:
    with DAG("d", schedule=None) as dag:
        CheckpointedPipeline(a_spec())
    assert sink_assets(a_spec())["alerts"] in dag.get_task("orders.stage").inlets
    for task in ("orders.confirmed", "orders.recover"):
        assert dag.get_task(task).outlets == [Asset("airflow-ft://orders"), *sink_assets(a_spec()).values()]
    with DAG("quiet", schedule=None) as quiet:
        CheckpointedPipeline(a_spec(emit_asset=False))
    assert not any(task.inlets or task.outlets for task in quiet.tasks)


class Log:
    """A decision log with one delivery, of the rows of two numbers."""

    def __init__(self, **settings: Mapping[str, Any]) -> None:
        by: dict[str, dict[str, Any]] = {}
        for name, sink in SINKS.items():
            by.setdefault(participant_name(sink), {})[name] = settings.get(name) or self.rendered(sink)
        kinds = {participant_name(sink): sink for sink in SINKS.values()}
        participants = tuple(
            ParticipantPlan(name, kinds[name].kind, "", kinds[name].promise, 0, sinks) for name, sinks in by.items()
        )
        self.plan = Plan("orders", "i", 2, (), participants, None)

    @staticmethod
    def rendered(sink: Any) -> Mapping[str, Any]:
        place = system(sink.kind).place
        return {place: getattr(sink, place).replace("{{ ds_nodash }}", "20260101").replace("{{ ds }}", "2026-01-01")}

    def checkpoint(self, _: str, number: int) -> Any:
        return SimpleNamespace(number=number, delivered_by=2, plan=self.plan if number == 2 else None)


def found(confirmed: Confirmed, **settings: Mapping[str, Any]) -> dict[str, Delivered]:
    log: Any = Log(**settings)
    return {each.sink: each for each in delivered(log, "orders", confirmed, CONNECTIONS.__getitem__)}


def test_each_is_called_as_openlineage_and_the_providers_call_it() -> None:
    datasets = {name: each.dataset for name, each in found(Confirmed(Numbers.of([1]))).items()}
    assert datasets == {
        "orders": Dataset("mysql://db.example:3306", "shop.orders", "mysql://db.example:3306/shop/orders"),
        "daily": Dataset(
            "mysql://db.example:3306", "other.orders_20260101", "mysql://db.example:3306/other/orders_20260101"
        ),
        "copy": Dataset(
            "postgres://pg.example:6432", "shop.public.orders", "postgres://pg.example:6432/shop/public/orders"
        ),
        "alerts": Dataset("kafka://k1:9092", "alerts", "kafka://k1:9092/alerts"),
        "files": Dataset("file", "/data/orders", "file:///data/orders"),
        "late": Dataset("file", "/data/2026-01-01", "file:///data/2026-01-01"),
        "small": Dataset("sqlite:///data/small.db", "orders", "sqlite:///data/small.db/orders"),
        "lake": Dataset("file", "/lake/orders", "file:///lake/orders"),
    }
    datasets.pop("small")  # Airflow writes one slash where no server is named
    for dataset in datasets.values():
        assert Asset(dataset.uri).uri == dataset.uri, "Airflow and its providers take it as it is"


def test_places_in_object_stores_and_hdfs() -> None:
    assert folder("s3://aws@lake/a/b/") == folder("s3a://lake/a/b") == Dataset("s3://lake", "a/b", "s3://lake/a/b")
    assert folder("hdfs://nn:8020/a") == Dataset("hdfs://nn:8020", "/a", "hdfs://nn:8020/a")
    assert folder("file:///a b/") == Dataset("file", "/a b", "file:///a%20b")


def events_of(declared: Mapping[str, AssetAlias]) -> Any:
    """As Airflow gives them to a task: what was added to each outlet, as `added`."""
    events: Any = {outlet: SimpleNamespace(added=[]) for outlet in declared.values()}
    for event in events.values():
        event.add = lambda asset, extra, to=event: to.added.append((asset, extra))
    return events


def test_only_a_sink_that_received_rows_emits_an_asset_event() -> None:
    rows = {"orders": 7, "alerts": 3, "files": 5, "lake": 4}
    aside = {
        "alerts": SetAside(3, ("/wal",), ("no",), ((1, "f", 0, 2), (2, "f", 4, 5))),
        "files": SetAside(
            9, ("/wal",), ("no",), ((7, "f", 0, 9),)
        ),  # of another run, whose rows were delivered with these
    }
    confirmed = Confirmed(Numbers.of([1, 2]), rows, aside)
    emitted = list(found(confirmed, lake={"table": "/lake/before"}).values())
    declared = sink_assets(a_spec())
    events = events_of(declared)
    silent = emit_sink_events(declared, emitted, "orders", confirmed, events)
    extra = {"pipeline": "orders", "number": 2, "numbers": [1, 2], "count": 2, "first": 1, "last": 2}
    assert events[declared["orders"]].added == [
        (Asset("mysql://db.example:3306/shop/orders"), {**extra, "sink": "orders", "rows": 7})
    ]
    assert events[declared["files"]].added == [(Asset("file:///data/orders"), {**extra, "sink": "files", "rows": 5})]
    assert events[declared["lake"]].added[0][0] == Asset("file:///lake/before"), "by a plan of before"
    assert set(declared) - {name for name, each in declared.items() if each in silent} == {"orders", "files", "lake"}
    assert declared["alerts"] in silent, "all of its rows were set aside"


def test_a_missing_connection_costs_only_its_own_asset_events(caplog: pytest.LogCaptureFixture) -> None:
    def gone(conn_id: str) -> ConnectionInfo:
        if conn_id == "shop":
            raise SinkAccessError("the Airflow connection is not defined.", participant=conn_id)
        return CONNECTIONS[conn_id]

    log: Any = Log()
    found = delivered(log, "orders", Confirmed(Numbers.of([2])), gone)
    assert {each.sink for each in found} == set(SINKS) - {"orders", "daily"}
    assert "lineage omits shop: " in caplog.text and "not defined" in caplog.text


@pytest.mark.parametrize(
    ("host", "server"),
    [
        ("/var/run/postgresql", "postgres://localhost:5432"),
        ("", "postgres://localhost:5432"),
        ("::1", "postgres://[::1]:5432"),
    ],
)
def test_a_host_that_is_a_socket_or_of_ipv6_makes_an_asset(host: str, server: str) -> None:
    connection = ConnectionInfo("copies", "postgres", host, schema="shop")
    assert dataset(SINKS["copy"], connection) == Dataset(server, "shop.public.orders", f"{server}/shop/public/orders")
    assert Asset(f"{server}/shop/public/orders").uri == f"{server}/shop/public/orders"


def dataset(sink: Any, connection: ConnectionInfo) -> Dataset:
    lineage: Any = system(sink.kind).part("lineage")
    found: Dataset = lineage.dataset({"table": sink.table}, connection)
    return found


def test_an_asset_that_airflow_refuses_costs_the_event_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The rows are confirmed: a task that fails by this would fail for ever."""
    declared = sink_assets(a_spec())
    warnings = [
        Delivered("orders", Dataset("mysql://a", "b", "airflow-ft://No_Such/"), 1),
        Delivered("alerts", Dataset("kafka://a", "b", "kafka://a:1/b"), 1),
    ]
    events = events_of(declared)
    silent = emit_sink_events(
        declared, warnings, "orders", Confirmed(Numbers.of([1]), {"orders": 1, "alerts": 1}), events
    )
    assert declared["orders"] in silent and declared["alerts"] not in silent
    assert "of sink orders is not updated: " in caplog.text


def test_third_party_lineage_that_raises_costs_only_its_events(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lineage: Any = system("mysql").part("lineage")
    monkeypatch.setattr(lineage, "dataset", lambda *_: 1 / 0)
    log: Any = Log()
    found = delivered(log, "orders", Confirmed(Numbers.of([2])), CONNECTIONS.__getitem__)
    assert {each.sink for each in found} == set(SINKS) - {"orders", "daily"}
    assert "lineage omits shop: division by zero" in caplog.text
