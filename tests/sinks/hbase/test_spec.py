"""What a DAG author writes for HBase, which rows it refuses, and the bytes of cells."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from thriftpy2.protocol import TBinaryProtocol, TCompactProtocol
from thriftpy2.transport import TMemoryBuffer

from airflow_ft import HBaseSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    ConfigurationError,
    SinkUnavailableError,
    StorageUnavailableError,
    UnfitTargetError,
)
from airflow_ft.protocol.model import Former, ParticipantPlan, Plan, Promise, Segment
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.sinks.arrow import binaries
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.hbase import requirements, wire
from airflow_ft.sinks.hbase.packed import PackedRows
from airflow_ft.sinks.hbase.participant import HBaseParticipant, Seen, deleted_before, deletes, mutations, parts
from airflow_ft.sinks.hbase.rows import encoded, row_keys, schema_problems, unfit
from airflow_ft.sinks.hbase.server import _API, HBaseError, Mutation, failure, translated
from airflow_ft.sinks.hbase.stamps import NONE_GIVEN, batches, give, given
from airflow_ft.sinks.hbase.wire import BINARY, COMPACT, Wire
from tests.raising import raises
from tests.sinks.hbase.reading import in_binary

SINK: dict[str, Any] = {"table": "orders", "row_key": "{id}", "family": "f"}


@pytest.mark.parametrize(
    "given",
    [
        {"table": "a b"},
        {"table": "shop:airflow_ft"},
        {"row_key": "orders"},
        {"row_key": "{x}{y}"},
        {"family": "f:"},
        {"family": None},
        {"columns": {"name": "f"}},
        {"columns": {"name": ":n"}},
        {"columns": {"name": "f:n", "other": "f:n"}},
        {"columns": {"op": "f:o"}, "change_column": "op"},
        {"encoding": "avro"},
        {"salt": 1},
        {"salt": 1001},
        {"strategy": "atomic"},
        {"conn_id": " "},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_at_once(given: dict[str, Any]) -> None:
    with raises(ConfigurationError, "argument_invalid", argument=next(iter(given))):
        HBaseSink(**{**SINK, **given})


def test_a_plan_keeps_its_settings() -> None:
    more = {"columns": {"name": "g:n"}, "encoding": "bytes", "salt": 8, "change_column": "op", "shared": True}
    sink = HBaseSink(**{**SINK, **more})
    assert HBaseSink.from_settings("hbase_default", "upsert", sink.settings()) == sink
    assert sink.families == ["f", "g"]
    assert HBaseSink(**{**SINK, "table": "default:orders"}).settings() == HBaseSink(**SINK).settings()
    with raises(ConfigurationError, "template_not_rendered"):
        HBaseSink(**{**SINK, "table": "t_{{ ds_nodash }}"}).settings()


def test_columns_in_double_braces_are_refused() -> None:
    with raises(ConfigurationError, "argument_invalid", argument="row_key", value="{{id}}:{{n}}"):
        HBaseSink(**{**SINK, "row_key": "{{id}}:{{n}}"})
    assert HBaseSink(**{**SINK, "row_key": "{{ ds }}:{id}"}).row_key == "{{ ds }}:{id}"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"row_key": "{no}"}, "job_column_missing"),
        ({"row_key": "{ratio}"}, "type_unsupported"),
        ({"row_key": "{price}"}, "type_unsupported"),
        ({"row_key": "{coded}"}, "type_unsupported"),
        ({"change_column": "no"}, "job_column_missing"),
        ({"columns": {"no": "f:n"}}, "job_column_missing"),
        ({"columns": {"n": "f:ratio"}}, "column_ambiguous"),
        ({"family": None, "columns": {"n": "f:n"}}, "column_missing"),
        ({"encoding": "bytes"}, "type_unsupported"),
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_named(given: dict[str, Any], code: str) -> None:
    price = pa.decimal128(10, 2)
    keys = {"price": price, "coded": pa.dictionary(pa.int32(), price)}
    odd = {"encoding": {"word": pa.uint32()}, "row_key": keys}.get(next(iter(given)), {})
    schema = pa.schema({"id": pa.string(), "n": pa.int64(), "ratio": pa.float64(), **odd})
    [problem] = schema_problems(HBaseSink(**{**SINK, **given}), schema, "rows")
    assert problem.code == code and problem.sink == "rows" and problem.remedy
    assert isinstance(problem, UnfitTargetError) or code == "job_column_missing"


def test_keys_that_hbase_cannot_hold_or_tell_apart_are_refused() -> None:
    rows = pa.record_batch({"x": ["a", "a:b", "", "k" * 32_767], "n": [1, 2, 3, 4]})
    assert set(unfit(HBaseSink(**{**SINK, "row_key": "{x}:{n}"}), rows, np.zeros(4, np.bool_))) == {1, 3}
    assert set(unfit(HBaseSink(**{**SINK, "row_key": "{x}"}), rows, np.zeros(4, np.bool_))) == {2}
    assert 3 in unfit(HBaseSink(**{**SINK, "row_key": "{x}", "salt": 2}), rows, np.zeros(4, np.bool_))


def test_a_date_without_a_text_in_the_key_refuses_only_its_row() -> None:
    days = pa.array([0, 2_932_897], pa.int32()).cast(pa.date32())  # 1970-01-01 and 10000-01-01
    rows, sink = pa.record_batch({"day": days, "n": [1, 2]}), HBaseSink(table="t", row_key="{day}", family="d")
    refused = unfit(sink, rows, np.zeros(2, np.bool_))
    assert set(refused) == {1} and "day" in refused[1]
    assert row_keys(sink, rows)[0] == b"1970-01-01"


def test_a_salt_is_the_same_in_every_release() -> None:
    rows = pa.record_batch({"id": ["1", "2", "order-77"]})
    assert row_keys(HBaseSink(**{**SINK, "salt": 16}), rows) == [b"07:1", b"13:2", b"02:order-77"]


def test_bytes_are_those_of_java() -> None:
    """As `org.apache.hadoop.hbase.util.Bytes.toBytes` writes them."""
    columns = {
        "id": ["1", "2"],
        "flag": [True, False],
        "whole": pa.array([-2, None], pa.int32()),
        "big": pa.array([258, -1], pa.int64()),
        "ratio": [1.0, None],
        "price": pa.array([Decimal("1.28"), Decimal("-1.29")], pa.decimal128(10, 2)),
    }
    rows = pa.record_batch(columns)
    found = encoded(HBaseSink(**SINK, encoding="bytes"), Chunk(0, "rows", rows, np.zeros(2, np.bool_), {}))
    assert {name: column.to_pylist() for name, column in found.columns.items()} == {
        b"f:id": [b"1", b"2"],
        b"f:flag": [b"\xff", b"\x00"],
        b"f:whole": [b"\xff\xff\xff\xfe", None],
        b"f:big": [b"\0\0\0\0\0\0\1\2", b"\xff" * 8],
        b"f:ratio": [b"\x3f\xf0\0\0\0\0\0\0", None],
        b"f:price": [b"\0\0\0\2\0\x80", b"\0\0\0\2\xff\x7f"],
    }


def test_batches_are_the_same_however_the_log_hands_out_rows() -> None:
    """One sink, equal columns, and 1,000 rows at most; each with a higher stamp."""
    old, new = pa.record_batch({"id": range(2_500)}), pa.record_batch({"id": range(300), "more": range(300)})

    def chunks(size: int) -> Any:
        first = 0
        for sink, rows in (("a", old), ("a", new), ("b", new)):
            for start in range(0, rows.num_rows, size):
                part = rows.slice(start, size)
                yield Chunk(first + start, sink, part, np.zeros(part.num_rows, np.bool_), {})
            first += rows.num_rows

    def seen(size: int) -> list[tuple[int, str, int, int]]:
        made = [(stamp, sink, [*some]) for stamp, sink, some in batches(chunks(size))]
        return [(stamp, sink, some[0].first, sum(each.rows.num_rows for each in some)) for stamp, sink, some in made]

    expected = [(1, "a", 0, 1_000), (3, "a", 1_000, 1_000), (5, "a", 2_000, 500), (7, "a", 2_500, 300)]
    expected += [(9, "b", 2_800, 200), (11, "b", 3_000, 100)]
    assert seen(1_000) == expected == seen(7) == seen(333)


def test_a_delete_counts_although_the_key_is_written_again() -> None:
    """Of a key that is deleted and inserted in one batch, both are sent; of others, the last change."""
    sink = HBaseSink(**{**SINK, "columns": {"n": "g:n"}}, change_column="op")
    kinds = {"again": "di", "gone": "d", "twice": "did", "three": "idi", "kept": "ii"}
    changes = [(key, kind, at) for at in range(3) for key, order in kinds.items() for kind in order[at : at + 1]]
    keys, ops, values = zip(*changes, strict=True)
    rows = pa.record_batch({"id": keys, "op": ops, "n": values})
    chunk = Chunk(0, "rows", rows, np.array([op == "d" for op in ops]), {})
    last = PackedRows()
    some = [replace(chunk, rows=rows.slice(at, 1), deletes=chunk.deletes[at : at + 1]) for at in range(len(ops))]
    for one in some:
        last.add(mutations(sink, one, BINARY))
    for chunks in (some, [chunk]):
        deleted: dict[bytes, bytes] = {}
        for one in chunks:
            deleted |= deletes(sink, one, BINARY)
        found = deleted_before(deleted, last)
        assert set(found) == {b"again", b"three"}
        assert {(each.column, each.isDelete) for each in in_binary(found[b"again"]).mutations} == {
            (b"f", True),
            (b"g", True),
        }


def test_stamps_are_above_all_earlier_ones() -> None:
    """Also the one below a batch's, for deletes. HBase's clock counts if it is later."""
    ledger = DocumentLedger(None, "here", stamps=dict(NONE_GIVEN))
    sink = HBaseSink(**SINK)
    taken = 0
    for number, now in enumerate((50, 50, 51, 90), 1):
        segment = Segment(number, "digest", "location", {"a": 1_999, "b": 1_999}, 0)
        into = ParticipantPlan("hbase", "hbase", "upsert", sink.promise, 0, dict.fromkeys("ab", sink.settings()))
        plan = Plan("p", "here", number, (segment,), (into,), None)
        give(ledger, plan, now)
        first, rows = given(ledger, plan), pa.record_batch({"id": range(1_999)})
        chunks = (Chunk(at, name, rows, np.zeros(1_999, np.bool_), {}) for at, name in ((0, "a"), (1_999, "b")))
        used = [first + offset - below for offset, _, _ in batches(chunks) for below in (1, 0)]
        assert max(taken, now - 1) < used[0] and used == sorted(set(used))
        taken = used[-1]
        assert taken <= ledger.others["stamps"]["last"], "verify knows cells of the checkpoint by it"


@pytest.mark.parametrize("size", [900, 300_000, 1_500_000])
def test_a_request_fits_into_the_frame_of_a_gateway(size: int) -> None:
    """With all that Thrift writes beside keys and values: a gateway takes 2 MiB by default."""
    names = [b"f:%d" % at for at in range(20)]
    small = BINARY.rows([b"%d" % n for n in range(7_000)], dict.fromkeys(names, binaries([b""] * 7_000)))
    large = BINARY.rows([b"large%d" % n for n in range(8)], {b"f:n": binaries([b"x" * size] * 8)})
    rows = [*small, *large] if size > 900 else [*large, *small]
    sent = [list(part.values()) for part in parts((b"%d" % at, row) for at, row in enumerate(rows))]
    assert [row for some in sent for row in some] == rows
    for some in sent:
        assert len(BINARY.request("orders", some, 7)) + 100 < 2 * 1024**2, "100 bytes for the name of the call"


@pytest.mark.parametrize(
    ("form", "protocol"), [(BINARY, TBinaryProtocol), (COMPACT, TCompactProtocol)], ids=["binary", "compact"]
)
def test_the_bytes_are_those_of_the_library(form: Wire, protocol: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields with the gateway's defaults are left out, as the library does where they are None."""
    monkeypatch.setattr(wire, "_PACKED_BYTES", 1_000_000)  # so large rows are packed in parts
    chance = random.Random(7)
    for cells in (1, 14, 15, 200):
        names = [chance.randbytes(chance.choice([3, 127, 128, 300])) for _ in range(cells)]
        keys = [chance.randbytes(chance.choice([1, 127, 128, 16_384])) for _ in range(20 if cells < 100 else 4)]
        sizes = [None, 0, 1, 127, 128, 255, 16_383, 16_384]
        table = [[None if (n := chance.choice(sizes)) is None else chance.randbytes(n) for _ in keys] for _ in names]
        rows = form.rows(keys, dict(zip(names, map(binaries, table), strict=True)))
        rows += form.deletes([b"gone"], ["f", "g"]).values()
        expected = [_row(key, zip(names, values, strict=True)) for key, *values in zip(keys, *table, strict=True)]
        expected.append(_row(b"gone", [(b"f", None), (b"g", None)]))
        for stamp in (0, 63, 64, 1_732_746_000_000, 2**62):
            buffer = TMemoryBuffer()
            protocol(buffer).write_struct(_API.Hbase.mutateRowsTs_args(b"shop:orders", expected, stamp, {}))
            assert form.request("shop:orders", rows, stamp) == buffer.getvalue()


def _row(key: bytes, cells: Iterable[tuple[bytes, bytes | None]]) -> Any:
    mutations = [
        Mutation(isDelete=True if value is None else None, column=name, value=value, writeToWAL=None)
        for name, value in cells
    ]
    return _API.BatchMutation(key, mutations)


def test_the_gateway_reads_its_defaults_in_what_is_left_out() -> None:
    [row] = BINARY.rows([b"1"], {b"f:a": binaries([b"x"]), b"f:b": binaries([None])})
    assert in_binary(row).mutations == [Mutation(False, b"f:a", b"x", True), Mutation(True, b"f:b", None, True)]


def test_a_cell_that_is_too_large_is_refused_whatever_its_type() -> None:
    """Also as JSON, or where each text is kept once. A value without a text has no size, and a delete writes none."""
    large = "x" * 10_000_001
    lists = pa.array([[large, "a"], ["a"], None, [large]])
    pairs = pa.array([{"t": "a", "n": float("nan")}, {"t": large, "n": 1.0}, {"t": large, "n": 1.0}, None])
    texts = {"text": pa.array([large, "a", None, "b"]), "raw": pa.array([b"", b"", large.encode(), large.encode()])}
    deletes = np.array([False, False, False, True])
    for name, column, refused in (
        ("lists", lists, {0}),
        ("pairs", pairs, {0, 1, 2}),
        ("text", texts["text"], {0}),
        ("text", texts["text"].dictionary_encode(), {0}),
        ("raw", texts["raw"], {2}),
        ("raw", texts["raw"].dictionary_encode(), {2}),
    ):
        rows = pa.record_batch({"id": ["1", "2", "3", "4"], name: column})
        assert set(unfit(HBaseSink(**SINK, encoding="bytes"), rows, deletes)) == refused


def test_only_a_framed_gateway_refuses_a_row_above_its_frame() -> None:
    """The limit is of the whole row, and a delete is small."""
    half, rest = "x" * 1_000_000, "x" * 899_000
    columns = {"id": ["1", "2", "3", "4"], "one": [half] * 4, "two": [[half], [rest], None, [half]]}
    rows, deletes = pa.record_batch(columns), np.array([False, False, False, True])
    wal: Any = None
    for transport, refused in (("framed", {0}), ("buffered", set())):
        connection = ConnectionInfo("hbase", "hbase", extra={"transport": transport})
        one = HBaseParticipant("hbase", {"rows": HBaseSink(**SINK)}, Promise.IDEMPOTENT, connection, wal)
        assert set(one._unfit("rows", rows, deletes)) == refused


def test_a_renamed_pipeline_writes_later_timestamps() -> None:
    """Else cells of the old name would hide newer ones, when the next server's clock is behind."""
    sink, wal = HBaseSink(**SINK), Any
    ledgers = {name: DocumentLedger(None, name, stamps=dict(NONE_GIVEN)) for name in ("orders", "shop-orders")}
    documents = SimpleNamespace(read=lambda name: (ledgers[name], None))

    def stamps(pipeline: str, number: int, former: Former | None, now: int) -> Any:
        segment = Segment(number, "digest", "location", {"rows": 10}, 0)
        into = ParticipantPlan("hbase", "hbase", "upsert", sink.promise, 0, {"rows": sink.settings()}, former)
        plan = Plan(pipeline, "here", number, (segment,), (into,), None)
        one = HBaseParticipant.of(into, ConnectionInfo("hbase", "hbase"), wal)
        changes: Any = SimpleNamespace(ledger=ledgers[pipeline], documents=documents, seen=Seen(None, now))
        return one._before_rows(changes, plan)["stamps"]

    _, last = stamps("orders", 7, None, 40_000)
    assert stamps("shop-orders", 8, Former("orders", 7, 8), 10_000)[0] == last + 1


def test_a_log_that_is_away_is_not_reported_as_hbase() -> None:
    with (
        raises(StorageUnavailableError, "storage_unavailable", path="hdfs://nn/wal"),
        translated(ConnectionInfo("hbase", "hbase")),
    ):
        raise StorageUnavailableError("the log is away.", remedy="Start the NameNode.", path="hdfs://nn/wal")


def test_a_server_that_starts_again_is_an_outage_with_its_reason() -> None:
    trace = """org.apache.hadoop.hbase.client.RetriesExhaustedException: Failed after attempts=4, exceptions:
2026-11-30T18:31:04.629Z, RpcRetryingCaller{pause=100}, org.apache.hadoop.hbase.NotServingRegionException: shop
Caused by: org.apache.hadoop.hbase.NotServingRegionException: hbase:meta,,1 is not online on 127.0.0.1.
\tat org.apache.hadoop.hbase.regionserver.HRegionServer.getRegion"""
    with raises(SinkUnavailableError, "sink_unavailable") as caught, translated(ConnectionInfo("hbase", "hbase")):
        raise HBaseError(message=trace.encode())
    reason = "attempts=4: org.apache.hadoop.hbase.NotServingRegionException: hbase:meta."
    assert caught.error and reason in caught.error.what
    assert "is_enabled" not in caught.error.remedy


@pytest.mark.parametrize("key", ["alice@example.com", "a, b: c", "x" * 300])
@pytest.mark.parametrize("tries", ["{}", "Failed after attempts=4, exceptions:\n{0}\nCaused by: {0}"])
def test_the_key_at_which_a_region_begins_is_not_quoted(key: str, tries: str) -> None:
    region = f"shop:users,{key},1600000000000.0123456789abcdef0123456789abcdef."
    trace = tries.format(f"org.apache.hadoop.hbase.NotServingRegionException: {region} is not online on rs1,16020,17")
    found = failure(HBaseError(message=trace.encode()), "h:9090")
    assert "NotServingRegionException: shop:users" in found.what
    assert key not in f"{found} {vars(found)}"


@pytest.mark.parametrize(
    "line",
    [
        "SocketTimeoutException: callTimeout=60000, callDuration=68: row 'alice' on table 'shop:users' at null",
        "RetriesExhaustedException: cannot locate row 'shop:users,alice",
        "WrongRegionException: HRegion users, startKey='alice', getEndKey()='bob', row='carl'",
        "IOException: Timed out waiting for lock for row: alice",
        "NoServerForRegionException: No server address listed in hbase:meta for region users containing row alice",
        "FailedSanityCheckException: Timestamp for KV out of range alice/f:a/1600000000000/Put/vlen=1",
        "NotServingRegionException: users,alice,1600000000000_0001.0123456789abcdef0123456789abcdef. is not online",
    ],
)
def test_no_row_key_of_a_first_line_is_quoted(line: str) -> None:
    found = failure(HBaseError(message=f"{line}\n\tat x".encode()), "h:9090")
    assert line.partition(":")[0] in found.what
    assert not re.search("alice|bob|carl", f"{found} {vars(found)}")


def test_a_row_that_timed_out_is_not_quoted() -> None:
    cause = "java.net.SocketTimeoutException: callTimeout=60000, duration=60001: row 'alice' on table 'shop:users'"
    found = failure(HBaseError(message=f"Failed, exceptions:\nx\nCaused by: {cause}".encode()), "h:9090")
    assert "java.net.SocketTimeoutException." in found.what and "alice" not in f"{found} {vars(found)}"


def test_a_table_that_may_be_disabled_is_named() -> None:
    connection = ConnectionInfo("hbase", "hbase")
    with raises(SinkUnavailableError, "sink_unavailable") as caught, translated(connection, "shop:orders"):
        raise HBaseError(message=b"Failed 40 actions: NotServingRegionException: 40 times")
    assert caught.error and "is_enabled 'shop:orders'" in caught.error.remedy


def test_a_namespace_that_a_cause_names_is_named() -> None:
    trace = b"Failed, exceptions:\nx\nCaused by: org.apache.hadoop.hbase.NamespaceNotFoundException: nowhere\n\tat x"
    assert failure(HBaseError(message=trace), "h:9090").fields["namespace"] == "nowhere"


def test_a_ledger_without_a_known_namespace_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thrift 1 describes tables alone, and HBase 3 has no table of namespaces: the first `prepare` finds out."""

    def missing(*of: object) -> None:
        raise HBaseError(message=b"org.apache.hadoop.hbase.TableNotFoundException: ops:airflow_ft")

    client = SimpleNamespace(getColumnDescriptors=missing, getRow=missing)
    monkeypatch.setattr(requirements, "opened", lambda *of, **more: nullcontext(client))
    plan = plan_delivery({"rows": HBaseSink(**SINK)}).participants[0]
    for schema, expected in (("ops", True), ("", False)):
        ledger = next(requirements.required("p", plan, ConnectionInfo("hbase", "hbase", schema=schema)))
        assert ("list_namespace" in ledger.find().text) is expected
