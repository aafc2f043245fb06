"""Changes of keys: the last one counts, a delete deletes, and a row of a higher number is left alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.model import Plan, Segment
from airflow_ft.testing.tables import Upserts

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.testing.world import World

Change = tuple[str, int, str | None]
_LATE = 1_000
_KEYS, _MANY = 7, 200
_OTHER_BATCH = 7
"""Rows in a batch of the successor: it sends other chunks than the process that was killed."""


class UpsertsConformance:
    """The cases."""

    def test_the_last_change_of_a_key_counts(self, world: World) -> None:
        """Within a batch, over the files of a segment, over segments, and over checkpoints."""
        upserts = upserts_of(world)
        deliver(world, upserts, 1, world.segment_of(1, table_of([("insert", 1, "a"), ("update", 1, "b")])))
        holds(upserts, {1: "b"})
        files = table_of([("update", 1, "c"), ("insert", 2, "a")]), table_of([("update", 1, "d")])
        deliver(world, upserts, 2, world.segment_of(2, *files))
        holds(upserts, {1: "d", 2: "a"})
        changes = enumerate(((1, "e"), (2, "b"), (1, "f")), 3)
        segments = [world.segment_of(number, table_of([("update", *change)])) for number, change in changes]
        deliver(world, upserts, 5, *segments)
        holds(upserts, {1: "f", 2: "b"})

    def test_null_takes_the_place_of_a_value(self, world: World) -> None:
        """Or it is refused; a value that stays would be one of an older row."""
        upserts = upserts_of(world)
        deliver(world, upserts, 1, world.segment_of(1, table_of([("insert", 1, "a"), ("insert", 2, "a")])))
        plan = plan_into(world, upserts, 2, world.segment_of(2, table_of([("update", 1, None)])))
        try:
            world.deliver(plan)
        except (DeclinedError, UnfitTargetError) as error:
            assert error.sink and error.remedy
            holds(upserts, {1: "a", 2: "a"})
        else:
            holds(upserts, {1: None, 2: "a"})

    def test_segments_of_other_columns_are_applied_in_order(self, world: World) -> None:
        upserts = upserts_of(world)
        first, last = table_of([("insert", 1, "first")]), table_of([("update", 1, "last")])
        between = table_of([("update", 1, "between")]).select(["text", "op", "id"])
        segments = [world.segment_of(number, table) for number, table in enumerate((first, between, last), 1)]
        deliver(world, upserts, 3, *segments)
        holds(upserts, {1: "last"})

    def test_a_delete_deletes(self, world: World) -> None:
        upserts = upserts_of(world)
        deliver(world, upserts, 1, world.segment_of(1, table_of([("insert", id, "a") for id in (1, 2, 3)])))
        changes: Sequence[Change] = [
            ("delete", 1, None),
            ("delete", 2, None),
            ("insert", 2, "again"),
            ("insert", 4, "a"),
            ("delete", 4, None),
            ("delete", 5, None),  # it was never there
        ]
        deliver(world, upserts, 2, world.segment_of(2, table_of(changes)))
        holds(upserts, {2: "again", 3: "a"})
        again = [
            world.segment_of(3, table_of([("insert", 1, "b")])),
            world.segment_of(4, table_of([("delete", 3, None)])),
        ]
        deliver(world, upserts, 4, *again)
        holds(upserts, {1: "b", 2: "again"})

    def test_a_row_of_a_higher_number_is_left_alone(self, world: World) -> None:
        """A process that slept may write when its successor has delivered later numbers."""
        upserts = upserts_of(world)
        if upserts.write is None:
            pytest.skip("its rows do not carry a number")
        deliver(world, upserts, 1, world.segment_of(1, table_of([("insert", 1, "a"), ("insert", 2, "a")])))
        upserts.write(1, "later", _LATE)
        upserts.write(3, "later", _LATE)
        changes: Sequence[Change] = [("update", 1, "b"), ("update", 2, "b"), ("delete", 3, None)]
        deliver(world, upserts, 2, world.segment_of(2, table_of(changes)))
        holds(upserts, {1: "later", 2: "b", 3: "later"})

    @pytest.mark.parametrize("at", [0, _MANY // 2 + 3, _MANY], ids=["before the first", "in the middle", "after all"])
    def test_no_key_goes_back_when_a_successor_continues(self, world: World, at: int) -> None:
        """A process is killed among many changes of few keys. Its successor is watched before each of its requests."""
        upserts = upserts_of(world)
        before, begun, _ = _random(1, {})
        deliver(world, upserts, 1, world.segment_of(1, before))
        changes, after, history = _random(2, begun)
        plan = plan_into(world, upserts, 2, world.segment_of(2, changes))
        vote = world.prepare(plan)
        assert world.process(plan, vote, stop="kill", at=at).wait() == "", "it was killed"
        seen = [dict(upserts.read())]
        with world.target.watching(lambda: seen.append(dict(upserts.read())), str(world.folder)) as connection:
            participant = world.participant(plan, connection, per_batch=_OTHER_BATCH)
            participant.commit(plan, world.fence(1, world.attempt()), vote)
        holds(upserts, after)
        if len(seen) == 1:
            pytest.skip("none of its calls is seen: neither a server's, nor of SQLite, nor changes of files")
        for key, texts in history.items():
            place = 0
            for state in seen:
                while place < len(texts) and texts[place] != state.get(key):
                    place += 1
                assert place < len(texts), f"id {key} went back to {state.get(key)!r}"

    @pytest.mark.parametrize("at", [0, _MANY // 2 + 3, _MANY], ids=["before the first", "in the middle", "after all"])
    def test_a_zombie_overwrites_no_row_of_a_later_checkpoint(self, world: World, at: int) -> None:
        upserts = upserts_of(world)
        changes, now, _ = _random(1, {})
        plan = plan_into(world, upserts, 1, world.segment_of(1, changes))
        vote = world.prepare(plan)
        sleeper = world.process(plan, vote, stop="freeze", at=at)
        try:
            sleeper.wait_until_frozen()
            if world.target.at_once:  # it holds a transaction, which ends with it
                sleeper.kill()
            world.commit(plan, vote)
            world.predecessor = 1
            for number in (2, 3):
                changes, now, _ = _random(number, now)
                deliver(world, upserts, number, world.segment_of(number, changes))
            sleeper.resume()
            sleeper.wait()
        finally:
            sleeper.kill()
        holds(upserts, now)


def _random(seed: int, begun: Mapping[int, str]) -> tuple[pa.Table, dict[int, str], dict[int, list[str | None]]]:
    """Return changes of few keys, what is there afterwards, and all texts of each key in order (None: not there)."""
    choose, now = random.Random(seed), dict(begun)
    history = {key: [begun.get(key)] for key in range(_KEYS)}
    changes: list[Change] = []
    for number in range(_MANY):
        key, kind = choose.randrange(_KEYS), choose.choice(["update", "update", "insert", "delete"])
        text = None if kind == "delete" else f"{seed}.{number}"
        if text is None:
            now.pop(key, None)
        else:
            now[key] = text
        changes.append((kind, key, text))
        history[key].append(text)
    return table_of(changes), now, history


def upserts_of(world: World) -> Upserts:
    """Return the target's table with a key; skip the test if it has none."""
    upserts = world.target.upserts()
    if upserts is None:
        pytest.skip("the target names no table with a key")
    return upserts


def holds(upserts: Upserts, expected: Mapping[int, str | None]) -> None:
    """Compare the table, text by id."""
    seen = dict(upserts.read())
    problems = [
        f"id {id} {f'has the text {seen[id]!r}' if id in seen else 'is not there'}, and should "
        f"{f'have {expected[id]!r}' if id in expected else 'not be there'}"
        for id in sorted({*seen, *expected})
        if seen.get(id) != expected.get(id) or (id in seen) != (id in expected)
    ]
    assert not problems, "; ".join(problems)


def table_of(changes: Sequence[Change]) -> pa.Table:
    """Return these changes as rows."""
    import pyarrow as pa

    kinds, ids, texts = zip(*changes, strict=True)
    return pa.table(
        {"op": pa.array(kinds, pa.string()), "id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string())}
    )


def plan_into(world: World, upserts: Upserts, number: int, *segments: Segment) -> Plan:
    """Return the plan that delivers these segments into the table."""
    return world.into(upserts.sink, world.plan_of(number, *segments))


def deliver(world: World, upserts: Upserts, number: int, *segments: Segment) -> None:
    """Deliver these segments into the table, as one checkpoint."""
    world.deliver(plan_into(world, upserts, number, *segments))
