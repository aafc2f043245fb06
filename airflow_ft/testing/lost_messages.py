"""Each request and each reply of a step is lost in turn, and the next attempt finishes the step."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import pytest

from airflow_ft.protocol.errors import TransientError
from airflow_ft.protocol.model import Promise
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.testing.relay import Fate

if TYPE_CHECKING:
    from airflow_ft.testing.world import World

_MANY_TRIPS = 200
_COMMITTED, _ABORTED = Outcome.COMMITTED, Outcome.ABORTED


class LostMessagesConformance:
    """The case."""

    trips_apart: ClassVar[int] = 1
    """Lose every n-th round trip; 1 loses each of them.

    Give more if each delivery adds round trips to the next one, as the log of a table does. Else the test never ends.
    """

    @pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY], ids=["a request", "a reply"])
    @pytest.mark.parametrize("step", ["prepare", "commit", "abort"])
    def test_whatever_is_lost_on_the_way_the_next_one_finishes(self, world: World, step: str, fate: Fate) -> None:
        """Lose round trips in turn, through the last one of a step. A client without an answer may try again.

        A busy machine receives several requests as one, unless the target separates them (`request_length`). So a
        step that made no such trip is played once more.
        """
        expected: list[int] = []
        trip, again = 0, True
        while trip < _MANY_TRIPS:
            plan = world.plan()
            vote = None if step == "prepare" else world.prepare(plan)
            with world.target.losing(fate, trip) as way:
                if way is None:
                    pytest.skip("there is no way to its server on which something is lost")
                connection, is_lost = way
                through = world.participant(plan, connection)
                done: Vote | Outcome | None = None
                with suppress(TransientError):
                    done = world.step(step, plan, world.fence(1, world.attempt()), vote, through)
                through.close()
                lost = is_lost()
            if step == "commit" and done is not None:  # without an error it must be done
                world.shows([*expected, *world.ids_of(plan.number)], f"round trip {trip + 1}")
            vote = done if isinstance(done, Vote) else vote
            if step == "abort":
                if done is _ABORTED and world.participant_plan().promise is Promise.ATOMIC:
                    assert world.commit(plan, vote).outcome is _ABORTED, f"round trip {trip + 1}"
                assert world.abort(plan).outcome is _ABORTED
            else:
                assert world.commit(plan, vote or world.prepare(plan)).outcome is _COMMITTED
                expected += world.ids_of(plan.number)
                world.predecessor = plan.number
            world.shows(expected, f"round trip {trip + 1}")
            if not (lost or again):
                assert trip > 0, "it has asked the server for something"
                return
            trip, again = trip + self.trips_apart * lost, lost
        raise AssertionError(f"one {step} takes more than {_MANY_TRIPS} round trips")
