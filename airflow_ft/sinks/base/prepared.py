"""Prepared branches before the decision (TWO_PHASE): their names, and those that no vote counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.errors import AbortedHeuristicCommitError, SinkUnavailableError, TerminalError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.orphans import Orphan, OrphanKind
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.base.slices import Slice

PROBE_NUMBER = 0
"""The number of what a preflight or a doctor prepares; checkpoints count from 1."""
DEFERRED = "deferred"
"""The note of a vote that holds nothing, and why."""
MAY_WAIT = (
    " If the retry fails too, it may wait for a branch: rows of two branches have the same unique key, or a foreign key"
    " leads from one to the other. With branches=1 the server names the row, or takes it. If it waits for an earlier"
    " checkpoint of the run, run `airflow ft recover`, which commits that, and clear the task."
)
"""The end of a remedy for a lock that was not had, if there are several branches."""


@dataclass(frozen=True, slots=True, order=True)
class BranchName:
    """Name of a prepared branch. Each system defines its format and its unique part."""

    owner: str
    number: int
    epoch: int
    attempt: int
    branch: str

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


def require_counts(sent: Mapping[str, int], planned: Mapping[str, int]) -> None:
    """SinkUnavailableError unless the server counted the rows of a branch as the plan has them, by sink."""
    expected = {name: rows for name, rows in planned.items() if rows}
    if {name: rows for name, rows in sent.items() if rows} != expected:
        what = f"the server counted {sent} rows, but the plan has {expected}."
        remedy = "Report it with the log of this task: manifest and files disagree. Nothing was prepared."
        raise SinkUnavailableError(what, code="row_count_mismatch", remedy=remedy, found=dict(sent), expected=expected)


def marker_taken(branch: str, number: int) -> SinkUnavailableError:
    """Return the error for a marker that another process wrote first; `branch` "": the marker of the checkpoint."""
    whose = f"branch {branch} of checkpoint {number}" if branch else f"checkpoint {number}"
    return SinkUnavailableError(
        f"another process wrote the marker of {whose} meanwhile.",
        code="marker_taken",
        remedy="Wait for the retry: it reads that marker.",
        branch=branch,
    )


def heuristic_text(found: Mapping[str, Marker], tables: Iterable[str], commit: str, rollback: str, where: str) -> str:
    """Describe for people what was committed by hand, with the statements that show and that settle it.

    `found` are the markers by branch, `where` leads to them. The outcomes have the names of the XA specification.
    """
    of = max(int(marker.detail.get("of", 0)) for marker in found.values())
    rows = sum(sum(marker.counts.values()) for marker in found.values())
    name, still = "XA_HEURCOM", ""
    if len(found) != of:
        name, still = "XA_HEURMIX", f" Run {rollback} for the branches that are still prepared."
    branches = ", ".join(f"'{label}'" for label in sorted(found))
    return (
        f"someone ran {commit} for the branches {', '.join(sorted(found))}{f' of {of}' if of else ''} before the"
        f" checkpoint was decided (a heuristic outcome, {name}): {count_text(rows, 'row is', 'rows are')} visible in"
        f" {', '.join(sorted(tables))}. To see the markers, run: SELECT branch, kind, counts, at {where};{still}"
        " To undo it, delete those rows (`airflow ft verify` lists them) and, in the same transaction, run:"
        f" DELETE {where} AND branch IN ({branches});"
    )


def voted(notes: Mapping[str, Any], slices: Iterable[Slice], there: Sequence[str]) -> dict[str, Any]:
    """Return the notes of a vote; `there` are branches that a person has committed."""
    early = {"heuristic": there} if there else {}
    return {**notes, **early, "branches": {part.label: part.rows for part in slices}}


def visible_branches(markers: Mapping[str, Marker], installation: str) -> dict[str, Marker]:
    """Return the visible branches of a decision log, of markers by label."""
    return {
        label: marker
        for label, marker in markers.items()
        if marker.outcome is Outcome.COMMITTED and marker.installation == installation
    }


def marked_orphans(found: Iterable[tuple[int, str, Marker]]) -> Iterator[Orphan]:
    """Yield what former owners have marked: visible branches, and tombstones of whole numbers (branch "").

    A whole number that is visible is no orphan: the head says so.
    """
    for number, branch, marker in found:
        if marker.outcome is Outcome.COMMITTED and branch:
            of = int(marker.detail.get("of", 0))
            counts = ", ".join(f"{count_text(rows, 'row')} into {sink}" for sink, rows in sorted(marker.counts.items()))
            text = f"branch {branch}{f' of {of}' if of else ''} is committed and visible: {counts or 'no rows'}"
            yield Orphan(number, branch, OrphanKind.COMMITTED, marker.installation, text, of)
        elif marker.outcome is Outcome.ABORTED and not branch:
            yield Orphan(number, "", OrphanKind.ABORTED, marker.installation, marker.tombstone)


def rank_to_keep(name: BranchName, markers: Iterable[Marker], undecided: Iterable[BranchName]) -> tuple[int, int]:
    """Return the epoch and attempt whose branches of an undecided number are kept.

    They are those of a visible branch, or else the newest.

    `markers` are those of the number's branches, `undecided` all prepared branches that nothing decides.
    """
    visible = [(marker.epoch, marker.attempt) for marker in markers if marker.outcome is Outcome.COMMITTED]
    return max(visible or [each.rank for each in undecided if (each.owner, each.number) == (name.owner, name.number)])
