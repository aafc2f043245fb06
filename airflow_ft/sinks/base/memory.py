"""A sink's memory of a pipeline: a head, and a marker for each settled number. This module interprets both.

The head names the allowed writer (installation, epoch, attempt: the rank) and the last delivered number. A marker is
written in the transaction that delivered a number, or is its abort marker. Each system stores them in its own way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from airflow_ft.protocol.errors import FencedError, ForeignOwnerError, StateConflictError, StoreBehindSinkError
from airflow_ft.protocol.formats import understood
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Outcome, Proof, SinkHead

AS_IT_IS = (
    "If that is impossible, compare the rows (`airflow ft verify`), then run `airflow ft adopt`: it takes the sink as"
    " it is."
)
"""The end of a remedy for a sink or a decision log that is older than the other. `resume` alone halts again."""

NO_INSTALLATION = ""
"""No decision log has this name, so all markers count as those of others."""


def damaged(where: str) -> AbstractContextManager[None]:
    """Raise StoreBehindSinkError when the block cannot read what the sink keeps; `where` names it."""

    def error(mistake: str) -> StoreBehindSinkError:
        what = f"{where} is damaged: {mistake}"
        remedy = "Restore it from a backup, compare the rows (`airflow ft verify`), then run `airflow ft resume`."
        return StoreBehindSinkError(what, code="ledger_damaged", remedy=remedy)

    return understood(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Head: the sink's memory of a pipeline."""

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
    def as_sink_head(self) -> SinkHead:
        """As the core reads it."""
        return SinkHead(self.installation, self.epoch, self.last_delivered)


@dataclass(frozen=True, slots=True)
class Marker:
    """Marker of a settled number."""

    installation: str
    outcome: Outcome
    epoch: int
    attempt: int
    digest: str
    counts: Mapping[str, int]
    detail: Mapping[str, Any]

    @classmethod
    def stored(cls, row: Sequence[Any], where: str) -> Marker:
        """Return the marker of its columns, with counts and detail as JSON.

        Raises:
            StoreBehindSinkError: it is damaged; names `where`.
        """
        with damaged(where):
            counts, detail = json.loads(row[5]), json.loads(row[6])
            if not (isinstance(counts, dict) and isinstance(detail, dict)):
                raise ValueError("its counts or its detail are not a JSON object")
            return cls(row[0], Outcome(row[1]), int(row[2]), int(row[3]), row[4], counts, detail)

    def proof(self, participant: str, number: int) -> Proof:
        """As the core reads it."""
        return Proof(participant, number, self.outcome, self.digest, self.epoch, self.counts, self.detail)

    @property
    def tombstone(self) -> str:
        """Return the text of an abort marker with its reason, for people."""
        return f"an abort marker: {self.detail.get('message', 'no reason given')}"


def new_head(fence: Fence) -> Head:
    """Return the head of a new pipeline: nothing is delivered."""
    return Head(installation=fence.installation, epoch=fence.epoch, attempt=fence.attempt, last_delivered=0, floor=0)


def remembered(
    read: Callable[[], Head | None], marked: Callable[[int], Iterable[tuple[int, str, Marker]]]
) -> SinkHead | None:
    """Return what a sink remembers: its head, or what its markers say if the head is gone or older than they are.

    A delivery writes both in one transaction, so only a person or a backup separates them. `read` returns the head.
    `marked` returns number, branch and marker of what any decision log has written above a number.
    """
    head = read()
    found = list(marked(head.last_delivered if head else 0))
    delivered = {number: each for number, branch, each in found if each.outcome is Outcome.COMMITTED and not branch}
    if not (delivered if head else found):
        return head.as_sink_head if head else None
    newest = max(delivered, default=0)
    head = read()  # another process may have delivered between the two readings
    if head is not None and head.last_delivered >= newest:
        return head.as_sink_head
    owner = delivered[newest] if delivered else max(found, key=lambda each: each[0])[2]
    epoch = max(*(each.epoch for _, _, each in found), head.epoch if head else 0)
    return SinkHead(owner.installation, epoch, newest, lost=True)


def ledger_lost() -> StoreBehindSinkError:
    """Return the error for tables of a ledger, or a row of them, that are gone."""
    return StoreBehindSinkError(
        "the sink has lost its fence. The ledger was dropped, or the server was restored from an older backup.",
        code="ledger_lost",
        remedy="Restore the ledger from a backup (in SQL databases the tables airflow_ft_head and airflow_ft_ledger),"
        f" then run `airflow ft resume`. {AS_IT_IS}",
    )


def require_own(owner: str, installation: str) -> None:
    """Raise ForeignOwnerError unless the `owner` of the head is this decision log."""
    if owner != installation:
        what = f"the sink belongs to the decision log {owner}, but this decision log is {installation}."
        remedy = "Restore that decision log. If it is gone for good, run `airflow ft adopt`."
        raise ForeignOwnerError(what, remedy=remedy, installation=owner)


def check_owner(head: Head | None, fence: Fence) -> None:
    """Raises unless the head is this decision log's and no newer than the fence.

    Raises:
        StoreBehindSinkError: there is none.
        ForeignOwnerError: it is another decision log's.
        FencedError: it is newer.
    """
    if head is None:
        raise ledger_lost()
    require_own(head.installation, fence.installation)
    if head.rank > fence.rank:
        raise FencedError(
            f"the sink has seen epoch {head.epoch}, attempt {head.attempt}. This process has epoch {fence.epoch},"
            f" attempt {fence.attempt}.",
            head_epoch=head.epoch,
            head_attempt=head.attempt,
            remedy="Do nothing: the newer owner finishes the checkpoint.",
        )


def check_epoch(head: Head | None, fence: Fence) -> Head:
    """Return the head for retention, which takes no attempt and must not fence a running one. Raises as
    `check_owner`.
    """
    check_owner(head, replace(fence, attempt=head.attempt if head else 0))
    assert head is not None  # check_owner raises
    return head


def check_marker(marker: Marker, plan: Plan, installation: str) -> None:
    """The marker must be this decision log's (else ForeignOwnerError) and of this plan (else StoreBehindSinkError)."""
    if marker.installation != installation:
        what = f"the marker of checkpoint {plan.number} belongs to the decision log {marker.installation}."
        remedy = "Restore that decision log. If it is gone for good, run `airflow ft adopt`."
        raise ForeignOwnerError(what, remedy=remedy, installation=marker.installation)
    if marker.digest != plan.digest:
        raise StoreBehindSinkError(
            f"the sink has other rows of checkpoint {plan.number} (digest {marker.digest[:12]}, the plan has"
            f" {plan.digest[:12]}). The decision log was restored from a backup.",
            code="digest_mismatch",
            remedy=f"Restore the newer decision log, then run `airflow ft resume`. {AS_IT_IS}",
            number=plan.number,
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
    `exactly`: the predecessor must have been delivered. A vote may come before that, but after `fence.delivered`; an
    abort marker at any time.

    Raises:
        StoreBehindSinkError: decision log and sink contradict each other.
        ForeignOwnerError: the marker belongs to another decision log.
        FencedError: the head is newer by now.
    """
    if marker is not None:
        check_marker(marker, plan, fence.installation)
        return True
    found, expected = head.last_delivered, plan.participant(participant).predecessor
    proven = expected if exactly else fence.delivered
    last = f"the sink delivered checkpoint {found} last" if found else "the sink has delivered nothing"
    follows = f"checkpoint {plan.number} must {f'follow {expected}' if expected else 'be its first'}"
    if head.floor >= plan.number:
        what = f"the sink has pruned its markers up to {head.floor}, and checkpoint {plan.number} is among them"
    elif found > expected:
        what = f"{last}, but {follows}"
    elif found < proven:
        what = (
            f"{last}, but it had delivered checkpoint {proven}. The server has lost a delivery: it was restored from a"
            " backup, or failed over to a replica that lagged"
        )
    else:
        return False
    # A late process halts nothing: the marker may have been pruned since the head was read. The process that
    # prunes it has delivered a later number, so the head is newer by then.
    check_owner(look_again(), fence)
    raise StoreBehindSinkError(
        f"the decision log and the sink contradict each other: {what}.",
        remedy="Find out which of the two is older, and restore its newer state. Then run `airflow ft resume`."
        f" {AS_IT_IS}",
        found=found,
        expected=expected,
        floor=head.floor,
    )


def refuse_to_adopt(head: SinkHead | None, marked: Iterable[int], installation: str, number: int) -> None:
    """StateConflictError when a former owner has gone past the number with which it is taken over.

    `head` is what the sink remembers, `marked` are numbers that other decision logs have marked.
    """
    delivered_to = head.number if head is not None and head.installation != installation else 0
    newest = max([delivered_to, *marked])
    if newest > number:
        what = f"the former owner has delivered checkpoint {newest}, after {number}. One of its tasks still runs."
        remedy = "Stop all tasks of the lost decision log, then run `airflow ft adopt` again."
        raise StateConflictError(what, code="former_owner_active", remedy=remedy, found=newest, expected=number)


def check_adopter(head: Head | None, fence: Fence) -> None:
    """For each step of an adoption: others may adopt at the same moment, and be done, and have delivered since.

    Raises:
        FencedError: this decision log has taken the head over under a newer epoch.
        StateConflictError: the head is another decision log's, and has gone past the fence.
    """
    if head is None or head.rank <= fence.rank:
        return
    if head.installation == fence.installation:
        check_owner(head, fence)
    raise StateConflictError(
        f"the sink has seen epoch {head.epoch}, attempt {head.attempt}, after epoch {fence.epoch}. Its former owner"
        " still works, or another adoption has begun since.",
        code="former_owner_active",
        remedy="Stop all tasks of the lost decision log, and wait for other adoptions. Then run `airflow ft adopt`"
        " again.",
        installation=head.installation,
    )


def check_shut_out(head: Head | None, fence: Fence, *, make_way: bool) -> bool:
    """Return whether an adoption has to raise the head to its fence before it ends anything.

    Each adoption has an epoch of its own. So of two at the same moment, the one with the older epoch stops.

    Raises:
        FencedError, StateConflictError: as `check_adopter`.
        ForeignOwnerError: with `make_way`, another decision log has taken the head over since.
    """
    if head is None:
        return False
    if make_way or head.installation == fence.installation:
        check_epoch(head, fence)
    else:
        check_adopter(head, fence)
    return head.rank <= fence.rank


def refuse_markers_without_head(newest: int, table: str) -> None:
    """StoreBehindSinkError when there are markers, up to `newest`, and no head in `table`."""
    if newest:
        what = f"the ledger has markers up to checkpoint {newest}, but the fence is gone."
        remedy = f"Restore the row of {table} from a backup, then run `airflow ft resume`. {AS_IT_IS}"
        raise StoreBehindSinkError(what, code="ledger_lost", remedy=remedy, found=newest, table=table)
