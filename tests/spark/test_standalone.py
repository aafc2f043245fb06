"""Masters of a standalone cluster: their addresses, and what is said when none answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.errors import ConfigurationError, StageError
from airflow_ft.spark.session.masters import addresses, is_standalone, require_master
from airflow_ft.spark.task.doctor import examine_spark
from tests.raising import raises
from tools.servers.processes import free_port


@pytest.fixture
def listening() -> Iterator[str]:
    """The address of something that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_its_addresses() -> None:
    assert addresses("spark://a:7077") == [("a", 7077)]
    assert addresses("spark://a:7077,b:7078") == [("a", 7077), ("b", 7078)]
    assert addresses("spark://[::1]:7077") == [("::1", 7077)]
    assert is_standalone("spark://a:7077") and not any(map(is_standalone, ("", "local[2]", "yarn", "k8s://a:1")))


@pytest.mark.parametrize("master", ["spark://", "spark://a", "spark://a:", "spark://a:port", "spark://a:7077,"])
def test_a_master_without_host_and_port_is_refused(master: str) -> None:
    with raises(ConfigurationError, "master_invalid", argument="spark_master"):
        addresses(master)


def test_one_of_several_masters_is_enough(listening: str) -> None:
    assert require_master(f"spark://127.0.0.1:{free_port()},{listening}") == listening


def test_masters_that_are_away_are_named_at_once() -> None:
    away = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    with raises(StageError, "server_unreachable", servers=away, pipeline="orders"):
        require_master(f"spark://{','.join(away)}", "orders")


def test_doctor_asks_the_master(listening: str) -> None:
    def verdict(master: str) -> Verdict:
        [check] = [each for each in examine_spark(master, ()) if each.name == "master"]
        return check.verdict

    assert verdict(f"spark://{listening}") is Verdict.OK
    assert verdict(f"spark://127.0.0.1:{free_port()}") is Verdict.PROBLEM
