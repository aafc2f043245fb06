"""Sessions with an endpoint that is no server."""

from __future__ import annotations

import socket
import time

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import ParticipantPlan
from airflow_ft.sinks.mysql.limits import Limits
from airflow_ft.sinks.mysql.participant import open_participant
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
