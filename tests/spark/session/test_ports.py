"""Ports of a local driver, which any user of the machine can reach."""

from __future__ import annotations

import socket
import struct
from typing import Any

from pyspark.sql import SparkSession

from airflow_ft.spark.driver.session import start_session

_REQUEST, _FAILURE = 3, 5
"""Types of frames (`org.apache.spark.network.protocol.Message`)."""


def _text(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


def _answer(port: int, body: bytes) -> int:
    """Return the type of the frame that comes back for a request."""
    with socket.create_connection(("127.0.0.1", port), 30) as stranger:
        stranger.sendall(struct.pack(">QBQI", 21 + len(body), _REQUEST, 7, len(body)) + body)
        found = b""
        while len(found) < 9 and (part := stranger.recv(9 - len(found))):
            found += part
    return found[8]


def test_neither_objects_nor_blocks_are_exchanged_with_strangers(spark: SparkSession) -> None:
    """Without `spark.authenticate` both requests are answered."""
    context = spark.sparkContext
    environment: Any = context._jvm.org.apache.spark.SparkEnv.get()  # type: ignore[union-attr]
    java_object = b"\0\0\0\x11endpoint-verifier\xac\xed\0\5p"
    assert _answer(environment.rpcEnv().address().port(), java_object) == _FAILURE
    open_blocks = b"\0" + _text(context.applicationId) + _text("driver") + struct.pack(">I", 1) + _text("broadcast_0")
    assert _answer(environment.blockManager().blockManagerId().port(), open_blocks) == _FAILURE


def test_strangers_cannot_guess_the_id_of_a_callback(spark: SparkSession) -> None:
    """py4j asks those who call its port for nothing else."""
    pool: Any = start_session("local[2]", None).sparkContext._gateway.gateway_property.pool  # type: ignore[union-attr]
    first = pool.put(object())
    assert int(first.removeprefix("p")).bit_length() > 64
