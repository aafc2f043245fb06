"""Streams with AT_MOST_ONCE, on real servers: rows may be lost, none comes twice, and the stream goes on."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from airflow_ft.pipeline.checkpoints import Gate
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.sources import KafkaSource, SocketSource
from tests.integration.test_stream import World, world
from tools.stream_task import Stream

__all__ = ["world"]
pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

MOST = {"interval": 0.3, "mode": "AT_MOST_ONCE"}


class Lines:
    """A server that sends each number once, a hundred a second, to whoever is connected."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self.port: int = self._listener.getsockname()[1]
        self.sent = self.accepted = self._burst = self._sent_by_then = 0
        self._over, self._closes, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def hang_up(self, burst: int) -> int:
        """Sends so many at once, and closes the connection; how many were sent by then."""
        self._burst = burst
        self._closes.set()
        assert self._closed.wait(240)
        return self._sent_by_then

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while not self._over.is_set():
            with suppress(OSError):  # nobody comes, or who came is gone
                connection, _ = self._listener.accept()
                with connection:
                    self.accepted += 1
                    while not self._over.wait(0.01) and not self._closes.is_set():
                        self._send(connection, 1)
                    self._send(connection, self._burst)
                self._sent_by_then = self.sent
                self._closes.clear()
                self._closed.set()

    def _send(self, connection: socket.socket, count: int) -> None:
        first, self.sent = self.sent, self.sent + count
        found = [json.dumps({"n": number, "at": time.time()}) for number in range(first, self.sent)]
        connection.sendall("".join(f"{line}\n" for line in found).encode())


@pytest.fixture
def lines() -> Iterator[Lines]:
    server = Lines()
    yield server
    server.end()


def reading(world: World, lines: Lines, job: str = "Copy", **changes: Any) -> Stream:
    """A stream of the server's numbers."""
    given = {
        "sources": {"numbers": SocketSource(host="127.0.0.1", port=lines.port).to_json()},
        "checkpointing": MOST,
        "restart": {"type": "fixed-delay", "attempts": 200, "delay": 0.05},
    }
    return world.stream(job, **{**given, **changes})


def until_above(world: World, number: int) -> None:
    """A later number is in the table."""
    world.until(lambda: max(world.rows(), default=0) > number)


def check_at_most_once(world: World) -> None:
    """None is there twice, and each sink has the same."""
    rows = Counter(world.rows())
    assert rows and set(rows.values()) == {1}
    assert Counter(world.records()) == rows


@pytest.mark.chaos
def test_whatever_is_killed_no_number_comes_twice(world: World, lines: Lines) -> None:
    with world.task(reading(world, lines)) as process:
        world.until_confirmed(3)
        world.kill_driver()
        process.kill()
    last = lines.sent
    with world.task(reading(world, lines)):
        until_above(world, last)
        world.stop()
    assert lines.accepted == 3
    check_at_most_once(world)


def test_what_a_job_raised_on_is_lost_and_the_stream_goes_on(world: World, lines: Lines) -> None:
    with world.task(reading(world, lines, "FailsAt", job_args={"bad": 15})):
        until_above(world, 200)
        assert world.log().count("driver ") == 1, "in the same driver"
        world.stop()
    assert [c.reason for c in world.aborted()] == [AbortReason.JOB_FAILED]
    assert 15 not in world.rows()
    check_at_most_once(world)


def test_a_refused_row_ends_the_stream_and_the_next_run_skips_it(world: World, lines: Lines) -> None:
    world.database.sql("ALTER TABLE numbers ADD CONSTRAINT CHECK (n <> 150)")
    with world.task(reading(world, lines)) as process:
        assert process.wait(240) != 0
    assert AbortReason.DECLINED in {c.reason for c in world.aborted()}
    last = lines.sent
    with world.task(reading(world, lines, run="run-2")):
        until_above(world, last)
        world.stop()
    assert 150 not in world.rows()
    check_at_most_once(world)


def test_a_closed_socket_is_read_to_its_end_and_reconnected(world: World, lines: Lines) -> None:
    with world.task(reading(world, lines)):
        world.until_confirmed(2)
        at, received = world.store.now(), max(world.rows())
        world.until(lambda: Gate(as_of=at).is_open(world.store, world.pipeline))
        assert set(range(received)) <= set(world.rows())
        sent = lines.hang_up(burst=20_000)  # behind small micro-batches, which the driver writes in other modes
        until_above(world, sent)
        assert "the server of source 'numbers' has closed the socket" in world.log()
        assert set(range(sent)) <= set(world.rows()), "nothing had died"
        world.stop()
    check_at_most_once(world)


def test_a_job_that_opens_a_socket_is_refused_before_reading(world: World, lines: Lines) -> None:
    with world.task(world.stream("OwnSocket", job_args={"port": lines.port})) as process:
        assert process.wait(240) != 0
    assert "source 'source-0' is a socket, which cannot be replayed" in world.log()
    assert "mode EXACTLY_ONCE cannot be kept" in world.log()
    assert not lines.accepted and not world.store.checkpoints(world.pipeline)


def test_each_attempt_reads_topics_from_their_end(world: World) -> None:
    """A later run with EXACTLY_ONCE continues after the last row that the stream delivered."""
    source = KafkaSource(topics=[world.input], conn_id="kafka", starting_offsets="latest")
    world.send(10)
    with world.task(world.stream()):
        world.until_all_is_there()
        world.stop()
    world.send(10)  # nobody reads these
    most = world.stream(run="run-2", sources={"numbers": source.to_json()}, checkpointing=MOST)
    with world.sending(), world.task(most):
        world.until_confirmed(3)
        world.kill_driver()
        world.stop()
    behind = max(world.rows())
    assert set(range(10)) < set(world.rows()) and not set(range(10, 20)) & set(world.rows())
    check_at_most_once(world)
    with world.task(world.stream(run="run-3")):
        world.send(10)
        world.until(lambda: set(range(behind + 1, world.sent)) <= set(world.rows()))
        world.stop()
    check_at_most_once(world)
