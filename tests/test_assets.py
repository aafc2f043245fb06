"""The asset of a pipeline, as Airflow checks and compares it."""

from __future__ import annotations

import pytest
from airflow.sdk import Asset

from airflow_ft import pipeline_asset
from airflow_ft.core.errors import ConfigurationError

pytestmark = pytest.mark.airflow


def test_it_equals_what_a_dag_author_writes() -> None:
    assert pipeline_asset("orders") == Asset("airflow-ft://orders") == Asset("airflow-ft://orders")
    assert pipeline_asset("orders") != pipeline_asset("other")


def test_a_name_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        pipeline_asset("No Such Name")


@pytest.mark.parametrize("uri", ["airflow-ft://orders/1", "airflow-ft://orders?number=1", "airflow-ft://No_Such/"])
def test_a_uri_that_names_no_pipeline_is_refused_when_the_dag_is_parsed(uri: str) -> None:
    with pytest.raises(ValueError, match="pipeline"):
        Asset(uri)
