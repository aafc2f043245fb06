"""Deliveries into several servers, disturbed at each call: what holds for the mixes of every system."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from airflow_ft.protocol.errors import AirflowFtError, TransientError
from tests.density import stride
from tests.protocol.world import Crash, Fault, crash

if TYPE_CHECKING:
    from tests.integration.test_mysql_mixes import Mix

CALLS = 8
"""From one disturbed call to the next, unless THOROUGH is set."""


def die_after_calls(make: Callable[[int], Mix], at: int) -> int:
    """Deliver with a death after a call, for calls from `at` on; check that each is made good. Return the last call."""
    while True:
        at += stride(CALLS)
        world = make(at)
        world.stage(1)
        fault = Fault(at, "after", crash)
        with suppress(Crash):
            world.steps(world.context(fault=fault))
        if not fault.struck:
            return at
        world.finish()
        world.check_exactly_once()


def stop_after_calls(make: Callable[[int], Mix], at: int) -> int:
    """Stop a delivery after a call, for calls from `at` on, and continue it when a newer try has finished everything.

    Check I5: it changes nothing. Return the last call.
    """
    while True:
        at += stride(CALLS)
        world = make(at)
        world.stage(1)
        fault = Fault(at, "after", world.finish)
        try:
            world.steps(world.context(fault=fault))
        except AirflowFtError as error:
            assert isinstance(error, TransientError), f"{fault.struck}: {error!r}"
        if not fault.struck:
            return at
        world.finish(9)
        world.check_exactly_once()
