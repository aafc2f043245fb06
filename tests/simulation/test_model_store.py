"""The model of the decision log says what the real one says: the same schedules over both, call by call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

import pytest

from airflow_ft.protocol.pipelines import Event
from tests.simulation.adapters import Running
from tests.simulation.explore import play, rolling
from tests.simulation.kernel import Line
from tests.simulation.model_reading import TOLD
from tests.simulation.mysql_state import Connection
from tests.simulation.prepared_server import Session
from tests.simulation.scenarios import ALL
from tests.simulation.world import Scenario

SCHEDULES = 3  # a scenario


def plain(value: object) -> object:
    """What an answer says, whatever the order of its parts; times are only there or not, errors only of a kind."""
    if isinstance(value, Exception):
        return type(value).__name__
    if isinstance(value, datetime):
        return "a time"
    if isinstance(value, Connection):
        return value.id
    if isinstance(value, Session):
        return value.label
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name != "owner"}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list) and value and all(isinstance(part, Event) for part in value):
        told = [(part.number, part.kind, *map(part.detail.get, TOLD[part.kind])) for part in value if part.kind in TOLD]
        return {part.number for part in value}, told
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def outcome_of(line: Line) -> tuple[Any, ...]:
    if line.what.startswith("log "):  # the token holds the time of writing
        return (line.process, line.call, line.what)
    return (line.process, line.call, line.what, plain(line.answer))


@pytest.mark.sampled
@pytest.mark.parametrize("scenario", ALL, ids=lambda scenario: scenario.name)
def test_the_model_and_the_real_log_tell_the_same_story(running: Running, scenario: Scenario) -> None:
    for seed in range(SCHEDULES):
        real = play(scenario, rolling(scenario, seed), running, tracing=True, real_store=True)
        model = play(scenario, rolling(scenario, seed), running, tracing=True)
        for number, (one, other) in enumerate(zip(real.story, model.story, strict=False)):
            assert outcome_of(one) == outcome_of(other), f"seed {seed}, line {number}"
        assert len(real.story) == len(model.story)
        assert str(real.violation) == str(model.violation)
