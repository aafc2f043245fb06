"""The conformance kit notices mistakes that only a key-value store can have."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from airflow_ft.sinks.redis import participant
from tests.conformance.test_redis import Keys
from tests.conformance.wrong import Case, each, marker_first, notices
from tools.servers import Redis

pytestmark = pytest.mark.server
PATCHED = ((participant, "SEND"), (participant.RedisParticipant, "_deliver"))
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

    participant.RedisParticipant._deliver = marker_first()  # type: ignore[method-assign]


def _seed(*names: str) -> None:
    for name in names:
        old, new = SCRIPTS[name]
        assert old in participant.SEND
        participant.SEND = participant.SEND.replace(old, new)


CASES: list[Case] = [
    (no_fence, "test_a_zombie_overwrites_no_row_of_a_later_checkpoint", {"at": 0}),
    (no_progress, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
    (first_row_counts, "test_the_last_change_of_a_key_counts", {}),
    (no_deletes, "test_a_delete_deletes", {}),
    (marker_before_rows, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
]


@each(CASES)
def test_the_kit_notices(redis_server: Redis, tmp_path: Path, case: Case) -> None:
    notices(lambda: nullcontext(Keys(redis_server, "hash", "upsert")), case, tmp_path, *PATCHED)
