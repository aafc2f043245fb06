"""What the table of a sink is called in lineage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, folder


def dataset(settings: Mapping[str, Any], _: ConnectionInfo) -> Dataset:
    """`file`, `/data/orders`; or `s3://bucket`, `orders`."""
    return folder(settings["table"])


def place(settings: Mapping[str, Any], _: ConnectionInfo) -> str:
    """Return one text for one table: on disk its real folder, with links resolved."""
    found = folder(settings["table"])
    return os.path.realpath(found.name) if found.namespace == "file" else found.uri
