"""Changes of keys: the last one counts, a delete deletes, and a row of a higher number is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.testing.tables import Upserts

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.testing.world import World

Change = tuple[str, int, str | None]
_LATE = 1_000


class UpsertsConformance:
    """The cases."""

    def test_the_last_change_of_a_key_counts(self, world: World) -> None:
        """Within a batch, over the files of a segment, over segments, and over checkpoints."""
        upserts = _upserts(world)
        _deliver(world, upserts, 1, world.segment_of(1, _table([("insert", 1, "a"), ("update", 1, "b")])))
        _holds(upserts, {1: "b"})
        files = _table([("update", 1, "c"), ("insert", 2, "a")]), _table([("update", 1, "d")])
        _deliver(world, upserts, 2, world.segment_of(2, *files))
        _holds(upserts, {1: "d", 2: "a"})
        changes = enumerate(((1, "e"), (2, "b"), (1, "f")), 3)
        segments = [world.segment_of(number, _table([("update", *change)])) for number, change in changes]
        _deliver(world, upserts, 5, *segments)
        _holds(upserts, {1: "f", 2: "b"})

    def test_segments_of_other_columns_are_applied_in_order(self, world: World) -> None:
        upserts = _upserts(world)
        first, last = _table([("insert", 1, "first")]), _table([("update", 1, "last")])
        between = _table([("update", 1, "between")]).select(["text", "op", "id"])
        segments = [world.segment_of(number, table) for number, table in enumerate((first, between, last), 1)]
        _deliver(world, upserts, 3, *segments)
        _holds(upserts, {1: "last"})

    def test_a_delete_deletes(self, world: World) -> None:
        upserts = _upserts(world)
        _deliver(world, upserts, 1, world.segment_of(1, _table([("insert", id, "a") for id in (1, 2, 3)])))
        changes: Sequence[Change] = [
            ("delete", 1, None),
            ("delete", 2, None),
            ("insert", 2, "again"),
            ("insert", 4, "a"),
            ("delete", 4, None),
            ("delete", 5, None),  # it was never there
        ]
        _deliver(world, upserts, 2, world.segment_of(2, _table(changes)))
        _holds(upserts, {2: "again", 3: "a"})
        again = [world.segment_of(3, _table([("insert", 1, "b")])), world.segment_of(4, _table([("delete", 3, None)]))]
        _deliver(world, upserts, 4, *again)
        _holds(upserts, {1: "b", 2: "again"})

    def test_a_row_of_a_higher_number_is_left_alone(self, world: World) -> None:
        """A process that slept may write when its successor has delivered later numbers."""
        upserts = _upserts(world)
        if upserts.write is None:
            pytest.skip("its rows do not carry a number")
        _deliver(world, upserts, 1, world.segment_of(1, _table([("insert", 1, "a"), ("insert", 2, "a")])))
        upserts.write(1, "later", _LATE)
        upserts.write(3, "later", _LATE)
        changes: Sequence[Change] = [("update", 1, "b"), ("update", 2, "b"), ("delete", 3, None)]
        _deliver(world, upserts, 2, world.segment_of(2, _table(changes)))
        _holds(upserts, {1: "later", 2: "b", 3: "later"})


def _upserts(world: World) -> Upserts:
    upserts = world.target.upserts()
    if upserts is None:
        pytest.skip("the target names no table with a key")
    return upserts


def _holds(upserts: Upserts, expected: Mapping[int, str]) -> None:
    """Compare the table, text by id."""
    seen = dict(upserts.read())
    told = [
        f"id {id} {f'has the text {seen[id]!r}' if id in seen else 'is not there'}, and should "
        f"{f'have {expected[id]!r}' if id in expected else 'not be there'}"
        for id in sorted({*seen, *expected})
        if seen.get(id) != expected.get(id) or (id in seen) != (id in expected)
    ]
    assert not told, "; ".join(told)


def _table(changes: Sequence[Change]) -> pa.Table:
    import pyarrow as pa

    kinds, ids, texts = zip(*changes, strict=True)
    return pa.table(
        {"op": pa.array(kinds, pa.string()), "id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())}
    )


def _deliver(world: World, upserts: Upserts, number: int, *segments: Segment) -> None:
    plan: Plan = world.plan_of(number, *segments)
    [planned] = plan_delivery({next(iter(plan.participants[0].sinks)): upserts.sink}).participants
    planned = replace(planned, predecessor=world.predecessor)
    carries = planned.name if plan.commit_point else None
    world.deliver(replace(plan, participants=(planned,), commit_point=carries))
