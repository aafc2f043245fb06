"""Rows that are refused after the decision, and that a person sets aside: each is in the dead letters, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.set_aside import SetAside, of_proof
from airflow_ft.protocol.verify import Delivered
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.registry import system
from airflow_ft.testing.values import plain, same
from airflow_ft.testing.world import SINK
from airflow_ft.wal import open_wal
from airflow_ft.wal.filesystem import filesystem

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.protocol.model import Segment
    from airflow_ft.testing.values import Values
    from airflow_ft.testing.world import World

NOTHING_REFUSED = "the target names no rows that are refused"
_PER_BATCH = 2
_APART = 1_000
"""What the ids of a segment's refused rows are further than those of the one before."""


class DeadLettersConformance:
    """The cases."""

    def test_rows_that_are_set_aside_are_named_and_the_others_come(self, world: World) -> None:
        """Deliver two segments, of which one has two files, in small batches; and a later checkpoint."""
        if world.target.refused is None:
            pytest.skip(NOTHING_REFUSED)
        head = world.plan()
        world.deliver(head)
        first, second, third = (_further(world.target.refused, n) for n in range(3))
        good = first.filter(_are_in(first, world.target.taken)).slice(0, 1)
        good = good.set_column(good.schema.get_field_index("id"), "id", [[-1]])
        plan = world.plan_of(3, world.segment_of(2, good, first), world.segment(3, second))
        vote = world.vote_without_prepare(plan)
        proof = world.participant(plan, per_batch=_PER_BATCH).commit(
            plan, world.fence(1, world.attempt()), vote, set_aside=True
        )
        assert proof.outcome is Outcome.COMMITTED
        taken = world.target.taken
        expected = [-1, *world.ids_of(1), *taken, *(id + _APART for id in taken)]
        world.shows(expected, "refused rows are set aside, and the others come")
        assert dict(proof.counts) == {SINK: 1 + 2 * len(taken)}, f"the proof counts {dict(proof.counts)}"
        aside = of_proof(proof)[SINK]
        _check_dead_letters(aside, first, second, lacking=taken)
        named = _named(aside, plan.segments)
        for number, file, table in ((2, 1, first), (3, 0, second)):
            path = open_wal().open(plan.segments[number - 2]).files(SINK)[file].path
            missing = _missing(table, [*taken, *(id + _APART for id in taken)])
            places = [table["id"][index].as_py() for index in named.get((number, path), [])]
            assert Counter(places) == missing, f"of file {path} the proof names the rows {places}, not {missing}"
        again = world.commit(plan, vote, set_aside=True)
        assert of_proof(again)[SINK] == aside, "to commit again names other rows"
        world.shows(expected, "refused rows are set aside twice")
        world.predecessor = 3
        later = world.plan_of(4, world.segment(4, third))
        of_later = world.commit(later, world.vote_without_prepare(later), set_aside=True)
        _check_dead_letters(of_proof(of_later)[SINK], third, lacking=[id + 2 * _APART for id in taken])
        _check_dead_letters(aside, first, second, lacking=taken)
        world.shows([*expected, *(id + 2 * _APART for id in taken)], "rows of a later checkpoint are set aside")
        self._is_verified(world, [Delivered(plan, proof, None), Delivered(later, of_later, proof)])

    def test_no_row_is_set_aside_unless_a_person_says_so(self, world: World) -> None:
        """Another participant has decided. This one refuses all of them, or takes all of them after all."""
        if world.target.refused is None:
            pytest.skip(NOTHING_REFUSED)
        world.commit_point = False
        world.deliver(world.plan())
        rows = world.target.refused
        plan = world.plan_of(2, world.segment(2, rows))
        try:
            proof = world.commit(plan, world.vote_without_prepare(plan))
        except (DeclinedError, UnfitTargetError):
            if world.target.at_once:
                world.shows(world.ids_of(1), "rows are refused, and no person has set them aside")
        else:
            assert SINK not in of_proof(proof), "rows were set aside, and no person has said so"
            world.shows([*world.ids_of(1), *rows["id"].to_pylist()], "it took rows that it was expected to refuse")

    def _is_verified(self, world: World, delivered: Sequence[Delivered]) -> None:
        """`verify` expects the rows that were not set aside."""
        verification = system(world.target.sink.kind).part("verify")
        if verification is None:
            return
        [planned] = delivered[-1].plan.participants
        for what in ("nothing", "loss"):
            lost = int(what == "loss" and world.target.plant(what, -1))
            [report] = verification.verify(delivered, planned, world.target.connection, open_wal())
            assert report.error == "" and report.missing == lost, (
                f"verify reports {report.missing} rows as missing, beside those that were set aside; {lost} are"
            )

    def test_values_that_it_does_not_hold_are_set_aside(self, world: World) -> None:
        """They neither enter changed nor vanish. It may refuse them once more."""
        given = world.target.values()
        if given is None or not given.refused:
            pytest.skip("the target names no values that are refused")
        first = world.plan_into(given.sink, given.table())
        world.commit(first, world.prepare(first))
        rows = first.segments[0].rows[SINK]
        world.predecessor = first.number
        for name, (column, values) in given.refused.items():
            if not self._takes(world, given, column, values.type):
                continue  # the column is refused, so such rows are never decided
            table = _with_id(given.with_refused(column, values.slice(0, 1)))
            plan = world.plan_into(given.sink, table)
            try:
                proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
            except (DeclinedError, UnfitTargetError):  # no single row is refused
                continue
            world.predecessor = plan.number
            assert len(given.read()) == rows, f"{name}: the refused row is visible"
            assert dict(proof.counts) == {SINK: 0}, f"{name}: no row entered, and the proof counts {dict(proof.counts)}"
            _check_dead_letters(of_proof(proof)[SINK], table)
            world.close()

    def _takes(self, world: World, given: Values, column: str, type: pa.DataType) -> bool:
        """Return whether prepare takes a column of this type, with NULL; the number is aborted."""
        import pyarrow as pa

        plan = world.plan_into(given.sink, _with_id(given.with_refused(column, pa.nulls(1, type))))
        taken = True
        try:
            world.prepare(plan)
        except (DeclinedError, UnfitTargetError):
            taken = False
        world.abort(plan)
        return taken


def _with_id(table: pa.Table) -> pa.Table:
    """Return the row with an id that no other row has."""
    return table.set_column(0, "id", [[-1]])


def _further(table: pa.Table, times: int) -> pa.Table:
    """Return the same rows with ids of their own."""
    import pyarrow as pa

    ids = [id + times * _APART for id in table["id"].to_pylist()]
    return table.set_column(table.schema.get_field_index("id"), "id", pa.array(ids, table["id"].type))


def _are_in(table: pa.Table, ids: Sequence[int]) -> pa.Array:
    """Return which rows have one of these ids."""
    import pyarrow as pa

    return pa.array([each in ids for each in table["id"].to_pylist()])


def _missing(table: pa.Table, taken: Sequence[int]) -> Counter[int]:
    return Counter(table["id"].to_pylist()) - Counter(taken)


def _check_dead_letters(aside: SetAside, *tables: pa.Table, lacking: Sequence[int] = ()) -> None:
    """Check the dead letters against the refused rows of these tables; those with the ids `lacking` were taken."""
    taken = [id + times * _APART for times in range(len(tables)) for id in lacking]
    missing = sum((_missing(table, taken) for table in tables), Counter[int]())
    assert aside.rows == missing.total(), f"the proof says that {aside.rows} rows were set aside, not {missing.total()}"
    assert aside.files and aside.reasons, "the proof names the files of the dead letters, and reasons"
    dead_letters = [row for uri in aside.files for row in rows_in(uri)]
    seen = Counter(row["id"] for row in dead_letters)
    there, wanted = sorted(seen.elements()), sorted(missing.elements())
    assert seen == missing, f"the dead letters hold the rows {there}, not {wanted}"
    rows = [row for table in tables for row in plain(table)]
    names = tables[0].column_names
    changed = [
        each for each in dead_letters if not any(same({name: each[name] for name in names}, row) for row in rows)
    ]
    assert not changed, f"dead letters hold rows as the job returned them, and not {changed[0]}"


def _named(aside: SetAside, segments: Sequence[Segment]) -> dict[tuple[int, str], list[int]]:
    """Return the rows that the proof names, by segment and file."""
    found: dict[tuple[int, str], list[int]] = {}
    for number, file, start, stop in aside.places:
        found.setdefault((number, file), []).extend(range(start, stop))
    unknown = {number for number, _ in found} - {segment.number for segment in segments}
    assert not unknown, f"the proof names rows of segments that its plan does not have: {unknown}"
    return found


def rows_in(uri: str) -> list[dict[str, Any]]:
    """Return the rows of a file of dead letters."""
    import pyarrow.parquet as pq

    with filesystem(uri).open(uri) as file:
        return plain(pq.read_table(file, partitioning=None))
