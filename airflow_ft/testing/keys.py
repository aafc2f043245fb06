"""Keys belong to a target: other pipelines and sinks, many changes, several columns, and what `verify` says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_ft.protocol.errors import ConfigurationError, DeclinedError, UnfitTargetError
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.sinks.registry import system
from airflow_ft.testing.upserts import Change, deliver, holds, plan_into, table_of, upserts_of
from airflow_ft.testing.world import OWN_PARTICIPANT, ROWS, SINK
from airflow_ft.wal import open_wal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_ft.testing.tables import Upserts
    from airflow_ft.testing.world import World

_CHANGES = 3_000
"""More changes of a key than a version of (number * 1,000 + place) has places."""
_PAIRS = [(1, "a"), (1, "b"), (2, "a"), (1, "A"), (1, "11"), (11, "1")]
"""Keys that are one where a column is left out, case is folded, or texts are joined without a mark between them."""


class KeysConformance:
    """The cases."""

    def test_rows_of_a_second_pipeline_come_or_are_refused(self, world: World) -> None:
        """Its checkpoints begin at 1, so their numbers are lower than those that wrote the rows that are there."""
        upserts = upserts_of(world)
        for number in (1, 2, 3):
            changes = [("update", 1, f"first {number}"), ("update", 2, "first")]
            deliver(world, upserts, number, world.segment_of(number, table_of(changes)))
        first = world.pipeline
        world.pipeline, world.predecessor = f"{first}-2", 0
        second = world.segment_of(1, table_of([("update", 1, "second"), ("delete", 2, None), ("insert", 3, "second")]))
        try:
            deliver(world, upserts, 1, second)
        except (ConfigurationError, DeclinedError, UnfitTargetError) as error:
            assert error.remedy, "a refused pipeline names what to do"
            holds(upserts, {1: "first 3", 2: "first"})
            return
        holds(upserts, {1: "second", 3: "second"})
        world.pipeline, world.predecessor = first, 3
        deliver(world, upserts, 4, world.segment_of(4, table_of([("update", 1, "first 4"), ("delete", 3, None)])))
        holds(upserts, {1: "first 4"})

    def test_thousands_of_changes_of_a_key_hide_no_later_one(self, world: World) -> None:
        """A version of the checkpoint's number and the row's place may overflow into the next number."""
        upserts = upserts_of(world)
        changes = [("update", 1 + place % 2, f"{place}") for place in range(2 * _CHANGES)]
        deliver(world, upserts, 1, world.segment_of(1, table_of(changes)))
        holds(upserts, {1: f"{2 * _CHANGES - 2}", 2: f"{2 * _CHANGES - 1}"})
        deliver(world, upserts, 2, world.segment_of(2, table_of([("update", 1, "next"), ("delete", 2, None)])))
        holds(upserts, {1: "next"})

    def test_sinks_of_one_participant_keep_their_own_keys(self, world: World) -> None:
        upserts, more = upserts_of(world), f"{SINK}_more"
        tables = {SINK: world.table(ROWS), more: table_of([("insert", ROWS, "other"), ("insert", 1, "other")])}
        plan = world.with_second(more, upserts.sink, world.plan_of(1, world.segment_with(1, tables)))
        if plan is None:
            pytest.skip(OWN_PARTICIPANT)
        proof = world.deliver(plan)
        assert dict(proof.counts) == {SINK: ROWS, more: 2}, f"the proof counts {dict(proof.counts)}"
        world.shows(world.ids_of(1), "rows of the first sink")
        holds(upserts, {ROWS: "other", 1: "other"})

    def test_each_column_of_a_key_counts(self, world: World) -> None:
        import pyarrow as pa

        pairs = world.target.pairs()
        if pairs is None:
            pytest.skip("the target names no table whose key has two columns")
        expected: dict[tuple[int, str], str | None] = {pair: f"row {n}" for n, pair in enumerate(_PAIRS)}
        for number, changed in ((1, list(expected)), (2, [(1, "A")])):
            expected |= {pair: f"checkpoint {number}: {expected[pair]}" for pair in changed}
            ids, parts = zip(*changed, strict=True)
            texts = [expected[pair] for pair in changed]
            rows = pa.table({"id": pa.array(ids, pa.int64()), "part": parts, "text": texts})
            world.deliver(world.into(pairs.sink, world.plan_of(number, world.segment_of(number, rows))))
            seen = dict(pairs.read())
            assert seen == expected, f"checkpoint {number}: {seen}, and not {expected}"

    def test_verify_finds_a_deleted_key_that_is_back(self, world: World) -> None:
        upserts, delivered = upserts_of(world), list[Delivered]()
        if system(upserts.sink.kind).part("verify") is None:
            pytest.skip("it has no verification")
        inserts: list[Change] = [("insert", 1, "a"), ("insert", 2, "a")]
        changes: list[Change] = [("update", 1, "b"), ("delete", 2, None)]
        for number, some in enumerate((inserts, changes), 1):
            plan = plan_into(world, upserts, number, world.segment_of(number, table_of(some)))
            before = delivered[-1].proof if delivered else None
            delivered.append(Delivered(plan, world.deliver(plan), before))
        report = _verified(world, delivered)
        assert (report.error, report.missing, report.differences) == ("", 0, ()), "no row was changed"
        _write_again(world, upserts)
        holds(upserts, {1: "b", 2: "back"})
        report = _verified(world, delivered)
        assert report.error == "" and report.missing == 1, f"a deleted key is back: {report.missing} differences"
        assert [each.number for each in report.differences] == [2]


def _verified(world: World, delivered: Sequence[Delivered]) -> SinkReport:
    [planned] = delivered[-1].plan.participants
    verify = system(planned.kind).part("verify").verify
    [report] = verify(delivered, planned, world.target.connection, open_wal())
    assert isinstance(report, SinkReport)
    return report


def _write_again(world: World, upserts: Upserts) -> None:
    """Write the key 2 as a foreign writer does, or else as another pipeline."""
    if upserts.write is not None:
        upserts.write(2, "back", 2)
        return
    world.pipeline, world.predecessor = f"{world.pipeline}-2", 0
    try:
        deliver(world, upserts, 1, world.segment_of(1, table_of([("insert", 2, "back")])))
    except (ConfigurationError, DeclinedError, UnfitTargetError):
        pytest.skip("it refuses a second pipeline, and the target has no write")
