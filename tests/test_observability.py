"""Metrics as docs/observability.md lists them; dashboard, alerts and mapping name only what is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from airflow_ft.pipeline.metrics import METRICS, PREFIX, Counters, Kind, emit
from airflow_ft.protocol.delivery_progress import Taken
from airflow_ft.protocol.lag import Unit
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.reasons import AbortReason, WaitReason
from airflow_ft.protocol.sweep import Health
from airflow_ft.protocol.timing import Timing
from airflow_ft.store.sqlite import SqliteStore
from tests.store.scene import Scene

DOCS = Path(__file__).resolve().parents[1] / "docs"
FILES = DOCS / "observability"
PAGE = (DOCS / "observability.md").read_text()
SUFFIXES = {
    Kind.COUNTER: ("_total",),
    Kind.GAUGE: ("",),
    Kind.TIMER: ("_milliseconds_bucket", "_milliseconds_sum", "_milliseconds_count", "_milliseconds"),
}


def exported(name: str) -> tuple[str, ...]:
    """What Prometheus calls a metric that OpenTelemetry gives it."""
    return tuple(f"airflow_{PREFIX}_{name}{suffix}" for suffix in SUFFIXES[METRICS[name].kind])


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, dict[str, str] | None]]:
    """Kind, name and tags of all that is sent."""
    from airflow.sdk.observability import stats

    found: list[tuple[str, str, dict[str, str] | None]] = []
    for method, kind in (("incr", Kind.COUNTER), ("gauge", Kind.GAUGE), ("timing", Kind.TIMER)):
        monkeypatch.setattr(stats, method, lambda name, _, tags, kind=kind: found.append((kind, name, tags)))
    return found


def send_all() -> None:
    """Whatever there is to send, of one pipeline."""
    none, meter = timedelta(0), Counters()
    emit(Health("shop", none, none, none, 0, ""))
    meter.failed("shop", AbortReason.EXPIRED)
    meter.confirmed("shop", 1)
    began = datetime(2026, 1, 1, tzinfo=UTC)
    meter.completed("shop", Timing(1, CheckpointState.COMPLETED, None, 1, 1, began, began, began, began, began))
    meter.waited("shop", WaitReason.MIN_PAUSE, 1.0)
    meter.state("shop", 1, 1, 1)
    meter.taken("shop", Taken("shop", 1, "db", "table", 1, 1))
    meter.dead_letters("shop", "table", 1)
    for unit in Unit:
        meter.lag("shop", "topic", unit, 1)


def test_every_metric_is_sent_with_tags_and_under_a_plain_name(sent: list[tuple[str, str, Any]]) -> None:
    send_all()
    tagged = {name.removeprefix(f"{PREFIX}."): (kind, tags) for kind, name, tags in sent if tags}
    assert {name: (kind, tuple(tags)) for name, (kind, tags) in tagged.items()} == {
        name: (metric.kind, ("pipeline", *metric.tags)) for name, metric in METRICS.items()
    }
    plain = {name for _, name, tags in sent if not tags}
    assert plain == {".".join((PREFIX, name, *tags.values())) for name, (_, tags) in tagged.items()}


def test_a_write_succeeds_when_metrics_cannot_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client of one's own (`[metrics] statsd_custom_client_path`) may raise when its server is away, and so does
    Airflow where one cannot be made. What was committed would look like a failure.
    """
    from airflow.sdk.observability import stats

    def away(*_: object, **__: object) -> None:
        raise BrokenPipeError("the metrics' server is away.")

    for method in ("incr", "gauge", "timing"):
        monkeypatch.setattr(stats, method, away)
    with SqliteStore(tmp_path / "ft.db") as store:
        store.meter = Counters()
        scene = Scene(store)
        scene.take()
        for number in scene.stage(2):
            assert scene.complete(number).is_confirmed
    send_all()
    messages = [record for record in caplog.records if "the metrics' server is away" in record.getMessage()]
    assert len(messages) == 1, "once, and not with each checkpoint"


def test_the_page_lists_them_all_as_they_are() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for line in PAGE.splitlines()
        if line.startswith(f"| `{PREFIX}.")
    ]
    documented = {row[0].strip("`").removeprefix(f"{PREFIX}."): tuple(row[1:4]) for row in rows}
    assert documented == {
        name: (metric.kind.value, metric.unit, " ".join(f"`{tag}`" for tag in metric.tags))
        for name, metric in METRICS.items()
    }
    assert all(len(row) == 7 and all(row[4:]) for row in rows), "what it tells, when it is sent, Flink's name or '-'"


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard and of the rules, with the words that are shown for it."""
    board = json.loads((FILES / "grafana.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"], ""
    for group in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"] and rule["annotations"]["description"]
            yield rule["expr"], " ".join(rule["annotations"].values())


def test_dashboard_and_rules_name_what_is_sent_with_its_tags() -> None:
    known = {each: name for name in METRICS for each in exported(name)}
    used = set()
    for expression, words in expressions():
        named = re.findall(r"\bairflow_\w+", expression)
        assert named and set(named) <= set(known), expression
        used |= {known[each] for each in named}
        tags = {"pipeline", "le"}.union(*(METRICS[known[each]].tags for each in named))
        grouped = {tag.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for tag in by.split(",")}
        filtered = set(re.findall(r"[{,]\s*(\w+)\s*[=!]", expression))
        shown = set(re.findall(r"{{\s*(?:\$labels\.)?(\w+)\s*}}", words))
        assert grouped | filtered | shown <= tags, expression
        assert shown <= grouped, f"{expression} does not keep what its words show"
    assert {"halted", "quarantined", "late", "failed", "undelivered_bytes"} <= used


def test_the_reasons_that_an_alert_passes_over_exist() -> None:
    [listed] = re.findall(r'reason!~"([^"]+)"', (FILES / "alerts.yml").read_text())
    assert set(listed.split("|")) < set(AbortReason)


def test_the_mapping_makes_the_same_names_of_plain_statsd(sent: list[tuple[str, str, Any]]) -> None:
    send_all()
    mappings = yaml.safe_load((FILES / "statsd-mapping.yml").read_text())["mappings"]

    def filled(text: str, match: re.Match[str]) -> str:
        return re.sub(r"\$\{?(\d)\}?", lambda group: match[int(group[1])], text)

    def mapped(name: str) -> tuple[str, dict[str, str]]:
        for each in mappings:
            if match := re.fullmatch(each["match"], f"airflow.{name}"):
                labels = {tag: filled(value, match) for tag, value in each.get("labels", {}).items()}
                return filled(each["name"], match), labels
        raise AssertionError(f"{name} is not mapped")

    for kind, name, tags in sent:
        if tags:
            assert mapped(name) == ("dropped", {}), "it mixes all pipelines"
            plain = ".".join((name, *tags.values()))
            family, labels = mapped(plain)
            assert labels == tags
            suffix = "_bucket" if kind is Kind.TIMER else ""
            assert f"{family}{suffix}" == exported(name.removeprefix(f"{PREFIX}."))[0]
