"""A process that appends to a table of Iceberg by pyiceberg alone. See `workers`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from benchmarks.workers import serve


def append(source: str, properties: Mapping[str, str]) -> Mapping[str, Any]:
    """Appends the rows of a Parquet file to `shop.orders` of a catalog."""
    import pyarrow.parquet as pq
    from pyiceberg.catalog import load_catalog

    began = time.monotonic()
    with closing(load_catalog("lake", **properties)) as catalog:
        catalog.load_table("shop.orders").append(pq.read_table(source))
    return {"seconds": time.monotonic() - began}


if __name__ == "__main__":
    serve({"append": append})
