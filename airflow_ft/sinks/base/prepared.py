"""Prepared transactions before the decision (TWO_PHASE): their names, and texts for those that no vote counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.errors import AbortedHeuristicCommitError, TerminalError
from airflow_ft.protocol.votes import Vote
from airflow_ft.sinks.base.slices import Slice

PROBE_NUMBER = 0
"""The number of what a preflight or a doctor prepares; checkpoints count from 1."""
DEFERRED = "deferred"
"""The note of a vote that holds nothing, and why."""


@dataclass(frozen=True, slots=True, order=True)
class PreparedName:
    """Name of a prepared transaction, or a branch of one. Each system defines its format and its unique part."""

    owner: str
    number: int
    epoch: int
    attempt: int

    @property
    def rank(self) -> tuple[int, int]:
        """Compared with `Fence.rank`."""
        return (self.epoch, self.attempt)


def owner_of(installation: str, pipeline: str, participant: str) -> str:
    """32 hexadecimal digits that say whose it is (I8: nothing else is ever touched)."""
    return hashlib.sha256("\0".join((installation, pipeline, participant)).encode()).hexdigest()[:32]


def require_vote(vote: Vote | None) -> Vote:
    """TerminalError where there is none."""
    if vote is None:
        what = "a two-phase commit needs the vote that the decision counted, and there is none."
        remedy = "Call commit through the coordinator, which passes the vote."
        raise TerminalError(what, code="vote_missing", remedy=remedy)
    return vote


def counted(vote: Vote) -> tuple[int, int]:
    """The rank of the attempt that voted."""
    return (int(vote.notes.get("epoch", 0)), vote.prepared)


def committed_by_hand(description: str, pipeline: str) -> AbortedHeuristicCommitError:
    """ABORTED is decided, and rows are visible: `as_sink_head` says which, and the DELETE that settles it."""
    return AbortedHeuristicCommitError(
        f"the checkpoint is ABORTED, and its rows cannot be rolled back: {description}",
        remedy="Delete the visible rows, and run the DELETE statement above in the same transaction. Then run"
        f" `airflow ft resume {pipeline}`: the rows are delivered by a later checkpoint, or computed again.",
    )


def voted(notes: Mapping[str, Any], slices: Iterable[Slice], there: Sequence[str]) -> dict[str, Any]:
    """Return the notes of a vote; `there` are branches that a person has committed."""
    early = {"heuristic": list(there)} if there else {}
    return {**notes, **early, "branches": {part.label: part.rows for part in slices}}
