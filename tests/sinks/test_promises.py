"""What each sink promises is declared once: the page, the command and what DAG authors write say the same."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from airflow_ft import (
    CassandraSink,
    DeltaSink,
    FilesSink,
    HBaseSink,
    HiveSink,
    IcebergSink,
    KafkaSink,
    MySqlSink,
    PaimonSink,
    PostgresSink,
    RedisSink,
    SqliteSink,
)
from airflow_ft.admin.commands.installation import sinks
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.sinks.registry import own_systems

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sinks.md"
UPSERT = {"key_columns": ["id"], "version_column": "version"}
EXAMPLES: list[SinkSpec] = [
    CassandraSink(table="orders"),
    DeltaSink(table="/data/orders"),
    FilesSink(folder="/data/orders"),
    FilesSink(folder="s3://bucket/orders"),
    IcebergSink(table="lake.shop.orders"),
    HiveSink(table="metastore.shop.orders"),
    PaimonSink(table="/warehouse/shop.db/orders"),
    HBaseSink(table="orders", row_key="{id}", family="f"),
    KafkaSink(topic="orders"),
    KafkaSink(topic="orders", strategy="held"),
    MySqlSink(table="orders"),
    MySqlSink(table="orders", strategy="xa"),
    MySqlSink(table="orders", strategy="upsert", **UPSERT),  # type: ignore[arg-type]
    PostgresSink(table="orders"),
    PostgresSink(table="orders", strategy="prepared"),
    PostgresSink(table="orders", strategy="upsert", **UPSERT),  # type: ignore[arg-type]
    RedisSink(key="orders:{id}"),
    RedisSink(key="orders:{id}", strategy="atomic"),
    SqliteSink(table="orders"),
]


def test_the_page_has_what_is_declared() -> None:
    """Put these lines into the page when this fails."""
    wanted = [
        f"| {system.title} | `{name}` | {strategy.promise} | {strategy.enters} | {strategy.visible} |"
        for system in own_systems()
        for name, strategy in system.strategies.items()
    ]
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][2:]
    assert table[: len(wanted)] == wanted, "\n".join(wanted)


def test_what_an_author_writes_promises_what_is_declared() -> None:
    declared = {
        (system.kind, name): strategy.promise
        for system in own_systems()
        for name, strategy in system.strategies.items()
    }
    assert {(each.kind, each.strategy): each.promise for each in EXAMPLES} == declared
    defaults = {each.kind: each.strategy for each in reversed(EXAMPLES)}
    assert {system.kind: next(iter(system.strategies)) for system in own_systems()} == defaults


def test_the_command_lists_them_and_what_is_lacking(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_ft.sinks.registry.find_spec", lambda name: None if name == "psycopg2" else name)
    sinks(Namespace(output="json"))
    found = {(row["kind"], row["strategy"]): row for row in json.loads(capsys.readouterr().out)}
    assert found["mysql", "xa"]["promise"] == "TWO_PHASE" and found["mysql", "xa"]["installed"] == "yes"
    assert found["postgres", "local"]["installed"] == "pip install 'airflow-ft[postgres]'"
