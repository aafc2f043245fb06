"""A decision log for tests of commands, and an answer of no."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from airflow_ft.admin.commands import common
from airflow_ft.protocol import steps
from tests.protocol.world import World


@contextlib.contextmanager
def answered_no() -> Iterator[None]:
    """Expect the end of a command whose question was answered with no."""
    with pytest.raises(SystemExit) as ended:
        yield
    assert ended.value.code == common.UNCHANGED


def prepared(world: World, count: int = 1) -> list[int]:
    """Checkpoints that every sink has voted for, and a process that died then."""
    numbers = world.stage(count)
    for name in world.delivery.names:
        steps.prepare_step(world.context(), world.delivery, world.config, name)
    return numbers
