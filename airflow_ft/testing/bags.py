"""Equal rows, several files and batches, and segments with other columns: a table keeps the rows as a multiset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.model import Promise, Segment
from airflow_ft.protocol.votes import Outcome
from airflow_ft.testing.tables import Bag, Row
from airflow_ft.testing.world import OWN_PARTICIPANT, ROWS, SINK

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.testing.world import World

NAMES = ("id", "text", "note")
_A_BATCH = 65_536
"""More rows than a batch of the log has."""


class BagsConformance:
    """The cases."""

    def test_equal_rows_all_come(self, world: World) -> None:
        """Within a batch, and in other files, segments and checkpoints."""
        bag = _bag(world)
        row, empty = (1, "same", "same"), (None, None, None)
        equal = _table([row, row, empty, row, empty])
        expected: list[Row] = []
        for number in (2, 4):
            parts = [world.segment_of(number - 1, equal, equal), world.segment_of(number, equal)]
            _deliver(world, bag, number, *parts)
            expected += 3 * [row, row, empty, row, empty]
            _holds(bag, expected, f"checkpoint {number} has two segments with three files of equal rows")

    def test_every_file_of_a_segment_comes(self, world: World) -> None:
        bag = _bag(world)
        sizes = (1, 7, 0, 3)
        rows: list[list[Row]] = [
            [(100 * file + n, f"file {file}", f"row {n}") for n in range(size)] for file, size in enumerate(sizes)
        ]
        _deliver(world, bag, 1, world.segment_of(1, *map(_table, rows)))
        _holds(bag, [row for file in rows for row in file], "the segment has four files, the third one without rows")

    def test_every_batch_of_a_file_comes(self, world: World) -> None:
        bag = _bag(world)
        ids = range(_A_BATCH + 10)
        _deliver(world, bag, 1, world.segment_of(1, _table([(each, "t", None) for each in ids])))
        _holds(bag, [(each, "t", None) for each in ids], "the file has more than one batch")

    @pytest.mark.parametrize("names", [("note", "text", "id"), ("text", "id", "note")], ids="-".join)
    def test_columns_have_names_not_places(self, world: World, names: tuple[str, ...]) -> None:
        """Segments of one checkpoint, and checkpoints, have the same columns in other orders; it may refuse that."""
        bag = _bag(world)
        rows: list[Row] = [(1, "t1", "n1"), (2, "t2", "n2"), (3, "t3", "n3"), (4, "t4", "n4")]
        first, second, third, fourth = map(_table, ([row] for row in rows))
        _deliver(world, bag, 1, world.segment_of(1, first))
        came = [rows[0]]
        parts = world.segment_of(2, second), world.segment_of(3, third.select(names))
        if _deliver_or_refuse(world, bag, 3, *parts):
            came += rows[1:3]
        _holds(bag, came, f"the second segment has its columns in the order {names}")
        if _deliver_or_refuse(world, bag, 4, world.segment_of(4, fourth.select(names))):
            came.append(rows[3])
        _holds(bag, came, f"the checkpoint has its columns in the order {names}")

    def test_a_missing_column_is_null_or_refused(self, world: World) -> None:
        bag = _bag(world)
        rows: list[Row] = [(1, "t1", "n1"), (2, "t2", None), (3, "t3", "n3")]
        _deliver(world, bag, 1, world.segment_of(1, _table(rows[:1])))
        lacking = world.segment_of(2, _table(rows[1:2]).drop_columns(["note"]))
        came = _deliver_or_refuse(world, bag, 3, lacking, world.segment_of(3, _table(rows[2:])))
        _holds(bag, rows if came else rows[:1], "the column 'note' is missing in the first of two segments")

    def test_sinks_of_one_participant_come_together(self, world: World) -> None:
        """Each into its own table, with its own count; a process that is killed in the second one leaves no rows."""
        bag, more = _bag(world), f"{SINK}_more"
        expected: list[Row] = []
        for number in (1, 2):
            own: list[Row] = [(number, "t", None), (number, "t", None), (None, None, "n")]
            tables = {SINK: world.table(number * ROWS), more: _table(own)}
            plan = world.with_second(more, bag.sink, world.plan_of(number, world.segment_with(number, tables)))
            if plan is None:
                pytest.skip(OWN_PARTICIPANT)
            vote = world.prepare(plan)
            if number == 2 and world.target.at_once:
                killed = world.process(plan, vote, stop="kill", at=1, per_batch=1, sink=more).wait() == ""
                reads = world.participant_plan().promise is not Promise.TWO_PHASE and not world.target.adopts
                assert killed or not reads, "it was killed among the rows of the second sink"
                if killed:
                    world.shows(world.ids_of(1), "a process was killed among the rows of the second sink")
                    _holds(bag, expected, "a process was killed among the rows of the second sink")
            proof = world.commit(plan, vote)
            assert dict(proof.counts) == {SINK: ROWS, more: len(own)}, f"the proof counts {dict(proof.counts)}"
            expected += own
            world.shows(world.ids_of(*range(1, number + 1)), "rows of the first sink")
            _holds(bag, expected, "rows of the second sink")
            world.predecessor = number


def _bag(world: World) -> Bag:
    bag = world.target.bag()
    if bag is None:
        pytest.skip("the target names no bag")
    return bag


def _table(rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    types = (pa.int64(), pa.string(), pa.string())
    columns = {name: pa.array([row[at] for row in rows], types[at]) for at, name in enumerate(NAMES)}
    return pa.table(columns)


def _holds(bag: Bag, expected: Sequence[Row], where: str) -> None:
    """Compare the table with these rows, as multisets."""
    seen: Counter[Row] = Counter(tuple(row) for row in bag.read())  # type: ignore[misc]
    missing, more = Counter(expected) - seen, seen - Counter(expected)
    wrong = ((missing, "are missing"), (more, "are there that no job wrote, or too often"))
    problems = [f"{rows.total()} rows {what}, such as {next(iter(rows))}" for rows, what in wrong if rows]
    assert not problems, f"{where}: {' and '.join(problems)}"


def _deliver(world: World, bag: Bag, number: int, *segments: Segment) -> None:
    plan = world.into(bag.sink, world.plan_of(number, *segments))
    proof = world.deliver(plan)
    [rows] = proof.counts.values()
    assert proof.outcome is Outcome.COMMITTED
    expected = sum(sum(each.rows.values()) for each in segments)
    assert rows == expected, f"the proof counts {rows} rows, and the checkpoint has {expected}"


def _deliver_or_refuse(world: World, bag: Bag, number: int, *segments: Segment) -> bool:
    """Return whether the rows came; False: they were refused before anything was visible, and the number is aborted."""
    plan = world.into(bag.sink, world.plan_of(number, *segments))
    try:
        vote = world.prepare(plan)
    except (DeclinedError, UnfitTargetError):
        assert world.abort(plan).outcome is Outcome.ABORTED
        return False
    world.commit(plan, vote)
    world.predecessor = number
    return True
