"""Random values into the newest systems: each row arrives as it was, or is refused, and none is lost or changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.errors import DeclinedError
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.testing import Target, Values, plain
from airflow_ft.testing.dead_letters import rows_in
from airflow_ft.testing.values import same
from airflow_ft.testing.world import SINK, World
from tests.conformance.fuzz import Fuzz
from tests.conformance.test_cassandra import tables
from tests.conformance.test_hbase import Rows
from tests.conformance.test_iceberg import Changed
from tests.conformance.test_paimon import Changed as Paimon
from tests.conformance.test_redis import Keys
from tests.sinks.iceberg.world import in_file, of_server

pytestmark = [pytest.mark.server, pytest.mark.release]
CELLS = 20_000
SEED = 7
TARGETS: dict[str, tuple[str, Callable[[Any, Path], AbstractContextManager[Target]]]] = {
    "Redis, hash": ("redis_server", lambda server, _: nullcontext(Keys(server, "hash", "upsert"))),
    "Redis, JSON": ("redis_server", lambda server, _: nullcontext(Keys(server, "json", "upsert"))),
    "Redis, atomic": ("redis_server", lambda server, _: nullcontext(Keys(server, "hash", "atomic"))),
    "HBase, text": ("hbase", lambda server, _: nullcontext(Rows(server, "text", 0))),
    "HBase, bytes": ("hbase", lambda server, _: nullcontext(Rows(server, "bytes", 16))),
    "Cassandra": ("cassandra_server", lambda server, _: tables(server)),
    "Iceberg, REST": ("iceberg_rest", lambda server, _: nullcontext(Changed(of_server(server), "fuzz"))),
    "Iceberg, SQL": ("tmp_path", lambda folder, _: nullcontext(Changed(in_file(folder)))),
    "Paimon": ("paimon", lambda paimon, folder: nullcontext(Paimon(folder, paimon))),
}


@pytest.fixture(params=TARGETS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    fixture, made = TARGETS[request.param]
    with made(request.getfixturevalue(fixture), tmp_path) as target, closing(World(target, tmp_path)) as found:
        yield found


def columns_of(given: Values) -> dict[str, pa.Array]:
    """Return the columns whose values Python has: no dates and times after the year 9999."""
    return {name: values for name, values in given.columns.items() if not name.startswith("late")}


def fuzzed(given: Values, kind: str, seed: int) -> tuple[pa.Table, set[int]]:
    """Rows with as many cells, and the ids of those that have a value which the sink says it refuses."""
    chance = random.Random(seed)
    rows = -(-CELLS // len(columns_of(given)))
    special = {"id_text": "uuid", **({"moment": "millisecond"} if kind == "cassandra" else {})}
    columns = {}
    for name, column in columns_of(given).items():
        fuzz = Fuzz(f"{seed} {name}", finite=not name.startswith("odd"))
        columns[name] = fuzz.column(column, rows, special.get(name, ""))
    unfit = set[int]()
    for column, wrong in given.refused.values():
        if column in columns and wrong.type == columns[column].type:
            places = list(range(rows))
            for row in chance.sample(range(rows), rows // 50):
                places[row] = rows + chance.randrange(len(wrong))
                unfit.add(row)
            columns[column] = pa.concat_arrays([columns[column], wrong]).take(pa.array(places))
    return pa.table({"id": pa.array(range(rows), pa.int64()), **columns}), unfit


def test_each_row_arrives_as_it_was_or_is_refused(world: World) -> None:
    given = world.target.values()
    assert given is not None
    table, unfit = fuzzed(given, given.sink.kind, SEED)
    plan = world.plan_into(given.sink, table)
    if unfit:
        with pytest.raises(DeclinedError) as refused:
            world.commit(plan, world.prepare(plan))
        assert refused.value.remedy
    else:
        world.prepare(plan)  # makes the table
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    aside = of_proof(proof).get(SINK)
    letters = {row["id"]: row for uri in (aside.files if aside else ()) for row in rows_in(uri)}
    found = {row["id"]: row for row in given.read()}
    assert unfit <= letters.keys(), "a value that the sink says it refuses was written"
    changed = []
    for row in plain(table):
        id = row["id"]
        assert (id in found) != (id in letters), f"row {id} is lost, or written and refused"
        for name in columns_of(given):
            if id in letters:
                expected, read = row[name], letters[id][name]
            else:
                seen, read = given.seen.get(name), found[id][name]
                expected = seen(row[name]) if seen is not None and row[name] is not None else row[name]
            if not same(read, expected):
                changed.append(f"{name}: {str(read)[:200]!r}, not {str(expected)[:200]!r}")
    cells = table.num_rows * len(columns_of(given))
    print(f"{cells:,} cells, {len(changed)} changed; {len(letters)} of {table.num_rows:,} rows refused")
    assert not changed, "\n".join(changed[:20])
    assert cells >= CELLS and len(letters) < table.num_rows // 3
