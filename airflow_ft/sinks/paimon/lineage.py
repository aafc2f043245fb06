"""What the table of a sink is called in lineage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.datasets import Dataset, folder


def dataset(settings: Mapping[str, Any], _: ConnectionInfo) -> Dataset:
    """`file`, `/warehouse/shop.db/orders`."""
    return folder(settings["table"])


def place(settings: Mapping[str, Any], _: ConnectionInfo) -> str:
    """Return one text for one table: its real folder, with links resolved."""
    return os.path.realpath(folder(settings["table"]).name)
