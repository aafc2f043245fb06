"""What a DAG author may write for a folder, and how its participant is called."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_ft import FilesSink, SqliteSink
from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import Promise
from airflow_ft.core.planning import participant_name, plan_delivery
from airflow_ft.core.ports import SinkSpec
from airflow_ft.sinks import open_participant, registry
from airflow_ft.templates import declared, rebuild
from airflow_ft.wal import open_wal


def test_a_folder_is_enough() -> None:
    sink: SinkSpec = FilesSink(folder="/data/orders")
    assert (sink.kind, sink.conn_id, sink.strategy, sink.promise) == ("files", "", "rename", Promise.TWO_PHASE)
    assert participant_name(sink) == "files-data-orders" and sink.at_least_once() is Promise.REDO
    assert FilesSink.from_settings("files-data-orders", sink.settings()).settings() == sink.settings()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"folder": "orders"}, "no folder to deliver into"),
        ({"folder": "gs://bucket/orders"}, "others are not supported yet"),
        ({"folder": "/"}, "root of a file system"),
        ({"folder": "hdfs://namenode:8020"}, "root of a file system"),
        ({"folder": "/data/x/../orders"}, "two spellings of one place"),
        ({"folder": "/data/./orders"}, "two spellings of one place"),
        ({"folder": "s3://bucket"}, "root of a file system"),
        ({"folder": 7}, "folder"),
        ({"format": "orc"}, "choose one of parquet, csv, json"),
        ({"compression": "lzo"}, "parquet cannot be compressed by 'lzo'"),
        ({"format": "csv", "compression": "snappy"}, "csv cannot be compressed by 'snappy'"),
        ({"partition_by": "country"}, "give a list"),
        ({"partition_by": ["a", "a"]}, "name each column once"),
        ({"partition_by": ["_a"]}, "readers pass folders by that begin so"),
        ({"file_bytes": 0}, "file_bytes of FilesSink is 0"),
        ({"file_bytes": "1 MB"}, "give a number of bytes"),
        ({"success_file": "yes"}, "give True or False"),
        ({"name": "my files"}, "letters, digits"),
        ({"name": "{{ ds }}"}, "tasks are named by it"),
        ({"folder": "/data/{{ ds }}"}, 'give it a name: name="files"'),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        FilesSink(**{"folder": "/data/orders", **settings})


def test_the_participant_is_called_after_its_folder_unless_it_has_a_name() -> None:
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
    with pytest.raises(ConfigurationError, match="still contains Jinja"):
        sinks["rows"].settings()
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
    with pytest.raises(ConfigurationError, match="'files-data-orders', and one of them has no connection"):
        plan_delivery({**sinks, "again": FilesSink(folder="/data/orders", format="csv")})
    with pytest.raises(ConfigurationError, match="called 'shop', and one of them has no connection"):
        plan_delivery({**sinks, "again": FilesSink(folder="/data/other", name="shop")})


def test_no_connection_is_asked_for() -> None:
    [planned] = plan_delivery({"rows": FilesSink(folder="/data/orders")}).participants
    opened = open_participant(planned, pytest.fail, open_wal())
    opened.close()
    assert registry.system("files").connection(planned, pytest.fail).conn_id == "files-data-orders"


def test_a_plan_of_a_newer_release_is_refused_by_name() -> None:
    settings = {**FilesSink(folder="/data/orders").settings(), "bloom_filters": True}
    with pytest.raises(ConfigurationError, match="settings that this release does not know: bloom_filters"):
        FilesSink.from_settings("lake", settings)
