"""What is kept of topics: never that one is lacking, nothing after an error, and limits not for long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ft.clients.kafka.topics import TopicLimits
from airflow_ft.sinks.kafka import known_topics
from airflow_ft.sinks.kafka.known_topics import LOOK_AGAIN_SECONDS, KnownTopics

THERE = TopicLimits("there", 1, 1, 1, 0, True)


class Brokers:
    """What they would say, and what they were asked."""

    def __init__(self) -> None:
        self.topics: dict[str, str] = {"there": "first"}
        self.asked: list[str] = []
        self.now = 100.0

    def describe(self, _: Any, names: Iterable[str]) -> Mapping[str, TopicLimits | None]:
        self.asked.append("limits")
        return {name: THERE if name in self.topics else None for name in names}

    def topic_ids(self, _: Any, names: Iterable[str]) -> Mapping[str, str | None]:
        self.asked.append("ids")
        return {name: self.topics.get(name) for name in names}


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers()
    monkeypatch.setattr(known_topics, "describe", made.describe)
    monkeypatch.setattr(known_topics, "topic_ids", made.topic_ids)
    monkeypatch.setattr(known_topics, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def known(brokers: Brokers) -> KnownTopics:
    return KnownTopics(None)  # type: ignore[arg-type]


def test_limits_are_asked_for_once_in_a_while(known: KnownTopics, brokers: Brokers) -> None:
    for _ in range(3):
        assert known.limits(["there"]) == {"there": THERE}
    assert brokers.asked == ["limits"]
    brokers.now += LOOK_AGAIN_SECONDS
    assert known.limits(["there"]) == {"there": THERE}
    assert brokers.asked == ["limits"] * 2


def test_ids_are_kept(known: KnownTopics, brokers: Brokers) -> None:
    assert known.ids(["there"]) == {"there": "first"}
    brokers.topics["there"] = "second"
    brokers.now += 10 * LOOK_AGAIN_SECONDS
    assert known.ids(["there"]) == {"there": "first"}
    assert brokers.asked == ["ids"]


def test_what_is_lacking_is_looked_for_each_time(known: KnownTopics, brokers: Brokers) -> None:
    for names in (["there", "lacking"], ["there", "lacking"]):
        assert known.limits(names)["lacking"] is None and known.ids(names)["lacking"] is None
    brokers.topics["lacking"] = "new"
    assert known.limits(["lacking"])["lacking"] is not None and known.ids(["lacking"]) == {"lacking": "new"}
    assert brokers.asked == ["limits", "ids"] * 3


def test_nothing_is_kept_after_an_error(known: KnownTopics, brokers: Brokers) -> None:
    with known.trusted():
        known.limits(["there"]), known.ids(["there"])
    with pytest.raises(RuntimeError), known.trusted():
        raise RuntimeError
    brokers.topics["there"] = "second"
    assert known.limits(["there"]) == {"there": THERE} and known.ids(["there"]) == {"there": "second"}
    assert brokers.asked == ["limits", "ids"] * 2
