"""Times, sizes and numbers of tries of a MySQL participant."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of waits (seconds) and repetitions.

    `connect` is for a TCP connection, `login` for each answer until the session is set up (LDAP and DNS take time).
    `idle` is the server's time-out for an idle session, so that a stopped process holds its locks no longer than that.
    `head_wait` is larger, so that waiting for such a session ends (I7). `answer` is our time-out.
    """

    connect: float = 10
    login: float = 30
    answer: float = 900
    lock_wait: int = 5
    metadata_wait: int = 30
    idle: int = 60
    head_wait: float = 90
    tries: int = 4
    insert_bytes: int = 256 << 10  # values of one INSERT; a larger one costs the server more
    slice_bytes: int = 8 << 20  # rows encoded at a time


_LARGEST_PACKET = 1 << 30
_PACKET_STEP = 1 << 20  # servers round max_allowed_packet down to a multiple of 1,024


def packet_remedy(size: int, otherwise: str = "") -> str:
    """Return the remedy for an error about `size` bytes that a packet has to take. `otherwise`: another statement."""
    if size > _LARGEST_PACKET:
        return (
            "Make the values smaller in the job, below 512 MB each: max_allowed_packet is at most 1 GB, and a value may"
            " need twice its bytes."
        )
    return f"Run SET GLOBAL max_allowed_packet = {-(-size // _PACKET_STEP) * _PACKET_STEP}{otherwise}."
