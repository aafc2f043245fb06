"""Handing records to a producer."""

from __future__ import annotations

from typing import Any

from airflow_ft.sinks.kafka.sending import named


def test_headers_are_given_by_name() -> None:
    """Programs for tracing wrap `produce`, and look for `headers` among the named arguments."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    named(lambda *given, **names: calls.append((given, names)))("orders", b"v", b"k", 1, "done", 5, {"a": b"1"})
    assert calls == [(("orders", b"v", b"k", 1, "done"), {"timestamp": 5, "headers": {"a": b"1"}})]
