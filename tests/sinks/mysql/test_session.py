"""Sessions with an endpoint that is no server."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pymysql
import pytest
from pymysql.constants import CLIENT

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkAccessError, SinkUnavailableError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.mysql import session
from airflow_ft.sinks.mysql.failures import failure
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.wal import open_wal
from tests.raising import raises


def test_a_silent_endpoint_is_left_within_the_time_to_log_in() -> None:
    sink = MySqlSink(table="orders", conn_id="shop")
    plan = ParticipantPlan("shop", "mysql", sink.strategy, sink.promise, 0, {"orders": dict(sink.settings())})
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host, port = mute.getsockname()
        info = ConnectionInfo("shop", "mysql", host=host, port=port, login="me", schema="shop")
        began = time.monotonic()
        with raises(SinkUnavailableError, "server_unreachable"):
            open_participant(plan, info, open_wal(), Limits(login=0.2, answer=30)).head("orders")
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("said", "package"),
    [
        ("'pynacl' package is required for ed25519_password auth method", "pynacl"),
        ("'cryptography' package is required for sha256_password", "cryptography"),
        ("anything else", "cryptography"),
    ],
)
def test_the_package_that_a_login_lacks_is_named(monkeypatch: pytest.MonkeyPatch, said: str, package: str) -> None:
    def lacking(**_: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(session, "WireConnection", lacking)
    with raises(SinkAccessError, "package_missing", package=package) as refused:
        Session(ConnectionInfo("shop", "mysql", host="127.0.0.1"), Limits())
    assert refused.error and f"pip install {package}" in refused.error.remedy


@pytest.fixture
def without_tls() -> Iterator[tuple[int, list[bytes]]]:
    """One on the path who hides that the server knows TLS, and asks for the password. Yields port and what it gets."""
    got: list[bytes] = []
    capabilities = CLIENT.PROTOCOL_41 | CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH
    greeting = b"\x0a8.4.0\0" + struct.pack("<I8sx", 1, b"s" * 8)
    greeting += struct.pack("<HBHHB10x", capabilities & 0xFFFF, 45, 2, capabilities >> 16, 21)
    greeting += b"s" * 12 + b"\0mysql_native_password\0"

    def listen(server: socket.socket) -> None:
        client, _ = server.accept()
        with client:
            for number, packet in ((0, greeting), (2, b"\xfemysql_clear_password\0")):
                client.sendall(struct.pack("<I", len(packet))[:3] + bytes([number]) + packet)
                got.append(client.recv(1 << 16))

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=listen, args=[server])
        thread.start()
        yield server.getsockname()[1], got
        thread.join(30)


@pytest.mark.parametrize(
    ("extra", "errno"),
    [({"ssl_mode": "REQUIRED"}, 2026), ({"ssl_mode": "VERIFY_CA"}, 2026), ({}, 2061)],
)
def test_a_clear_password_plugin_gets_no_password_unverified(
    without_tls: tuple[int, list[bytes]], extra: dict[str, object], errno: int
) -> None:
    port, got = without_tls
    info = ConnectionInfo("shop", "mysql", host="127.0.0.1", port=port, login="me", password="secret-word", extra=extra)
    with pytest.raises(pymysql.err.OperationalError) as refused:
        Session(info, Limits())
    assert (refused.value.args[0], failure(refused.value, "connecting").code) == (errno, "login_refused")
    assert b"secret-word" not in b"".join(got)
