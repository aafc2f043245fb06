"""Values to the ends of their ranges arrive as they are, or are refused by name before anything is decided."""

from __future__ import annotations

import pytest

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.model import Promise
from airflow_ft.protocol.votes import Outcome
from airflow_ft.testing.values import Values, plain, same
from airflow_ft.testing.world import SINK, World

_SOME = 5
"""Most wrong values that a failure shows, per column."""


class ValuesConformance:
    """The cases."""

    def test_values_to_the_ends_of_their_ranges_arrive_as_they_are(self, world: World) -> None:
        given = _given(world)
        _deliver(world, given)
        columns = given.columns.keys()
        found = {row["id"]: row for row in given.read()}
        wrong = []
        for row in plain(given.table()):
            for name in columns:
                value, seen = row[name], given.seen.get(name)
                expected = seen(value) if seen is not None and value is not None else value
                read = found[row["id"]][name] if row["id"] in found else "no row"
                if not same(read, expected):
                    wrong.append(f"{name}: {str(read)[:200]!r} of {type(read).__name__}, not {str(expected)[:200]!r}")
        assert not wrong, "\n".join(dict.fromkeys(wrong[: _SOME * len(columns)]))
        assert len(found) == given.table().num_rows

    @pytest.mark.parametrize("carries", [True, False], ids=["it decides", "it follows"])
    def test_unsupported_values_are_refused_before_the_decision(self, world: World, carries: bool) -> None:
        """In prepare; where it decides itself, at the latest by the commit that would have been the decision."""
        given = _given(world)
        if not given.refused:
            pytest.skip("the target names no values that are refused")
        if carries and world.participant_plan().promise is not Promise.ATOMIC:
            pytest.skip("it never decides: its promise is not ATOMIC")
        world.commit_point = carries
        for name, (column, values) in given.refused.items():
            for number in range(len(values)):
                plan = world.plan_into(given.sink, given.with_refused(column, values.slice(number, 1)))
                with pytest.raises((DeclinedError, UnfitTargetError)) as caught:
                    vote = world.prepare(plan)
                    if carries:
                        world.commit(plan, vote)
                    pytest.fail(f"{name}: {values[number]} is not refused")
                assert caught.value.sink == SINK and caught.value.remedy, f"{name}: it says where, and what to do"
                assert not given.read(), name
                assert world.abort(plan).outcome is Outcome.ABORTED
                world.close()
        _deliver(world, given)
        assert len(given.read()) == given.table().num_rows


def _given(world: World) -> Values:
    given = world.target.values()
    if given is None:
        pytest.skip("the target names no values")
    return given


def _deliver(world: World, given: Values) -> None:
    plan = world.plan_into(given.sink, given.table())
    proof = world.commit(plan, world.prepare(plan))
    assert proof.outcome is Outcome.COMMITTED
