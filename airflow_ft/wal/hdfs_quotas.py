"""Quotas of folders in HDFS, as the client's content summaries have them."""

from __future__ import annotations

from typing import Any


def bound(quota: int) -> int | None:
    """Return a quota as the client has it; None: there is none, which the client has as -1 without its sign."""
    return quota if 0 <= quota < 1 << 63 else None


def has_any(summary: Any) -> bool:
    """Return whether the folder has a quota of names or of bytes."""
    return bound(summary.quota) is not None or bound(summary.space_quota) is not None


def exceeded(summary: Any, more: Any, marker: Any) -> str:
    """Return which quota of a folder a rename of another one into it, and a file after that, would exceed; "": none.

    `more` is the other one's summary, `marker` the status of a file like that one: HDFS reserves a whole block for it.
    """
    for unit, most, used in (
        ("names", bound(summary.quota), _names(summary) + _names(more) + 1),
        (
            "bytes",
            bound(summary.space_quota),
            summary.space_consumed + more.space_consumed + marker.blocksize * marker.replication,
        ),
    ):
        if most is not None and used > most:
            return f"its quota is {most:,} {unit}, and it would hold {used:,}"
    return ""


def _names(summary: Any) -> int:
    return int(summary.file_count) + int(summary.directory_count)
