"""What a sink remembers of a pipeline: a head, and a marker for each settled number. What they say is read here.

The head names who may write (installation, epoch, attempt: the rank) and what was delivered last; a marker stands in
the transaction that delivered a number, or is its tombstone. A system's own part is where they lie.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from airflow_ft.core.damaged import understood
from airflow_ft.core.errors import FencedError, ForeignOwnerError, StateConflictError, StoreBehindSinkError
from airflow_ft.core.model import Fence, Outcome, Plan, Proof, SinkHead


def damaged(where: str) -> AbstractContextManager[None]:
    """For what makes sense of something that a sink keeps: StoreBehindSinkError when it makes none."""
    remedy = "bring it back from a backup; compare before resuming."
    return understood(lambda mistake: StoreBehindSinkError(f"{where} is damaged: {mistake}", remedy=remedy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What the sink remembers of a pipeline."""

    installation: str
    epoch: int
    attempt: int
    last_delivered: int
    floor: int

    @property
    def rank(self) -> tuple[int, int]:
        """Compared with `Fence.rank`."""
        return (self.epoch, self.attempt)

    @property
    def told(self) -> SinkHead:
        """As the core reads it."""
        return SinkHead(self.installation, self.epoch, self.last_delivered)


@dataclass(frozen=True, slots=True)
class Marker:
    """What stands at a number that is settled."""

    installation: str
    outcome: Outcome
    epoch: int
    attempt: int
    digest: str
    counts: Mapping[str, int]
    detail: Mapping[str, Any]

    @classmethod
    def stored(cls, row: Sequence[Any], where: str) -> Marker:
        """Of its columns, counts and detail as JSON; StoreBehindSinkError, which names `where`, when it is damaged."""
        with damaged(where):
            counts, detail = json.loads(row[5]), json.loads(row[6])
            if not (isinstance(counts, dict) and isinstance(detail, dict)):
                raise ValueError("its counts or its detail are no JSON object")
            return cls(row[0], Outcome(row[1]), int(row[2]), int(row[3]), row[4], counts, detail)

    def proof(self, participant: str, number: int) -> Proof:
        """As the core reads it."""
        return Proof(participant, number, self.outcome, self.digest, self.epoch, self.counts, self.detail)

    @property
    def tombstone(self) -> str:
        """That it is one, and why, for people."""
        return f"a tombstone: {self.detail.get('message', 'no reason given')}"


def check_owner(head: Head | None, fence: Fence) -> None:
    """Raises unless the head is this installation's and no newer than the fence.

    Raises:
        StoreBehindSinkError: there is none.
        ForeignOwnerError: it is another installation's.
        FencedError: it is newer.
    """
    if head is None:
        raise StoreBehindSinkError(
            "the sink has lost its head: the ledger was dropped, or the server restored from an older backup.",
            remedy="bring the tables airflow_ft_head and airflow_ft_ledger back; compare before resuming.",
        )
    if head.installation != fence.installation:
        raise ForeignOwnerError(
            f"the sink's head belongs to installation {head.installation}, this is {fence.installation}.",
            remedy="bring back that installation's decision log, or take over by `airflow ft adopt`.",
        )
    if head.rank > fence.rank:
        raise FencedError(
            f"the sink's head is at epoch {head.epoch}, attempt {head.attempt}; this is epoch {fence.epoch},"
            f" attempt {fence.attempt}.",
            head_epoch=head.epoch,
            head_attempt=head.attempt,
            remedy="nothing to do: the newer owner finishes the checkpoint.",
        )


def check_epoch(head: Head | None, fence: Fence) -> Head:
    """The head, for retention: that takes no attempt, and must not fence one at work. Raises as `check_owner`."""
    check_owner(head, replace(fence, attempt=head.attempt if head else 0))
    assert head is not None  # check_owner raises
    return head


def check_marker(marker: Marker, plan: Plan, installation: str) -> None:
    """The marker must be this installation's (else ForeignOwnerError) and of this plan (else StoreBehindSinkError)."""
    if marker.installation != installation:
        raise ForeignOwnerError(
            f"the marker of number {plan.number} belongs to installation {marker.installation}.",
            remedy="bring back that installation's decision log, or take over by `airflow ft adopt`.",
        )
    if marker.digest != plan.digest:
        raise StoreBehindSinkError(
            f"number {plan.number} stands in the sink with other rows (digest {marker.digest[:12]}, the plan's is"
            f" {plan.digest[:12]}): the decision log was restored from a backup.",
            remedy="bring back the newer decision log, or compare both and then `airflow ft resume`.",
        )


def check_settled(
    marker: Marker | None,
    head: Head,
    plan: Plan,
    participant: str,
    fence: Fence,
    *,
    exactly: bool,
    look_again: Callable[[], Head | None],
) -> bool:
    """Return whether the number is settled, by this marker; else checks that the head fits the plan.

    `head` was read or locked before, and found not to be newer than the fence; `look_again` reads it once more.
    `exactly`: the predecessor must have been delivered. A vote or a tombstone may come before that.

    Raises:
        StoreBehindSinkError: decision log and sink contradict each other.
        ForeignOwnerError: the marker belongs to another installation.
        FencedError: the head is newer by now.
    """
    if marker is not None:
        check_marker(marker, plan, fence.installation)
        return True
    found, expected = head.last_delivered, plan.participant(participant).predecessor
    if head.floor >= plan.number:
        what = f"its floor is {head.floor}: number {plan.number} was settled and pruned long ago"
    elif found > expected:
        what = f"it delivered number {found} last, the plan of {plan.number} expects {expected}"
    elif exactly and found < expected:
        what = (
            f"it delivered number {found} last, the plan of {plan.number} expects {expected}: the server has"
            " forgotten a delivery (restored from a backup, or failed over to a replica that lagged)"
        )
    else:
        return False
    # A late process halts nothing: the marker may have been pruned since the head was read. Whoever prunes it has
    # delivered a later number, so the head is newer by then.
    check_owner(look_again(), fence)
    raise StoreBehindSinkError(
        f"the decision log and the sink contradict each other: {what}.",
        remedy="find out which of the two is the older one, compare the tables, then `airflow ft resume`.",
    )


def refuse_to_adopt(head: SinkHead | None, marked: Iterable[int], installation: str, number: int) -> None:
    """StateConflictError when a former owner has gone past the number with which it is taken over.

    `head` is what the sink remembers, `marked` are numbers that other installations have marked.
    """
    stands = head.number if head is not None and head.installation != installation else 0
    newest = max([stands, *marked])
    if newest > number:
        raise StateConflictError(
            f"its former owner has gone on to number {newest}, past {number}: a task of it is still at work.",
            remedy="stop all tasks of the lost decision log, then adopt again.",
        )


def check_adopter(head: Head | None, fence: Fence) -> None:
    """For each step of an adoption: others may adopt at the same moment, and be done, and have delivered since.

    Raises:
        FencedError: this installation has taken the head over under a newer epoch.
        StateConflictError: the head is another installation's, and has gone past the fence.
    """
    if head is None or head.rank <= fence.rank:
        return
    if head.installation == fence.installation:
        check_owner(head, fence)
    raise StateConflictError(
        f"the sink's head has gone on to epoch {head.epoch}, attempt {head.attempt}, past epoch {fence.epoch}: its"
        " former owner is still at work, or somebody else adopts it at the same moment.",
        remedy="stop all tasks of the lost decision log, then adopt again.",
    )


def refuse_markers_without_head(newest: int, table: str) -> None:
    """StoreBehindSinkError when there are markers, up to `newest`, and no head in `table`."""
    if newest:
        raise StoreBehindSinkError(
            f"the ledger has markers up to number {newest}, but the head is gone.",
            remedy=f"bring back the row of {table}; compare before resuming.",
        )
