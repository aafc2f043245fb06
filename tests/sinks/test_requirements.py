"""Which requirements the preflight asks for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError, UnfitTargetError
from airflow_ft.protocol.model import ParticipantPlan, Promise
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base.requirements import Finding, Requirement, lacks


def failing(error: Exception) -> Callable[[], Finding]:
    def look() -> Finding:
        raise error

    return look


def codes(*given: tuple[str, str, type[SinkUnavailableError | UnfitTargetError]]) -> list[str]:
    def required() -> Generator[Requirement]:
        for sink, code, kind in given:
            yield Requirement(code, failing(kind("it is so.", code=code, remedy="Wait.")), sink)

    return [problem.code for problem in lacks(required())]


def test_a_busy_table_hides_no_problem_of_another() -> None:
    missing = ("b", "table_missing", UnfitTargetError)
    assert codes(("a", "table_busy", SinkUnavailableError), missing) == ["table_busy", "table_missing"]


def test_requirements_may_be_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [Requirement(name, failing(UnfitTargetError("it is so.", code=name, remedy="Wait."))) for name in "ab"]
    assert [problem.code for problem in lacks(needed)] == ["a", "b"]
    system = SimpleNamespace(
        part=lambda name: SimpleNamespace(required=lambda *_: needed) if name == "requirements" else None,
        called=lambda plan: plan.name,
    )
    monkeypatch.setattr(doctor, "system", lambda kind: system)
    plan = ParticipantPlan("shop", "shelf", "local", Promise.ATOMIC, 0, {"rows": {}})
    checks = doctor.examine("orders", plan, ConnectionInfo("shop", ""), [])
    assert [check.name for check in checks] == ["a", "b"]


def test_a_server_that_is_away_is_asked_once() -> None:
    missing = ("b", "table_missing", UnfitTargetError)
    for away in (("", "limit_reached", SinkUnavailableError), ("a", "server_unreachable", SinkUnavailableError)):
        assert codes(away, missing) == [away[1]]
