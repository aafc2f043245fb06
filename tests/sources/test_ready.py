"""Brokers of which none accepts a connection are told before Spark is started; whatever else is left to Spark."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline import ready
from airflow_ft.pipeline.dry_run import rehearse
from airflow_ft.pipeline.resolved import resolve, spark_settings
from airflow_ft.pipeline.spec import PipelineSpec
from airflow_ft.protocol.connections import ConnectionInfo, ConnectionResolver
from airflow_ft.protocol.errors import StageError
from airflow_ft.sinks.sqlite.spec import SqliteSink
from airflow_ft.sources import FileSource, KafkaSource, Source
from tests.raising import raises
from tools.servers.processes import free_port


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def declared(sources: dict[str, Source], folder: Path) -> PipelineSpec:
    sinks = {"orders": SqliteSink(table="orders")}
    return PipelineSpec(pipeline="shop", job="jobs.orders", sources=sources, sinks=sinks, wal_root=str(folder / "wal"))


def connections(**servers: str) -> ConnectionResolver:
    def resolve(conn_id: str) -> ConnectionInfo:
        return ConnectionInfo(conn_id, "kafka", password="sesame", extra={"bootstrap.servers": servers[conn_id]})

    return resolve


def test_all_unreachable_brokers_are_one_error_even_in_a_dry_run(tmp_path: Path, listening: str) -> None:
    closed = f"127.0.0.1:{free_port()}"
    found = connections(here=listening, away=f"{closed}, SASL_SSL://[::1]:1", lost="no-such-host.invalid:9092")
    sources: dict[str, Source] = {
        "files": FileSource(path=str(tmp_path), schema="id bigint"),
        "clicks": KafkaSource(topics=["clicks"], conn_id="here"),
        "orders": KafkaSource(topics=["orders"], conn_id="away"),
        "returns": KafkaSource(topics=["returns"], conn_id="away"),
        "stock": KafkaSource(topics=["stock"], conn_id="lost"),
    }
    spec = declared(sources, tmp_path)
    codes = ["server_unreachable"] * 2
    with raises(StageError, "server_unreachable", pipeline="shop", codes=codes) as caught:
        ready.require_sources("shop", spec.sources, found, spark_settings(spec))
    text = f"{caught.error}"
    for words in (
        "'away'",
        f"'orders', 'returns' can be reached: {closed}: Connection refused;",
        "'lost'",
        "'stock' can be reached: no-such-host.invalid:9092: ",
        "host and port of connection 'away', or its bootstrap.servers",
    ):
        assert words in text, text
    assert "sesame" not in text and "clicks" not in text
    with raises(StageError, "server_unreachable", codes=codes):
        rehearse(resolve(spec), found)


@pytest.mark.parametrize("servers", ["127.0.0.1:1,{}", "PLAINTEXT://{}", "127.0.0.1:1,broker"])
def test_one_that_can_be_reached_or_may_be_is_enough(tmp_path: Path, listening: str, servers: str) -> None:
    found = connections(here=servers.format(listening))
    spec = declared({"orders": KafkaSource(topics=["orders"], conn_id="here")}, tmp_path)
    ready.require_sources("shop", spec.sources, found, spark_settings(spec))


@pytest.mark.parametrize(
    ("path", "settings", "is_refused"),
    [
        *(("stokc", {}, True), ("stokc", {"spark_master": "local[2]"}, True), ("stock", {}, False)),
        *(("sto*", {}, False), ("stokc", {"spark_master": "yarn"}, False)),
        ("stokc", {"spark_conf": {"spark.hadoop.fs.defaultFS": "hdfs://name:1"}}, False),
    ],
)
def test_a_missing_local_folder_is_refused_before_spark(
    tmp_path: Path, path: str, settings: dict[str, Any], is_refused: bool
) -> None:
    (tmp_path / "stock").mkdir()
    sources: dict[str, Source] = {"files": FileSource(path=f"{tmp_path}/{path}", schema="id bigint")}
    spec = replace(declared(sources, tmp_path), **settings)
    if not is_refused:
        return ready.require_sources("shop", spec.sources, connections(), spark_settings(spec))
    with raises(StageError, "folder_missing", source="files", path=f"file:{tmp_path}/stokc") as caught:
        ready.require_sources("shop", spec.sources, connections(), spark_settings(spec))
    assert caught.error is not None and f"Did you mean '{tmp_path}/stock'?" in caught.error.remedy


def test_spark_defaults_switch_off_the_check_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.master yarn\n", encoding="utf-8")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    spec = declared({"files": FileSource(path=f"{tmp_path}/stokc", schema="id bigint")}, tmp_path)
    ready.require_sources("shop", spec.sources, connections(), spark_settings(spec))
