"""Orphans of former owners of a pipeline: listed, and ended as a person decides.

Former owners are those that the pipeline's head or its markers name. Only what exactly those decision logs have
prepared is touched (I8). The head names the former owner until all is ended, so a crash in between loses nothing: the
next adoption finds the same.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection

from airflow_ft.protocol.errors import ForeignOwnerError, StateConflictError
from airflow_ft.protocol.model import Fence
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.orphans import Orphan, OrphanKind, PreparedEnding
from airflow_ft.sinks.base.prepared import PROBE_NUMBER, BranchName, marked_orphans, rank_to_keep
from airflow_ft.sinks.base.sql_ledger import SqlLedger

log = logging.getLogger(__name__)


class PreparedOfOwners(ABC):
    """Branches that the owners of a pipeline have prepared. A system says how they are listed and ended."""

    ledger: SqlLedger

    @abstractmethod
    def of(self, owners: Collection[str]) -> list[tuple[str, BranchName]]:
        """Return what these decision logs have prepared, each with its owner."""

    @abstractmethod
    def sql(self, name: BranchName, verb: str) -> str:
        """Return the statement that ends a branch: COMMIT or ROLLBACK."""

    @abstractmethod
    def end(self, owner: str, name: BranchName, verb: str) -> None:
        """End a branch, or find that it has ended."""

    def settled(self, name: BranchName) -> str:
        """Return how the branch of a settled number ends."""
        return "ROLLBACK"

    def find(self, installation: str) -> list[Orphan]:
        """Return what others have left past the last delivered number: markers and prepared branches."""
        prepared = self._of_others(installation)  # before the markers: what is committed meanwhile shows there (I6)
        found = list(marked_orphans(self.ledger.markers_of_others(self._last(), installation)))
        undecided = self._undecided(prepared)
        for owner, name in prepared:
            if name in undecided:
                text = f"branch {name.branch} is prepared (epoch {name.epoch}, attempt {name.attempt}), and keeps locks"
                statements = (self.sql(name, verb) for verb in ("COMMIT", "ROLLBACK"))
                found.append(Orphan(name.number, name.branch, OrphanKind.PREPARED, owner, text, 0, *statements))
        return found

    def refuse(self, installation: str) -> None:
        """Raise ForeignOwnerError if a former owner's prepared branch may hold the lock that could not be taken.

        Only a person can end such a branch, so waiting would not help.
        """
        found = self._of_others(installation)
        if found:
            # Without their nonces: on MySQL any user who knows an xid may end it, and this goes into logs.
            shown = ", ".join(f"{name.branch} of its checkpoint {name.number}" for _, name in found[:4])
            raise ForeignOwnerError(
                f"{count_text(len(found), 'prepared branch', 'prepared branches')} of the decision log {found[0][0]},"
                f" which owned this pipeline before, may hold the lock: {shown}{' ...' if len(found) > 4 else ''}.",
                code="prepared_foreign",
                remedy="Run `airflow ft adopt`, which lists them. It ends them with --prepared commit or --prepared"
                " rollback.",
                installation=found[0][0],
                found=len(found),
                checkpoints=sorted({name.number for _, name in found}),
            )

    def end_of_others(self, fence: Fence, ending: PreparedEnding | None, *, roll_back_own: bool) -> None:
        """End what former owners have prepared: undecided numbers as `ending` says, others as they were settled.

        Of an undecided number one attempt alone is committed: the one whose branches are visible, else the newest.

        Call it after the head was raised, which stops other adoptions. With `roll_back_own` what older attempts of this
        installation have prepared is rolled back too.
        StateConflictError: something is prepared, and `ending` is None.
        """
        found = self._of_others(fence.installation)
        undecided = self._undecided(found)
        if undecided and ending is None:
            raise StateConflictError(
                f"a former owner has {count_text(len(undecided), 'prepared branch', 'prepared branches')} here that no"
                " marker settles, and --prepared is missing.",
                code="prepared_undecided",
                remedy="Run `airflow ft adopt` again with --prepared commit or --prepared rollback.",
                found=len(undecided),
            )
        for owner, name in found:
            if name not in undecided:
                verb = self.settled(name)
            else:
                kept = rank_to_keep(name, self.ledger.branch_markers(name.number).values(), undecided)
                verb = "COMMIT" if ending is PreparedEnding.COMMIT and name.rank == kept else "ROLLBACK"
            log.warning("%s: %s of branch %s of checkpoint %d, which decision log %s left prepared",
                        self.ledger.participant, verb, name.branch, name.number, owner)  # fmt: skip
            self.end(owner, name, verb)
        for owner, name in self.of([fence.installation]) if roll_back_own else ():
            if name.rank < fence.rank:
                self.end(owner, name, "ROLLBACK")

    def _of_others(self, installation: str) -> list[tuple[str, BranchName]]:
        return self.of(self.ledger.installations() - {installation})

    def _undecided(self, found: Collection[tuple[str, BranchName]]) -> list[BranchName]:
        """Return the branches whose number is neither delivered nor settled by a marker."""
        last = self._last() if found else 0
        later = (name for _, name in found if name.number > last and name.number != PROBE_NUMBER)
        return [name for name in later if self.ledger.marker(name.number) is None]

    def _last(self) -> int:
        """Return the number that was delivered last, also if the head is lost."""
        head = self.ledger.remembered()
        return head.number if head else 0
