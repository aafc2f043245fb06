"""Rows of a request, read by the Thrift library."""

from __future__ import annotations

from typing import Any

from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.transport import TMemoryBuffer

from airflow_ft.sinks.hbase.server import _API


def in_binary(row: bytes) -> Any:
    """Return a `BatchMutation` from its bytes in the binary protocol."""
    found = _API.BatchMutation()
    TBinaryProtocol(TMemoryBuffer(row), decode_response=False).read_struct(found)
    return found
