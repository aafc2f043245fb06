"""OpenLineage is told what a run has read and written, by the provider's own way from an operator to an event."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.sdk import TaskInstanceState
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport

from airflow_ft import FileSource, KafkaSink, KafkaSource, MySqlSink, PipelineSpec
from airflow_ft.operators.base import CheckpointOperator
from airflow_ft.operators.confirm import ConfirmOperator
from airflow_ft.operators.openlineage import FACET, emit_running
from airflow_ft.operators.reporting import ReportingCounters, report_lineage
from airflow_ft.operators.stage import StageOperator
from airflow_ft.operators.stream import StreamingPipelineOperator
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.store.scene import PIPELINE, RUN, Scene

pytestmark = pytest.mark.airflow

SINKS: dict[str, Any] = {
    "orders": MySqlSink(table="orders", conn_id="shop"),
    "alerts": KafkaSink(topic="alerts", key="note"),
    "copies": KafkaSink(topic="copies", value="note"),
}
CONNECTIONS = {
    "shop": ConnectionInfo("shop", "mysql", "db.example", schema="shop", password="sesame"),
    "kafka_default": ConnectionInfo("kafka_default", "kafka", extra={"bootstrap.servers": "k1:9092"}),
}
MADE_OF = {
    "orders": {
        "columns": {
            "id": [["topic", "value", "TRANSFORMATION"], ["folder", "id", "IDENTITY"]],
            "amount": [["topic", "value", "AGGREGATION"], ["topic", "value", "CONDITIONAL"], ["gone", "n", "IDENTITY"]],
            "note": [["topic", "key", "IDENTITY"]],
        },
        "rows": [["folder", "id", "JOIN"]],
    },
    "alerts": {"columns": {"id": [["gone", "n", "IDENTITY"]], "note": [["topic", "key", "IDENTITY"]]}, "rows": []},
}
"""The column "note" is the key of a Kafka record. A source that is gone has no dataset."""
PART = {
    "type": "object",
    "required": ["_producer", "_schemaURL"],
    "properties": {"_producer": {"type": "string", "format": "uri"}, "_schemaURL": {"type": "string", "format": "uri"}},
}
DATASET = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {"facets": {"type": "object", "additionalProperties": PART}},
}
EVENT = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventType": {"const": "COMPLETE"},
        "eventTime": {"type": "string", "format": "date-time"},
        "run": {
            "required": ["runId"],
            "properties": {
                "runId": {"type": "string", "format": "uuid"},
                "facets": {"type": "object", "additionalProperties": PART},
            },
        },
        "job": {"required": ["namespace", "name"]},
        "inputs": {"type": "array", "items": DATASET},
        "outputs": {
            "type": "array",
            "items": {**DATASET, "properties": {"outputFacets": {"type": "object", "additionalProperties": PART}}},
        },
    },
}
"""What OpenLineage demands of an event, as far as it concerns what we put into one."""


INPUT_FIELD = {
    "type": "object",
    "required": ["namespace", "name", "field"],
    "properties": {
        "transformations": {
            "type": "array",
            "items": {"required": ["type"], "properties": {"type": {"enum": ["DIRECT", "INDIRECT"]}}},
        }
    },
}
COLUMN_LINEAGE = {
    "type": "object",
    "required": ["fields"],
    "properties": {
        "fields": {
            "additionalProperties": {
                "required": ["inputFields"],
                "properties": {"inputFields": {"type": "array", "items": INPUT_FIELD}},
            }
        },
        "dataset": {"type": "array", "items": INPUT_FIELD},
    },
}


@dataclass
class Shop(Scene):
    """Its rows lie in a write-ahead log, and its plans are those of the sinks."""

    def make_plan(self, number: int, segments: Any = None) -> Plan:
        return replace(super().make_plan(number, segments), participants=plan_delivery(SINKS).participants)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    known: dict[int, Segment] = {}

    def segment(number: int) -> Segment:
        if number not in known:
            columns = {"id": pa.array([1, 2, 3]), "amount": pa.array([1.5, 2.5, 3.5]), "note": ["a", "b", "c"]}
            rows = pa.table(columns)
            folder = SegmentFolder(str(tmp_path / "wal"), PIPELINE, 1, 4, number)
            tables = {"orders": rows, "alerts": rows.slice(0, 1), "copies": rows.slice(0, 0)}
            known[number] = write_segment(folder, number, tables, lineage=MADE_OF)
        return known[number]

    def connection(conn_id: str) -> ConnectionInfo:
        if conn_id not in CONNECTIONS:
            raise SinkAccessError("the Airflow connection is not defined.", participant=conn_id)
        return CONNECTIONS[conn_id]

    monkeypatch.setattr("tests.store.scene.a_segment", segment)
    monkeypatch.setattr("airflow_ft.operators.openlineage.task_connections", connection)
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/ft.db")
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        yield Shop(store, promises={"shop": SINKS["orders"].promise, "kafka_default": SINKS["alerts"].promise})


def emitted(
    operator: CheckpointOperator, folder: Path, state: TaskInstanceState = TaskInstanceState.SUCCESS
) -> dict[str, Any]:
    """The event that the provider makes of the task, from the file that its client writes."""
    ti = SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, map_index=-1, task_id=operator.task_id, task=operator)
    run = SimpleNamespace(run_id=RUN.run_id)
    manager: Any = ExtractorManager()  # type: ignore[no-untyped-call]
    metadata = manager.extract_metadata(run, operator, state, ti)
    file = folder / f"{uuid.uuid4().hex}.json"
    client = OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(file), append=True)))
    OpenLineageAdapter(client=client).complete_task(
        run_id=str(uuid.uuid4()),
        job_name=f"dag.{operator.task_id}",
        end_time=datetime.now(UTC).isoformat(),
        task=metadata,
        nominal_start_time=None,
        nominal_end_time=None,
        owners=[],
        tags=[],
        job_description=None,
    )
    event: dict[str, Any] = json.loads(file.read_text())
    jsonschema.Draft202012Validator(EVENT, format_checker=jsonschema.FormatChecker()).validate(event)
    assert "sesame" not in file.read_text()
    return event


def spec(**changes: Any) -> PipelineSpec:
    sources = {"topic": KafkaSource(topics=["in"]), "folder": FileSource(path="/data/in", schema="id bigint")}
    return PipelineSpec(**{"pipeline": PIPELINE, "job": "jobs.orders", "sources": sources, "sinks": SINKS, **changes})


INPUTS = [("kafka://k1:9092", "in"), ("file", "/data/in")]


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in datasets]


def made_of(facet: dict[str, Any]) -> dict[str, list[tuple[str, str, str, list[str]]]]:
    """By column; what decides on rows as "". It has to be as OpenLineage demands."""
    jsonschema.Draft202012Validator(COLUMN_LINEAGE).validate(facet)
    fields = {name: expected["inputFields"] for name, expected in facet["fields"].items()} | {"": facet["dataset"]}
    return {
        name: [
            (
                each["namespace"],
                each["name"],
                each["field"],
                [f"{use['type']} {use['subtype']}" for use in each["transformations"]],
            )
            for each in inputs
        ]
        for name, inputs in fields.items()
    }


def without_frame(facet: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facet.items() if name not in ("_producer", "_schemaURL", "_deleted")}


@pytest.mark.parametrize("kind", [ConfirmOperator, StreamingPipelineOperator])
def test_a_confirming_task_reports_datasets_columns_and_rows(kind: Any, shop: Shop, tmp_path: Path) -> None:
    [one, two] = shop.stage(2, made_with={"job": "shop"})
    shop.complete(two, [one, two])
    operator = kind(task_id="t", spec=spec(streaming=kind is StreamingPipelineOperator))
    event = emitted(operator, tmp_path)
    assert names(event["inputs"]) == INPUTS
    assert names(event["outputs"]) == [
        ("mysql://db.example:3306", "shop.orders"),
        ("kafka://k1:9092", "alerts"),
        ("kafka://k1:9092", "copies"),
    ]
    rows = [each["outputFacets"]["outputStatistics"]["rowCount"] for each in event["outputs"]]
    assert rows == [6, 2, 0]
    fields = [
        [(field["name"], field["type"]) for field in each["facets"]["schema"]["fields"]] if each["facets"] else []
        for each in event["outputs"]
    ]
    table = [("id", "int64"), ("amount", "double"), ("note", "string")]
    assert fields == [table, [("id", "int64"), ("amount", "double")], []]
    orders, alerts, copies = (each.get("facets", {}) for each in event["outputs"])
    assert "columnLineage" not in alerts and "columnLineage" not in copies
    assert made_of(orders["columnLineage"]) == {
        "id": [
            ("file", "/data/in", "id", ["DIRECT IDENTITY"]),
            ("kafka://k1:9092", "in", "value", ["DIRECT TRANSFORMATION"]),
        ],
        "amount": [("kafka://k1:9092", "in", "value", ["DIRECT AGGREGATION", "INDIRECT CONDITIONAL"])],
        "note": [("kafka://k1:9092", "in", "key", ["DIRECT IDENTITY"])],
        "": [("file", "/data/in", "id", ["INDIRECT JOIN"])],
    }
    segments = [shop.checkpoint(number).segment for number in (one, two)]
    assert without_frame(event["run"]["facets"][FACET]) == {
        "pipeline": PIPELINE,
        "numbers": [one, two],
        "count": 2,
        "first": one,
        "last": two,
        "mode": "EXACTLY_ONCE",
        "epoch": 1,
        "attempt": 4,
        "spec": shop.checkpoint(two).spec,
        "rows": 8,
        "logBytes": sum(each.bytes for each in segments if each),
    }
    assert shop.checkpoint(two).spec


@pytest.mark.parametrize("kind", [ConfirmOperator, StreamingPipelineOperator])
def test_a_failed_try_reports_no_row_counts(kind: Any, shop: Shop, tmp_path: Path) -> None:
    [one] = shop.stage(made_with={"job": "shop"})
    shop.complete(one)
    operator = kind(task_id="t", spec=spec(streaming=kind is StreamingPipelineOperator))
    event = emitted(operator, tmp_path, TaskInstanceState.FAILED)
    assert names(event["inputs"]) == INPUTS and names(event["outputs"])[0] == ("mysql://db.example:3306", "shop.orders")
    assert not any(each.get("outputFacets") for each in event["outputs"])
    facet = event["run"]["facets"][FACET]
    assert facet["numbers"] == [one] and "rows" not in facet


def test_a_stage_has_inputs_alone_and_tells_what_it_published(shop: Shop, tmp_path: Path) -> None:
    shop.stage(2)
    event = emitted(StageOperator(task_id="t", spec=spec()), tmp_path)
    assert (names(event["inputs"]), event["outputs"]) == (INPUTS, [])
    facet = event["run"]["facets"][FACET]
    assert (facet["numbers"], facet["rows"], facet["attempt"]) == ([1, 2], 8, 4)


def test_what_is_not_confirmed_is_not_told_as_written(shop: Shop, tmp_path: Path) -> None:
    one = shop.stage(2)[0]
    shop.complete(one)
    event = emitted(ConfirmOperator(task_id="t", spec=spec()), tmp_path)
    assert [each["outputFacets"]["outputStatistics"]["rowCount"] for each in event["outputs"]] == [3, 1, 0]
    assert event["run"]["facets"][FACET]["numbers"] == [one]


def test_what_cannot_be_found_out_is_left_out(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [one] = shop.stage()
    shop.complete(one)
    segment = shop.checkpoint(one).segment
    assert segment is not None
    (Path(segment.location.removeprefix("file://")) / "manifest.json").unlink()
    monkeypatch.delitem(CONNECTIONS, "kafka_default")
    event = emitted(ConfirmOperator(task_id="t", spec=spec()), tmp_path)
    assert names(event["inputs"]) == [("file", "/data/in")]
    [output] = event["outputs"]
    assert output["name"] == "shop.orders" and output["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert "schema" not in output.get("facets", {})


def test_a_pipeline_that_was_never_staged_has_inputs_alone(shop: Shop, tmp_path: Path) -> None:
    event = emitted(ConfirmOperator(task_id="t", spec=spec(pipeline="new")), tmp_path)
    assert (names(event["inputs"]), event["outputs"]) == (INPUTS, []) and FACET not in event["run"]["facets"]


def test_the_manifest_keeps_what_columns_are_made_of(shop: Shop) -> None:
    [one] = shop.stage()
    segment = shop.checkpoint(one).segment
    assert segment is not None and open_wal().open(segment).manifest.lineage == MADE_OF


def running(shop: Shop, monkeypatch: pytest.MonkeyPatch, number: int) -> dict[str, Any]:
    """What Airflow's provider is given for the event of a stream that goes on."""
    events: list[dict[str, Any]] = []
    monkeypatch.setattr("airflow_ft.operators.openlineage.emit_dataset_lineage", lambda **given: events.append(given))
    operator = StreamingPipelineOperator(task_id="t", spec=spec(streaming=True))
    ti = SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, map_index=-1)
    emit_running(operator, ti, number)
    [given] = events
    assert given["task_instance"] is ti
    return given


def test_a_running_stream_reports_the_last_confirmed_checkpoint(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    [one, two] = shop.stage(2, made_with={"job": "shop"}, continues=True)
    shop.complete(one)
    given = running(shop, monkeypatch, one)
    assert [(each.namespace, each.name) for each in given["inputs"]] == INPUTS
    orders, alerts, copies = given["outputs"]
    assert [(each.namespace, each.name) for each in (orders, alerts, copies)] == [
        ("mysql://db.example:3306", "shop.orders"),
        ("kafka://k1:9092", "alerts"),
        ("kafka://k1:9092", "copies"),
    ]
    assert set(orders.facets) == {"schema", "columnLineage"} and not orders.outputFacets
    facet = given["additional_run_facets"][FACET]
    assert (facet.pipeline, facet.last, facet.mode, facet.epoch, facet.attempt) == (PIPELINE, one, "EXACTLY_ONCE", 1, 4)
    assert facet.spec == shop.checkpoint(one).spec
    assert two not in vars(facet).values()


def test_a_catalog_that_is_away_does_not_end_a_stream(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [one] = shop.stage()
    shop.complete(one)

    def away(**_: Any) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr("airflow_ft.operators.openlineage.emit_dataset_lineage", away)
    operator = StreamingPipelineOperator(task_id="t", spec=spec(streaming=True))
    emit_running(operator, SimpleNamespace(dag_id=RUN.dag_id, run_id=RUN.run_id, map_index=-1), one)
    assert "could not report checkpoint 1 to OpenLineage: ConnectionError: nobody answers" in caplog.text


def test_it_is_told_of_the_first_checkpoint_and_of_one_a_minute(shop: Shop) -> None:
    numbers: Queue[int] = Queue()
    now = [1000.0]
    may_end = Event()

    def add(number: int) -> None:
        numbers.put(number)
        if number == 4:
            may_end.wait(30)

    shop.store.meter = counters = ReportingCounters(add, clock=lambda: now[0])

    def confirmed_after(seconds: float) -> None:
        now[0] += seconds
        [number] = shop.stage(continues=True)
        shop.complete(number)

    def idle() -> None:
        assert counters.reporting is not None
        counters.reporting.result(30)

    confirmed_after(0)
    idle()
    confirmed_after(1)
    confirmed_after(58.9)
    confirmed_after(0.1)  # the fourth, a minute after the first; the catalog takes long to answer
    confirmed_after(61)
    may_end.set()
    idle()
    confirmed_after(1)
    idle()
    assert [numbers.get_nowait() for _ in range(numbers.qsize())] == [1, 4, 6]


@pytest.mark.parametrize("is_active", [True, False])
def test_a_stream_is_heard_where_the_provider_is_set_up(
    is_active: bool, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow.providers.openlineage.api.is_openlineage_active", lambda: is_active)
    before = shop.store.meter
    report_lineage(None, SimpleNamespace(store=shop.store), None)  # type: ignore[arg-type]
    assert isinstance(shop.store.meter, ReportingCounters) if is_active else shop.store.meter is before


def test_a_provider_that_cannot_be_asked_does_not_end_a_stream(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", "no JSON")
    report_lineage(None, SimpleNamespace(store=shop.store), None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.api", None)  # as an older one has none
    report_lineage(None, SimpleNamespace(store=shop.store), None)  # type: ignore[arg-type]
    assert [record.getMessage().partition(": ")[0] for record in caplog.records] == [
        "could not report this stream to OpenLineage"
    ] * 2
    assert not isinstance(shop.store.meter, ReportingCounters)


def test_a_checkpoint_is_confirmed_even_if_no_thread_can_start(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    [number] = shop.stage()
    monkeypatch.setattr(Thread, "start", none_left)
    shop.store.meter = ReportingCounters(lambda number: None)
    assert shop.complete(number).is_confirmed
    assert f"could not report checkpoint {number} to OpenLineage: can't start new thread" in caplog.text
