"""What a DAG author may write for a folder, and how its participant is called."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_ft import DeltaSink, FilesSink, PaimonSink, SqliteSink
from airflow_ft.pipeline.templates import declared, rebuild
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.protocol.planning import participant_name, plan_delivery
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks import open_participant, registry
from airflow_ft.wal import open_wal
from tests.raising import raises


def test_a_folder_is_enough() -> None:
    sink: SinkSpec = FilesSink(folder="/data/orders")
    assert (sink.kind, sink.conn_id, sink.strategy, sink.promise) == ("files", "", "rename", Promise.TWO_PHASE)
    assert participant_name(sink) == "files-data-orders" and sink.at_least_once() is Promise.REDO
    assert FilesSink.from_settings("files-data-orders", sink.settings()).settings() == sink.settings()


@pytest.mark.parametrize(
    ("settings", "code", "argument"),
    [
        ({"folder": "orders"}, "path_invalid", "folder"),
        ({"folder": "gs://bucket/orders"}, "path_invalid", "folder"),
        ({"folder": "/"}, "path_invalid", "folder"),
        ({"folder": "hdfs://namenode:8020"}, "path_invalid", "folder"),
        ({"folder": "s3://bucket"}, "path_invalid", "folder"),
        ({"format": "orc"}, "argument_invalid", "format"),
        ({"compression": "lzo"}, "argument_invalid", "compression"),
        ({"format": "csv", "compression": "snappy"}, "argument_invalid", "compression"),
        ({"partition_by": ["_a"]}, "argument_invalid", "partition_by"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(settings: dict[str, Any], code: str, argument: str) -> None:
    with raises(ConfigurationError, code, argument=argument):
        FilesSink(**{"folder": "/data/orders", **settings})


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"folder": "/data/x/../orders"}, "folder"),
        ({"folder": "/data/./orders"}, "folder"),
        ({"folder": 7}, "folder"),
        ({"partition_by": "country"}, "partition_by"),
        ({"partition_by": ["a", "a"]}, "partition_by"),
        ({"file_bytes": 0}, "file_bytes"),
        ({"file_bytes": "1 MB"}, "file_bytes"),
        ({"success_file": "yes"}, "success_file"),
        ({"name": "my files"}, "my files"),
        ({"name": "{{ ds }}"}, "{{ ds }}"),
    ],
)
def test_what_each_sink_of_places_refuses_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FilesSink(**{"folder": "/data/orders", **settings})
    assert named in caught.value.headline


@pytest.mark.parametrize("scheme", ["gs", "s3a"])
def test_no_key_in_a_place_is_shown(scheme: str) -> None:
    place = f"{scheme}://AKIA1:hid/den@bucket/x"
    for refused in (
        lambda: FilesSink(folder=place),
        lambda: FilesSink(folder=f"{place}/../y"),
        lambda: DeltaSink(table=place),
        lambda: PaimonSink(table=place),
    ):
        with raises(ConfigurationError, "path_invalid") as caught:
            refused()
        assert caught.error is not None
        assert not re.search("AKIA1|den", f"{caught.error!r} {caught.error.args} {caught.error.fields}")


def test_a_stored_plan_for_s3_with_larger_files_opens() -> None:
    settings = {**FilesSink(folder="s3://bucket/orders").settings(), "file_bytes": 5 << 30}
    assert FilesSink.from_settings("lake", settings).file_bytes == 4 << 30
    with raises(ConfigurationError, "argument_invalid", argument="file_bytes"):
        FilesSink(**settings)


def test_a_folder_that_only_a_run_knows_needs_a_name() -> None:
    with pytest.raises(ConfigurationError) as caught:
        FilesSink(folder="/data/{{ ds }}")
    assert 'name="files"' in caught.value.remedy


def test_a_folder_gives_its_participant_a_name_by_default() -> None:
    names = {
        folder: FilesSink(folder=folder).participant
        for folder in ("/data/Orders", "file:///data/orders", "hdfs://namenode:8020/data/orders", f"/{'long/' * 20}")
    }
    assert list(names.values())[:3] == [
        "files-data-Orders", "files-data-orders", "files-hdfs-namenode-8020-data-orders",
    ]  # fmt: skip
    assert all(len(name) <= 60 for name in names.values()) and len(set(names.values())) == 4
    assert FilesSink(folder="/data/orders", name="lake").participant == "lake"


def test_jinja_is_rendered_and_the_name_stays() -> None:
    sinks: dict[str, SinkSpec] = {"rows": FilesSink(folder="/data/{{ params.day }}", name="lake", partition_by=["a"])}
    assert plan_delivery(declared(sinks)).names == ("lake",)
    with pytest.raises(ConfigurationError) as caught:
        sinks["rows"].settings()
    assert "{{ params.day }}" in caught.value.headline
    rendered = {"folder": "/data/1", "name": "lake", "partition_by": ["a"]}
    [planned] = plan_delivery(rebuild(sinks, {"rows": rendered})).participants
    assert planned.name == "lake" and planned.sinks["rows"]["folder"] == "/data/1"


def test_each_folder_is_a_participant_of_its_own() -> None:
    sinks: dict[str, SinkSpec] = {
        "orders": FilesSink(folder="/data/orders"),
        "alerts": FilesSink(folder="/data/alerts", format="json"),
        "table": SqliteSink(table="orders", conn_id="shop"),
    }
    delivery = plan_delivery(sinks)
    assert delivery.names == ("shop", "files-data-orders", "files-data-alerts") and delivery.commit_point == "shop"
    for twin, called in (
        (FilesSink(folder="/data/orders", format="csv"), "'files-data-orders'"),
        (FilesSink(folder="/data/other", name="shop"), "'shop'"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            plan_delivery({**sinks, "again": twin})
        assert called in caught.value.headline


def test_no_connection_is_asked_for() -> None:
    [planned] = plan_delivery({"rows": FilesSink(folder="/data/orders")}).participants
    opened = open_participant(planned, pytest.fail, open_wal())
    opened.close()
    assert registry.system("files").connection(planned, pytest.fail).conn_id == "files-data-orders"


def test_a_plan_of_a_newer_release_is_refused_by_name() -> None:
    settings = {**FilesSink(folder="/data/orders").settings(), "bloom_filters": True}
    with pytest.raises(ConfigurationError) as caught:
        FilesSink.from_settings("lake", settings)
    assert "bloom_filters" in caught.value.headline
