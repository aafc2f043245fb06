"""What a sink of a table format gets from its base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import Promise
from airflow_ft.sinks.base.places import check_sink
from airflow_ft.sinks.base.table_sink import TableSink
from tests.raising import raises


@dataclass(frozen=True, slots=True, kw_only=True)
class SlateSink(TableSink):
    table: str
    name: str = ""

    kind: ClassVar[str] = "slate"
    strategy: ClassVar[str] = "commit"
    promise: ClassVar[Promise] = Promise.ATOMIC

    def __post_init__(self) -> None:
        self._check_types()
        check_sink(self, "table", "orders")


def test_a_table_and_a_name_are_enough() -> None:
    sink = SlateSink(table="/data/orders")
    assert (sink.participant, sink.create, sink.partition_by) == ("slate-data-orders", True, ())
    assert sink.settings() == {"table": "/data/orders"}
    assert SlateSink.from_settings("", sink.settings()) == sink
    with raises(ConfigurationError, "newer_release", settings=["partition_by"]):
        SlateSink.from_settings("", {**sink.settings(), "partition_by": []})
