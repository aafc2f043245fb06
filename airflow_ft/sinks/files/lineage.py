"""What the folder of a sink is called in lineage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, folder


def dataset(settings: Mapping[str, Any], _: ConnectionInfo) -> Dataset:
    """`file`, `/data/orders`; or `s3://bucket`, `orders`."""
    return folder(settings["folder"])
