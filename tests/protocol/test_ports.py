"""The interfaces of the decision log stay narrow (docs/architecture.md)."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from types import ModuleType

import pytest

from airflow_ft.protocol import decision_log, delivery_log
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.roots import RootLog

MOST = 25


def _classes(module: ModuleType) -> list[type]:
    return [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]


def _public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


PORTS = [*_classes(decision_log), *_classes(delivery_log), RootLog]


@pytest.mark.parametrize("port", PORTS)
def test_a_port_is_narrow(port: type) -> None:
    assert 0 < len(_public(vars(port))) <= MOST
    assert _public(vars(port)) <= _public(dir(DecisionLog))


def test_each_method_is_declared_by_one_port() -> None:
    declared = Counter(name for port in PORTS for name in _public(vars(port)))
    assert [name for name, ports in declared.items() if ports > 1] == []


@pytest.mark.parametrize("area", DecisionLog.__bases__)
def test_an_area_of_the_store_is_narrow(area: type) -> None:
    assert len(_public(dir(area))) <= MOST
