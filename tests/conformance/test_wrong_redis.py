"""The conformance kit notices mistakes that only a key-value store can have."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from airflow_ft.sinks.redis import participant, rows, verify
from tests.conformance.test_redis import Keys
from tests.conformance.wrong import Case, each, marker_first, notices
from tools.servers import Redis

pytestmark = pytest.mark.server
PATCHED = (
    (participant, "SEND"),
    (participant.RedisParticipant, "_deliver"),
    (participant.RedisParticipant, "_send"),
    (rows, "keys"),
    (verify._Keys, "changes"),
)
Send: Any = participant.RedisParticipant._send
Changes: Any = verify._Keys.changes
KEYS = rows.keys
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


def _versions(version: str) -> None:
    """A change counts if its version, which the server keeps of each key, is not lower than the one before."""
    guard = f"""
local first = 0
local function is_older(key, number, place)
  local version = {version}
  if version < tonumber(redis.call('HGET', 'versions', key) or 0) then return true end
  redis.call('HSET', 'versions', key, version)
end
"""
    kinds = "    local kind, key = rows.kinds[i], rows.keys[i]\n"
    older = f"{kinds}    if is_older(key, tonumber(number), i) then kind = -1 end\n"
    rows = "local first, rows = tonumber(ARGV[4]), "
    assert kinds in participant.SEND and rows in participant.SEND
    script = participant.SEND.replace(rows, "first = tonumber(ARGV[4])\nlocal rows = ")
    participant.SEND = guard + script.replace(kinds, older)


def checkpoints_are_versions() -> None:
    """Those of another pipeline are lower, so its rows are left out."""
    _versions("number")


def versions_overflow() -> None:
    """More than 1,000 rows have versions of later checkpoints."""
    _versions("number * 1000 + first + place")


def all_sinks_write_the_keys_of_the_first() -> None:
    """Each sink has a template of its own."""

    def send(self: Any, db: Any, chunks: Any) -> None:
        first = next(iter(self.sinks))
        Send(self, db, (replace(chunk, sink=first) for chunk in chunks))

    participant.RedisParticipant._send = send  # type: ignore[method-assign]


def the_first_column_is_the_key() -> None:
    """`pairs:{id}:{part}` is `pairs:{id}:` for every part."""
    rows.keys = lambda parts, batch: KEYS([*parts[:1], (":", None)], batch)


def keys_are_folded() -> None:
    """`pairs:1:A` and `pairs:1:a` are one key."""
    rows.keys = lambda parts, batch: pc.utf8_lower(KEYS(parts, batch))


def verify_passes_over_deletes() -> None:
    """It compares the keys that were written last."""
    verify._Keys.changes = lambda self, *of: (  # type: ignore[method-assign]
        each for each in Changes(self, *of) if each.digest is not None
    )


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
    (checkpoints_are_versions, "test_rows_of_a_second_pipeline_come_or_are_refused", {}),
    (versions_overflow, "test_thousands_of_changes_of_a_key_hide_no_later_one", {}),
    (all_sinks_write_the_keys_of_the_first, "test_sinks_of_one_participant_keep_their_own_keys", {}),
    (the_first_column_is_the_key, "test_each_column_of_a_key_counts", {}),
    (keys_are_folded, "test_each_column_of_a_key_counts", {}),
    (verify_passes_over_deletes, "test_verify_finds_a_deleted_key_that_is_back", {}),
]


@each(CASES)
def test_the_kit_notices(redis_server: Redis, tmp_path: Path, case: Case) -> None:
    notices(lambda: nullcontext(Keys(redis_server, "hash", "upsert")), case, tmp_path, *PATCHED)
