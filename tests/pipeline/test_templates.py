"""Specifications with Jinja, taken apart and put together again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_ft.pipeline.templates import declared, is_template, plain, rebuild
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.sources import FileSource, KafkaSource, Source
from tests.raising import raises


def render(value: Any) -> Any:
    """What Airflow does, for the one variable {{ x }}."""
    if isinstance(value, str):
        return value.replace("{{ x }}", "rendered")
    if isinstance(value, dict):
        return {key: render(item) for key, item in value.items()}
    return [render(item) for item in value] if isinstance(value, list) else value


def test_jinja_is_recognised() -> None:
    assert is_template("a{{ b }}") and is_template("{% if a %}b{% endif %}")
    assert not is_template("a{b}") and not is_template(3)


@pytest.mark.parametrize(
    "spec",
    [
        MySqlSink(table="shop.{{ x }}"),
        MySqlSink(table="orders", ledger_schema="{{ x }}"),
        KafkaSink(topic="{{ x }}", key="key"),
        KafkaSink(topic="alerts", value="body"),
        KafkaSource(topics=["{{ x }}", "other"], max_offsets_per_trigger=3),
        KafkaSource(topics=["t"], starting_offsets={"t": {0: -2}}),
        FileSource(path="/data/{{ x }}", schema="id bigint", options={"lineSep": "{{ x }}"}),
    ],
)
def test_a_rendered_specification_differs_only_in_its_templates(spec: Any) -> None:
    fields = plain(spec)
    [again] = rebuild({"name": spec}, {"name": render(fields)}).values()
    assert plain(again) == render(fields)
    again.settings() if hasattr(again, "settings") else again.to_json()


def test_what_rendering_made_invalid_is_refused_by_name() -> None:
    fields = plain(MySqlSink(table="{{ x }}"))
    with pytest.raises(ConfigurationError) as caught:
        rebuild({"orders": MySqlSink(table="{{ x }}")}, {"orders": {**fields, "table": "a.b.c"}})
    assert caught.value.sink == "orders"
    with raises(ConfigurationError, "template_not_rendered", sink="orders", value="{{ x }}"):
        rebuild({"orders": MySqlSink(table="{{ x }}")}, {"orders": fields})


@pytest.mark.parametrize(
    ("spec", "name", "given"),
    [
        (MySqlSink(table="shop.{{ x }}"), "table", "shop.None"),
        (MySqlSink(table="{{ x }}"), "table", None),  # with render_template_as_native_obj
        (KafkaSink(topic="{{ x }}"), "topic", "None"),
        (KafkaSource(topics=["orders", "{{ x }}"]), "topics", ["orders", "None"]),
        (FileSource(path="/data/{{ x }}/{{ y }}", schema="id bigint"), "path", "/data/None/None"),
        (FileSource(path="/data/{{ x }}/{{ y }}", schema="id bigint"), "path", "/data/eu/None"),
        (FileSource(path="/data/{{ x }}/{{ y }}", schema="id bigint"), "path", "/data/None/eu"),
        (FileSource(path="/data/{{ x }}/{{ y }}/z", schema="id bigint"), "path", "/data/eu/None/z"),
        (FileSource(path="/data/{{ x }}/{{ y }}", schema="id bigint"), "path", "/data/eu/west/None"),
        (MySqlSink(table="{{ x }}{{ y }}"), "table", "NoneNone"),
    ],
)
def test_what_jinja_makes_of_nothing_is_refused(spec: Any, name: str, given: Any) -> None:
    """A table called None is nobody's wish, and rows that lie in it are not looked for there."""
    with raises(ConfigurationError, "template_without_value", sink="orders", argument=name) as caught:
        rebuild({"orders": spec}, {"orders": {**plain(spec), name: given}})
    assert caught.error and "None" in caught.error.fields["value"] and caught.error.remedy


def test_what_need_not_be_given_may_be_nothing() -> None:
    source = FileSource(path="/data", schema="id bigint", max_files_per_trigger="{{ x }}")
    [again] = rebuild({"s": source}, {"s": {**plain(source), "max_files_per_trigger": "None"}}).values()
    assert again.max_files_per_trigger is None
    named = FileSource(path="/None/{{ x }}", schema="id bigint")
    assert rebuild({"s": named}, {"s": {**plain(named), "path": "/None/a"}})["s"].path == "/None/a"


def test_a_source_is_told_as_one() -> None:
    declared = {"orders": KafkaSource(topics=["t"], starting_offsets="{{ x }}")}
    with pytest.raises(ConfigurationError) as caught:
        rebuild(declared, {"orders": {**plain(declared["orders"]), "starting_offsets": "yesterday"}}, kind="source")
    assert caught.value.fields["source"] == "orders" and not caught.value.sink
    assert caught.value.headline.startswith("source 'orders': ") and "'yesterday'" in caught.value.headline


def test_a_nested_template_that_was_not_rendered_is_found() -> None:
    @dataclass(frozen=True)
    class Spec:
        options: dict[str, Any] = field(default_factory=dict)

    with raises(ConfigurationError, "template_not_rendered", value="{{ c }}"):
        rebuild({"s": Spec()}, {"s": {"options": {"a": ["b", "{{ c }}"]}}})


def test_sinks_are_planned_before_their_settings_are_known() -> None:
    [sink] = declared({"orders": MySqlSink(table="{{ x }}", conn_id="shop")}).values()
    assert (sink.conn_id, sink.kind, sink.strategy, dict(sink.settings())) == ("shop", "mysql", "local", {})


def test_sources_are_rebuilt_as_what_they_were() -> None:
    sources: dict[str, Source] = {"a": KafkaSource(topics=["t"]), "b": FileSource(path="/p", schema="id bigint")}
    assert rebuild(sources, {name: plain(source) for name, source in sources.items()}) == sources
