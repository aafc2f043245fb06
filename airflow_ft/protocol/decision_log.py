"""Ports of the decision log: queries, epochs, leases and runs.

Each port holds the methods that one part of the protocol calls, and a function takes the narrowest one.
`airflow_ft.store.decision_log.DecisionLog` implements all of them. The writes of a delivery are in
`protocol.delivery_log`. What a single module needs is declared in that module.

Every write is one transaction: it locks the pipeline's row, checks its conditions, changes the rows and appends
one event. The conditions are: the pipeline is ACTIVE where rows are staged, planned or decided; `epoch` is the
pipeline's; `protocol.transitions` allows the change. A condition that fails raises FencedError (the epoch is newer),
PipelineHaltedError or StateConflictError, and changes nothing. A write whose answer was lost raises
StoreUnavailableError(unanswered=True). Names of pipelines that do not exist raise KeyError in reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from airflow_ft.protocol.meter import Meter
from airflow_ft.protocol.model import Checkpoint, RunKey, SparkPosition
from airflow_ft.protocol.overview import Noted, Only, Overview
from airflow_ft.protocol.pipelines import Event, Filling, Lease, Pipeline, Run
from airflow_ft.protocol.reasons import AbortReason


class PipelineLog(Protocol):
    """The row of a pipeline."""

    def pipeline(self, pipeline: str) -> Pipeline: ...


class PipelineListLog(PipelineLog, Protocol):
    """The rows of all pipelines."""

    def pipelines(self) -> Sequence[Pipeline]: ...


class LeaseLog(PipelineLog, Protocol):
    """The leases on a pipeline."""

    def leases(self, pipeline: str) -> Sequence[Lease]: ...


class EpochLog(LeaseLog, Protocol):
    """Epochs and leases, which say which process may write (`airflow_ft.protocol.lease`)."""

    meter: Meter
    """Counts what the writes of this object do to checkpoints; the code that has opened the log sets it."""

    def take_epoch(self, pipeline: str, expected: int, seen: Mapping[str, int], lease: Lease, why: str) -> int:
        """Takes the next epoch for `lease` (whose epoch field is ignored), or raises.

        Raises LeaseHeldError unless the epoch is still `expected`, and every lease on the pipeline is in `seen`
        (holder -> counter) with that very counter. Raises PipelineHaltedError unless the pipeline is ACTIVE, or RENAMED
        with nothing published, so that a pipeline may be renamed to it. The same transaction drops all other leases and
        aborts TRIGGERED checkpoints, which can no longer be published. Their reason is FENCED if another holder's lease
        of their epoch was dropped, else ATTEMPT_ENDED.
        """

    def hold_lease(self, pipeline: str, epoch: int, lease: Lease) -> None:
        """Adds a lease under the current epoch (a delivery task joining its run's epoch). No event.

        Drops leases of older tries of its task, which are over.
        """

    def renew_lease(self, pipeline: str, epoch: int, holder: str, doing: str = "") -> None:
        """Counter + 1, and what the holder says of itself. No event.

        FencedError when the epoch is newer or the lease is gone.
        """

    def release_lease(self, pipeline: str, holder: str) -> None:
        """Drops the lease if it is there. No event."""


class RunLog(PipelineLog, Protocol):
    """The runs of a pipeline, and the turn of one of them."""

    def register(self, pipeline: str) -> Pipeline:
        """Creates the pipeline's row when there is none (epoch 0, next number 1); returns it."""

    def run(self, pipeline: str, run: RunKey) -> Run | None: ...

    def enter_turn(
        self, pipeline: str, run: RunKey, interval_end: datetime | None, ended: Collection[RunKey] = ()
    ) -> RunKey:
        """Register the run, and give it the turn if the turn is free or its holder is in `ended`. Returns the holder.

        Raises:
            ConfigurationError: another map index of the same DAG run is registered.
        """

    def leave_turn(self, pipeline: str, run: RunKey, *, confirmed: bool = False, counts: bool = True) -> None:
        """Frees the turn if this run has it.

        `confirmed`: all of the run is delivered. Then its failure is cleared, and what failed before it had the turn;
        the failure of a later run stays. Warnings that were stored before this run's stage began are deleted. And it
        is fixed what the run's result counts (`StepLog.counted`): each confirmed number in the result of one run.
        `counts=False` leaves the count out, for a run that may still fail: that run counts later (`count_run`), or the
        next run does.
        """

    def adopt_run(self, pipeline: str, epoch: int, run: RunKey) -> None:
        """The run's delivery tasks share `epoch` from now on (a new try of a fenced task took it for the run)."""


class QueryLog(PipelineLog, Protocol):
    """Queries that most of the protocol needs."""

    @property
    def installation(self) -> str:
        """UUID (text, 36 characters) born with the store."""

    def now(self) -> datetime:
        """The store's clock, UTC with microseconds."""

    def checkpoint(self, pipeline: str, number: int) -> Checkpoint: ...

    def open_checkpoints(self, pipeline: str, ahead_of: tuple[int, str] | None = None) -> Sequence[Checkpoint]:
        """In ascending order: all that are unfinished, undelivered, to be rolled back, or not finalised.

        With `ahead_of`, a number and a participant, only those that must go before it there: lower planned numbers
        that are undecided, QUARANTINED, or decided without a proof of the participant. The cost is independent of the
        history.
        """

    def latest_confirmed(self, pipeline: str) -> Checkpoint | None:
        """The COMPLETED checkpoint with the highest number."""

    def last_delivered(self, pipeline: str, participant: str) -> int:
        """The highest decided (COMMITTING, COMPLETED) number that the participant has to remember; 0: none.

        That is each whose plan contains it, unless with the promise AT_LEAST_ONCE, which leaves nothing in the sink.
        """

    def position_before(self, pipeline: str, number: int) -> SparkPosition | None:
        """Spark's position of the highest published, not rewound number below `number`: where a rewind goes to.

        Where there is none: the savepoint with which the pipeline began; None: it began with its sources.
        """

    def events(self, pipeline: str, number: int | None = None, limit: int = 100) -> Sequence[Event]:
        """Newest first; all numbers, or one. Those of old numbers are gone (`forget_events`)."""


class HistoryLog(QueryLog, Protocol):
    """Queries over all checkpoints of a pipeline, and over the files that they still need."""

    def checkpoints(
        self,
        pipeline: str,
        limit: int = 100,
        before: int | None = None,
        only: Only | None = None,
        *,
        reason: AbortReason | None = None,
        run: RunKey | None = None,
    ) -> Sequence[Checkpoint]:
        """Return checkpoints, newest first. `before`: lower numbers. `only`: these alone. `reason`: failed for it.

        `run`: staged in that run.
        """

    def unsettled(
        self, pipeline: str, *, run: RunKey | None = None, through: int | None = None, limit: int = 100
    ) -> Sequence[Checkpoint]:
        """The first of those for which something is left to do (not `is_settled`), ascending.

        With `run` only what that run has staged, with `through` only numbers up to that one.
        """

    def prunable(self, pipeline: str, retain: int, limit: int) -> Sequence[Checkpoint]:
        """Ascending: delivered, finalised, unpruned numbers with a segment, but not the newest `retain` delivered."""

    def referenced_locations(self, pipeline: str) -> frozenset[str]:
        """Segment locations and Spark locations of all published, unpruned, not rewound numbers, and the base's.

        Also Spark's of the newest delivered number that has a position, pruned or not: a rewind goes there.
        """


class CountLog(Protocol):
    """Counts of checkpoints."""

    def undelivered(self, pipeline: str) -> int:
        """Return how many have published rows that some number still has to deliver (`is_undelivered`)."""

    def failed_in_a_row(self, pipeline: str) -> int:
        """Return how many numbers after the newest confirmed one were aborted for a reason that `counts`."""


class SpecLog(Protocol):
    """Specifications of pipelines."""

    def spec(self, digest: str) -> Mapping[str, Any]:
        """Return the specification with this digest, as `begin_stage` stored it.

        Raises:
            KeyError: it is unknown.
        """


class OverviewLog(QueryLog, Protocol):
    """A pipeline in short, for its health."""

    def overview(self, pipeline: str) -> Overview:
        """One pipeline in short."""


class TargetLog(OverviewLog, SpecLog, Protocol):
    """The targets of other pipelines (`airflow_ft.protocol.sharing`)."""

    def fillings(self, pipeline: str) -> Sequence[Filling]:
        """Return what all *other* pipelines have delivered into, by each participant's newest plan, and what they have
        planned (number 0). The cost is some look-ups of each pipeline. A plan that cannot be read is left out.
        """

    def noted(self, pipeline: str, kind: Noted) -> Event | None:
        """The newest event of this kind."""
