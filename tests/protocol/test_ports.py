"""The interfaces of the decision log stay narrow (docs/architecture.md)."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from airflow_ft.protocol import decision_log, delivery_log
from airflow_ft.protocol.delivery_log import RecoveryLog, ResolutionLog, StepLog
from airflow_ft.store.decision_log import DecisionLog

MOST = 25
SUMS = (RecoveryLog, ResolutionLog, StepLog)


def _classes(module: ModuleType) -> list[type]:
    return [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]


def _public(found: dict[str, object] | list[str]) -> set[str]:
    return {name for name in found if not name.startswith("_")}


@pytest.mark.parametrize("port", [*_classes(decision_log), *_classes(delivery_log)])
def test_a_port_is_narrow(port: type) -> None:
    assert len(_public(dir(port))) <= MOST or (port in SUMS and len(_public(dict(vars(port)))) <= 3)
    assert _public(dir(port)) <= _public(dir(DecisionLog))


@pytest.mark.parametrize("area", DecisionLog.__bases__)
def test_an_area_of_the_store_is_narrow(area: type) -> None:
    assert len(_public(dir(area))) <= MOST
