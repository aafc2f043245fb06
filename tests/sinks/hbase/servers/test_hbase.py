"""A real HBase: what is required of it, what is refused, and what `verify` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import happybase
import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import (
    AirflowFtError,
    SinkAccessError,
    SinkUnavailableError,
    StoreBehindSinkError,
    UnfitTargetError,
)
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks import doctor
from airflow_ft.sinks.base import keyed_verify
from airflow_ft.sinks.base.keyed_verify import Found
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.hbase import requirements, setup
from airflow_ft.sinks.hbase import server as gateway
from airflow_ft.sinks.hbase import verify as verifying
from airflow_ft.sinks.hbase.server import opened, require_ledger
from airflow_ft.sinks.hbase.spec import HBaseSink
from airflow_ft.sinks.hbase.verify import verify
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal
from tests.conformance.test_hbase import Rows
from tests.raising import raises
from tests.sinks.keyed import check_last_rows, check_verify
from tools.servers import HBase

pytestmark = [pytest.mark.server, pytest.mark.sampled(among="HBase")]


@pytest.fixture
def world(hbase: HBase, tmp_path: Path) -> Iterator[World]:
    with closing(World(Rows(hbase, "text", 0), tmp_path)) as found:
        yield found


def lacking(world: World, **change: Any) -> list[AirflowFtError]:
    """As `airflow_ft.sinks.ready` asks."""
    plan, connection = world.plan(), replace(world.target.connection, **change)
    try:
        return lacks(requirements.required(plan.pipeline, plan.participants[0], connection))
    except AirflowFtError as error:
        return [error]


@pytest.fixture
def short(world: World) -> Iterator[str]:
    """A table whose family `f` has a TTL."""
    db: happybase.Connection = world.target.db  # type: ignore[attr-defined]
    db.create_table("short", {"f": {"time_to_live": 1_000}})
    yield "short"
    db.delete_table("short", disable=True)


@pytest.mark.parametrize(
    ("change", "code"), [({"table": "nothing"}, "table_missing"), ({"family": "none"}, "column_missing")], ids=str
)
def test_what_is_missing_is_told_before_anything_is_visible(world: World, change: dict[str, str], code: str) -> None:
    world.target.sink = replace(world.target.sink, **change)  # type: ignore[type-var]
    [problem] = lacking(world)
    assert (problem.code, problem.sink) == (code, SINK)
    assert f"{{NAME => '{world.target.sink.family}', CONFIGURATION" in problem.remedy  # type: ignore[attr-defined]
    with raises(UnfitTargetError, code, sink=SINK):
        world.prepare(world.plan())


def test_a_disabled_table_is_refused(world: World, short: str) -> None:
    db: happybase.Connection = world.target.db  # type: ignore[attr-defined]
    world.target.sink = replace(world.target.sink, table=short)  # type: ignore[type-var]
    db.disable_table(short)
    try:
        [problem] = lacking(world)
        assert problem.code == "table_unsupported"
    finally:
        db.enable_table(short)


def test_a_table_disabled_after_the_vote_makes_the_rows_wait(world: World, short: str) -> None:
    db: happybase.Connection = world.target.db  # type: ignore[attr-defined]
    world.target.sink = replace(world.target.sink, table=short)  # type: ignore[type-var]
    plan = world.plan()
    vote = world.prepare(plan)
    db.disable_table(short)
    try:
        with raises(SinkUnavailableError, "sink_unavailable") as caught:
            world.commit(plan, vote)
        assert caught.error and "is_enabled 'short'" in caught.error.remedy
        assert caught.error.checkpoint == plan.number
    finally:
        db.enable_table(short)
    assert world.commit(plan, vote).counts == {SINK: 40}


def test_cells_that_expire_are_warned_of_and_not_compared(world: World, short: str) -> None:
    target: Any = world.target
    target.sink = replace(target.sink, table=short)
    plan = world.plan()
    proof = world.deliver(plan)
    found = doctor.examine(plan.pipeline, plan.participants[0], target.connection, [])
    assert [each.verdict.name for each in found] == ["OK", "OK", "WARNING"]
    [report] = verify([Delivered(plan, proof, None)], plan.participants[0], target.connection, open_wal())
    assert report.error and SINK in report.sink
    with opened(target.connection) as client, raises(UnfitTargetError, "server_setting_unsafe", table=short):
        require_ledger(client, "here", short)


def test_the_ledger_is_created_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = world.target.connection
    setup.create("p", world.participant_plan(), connection)
    assert setup.create("p", world.participant_plan(), connection) == "", "it is there"
    monkeypatch.setattr(gateway, "require_ledger", lambda *of: False)
    with opened(connection) as client:
        gateway.make_ledger(client, connection)  # another process was faster


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"port": 1}, SinkUnavailableError, "server_unreachable"),
        ({"extra": {"protocol": "json"}}, SinkAccessError, "connection_invalid"),
        ({"conn_type": "redis"}, SinkAccessError, "connection_invalid"),
        ({"extra": {"transport": "framed"}}, SinkUnavailableError, "server_unreachable"),
        ({"extra": {"protocol": "compact"}}, SinkUnavailableError, "server_unreachable"),
    ],
    ids=str,
)
def test_a_wrong_connection_is_told(world: World, change: dict[str, Any], kind: type[Exception], code: str) -> None:
    [problem] = lacking(world, **change)
    assert type(problem) is kind and problem.code == code and problem.remedy


def test_a_namespace_that_is_missing_is_told(world: World) -> None:
    sink = world.target.sink
    world.target.sink = replace(sink, table="nowhere:orders")  # type: ignore[type-var]
    [problem] = lacking(world)
    assert "create_namespace 'nowhere', then create 'nowhere:orders'" in problem.remedy
    world.target.sink = replace(sink, table="hbase:orders")  # type: ignore[type-var]
    assert "create_namespace" not in lacking(world)[0].remedy
    world.target.sink = sink
    world.target.connection = replace(world.target.connection, schema="nowhere")
    [problem] = lacking(world)
    assert (problem.code, problem.fields["namespace"]) == ("database_missing", "nowhere")
    with raises(SinkAccessError, "database_missing", namespace="nowhere"):
        world.prepare(world.plan())


@pytest.mark.parametrize("place", [b"hbase:nothing", b"orders"], ids=["without its table", "without its rows"])
def test_a_namespace_that_is_not_known_is_no_problem(
    world: World, place: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in HBase 3, which has no table of namespaces."""
    monkeypatch.setattr(gateway, "_NAMESPACES", place)
    plan, connection = world.plan(), replace(world.target.connection, schema="nowhere")
    found = doctor.examine(plan.pipeline, plan.participants[0], connection, [])
    assert [each.verdict.name for each in found] == ["OK", "OK"]
    with opened(connection) as client, raises(UnfitTargetError, "table_missing") as caught:
        gateway.require_table(client, "here", "nowhere:orders", ["f"])
    assert caught.error and "create_namespace 'nowhere' (unless" in caught.error.remedy


def test_the_setup_names_tables_families_and_deletes(world: World) -> None:
    world.target.sink = HBaseSink(
        table="shop:orders", row_key="{id}", family="d", columns={"note": "e:n"}, change_column="op", conn_id="rows"
    )
    lines = list(setup.describe("p", world.participant_plan(), replace(world.target.connection, schema="shop")))
    assert any(line.startswith("create_namespace 'shop'") for line in lines)
    assert "create 'shop:airflow_ft', {NAME => 'f', VERSIONS => 1, TTL => 'FOREVER'}" in lines
    kept = "CONFIGURATION => {'hbase.hstore.time.to.purge.deletes' => '86400000'}"
    assert f"create 'shop:orders', {{NAME => 'd', {kept}}}, {{NAME => 'e', {kept}}}" in lines
    assert "grant 'USER', 'RWC', 'shop:orders'" in lines


def test_no_row_waits_for_a_full_batch(world: World) -> None:
    check_last_rows(world)


def test_verify_counts_keys_and_knows_what_it_cannot_know(world: World) -> None:
    target: Any = world.target
    run = f"{target.run}k"
    target.sink = replace(target.sink, row_key=f"{run}:{{id}}", change_column="op")

    def disturb() -> None:
        table = target.db.table("orders")
        table.put(f"{run}:3".encode(), {b"f:text": b"changed"})
        table.delete(f"{run}:4".encode())
        table.put(f"{run}:2".encode(), {b"f:text": b"back"})

    check_verify(world, verify, disturb)


def test_verify_reads_each_delivery_with_its_own_settings(world: World) -> None:
    target: Any = world.target
    delivered: list[Delivered] = []
    for number, change in enumerate(({}, {"salt": 8}, {"encoding": "bytes"}), 1):
        target.sink = replace(target.sink, **change)
        plan = world.plan_of(number, world.segment_of(number, world.table(number, 1)))
        delivered.append(Delivered(plan, world.deliver(plan), delivered[-1].proof if delivered else None))
    [report] = verify(delivered, delivered[-1].plan.participants[0], target.connection, open_wal())
    assert report.is_exact and report.expected == 3


def test_verify_asks_for_few_large_rows_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = world.target
    monkeypatch.setattr(keyed_verify, "_BYTES_AT_ONCE", 1_000_000)
    plan = world.plan(pa.table({"id": range(10), "text": ["x" * 300_000] * 10}))
    delivered, asked = Delivered(plan, world.deliver(plan), None), list[int]()

    def look_up(keys: Any, wanted: Sequence[str]) -> Mapping[str, Found]:
        asked.append(len(wanted))
        return look_up_before(keys, wanted)

    look_up_before = verifying._Keys.look_up
    monkeypatch.setattr(verifying._Keys, "look_up", look_up)
    [report] = verify([delivered], plan.participants[0], target.connection, open_wal())
    assert report.is_exact and asked == [3, 3, 3, 1]


def test_null_deletes_a_cell_and_others_stay(world: World) -> None:
    target: Any = world.target
    world.deliver(world.plan(pa.table({"id": [1], "text": ["a"], "note": ["b"]})))
    target.db.table("orders").put(f"{target.run}:1".encode(), {b"f:theirs": b"c"})
    world.deliver(world.plan(pa.table({"id": [1], "text": ["d"], "note": pa.array([None], pa.string())})))
    assert target.rows("orders", target.run) == {1: {"id": b"1", "text": b"d", "theirs": b"c"}}


@pytest.fixture
def versions(world: World) -> Iterator[str]:
    """A table whose family `f` keeps several versions of a cell."""
    db: happybase.Connection = world.target.db  # type: ignore[attr-defined]
    db.create_table("versions", {"f": {"max_versions": 5}})
    yield "versions"
    db.delete_table("versions", disable=True)


def test_older_versions_of_a_cell_do_not_come_back(world: World, versions: str) -> None:
    """NULL and deletes hide all versions, not the newest alone (apache/flink#22612)."""
    target: Any = world.target
    target.sink = replace(target.sink, table=versions, change_column="op")

    def deliver(*changes: tuple[str, str | None]) -> dict[int, dict[str, bytes]]:
        kinds, texts = zip(*changes, strict=True)
        rows = pa.table({"op": kinds, "id": [1] * len(kinds), "text": pa.array(texts, pa.string())})
        world.deliver(world.plan(rows))
        found: dict[int, dict[str, bytes]] = target.rows(versions, target.run)
        return found

    def texts() -> list[bytes]:
        kept: list[bytes] = target.db.table(versions).cells(f"{target.run}:1".encode(), b"f:text", versions=5)
        return kept

    deliver(("insert", "a"))
    assert deliver(("update", "b"))[1]["text"] == b"b" and texts() == [b"b", b"a"]
    assert deliver(("update", None)) == {1: {"id": b"1"}} and texts() == []
    assert deliver(("update", "c"), ("delete", None)) == {} and texts() == []
    assert deliver(("insert", "d"), ("delete", None), ("insert", "e"))[1]["text"] == b"e" and texts() == [b"e"]


def test_two_sinks_of_one_table_keep_each_others_cells(world: World) -> None:
    """The last rows of one and the first of the other have other stamps. A delete is of one sink's family."""
    target: Any = world.target
    key = f"{target.run}v:{{id}}"
    one = HBaseSink(table="kinds", row_key=key, family="f", change_column="op", conn_id="rows")
    plan = world.plan_of(1, world.segment_with(1, {"one": _changes("a", "b"), "two": _changes("c", "d")}))
    sinks = {"one": one.settings(), "two": replace(one, family="g").settings()}
    plan = replace(plan, participants=(replace(plan.participants[0], sinks=sinks),))
    world.deliver(plan)
    table = target.db.table("kinds")

    def read() -> dict[bytes, bytes]:
        row = table.row(f"{target.run}v:1".encode())
        return {name: value for name, value in row.items() if not name.endswith(b":id")}

    assert read() == {b"f:text": b"b", b"g:text": b"d"}
    gone = world.plan_of(2, world.segment_with(2, {"one": _changes(None), "two": _changes("e")}))
    world.deliver(replace(gone, participants=(replace(gone.participants[0], sinks=sinks),)))
    assert read() == {b"g:text": b"e"}
    for other in (b"f:theirs", b"g:theirs"):
        table.put(f"{target.run}v:1".encode(), {other: b"x"})
    again = world.plan_of(3, world.segment_with(3, {"one": _changes("h", None, "i"), "two": _changes("j")}))
    world.deliver(replace(again, participants=(replace(again.participants[0], sinks=sinks),)))
    assert read() == {b"f:text": b"i", b"g:text": b"j", b"g:theirs": b"x"}, "deleted in between, so theirs is gone"


def _changes(*texts: str | None) -> pa.Table:
    """Changes of the row 1."""
    kinds = ["delete" if text is None else "update" for text in texts]
    return pa.table({"op": kinds, "id": [1] * len(texts), "text": pa.array(texts, pa.string())})


def test_large_rows_go_in_several_requests(world: World) -> None:
    big = pa.table({"id": range(40), "text": ["x" * 300_000] * 40})
    world.deliver(world.plan(big))
    world.shows(list(range(40)))


@pytest.mark.parametrize(
    ("options", "extra"),
    [
        (("-c", "-f"), {"protocol": "compact", "transport": "framed"}),
        (("-nonblocking",), {"protocol": "binary", "transport": "framed"}),
    ],
    ids=["compact, framed", "nonblocking"],
)
def test_gateways_of_other_forms_take_the_same_rows(
    world: World, options: tuple[str, ...], extra: dict[str, str]
) -> None:
    """Rows of many sizes, NULL, and deletes."""
    target: Any = world.target
    texts = [None if size == 5 else "x" * size for size in (0, 1, 5, 127, 128, 20_000)]
    columns = {f"n{at}": pa.array(texts, pa.string()) for at in range(15)}
    table = pa.table({"op": ["i"] * 6, "id": list(range(6)), **columns})
    gone = pa.table({"op": ["d"], "id": [1], **{name: column.slice(1, 1) for name, column in columns.items()}})
    with target.server.another_gateway(*options) as port:
        usual, target.connection = target.connection, replace(target.connection, port=port, extra=extra)
        target.sink = replace(target.sink, change_column="op")
        world.deliver(world.plan(table))
        world.deliver(world.plan(gone))
        target.connection = usual
    expected = [{"id": str(id), **dict.fromkeys(columns, text)} for id, text in enumerate(texts)]
    assert target.rows("orders", target.run) == {
        id: {name: value.encode() for name, value in row.items() if value is not None}
        for id, row in enumerate(expected)
        if id != 1
    }


def test_another_server_is_told(world: World) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        assert lacking(world, port=server.server_port)[0].code in ("connection_invalid", "server_unreachable")


def test_a_lost_ledger_halts(world: World) -> None:
    target: Any = world.target
    world.deliver(world.plan())
    plan = world.plan()
    vote = world.prepare(plan)
    target.db.delete_table("airflow_ft", disable=True)
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.commit(plan, vote)
    with raises(StoreBehindSinkError, "ledger_lost"):
        world.prepare(plan)
    world.shows(world.ids_of(1))


def test_a_killed_server_has_what_it_acknowledged(world: World) -> None:
    target: Any = world.target
    world.deliver(world.plan())
    target.server.kill()
    plan = world.plan()
    with raises(SinkUnavailableError, "server_unreachable"):
        world.prepare(plan)
    target.server.start()
    world.deliver(plan)
    world.shows(world.ids_of(1, 2))


def test_a_gateway_that_is_restarted_in_the_middle_is_no_loss(world: World) -> None:
    target: Any = world.target
    plan = world.plan()
    vote = world.prepare(plan)
    target.server.kill_gateway()
    with raises(SinkUnavailableError, "server_unreachable"):
        world.commit(plan, vote)
    target.server.restart_gateway()
    world.commit(plan, vote)
    world.shows(world.ids_of(1))
