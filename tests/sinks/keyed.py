"""Checks of sinks with one row for each key, the same for several systems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_ft.protocol.verify import Delivered
from airflow_ft.testing.world import World
from airflow_ft.wal import open_wal

CHANGES = (
    [("insert", id, "a") for id in range(5)],
    [("update", 1, "b"), ("delete", 2, None), ("update", 1, "c"), ("update", 0, None)],
)
"""Two checkpoints, after which the keys 0 (with NULL), 1, 3 and 4 are there, and 2 is not."""
SIZES = (1, 9, 10, 11, 999, 1_000, 1_001, 8_001)
"""Rows of a checkpoint: one less and one more than what a sink sends at once."""


def check_last_rows(world: World) -> None:
    """Deliver checkpoints of `SIZES`: no row waits for more rows to fill a batch (apache/seatunnel#8174)."""
    expected: list[int] = []
    for size in SIZES:
        plan = world.plan(world.table(len(expected), size))
        proof = world.deliver(plan)
        expected += range(len(expected), len(expected) + size)
        assert sum(proof.counts.values()) == size
        world.shows(expected, f"after a checkpoint of {size} rows")


def check_verify(
    world: World,
    verify: Callable[..., Sequence[Any]],
    disturb: Callable[[], None],
    between: Callable[[], None] = lambda: None,
) -> Any:
    """Deliver `CHANGES`, and check the report before and after `disturb` has changed 3, removed 4 and added 2.

    `between` is called after each delivery. Returns the report before.
    """
    target: Any = world.target
    delivered: list[Delivered] = []
    for number, changes in enumerate(CHANGES, 1):
        kinds, ids, texts = zip(*changes, strict=True)
        table = pa.table({"op": kinds, "id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())})
        plan = world.plan_of(number, world.segment_of(number, table))
        delivered.append(Delivered(plan, world.deliver(plan), delivered[-1].proof if delivered else None))
        between()

    def report(given: list[Delivered]) -> Any:
        [found] = verify(given, given[-1].plan.participants[0], target.connection, open_wal())
        return found

    before = report(delivered)
    assert before.is_exact and before.expected == 5
    known = [replace(each, newest=len(CHANGES), newest_other=len(CHANGES)) for each in delivered[:1]]
    assert report(known).notes == report(delivered[:1]).notes, "as the decision log says it, and as the sink does"
    first = report(delivered[:1])  # keys 0, 1 and 2 were changed since
    assert first.is_exact and any("3 keys not judged" in note for note in first.notes)
    disturb()
    found = report(delivered)
    assert found.missing == 3 and not found.is_complete
    assert sorted(each.file for each in found.differences) == [
        "deleted rows that are there", "rows that are not there", "rows that are there with other values",
    ]  # fmt: skip
    return before
