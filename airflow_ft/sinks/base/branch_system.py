"""What a system says of branches: transactions that are prepared side by side (`airflow_ft.sinks.base.branched`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

from airflow_ft.protocol.errors import DeclinedError, FencedError, HaltError
from airflow_ft.protocol.model import Fence, Plan
from airflow_ft.protocol.votes import Outcome, Vote
from airflow_ft.protocol.write_ahead_log import SegmentReader
from airflow_ft.sinks.base.memory import Marker
from airflow_ft.sinks.base.one_transaction import Db, OneTransactionParticipant, TransactionLedger
from airflow_ft.sinks.base.prepared import BranchName

T = TypeVar("T")

GRAVEST: Sequence[type[Exception]] = (FencedError, HaltError, DeclinedError)


def side_by_side(work: Sequence[Callable[[], T]], gravest: Sequence[type[Exception]] = GRAVEST) -> list[T]:
    """Run all, each in a thread. When all have ended, return their results, or raise the gravest error of them."""
    with ThreadPoolExecutor(max(1, len(work)), thread_name_prefix="airflow-ft-branch") as pool:
        futures = [pool.submit(each) for each in work]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for kind in gravest:
        for error in errors:
            if isinstance(error, kind):
                raise error
    if errors:
        raise errors[0]
    return [future.result() for future in futures]


class BranchLedger(TransactionLedger, Protocol):
    """A `TransactionLedger` with a marker for each branch besides the one of the whole number."""

    def branch_markers(self, number: int) -> Mapping[str, Marker]: ...
    def write_marker(
        self,
        plan: Plan,
        fence: Fence,
        outcome: Outcome,
        counts: Mapping[str, int],
        detail: Mapping[str, Any],
        branch: str = "",
    ) -> None: ...


class BranchSystem(OneTransactionParticipant[Db]):
    """A database whose transactions can be prepared, and outlive their process."""

    @property
    @abstractmethod
    def _width(self) -> int:
        """Most branches of a number."""

    @property
    @abstractmethod
    def _ended(self) -> set[tuple[tuple[int, int], str]]:
        """Rank and label of branches whose sessions this process has ended: at first empty."""

    @abstractmethod
    def _asking(self, fence: Fence) -> AbstractContextManager[tuple[Db, BranchLedger]]:
        """A connection without a transaction. Raises what `check_owner` does where there is no ledger."""

    @abstractmethod
    def _branching(self, fence: Fence, label: str) -> AbstractContextManager[tuple[Db, BranchLedger]]:
        """A transaction of a branch, which does not lock the head. It is rolled back unless it was prepared.

        Several threads may call it.
        """

    @abstractmethod
    def _prepare_branch(self, db: Db, plan: Plan, fence: Fence, label: str) -> str:
        """Make the open transaction durable and invisible. Return why the server has no place for it; "": it is."""

    @abstractmethod
    def _listed(self, db: Db, fence: Fence) -> Sequence[BranchName]:
        """Return what this decision log's pipeline has prepared here, by number and rank."""

    @abstractmethod
    def _end_branch(self, db: Db, name: BranchName, verb: str) -> None:
        """COMMIT or ROLLBACK. Returns when it is no longer listed: this call or another one has ended it."""

    @abstractmethod
    def _end_sessions(self, db: Db, fence: Fence, label: str) -> None:
        """End other sessions that work on a branch of this attempt."""

    @abstractmethod
    def _room(self, db: Db, places: int) -> str:
        """Return why this number of further branches may not be prepared now; "": there is room."""

    @abstractmethod
    def _crowded(self, db: Db, names: Collection[BranchName]) -> str:
        """Return why these prepared branches are too many beside those of others; "": they are not."""

    @abstractmethod
    def _is_place_taken(self, error: Exception) -> bool:
        """Return whether a marker could not be written because there is one already."""

    @abstractmethod
    def _seen(self, db: Db, readers: Sequence[SegmentReader]) -> dict[str, Any]:
        """Return a vote's notes on the tables."""

    @abstractmethod
    def _remember(self, vote: Vote | None) -> None:
        """Judge tables from now on against the notes of this vote."""

    @abstractmethod
    def _try(self, plan: Plan, fence: Fence, readers: Sequence[SegmentReader]) -> None:
        """Send rows that are not held, and roll them back: a row that is refused aborts before the decision."""

    @abstractmethod
    def _heuristic_text(self, ledger: BranchLedger, plan: Plan, found: Mapping[str, Marker]) -> str:
        """Describe for people what was committed by hand, with the statements that show and that settle it."""

    @abstractmethod
    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Add to an error what to do if branches may wait for each other."""
