from __future__ import annotations

from typing import Any

import pytest

from airflow_ft.pipeline.spark_connection import spark_master
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import ConfigurationError
from tests.raising import raises


def connections(**fields: Any) -> Any:
    return lambda conn_id: ConnectionInfo(conn_id=conn_id, conn_type="spark", **fields)


@pytest.mark.parametrize("master", ["", "local[4]", "yarn", "spark://master:7077"])
def test_a_master_is_taken_as_it_is(master: str) -> None:
    assert spark_master(master) == master


@pytest.mark.parametrize(
    ("fields", "master"),
    [
        ({"host": "spark://master", "port": 7077}, "spark://master:7077"),
        ({"host": "master", "port": 7077}, "spark://master:7077"),
        ({"host": "yarn"}, "yarn"),
        ({"host": "local[2]"}, "local[2]"),
        (
            {"host": "k8s://https://cluster", "port": 6443, "extra": {"deploy-mode": "client"}},
            "k8s://https://cluster:6443",
        ),
    ],
)
def test_a_connection_names_the_master(fields: dict[str, Any], master: str) -> None:
    assert spark_master("conn:spark_default", connections(**fields)) == master


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [({"host": "yarn", "extra": {"deploy-mode": "cluster"}}, "extra"), ({}, "host")],
)
def test_a_connection_that_cannot_be_used_is_refused_by_name(fields: dict[str, Any], wrong: str) -> None:
    with raises(ConfigurationError, "connection_invalid", participant="spark_default", fields=[wrong]):
        spark_master("conn:spark_default", connections(**fields))
