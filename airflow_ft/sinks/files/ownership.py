"""The owner of a folder: which pipeline and which process may write there (I5).

The head names both. A pipeline claims a folder once. Each attempt raises the head to its rank, another decision log
adopts it, and a renamed pipeline passes it on.

A pipeline that continues under another name takes the folder over in its first prepare. One step names it in the head,
if the last delivered number is the one after which it continues. From then on a process that acts for the old name
finds the new one in the head, even with a newer rank. Its prepared folders are removed, as those of each settled
number (`airflow_ft.sinks.files.participant`). The old name's numbers were settled before
(`airflow_ft.spark.savepoints.restoring`); a rename between these two is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from airflow_ft.protocol.errors import StoreBehindSinkError, UnfitTargetError
from airflow_ft.protocol.model import Fence, Former, Plan
from airflow_ft.protocol.votes import SinkHead
from airflow_ft.sinks.base.memory import (
    AS_IT_IS,
    Marker,
    check_adopter,
    check_owner,
    refuse_markers_without_head,
    refuse_to_adopt,
)
from airflow_ft.sinks.files.failures import translated_errors
from airflow_ft.sinks.files.ledger import Ledger, Owned
from airflow_ft.sinks.files.staged import Staged


@dataclass
class OwnedFolder:
    """The folder of one sink, and the head that names its owner."""

    name: str
    staged: Staged

    @property
    def ledger(self) -> Ledger:
        """Return what the folder remembers."""
        return self.staged.ledger

    def head(self, pipeline: str) -> SinkHead | None:
        """Return the newest version of the head, with any owner; None if the folder is not this pipeline's."""
        with self._translated_errors():
            head = self._head_of(pipeline)
        return None if head is None else head.as_sink_head

    def adopt(self, fence: Fence, number: int) -> None:
        """Takes the head over from another decision log."""

        def taken(head: Owned | None) -> Owned:
            check_adopter(head, fence)
            self.ledger.require_owner(head, fence.pipeline)
            marked = [found for found, marker in self.ledger.markers(number) if is_foreign(marker, fence)]
            refuse_to_adopt(head.as_sink_head if head else None, marked, fence.installation, number)
            found = head or _head(fence)
            return replace(
                found,
                installation=fence.installation,
                epoch=fence.epoch,
                attempt=fence.attempt,
                last_delivered=number,
                floor=max(number, found.floor),
                since=min(number + 1, found.since),  # numbers continue after this one
                inherited=0,
            )

        with self._translated_errors():
            self.ledger.claim(fence.pipeline)
            self.ledger.change(taken)

    # --- which process may write --------------------------------------------------------------------------------

    def _begins(self, plan: Plan) -> bool:
        return plan.participant(self.name).predecessor == 0

    def _raised(self, fence: Fence, plan: Plan | None = None) -> Owned:
        """Return the head with this attempt's rank. If the pipeline begins with this plan, creates the head and claims
        the folder, or takes it over from the pipeline that this one replaces.
        """
        begins = plan is not None and self._begins(plan)
        former = plan.participant(self.name).former if plan is not None and begins else None
        if begins:
            self.ledger.require_folder()
            self.ledger.claim(fence.pipeline)

        def raised(head: Owned | None) -> Owned:
            if head is None and begins:
                self.ledger.require_owner(head, fence.pipeline)
                if marked := self.ledger.newest():
                    head = self._begun_since()
                    if head is None:
                        refuse_markers_without_head(marked, self.ledger.path(self.ledger.uri("head")))
            if head is None and begins:
                return _head(fence)
            if head is not None and former is not None and self.ledger.owner(head) == former.pipeline:
                return self._passed_on(head, fence, former)
            found = self._owned(head, fence)
            check_owner(found, fence)
            return replace(found, epoch=fence.epoch, attempt=fence.attempt)

        return self.ledger.change(raised)

    def _passed_on(self, head: Owned, fence: Fence, former: Former) -> Owned:
        """The head of the former pipeline's folder, as it names this one."""
        check_owner(head, replace(fence, epoch=head.epoch, attempt=head.attempt))  # ranks are of two pipelines
        if head.last_delivered != former.number:
            raise UnfitTargetError(
                f"{self.ledger.path(self.ledger.root)} is the folder of pipeline {former.pipeline!r}, which continues"
                f" as {fence.pipeline!r} after checkpoint {former.number}. But the last checkpoint in it is"
                f" {head.last_delivered}.",
                code="number_differs",
                remedy="Give the new name its own folder. Readers can read both.",
                number=former.number,
                found=head.last_delivered,
            )
        return replace(
            head,
            epoch=fence.epoch,
            attempt=fence.attempt,
            pipeline=fence.pipeline,
            since=former.below,
            inherited=former.number,
            former=(*head.former, former.pipeline),
        )

    def _owned(self, head: Owned | None, fence: Fence) -> Owned:
        """The head, if it is there, and names this pipeline."""
        if not self.ledger.claimed_by:
            self._required(None)
        self.ledger.require_owner(head, fence.pipeline)
        return self._required(head)

    def _mine(self, fence: Fence) -> Owned:
        """Return the current head.

        Raises:
            UnfitTargetError: the folder belongs to another pipeline.
            FencedError: another process may write (I5).
        """
        found = self._owned(self.ledger.head(), fence)
        check_owner(found, fence)
        return found

    def _require_mine(self, fence: Fence) -> None:
        """Raise as `_mine` does, without a look at what was delivered last."""
        check_owner(self._owned(self.ledger.stored(), fence), fence)

    def _head_of(self, pipeline: str) -> Owned | None:
        head = self.ledger.head() if self.ledger.claimed_by else None
        return head if head is not None and self.ledger.owner(head) == pipeline else None

    def _begun_since(self) -> Owned | None:
        """Read the head again, since another process may have begun and delivered since."""
        return self.ledger.head()

    def _required(self, head: Owned | None) -> Owned:
        if head is None:
            path = self.ledger.path(self.ledger.uri())
            what = f"the sink has lost its fence: {path} is gone or empty."
            remedy = f"Restore {path}, then run `airflow ft resume`. {AS_IT_IS}"
            raise StoreBehindSinkError(what, code="ledger_lost", remedy=remedy)
        return head

    def _translated_errors(self, plan: Plan | None = None) -> Any:
        where = {"pipeline": plan.pipeline, "checkpoint": plan.number} if plan else {}
        return translated_errors(self.ledger.path(self.ledger.root), participant=self.name, **where)


def is_foreign(marker: Marker, fence: Fence) -> bool:
    """Return whether another decision log wrote the marker."""
    return marker.installation != fence.installation


def _head(fence: Fence) -> Owned:
    return Owned(installation=fence.installation, epoch=fence.epoch, attempt=fence.attempt, last_delivered=0, floor=0)
