"""The binary format of COPY says the same as CSV does, of all types that it has a form for."""

from __future__ import annotations

import random
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.sinks.postgres import binary, encoding
from airflow_ft.sinks.postgres.catalog import Table, read_table
from airflow_ft.sinks.postgres.naming import TableName
from airflow_ft.sinks.postgres.session import Limits, Session
from tests.sinks.postgres.world import Table as Target
from tools.servers import Database

pytestmark = pytest.mark.server

ROWS = 300


def long(unscaled: int, scale: int) -> Decimal:
    return Decimal(unscaled).scaleb(-scale, Context(prec=40))


COLUMNS: dict[str, tuple[str, pa.DataType, Any]] = {
    "flag": ("boolean", pa.bool_(), lambda r: r.random() < 0.5),
    "small": ("smallint", pa.int8(), lambda r: r.randint(-128, 127)),
    "number": ("integer", pa.int64(), lambda r: r.randint(-(2**31), 2**31 - 1)),
    "large": ("bigint", pa.int64(), lambda r: r.choice([-(2**63), 2**63 - 1, r.getrandbits(40)])),
    "count": ("bigint", pa.uint32(), lambda r: r.getrandbits(32)),
    "whole": ("bigint", pa.decimal128(18, 0), lambda r: Decimal(r.randint(-(10**18) + 1, 10**18 - 1))),
    "real": ("real", pa.float32(), lambda r: r.choice([0.5, -0.0, float("nan"), float("-inf"), 3.4e38])),
    "double": ("double precision", pa.float64(), lambda r: r.choice([r.random(), 5e-324, float("inf")])),
    "of_real": ("double precision", pa.float32(), lambda r: r.random()),
    "of_int": ("double precision", pa.int32(), lambda r: r.randint(-9, 9)),
    "price": ("numeric(12,2)", pa.decimal128(12, 2), lambda r: Decimal(r.randint(1 - 10**12, 10**12 - 1)) / 100),
    "tiny": ("numeric", pa.decimal128(16, 16), lambda r: Decimal(r.randint(-(10**6), 10**16 - 1)).scaleb(-16)),
    "odd": ("numeric(18,5)", pa.decimal128(18, 5), lambda r: Decimal(r.choice([0, -1, 10**18 - 1])).scaleb(-5)),
    "round": ("numeric", pa.decimal128(9, 0), lambda r: Decimal(r.choice([0, 10_000, -10_000, 123_456_789]))),
    "sum": ("numeric", pa.decimal128(22, 2), lambda r: Decimal(r.randint(1 - 10**22, 10**22 - 1)) / 100),
    "long": ("numeric", pa.decimal128(38, 18), lambda r: long(r.choice([1, -1]) * (r.getrandbits(127) % 10**38), 18)),
    "parts": ("numeric", pa.decimal128(38, 37), lambda r: long(r.choice([0, -1, 10**38 - 1, 1 - 10**38]), 37)),
    "ints": ("numeric", pa.int64(), lambda r: r.choice([-(2**63), 2**63 - 1, 0, 10_000])),
    "day": ("date", pa.date32(), lambda r: r.randint(-719162, 100_000)),
    "at": ("timestamptz", pa.timestamp("us", "UTC"), lambda r: r.randint(-62_000_000_000_000_000, 10**17)),
    "seconds": ("timestamp", pa.timestamp("s"), lambda r: r.randint(-(10**9), 10**10)),
    "finer": ("timestamp(3)", pa.timestamp("ns"), lambda r: r.randint(-(10**11), 10**11) * 10**6),
    "clock": ("time", pa.time64("us"), lambda r: r.randint(0, 86_399_999_999)),
    "name": ("text", pa.string(), lambda r: "".join(r.choices('a"\\\n\N{SNOWMAN}\t,', k=r.randint(0, 9)))),
    "code": ("varchar(9)", pa.large_string(), lambda r: r.choice(["", "x", "NULL", "\\N"])),
    "fixed": ("char(4)", pa.string(), lambda r: r.choice(["", "a", "abcd"])),
    "raw": ("bytea", pa.binary(), lambda r: r.randbytes(r.randint(0, 5))),
    "told": ("json", pa.string(), lambda r: '{"a": [1, "\\u00e4"]}'),
    "kept": ("jsonb", pa.string(), lambda r: r.choice(["null", '{"b": 1, "a": 2}'])),
    "mood": ("mood", pa.string(), lambda r: r.choice(["fine", "\N{PILE OF POO}"])),
}  # fmt: skip


@pytest.fixture
def target(postgres_database: Database) -> Target:
    declared = ", ".join(f"{name} {kind}" for name, (kind, _, _) in COLUMNS.items())
    found = Target(postgres_database, "CREATE TYPE mood AS ENUM ('fine', '\N{PILE OF POO}')")
    for table in ("as_text", "as_bytes"):
        found.sql(f"CREATE TABLE {table} ({declared})")
    return found


def batch(nulls: float, seed: int = 7) -> pa.RecordBatch:
    chance = random.Random(seed)
    arrays = []
    for _, kind, make in COLUMNS.values():
        values = [None if chance.random() < nulls else make(chance) for _ in range(ROWS)]
        plain = pa.int32() if kind == pa.date32() else pa.int64()  # what times count
        arrays.append(pa.array(values, plain).cast(kind) if pa.types.is_temporal(kind) else pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, list(COLUMNS))


def load(target: Target, rows: pa.RecordBatch) -> None:
    """Both forms, each into its table."""
    session = Session(target.connection, Limits())
    try:
        table: Table = read_table(session, TableName.parse("as_text"), "rows")
        columns = [table.columns[name] for name in rows.schema.names]
        data = binary.encode(rows, columns)
        assert data is not None
        assert session.copy("COPY as_bytes FROM STDIN (FORMAT binary)", data) == rows.num_rows
        assert session.copy("COPY as_text FROM STDIN (FORMAT csv)", encoding.encode(rows, columns)) == rows.num_rows
    finally:
        session.close()


@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_both_forms_mean_the_same(target: Target, nulls: float) -> None:
    whole = batch(nulls)
    parts = [whole, whole.slice(5, 17), whole.slice(ROWS), batch(nulls, seed=8).slice(1, 1)]
    for part in parts:
        load(target, part)
    rows = "SELECT row(t.*)::text FROM {} AS t"
    for one, other in (("as_text", "as_bytes"), ("as_bytes", "as_text")):
        assert target.sql(f"{rows.format(one)} EXCEPT ALL {rows.format(other)}") == []
    assert target.sql("SELECT count(*) FROM as_bytes") == [(sum(part.num_rows for part in parts),)]


@pytest.mark.parametrize(
    ("declared", "values"),
    [
        ("smallint", pa.array([1, 40_000])),  # the server names the row, of CSV
        ("real", pa.array([1e300])),  # ... and does not take it for infinity
        ("numeric", pa.array([Decimal(1)], pa.decimal256(40, 0))),
        ("uuid", pa.array(["0e37df36-f698-11e6-8dd4-cb9ced3df976"])),
        ("text[]", pa.array([["a"]])),
        ("interval", pa.array(["1 day"])),
    ],
)
def test_what_has_no_such_form_goes_as_text(postgres_database: Database, declared: str, values: pa.Array) -> None:
    target = Target(postgres_database, f"CREATE TABLE t (v {declared})")
    session = Session(target.connection, Limits())
    try:
        columns = list(read_table(session, TableName.parse("t"), "rows").columns.values())
    finally:
        session.close()
    assert binary.encode(pa.RecordBatch.from_arrays([values], ["v"]), columns) is None
