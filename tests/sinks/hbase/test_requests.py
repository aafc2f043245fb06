"""Requests to HBase, side by side."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from socket import SHUT_RDWR, create_server
from typing import Any

import pytest
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TBufferedTransport, TSocket, TTransportException

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.sinks.hbase import server
from airflow_ft.sinks.hbase.requests import AT_ONCE, Requests
from tests.raising import raises


class World:
    """Calls wait until they are let go."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.done: list[str] = []
        self.may_end = {name: threading.Event() for name in "abcd"}
        self.begun = {name: threading.Event() for name in "abcd"}

    @contextmanager
    def connect(self) -> Iterator[Any]:
        self.open.append("more")
        yield f"client {len(self.open)}"
        self.open.remove("more")

    def call(self, name: str, error: Exception | None = None) -> Callable[[Any], None]:
        def work(client: Any) -> None:
            self.begun[name].set()
            assert self.may_end[name].wait(10)
            self.done.append(f"{name} by {client}")
            if error is not None:
                raise error

        return work

    def let_go(self, *names: str) -> None:
        for name in names:
            self.may_end[name].set()


def test_calls_with_other_keys_run_side_by_side() -> None:
    world = World()
    with Requests("client 0", world.connect) as requests:  # type: ignore[arg-type]
        requests.call(world.call("a"), {b"1", b"2"})
        requests.call(world.call("b"), {b"3"})
        assert world.begun["a"].wait(10) and world.begun["b"].wait(10)
        world.let_go("b", "a")
    assert sorted(world.done) == ["a by client 0", "b by client 1"] and not world.open


def test_calls_with_the_same_key_follow_each_other() -> None:
    world = World()
    with Requests("client 0", world.connect) as requests:  # type: ignore[arg-type]
        requests.call(world.call("a"), {b"1", b"2"})
        assert world.begun["a"].wait(10)
        second = threading.Thread(target=requests.call, args=(world.call("b"), {b"2", b"3"}))
        second.start()
        assert not world.begun["b"].wait(0.1), "an older cell could follow a newer one"
        world.let_go("a", "b")
        second.join(10)
    assert world.done == ["a by client 0", "b by client 0"]


def test_no_more_calls_are_under_way_than_connections() -> None:
    world = World()
    assert AT_ONCE == 2
    with Requests("client 0", world.connect) as requests:  # type: ignore[arg-type]
        requests.call(world.call("a"), {b"1"})
        requests.call(world.call("b"), {b"2"})
        third = threading.Thread(target=requests.call, args=(world.call("c"), {b"3"}))
        third.start()
        assert not world.begun["c"].wait(0.1)
        world.let_go("a", "b", "c")
        third.join(10)
    assert len(world.done) == 3


@pytest.mark.parametrize("last", [True, False])
def test_an_error_of_a_call_is_raised_and_ends_the_others(last: bool) -> None:
    world = World()
    world.let_go("a", "b", "c")
    lost = SinkUnavailableError("the gateway is away.", remedy="Wait.")
    calls = [("a", {b"1"}), ("b", {b"1"})] + ([] if last else [("c", {b"1"})])
    with pytest.raises(SinkUnavailableError) as found, Requests("client 0", world.connect) as requests:  # type: ignore[arg-type]
        for name, keys in calls:
            requests.call(world.call(name, lost if name == "b" else None), keys)
    assert found.value is lost and [name[0] for name in world.done] == ["a", "b"]


@pytest.fixture
def hasty() -> Iterator[ConnectionInfo]:
    """A gateway that closes each connection after one answer."""

    class Handler:
        def get(self, *_: Any) -> list[Any]:
            return []

        def mutateRowsTs(self, *_: Any) -> None:
            pass

    def answer() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                with closing(TSocket(sock=listener.accept()[0])) as channel, suppress(TTransportException):
                    protocol = TBinaryProtocol(TBufferedTransport(channel))
                    TProcessor(server._API.Hbase, Handler()).process(protocol, protocol)

    with create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield ConnectionInfo("hbase", "hbase", host="127.0.0.1", port=listener.getsockname()[1])
        listener.shutdown(SHUT_RDWR)
        thread.join(10)


def test_a_connection_that_rested_is_replaced(hasty: ConnectionInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = server.wire(hasty).request("orders", [], 1)
    with server.opened(hasty) as client, raises(SinkUnavailableError, "server_unreachable"):
        client.get(b"orders", b"1", b"f:n", {})
        with server.translated(hasty):
            client.get(b"orders", b"1", b"f:n", {})
    monkeypatch.setattr(server, "_REST_SECONDS", 0)
    with server.opened(hasty) as client:
        for _ in range(2):
            assert client.get(b"orders", b"1", b"f:n", {}) == []
            client.mutate_rows(rows)


def test_calls_end_before_an_error_of_the_block_is_raised() -> None:
    world = World()
    world.let_go("a")
    with pytest.raises(KeyError), Requests("client 0", world.connect) as requests:  # type: ignore[arg-type]
        requests.call(world.call("a"), {b"1"})
        raise KeyError
    assert len(world.done) == 1


def test_a_connection_that_fails_is_an_error_of_the_call() -> None:
    """It begins nothing, so the end does not wait for it."""
    world = World()
    world.let_go("a")

    def refuse() -> Any:
        raise SinkUnavailableError("the gateway is away.", remedy="Wait.")

    requests = Requests("client 0", refuse)  # type: ignore[arg-type]
    with pytest.raises(SinkUnavailableError), requests:
        requests.call(world.call("b"), {b"1"})
        assert world.begun["b"].wait(10)
        try:
            requests.call(world.call("a"), {b"2"})
        finally:
            world.let_go("b")
    assert world.done == ["b by client 0"]
