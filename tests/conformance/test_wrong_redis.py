"""The conformance kit notices mistakes that only a key-value store can have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.model import Outcome, Proof
from airflow_ft.sinks.redis import participant
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests.conformance.test_redis import Keys
from tools.servers import Redis

pytestmark = pytest.mark.server
SCRIPTS = {
    "no_fence": ("if memory[1] ~= ARGV[1] or memory[2] ~= ARGV[2] then", "if false then"),
    "no_progress": ("local done = memory[3] == ARGV[6] and tonumber(memory[4]) or 0", "local done = first"),
    "first_row_counts": ("for i = from, rows.count do", "for i = rows.count, from, -1 do"),
    "no_deletes": ("redis.call('UNLINK', key)", "local _ = 0"),
}


def no_fence() -> None:
    _seed("no_fence")


def no_progress() -> None:
    script, line = participant.SEND, "local first, rows = tonumber(ARGV[4]), cmsgpack.unpack(ARGV[5])\n"
    old, new = SCRIPTS["no_progress"]
    participant.SEND = script.replace(line, "").replace(old, line + new)


def first_row_counts() -> None:
    _seed("first_row_counts")


def no_deletes() -> None:
    _seed("no_deletes")


def marker_before_rows() -> None:
    """The rows follow the marker, so a process that dies between them loses rows."""

    def deliver(self: Any, plan: Any, fence: Any, set_aside: bool, more: Any) -> Proof:
        counts = {name: sum(segment.rows.get(name, 0) for segment in plan.segments) for name in self.sinks}
        with self._writing(fence, plan) as (_, ledger):
            head = self._raised(ledger, fence)
            if self._is_settled(ledger, head, plan, fence, exactly=True):
                return self._current_proof(ledger, plan)
            ledger.write_marker(plan, fence, Outcome.COMMITTED, counts, {})
            ledger.deliver_head(plan.number)
        with self._writing(fence, plan) as (db, _):
            self._insert(db, plan, [self.wal.open(segment) for segment in plan.segments], None)
        return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, fence.epoch, counts, {})

    participant.RedisParticipant._deliver = deliver  # type: ignore[method-assign]


def _seed(*names: str) -> None:
    for name in names:
        old, new = SCRIPTS[name]
        assert old in participant.SEND
        participant.SEND = participant.SEND.replace(old, new)


CASES = [
    (no_fence, "test_a_process_that_wakes_up_after_later_numbers_changes_nothing", {"at": 0}),
    (no_progress, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
    (first_row_counts, "test_the_last_change_of_a_key_counts", {}),
    (no_deletes, "test_a_delete_deletes", {}),
    (marker_before_rows, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
]


@pytest.mark.parametrize(("defect", "case", "given"), CASES, ids=[case[0].__name__ for case in CASES])
def test_the_kit_notices(
    redis_server: Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    defect: Callable[[], None],
    case: str,
    given: dict[str, Any],
) -> None:
    play = partial(getattr(ParticipantConformance(), case), **given)
    with closing(_world(redis_server, tmp_path / "right")) as world:
        play(world)
    monkeypatch.setattr(participant, "SEND", participant.SEND)  # both are put back
    monkeypatch.setattr(participant.RedisParticipant, "_deliver", participant.RedisParticipant._deliver)
    defect()
    with closing(_world(redis_server, tmp_path / "wrong")) as world, pytest.raises(AssertionError):
        world.target.flaw = f"{__name__}:{defect.__name__}"
        play(world)


def _world(server: Redis, folder: Path) -> World:
    folder.mkdir()
    return World(Keys(server, "hash", "upsert"), folder)
