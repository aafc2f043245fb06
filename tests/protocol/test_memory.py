"""What was freed between things that stay goes back."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from airflow_ft.protocol.memory import give_back

PIECE, PIECES = 20_000, 4_000  # more than Python's own allocator takes, less than glibc maps for itself


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc")
def test_freed_memory_between_kept_pieces_returns_to_the_system() -> None:
    give_back()
    before = resident()
    pieces = [b"x" * PIECE for _ in range(PIECES)]
    kept = pieces[::50]
    pieces.clear()
    freed = resident()
    give_back()
    assert resident() - before < (freed - before) / 2 and freed - before > PIECE * PIECES / 2
    assert all(len(piece) == PIECE for piece in kept)
