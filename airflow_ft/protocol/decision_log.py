"""Ports of the decision log: queries, epochs and leases.

A port holds the methods for one use, and a function takes the smallest port that has the methods it calls.
`airflow_ft.store.decision_log.DecisionLog` implements all of them. The ports for delivery, for runs and for a
person's decisions are in `protocol.delivery_log`.

Every write is one transaction: it locks the pipeline's row, checks its conditions, changes the rows and appends
one event. The conditions are: the pipeline is ACTIVE where rows are staged, planned or decided; `epoch` is the
pipeline's; `protocol.transitions` allows the change. A condition that fails raises FencedError (the epoch is newer),
PipelineHaltedError or StateConflictError, and changes nothing. A write whose answer was lost raises
StoreUnavailableError(unanswered=True). Names of pipelines that do not exist raise KeyError in reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.meter import Meter
from airflow_ft.protocol.model import Checkpoint, RunKey, SparkPosition
from airflow_ft.protocol.overview import Noted, Only, Origin, Overview
from airflow_ft.protocol.pipelines import Event, Lease, Pipeline
from airflow_ft.protocol.position import LeftPositions
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.warning import PipelineWarning


class QueryLog(Protocol):
    """Queries of pipelines and checkpoints. They change nothing."""

    @property
    def installation(self) -> str:
        """UUID of the store (text, 36 characters), which never changes."""

    @property
    def url(self) -> str:
        """The address of the log without secrets, for people."""

    def now(self) -> datetime:
        """The store's clock, UTC with microseconds."""

    def pipeline(self, pipeline: str) -> Pipeline: ...

    def pipelines(self) -> Sequence[Pipeline]: ...

    def leases(self, pipeline: str) -> Sequence[Lease]: ...

    def spec(self, digest: str) -> Mapping[str, Any]:
        """Return the specification with this digest, as `begin_stage` stored it.

        Raises:
            KeyError: it is unknown.
        """

    def checkpoint(self, pipeline: str, number: int) -> Checkpoint: ...

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

    def open_checkpoints(self, pipeline: str, ahead_of: tuple[int, str] | None = None) -> Sequence[Checkpoint]:
        """In ascending order: all that are unfinished, undelivered, to be rolled back, or not finalised.

        With `ahead_of`, a number and a participant, only those that must go before it there: lower planned numbers
        that are undecided, QUARANTINED, or decided without a proof of the participant. The cost is independent of the
        history.
        """

    def unsettled(
        self, pipeline: str, *, run: RunKey | None = None, through: int | None = None, limit: int = 100
    ) -> Sequence[Checkpoint]:
        """The first of those for which something is left to do (not `is_settled`), ascending.

        With `run` only what that run has staged, with `through` only numbers up to that one.
        """

    def prunable(self, pipeline: str, retain: int, limit: int) -> Sequence[Checkpoint]:
        """Ascending: delivered, finalised, unpruned numbers with a segment, but not the newest `retain` delivered."""

    def latest_confirmed(self, pipeline: str) -> Checkpoint | None:
        """The COMPLETED checkpoint with the highest number."""

    def last_delivered(self, pipeline: str, participant: str) -> int:
        """Return the highest decided (COMMITTING, COMPLETED) number that the participant has to remember; 0: none.

        It remembers every number whose plan contains it, unless its promise is AT_LEAST_ONCE, which leaves no marker.
        """

    def position_before(self, pipeline: str, number: int) -> SparkPosition | None:
        """Return the position to which a rewind goes: that of the highest published, not rewound number below `number`.

        Without such a number return the position of the savepoint from which the pipeline began, or None.
        """

    def left_positions(self, pipeline: str) -> LeftPositions | None:
        """Return the published positions of a program that a rewind has left undelivered; None: there are none."""

    def referenced_locations(self, pipeline: str) -> frozenset[str]:
        """Return segment locations and Spark locations of all published, unpruned, not rewound numbers, and the base's.

        Also the Spark location of the newest delivered number that has a position, even if it was pruned: a rewind
        goes there.
        """

    def events(
        self, pipeline: str, number: int | None = None, limit: int = 100, *, kinds: Collection[str] = ()
    ) -> Sequence[Event]:
        """Newest first; of all numbers, or one. Those of old numbers are gone (`forget_events`).

        `kinds`: only these (none: all). Without a number this reads the history until it has found `limit` events.
        """

    def noted(self, pipeline: str, kind: Noted) -> Event | None:
        """The newest event of this kind."""

    def overview(self, pipeline: str) -> Overview:
        """One pipeline in short."""

    def overviews(self, dag_id: str = "") -> Sequence[Overview]:
        """Return all pipelines by name, or those of which a DAG made checkpoints.

        Reads one row for each returned pipeline, and with `dag_id` one more where other DAGs made checkpoints too.
        """

    def late(self, pipeline: str, after: timedelta) -> timedelta | None:
        """Return `Overview.late` as it would be with this `late_after`."""

    def origins(self, pipeline: str, limit: int) -> Sequence[Origin]:
        """Return the origins of the newest checkpoints, newest first. Reads no plan and no vote."""

    def lags(self, pipelines: Collection[str]) -> Mapping[str, Sequence[Lag]]:
        """Return the last reported lags of the sources, by pipeline; omits pipelines without a report."""

    def warnings(self, pipelines: Collection[str]) -> Mapping[str, Sequence[PipelineWarning]]:
        """Return the warnings of these pipelines by code and subject; omits pipelines without warnings."""


class EpochLog(QueryLog, Protocol):
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
