"""Ports of the decision log for delivery, for runs and for a person's decisions.

`protocol.decision_log` has the other ports, and says what every write promises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.decision_log import EpochLog
from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.model import AfterAbort, Checkpoint, ParticipantPlan, Plan, RunKey, Segment, SparkPosition
from airflow_ft.protocol.pipelines import Filling, HaltReason, Pipeline, Run
from airflow_ft.protocol.reasons import Reason
from airflow_ft.protocol.votes import Proof
from airflow_ft.protocol.warning import PipelineWarning


class DeliveryLog(EpochLog, Protocol):
    """Changes of a checkpoint, from its trigger to the deletion of its files (`airflow_ft.protocol.coordinator`)."""

    def trigger(
        self,
        pipeline: str,
        epoch: int,
        run: RunKey | None,
        application: str = "",
        positions: Mapping[str, Any] | None = None,
    ) -> int:
        """A new number, TRIGGERED. `application`: Spark's id of the one that computes it, for people.

        `positions`: those that it will be published with, if they are known already.

        StateConflictError when this epoch has ended the run's stage: the request of a driver that is gone comes late.
        """

    def publish(
        self,
        pipeline: str,
        epoch: int,
        number: int,
        predecessor: int,
        segment: Segment | None,
        position: SparkPosition | None,
        positions: Mapping[str, Any],
        as_of: datetime | Callable[[datetime], datetime] | None = None,
        parts: Mapping[str, float] | None = None,
    ) -> None:
        """TRIGGERED -> STAGED, and the pipeline's base becomes `position` (unclean) unless that is None.

        Conditions: `predecessor` is the highest number ever published before (0: none). `segment` is None for a number
        that only carries earlier segments. `as_of`: everything that the sources held at that time, by the store's
        clock, is in this or an earlier number (None: unknown). Or a function that returns it, given the time of this
        write. `parts`: for traces, the seconds of its consecutive parts.
        """

    def fillings(self, pipeline: str) -> Sequence[Filling]:
        """Return the targets of all *other* pipelines: of each participant's newest delivered plan, and planned ones
        (number 0). Costs some look-ups for each pipeline. Omits plans that cannot be read.
        """

    def plan(self, pipeline: str, epoch: int, plan: Plan) -> Plan:
        """Stores the plan of a STAGED number that has none; returns the stored one (perhaps another's).

        Where a participant begins (it has no predecessor), the stored one names the pipeline's `former`.
        In the same transaction the STAGED numbers among its segments become SUBSUMED by it, and it becomes COMMITTING
        when the plan waits for no votes. Condition: none of its segments is in the plan of another number that is not
        ABORTED, or delivered, or rewound.
        """

    def planned_before(self, pipeline: str, number: int) -> Checkpoint | None:
        """The highest number below `number` with a plan that is neither delivered nor aborted, nor QUARANTINED."""

    def first_unproven(self, pipeline: str, number: int, participant: str) -> Checkpoint | None:
        """Return the lowest open planned number up to `number` for which the participant has a vote but no proof.

        Each participant of a decided number has a vote.
        """

    def begin_attempt(
        self, pipeline: str, epoch: int, number: int, participant: str, *, quarantined: bool = False
    ) -> int:
        """A new attempt number for a participant's step, from the pipeline's counter.

        Before the decision it takes back the vote of a TWO_PHASE participant. The notes stay.

        STAGED, PREPARED, COMMITTING, and ABORTED while a rollback is pending; `quarantined`: QUARANTINED as well, for a
        person's abort.
        """

    def vote(
        self,
        pipeline: str,
        epoch: int,
        number: int,
        participant: str,
        attempt: int,
        notes: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """The participant's newest attempt (else StateConflictError) votes yes; the last vote writes PREPARED.

        `notes` (plain JSON, no secret) are kept with the vote.
        """

    def decide(
        self, pipeline: str, epoch: int, number: int, prepared: Mapping[str, int], proof: Proof | None = None
    ) -> Checkpoint:
        """PREPARED -> COMMITTING, naming the attempt counted of each participant; all must be the stored votes.

        With the `proof` of the participant that carries the commit point, it is decided already, and only the stored
        votes count. A participant whose vote a late attempt took back delivers from the write-ahead log.
        Returns at once when it is COMMITTING or COMPLETED already.
        """

    def record_proof(self, pipeline: str, epoch: int, number: int, proof: Proof) -> Checkpoint:
        """Stores a participant's proof of COMMITTED (digest equal to the plan's, else StateConflictError).

        COMMITTING only; repeated: no effect. The last proof writes COMPLETED and `delivered_by` of every segment.
        """

    def record_problem(self, pipeline: str, epoch: int, number: int, participant: str, problem: Failure) -> None:
        """Store with the participant's vote why its newest attempt failed. No event; FencedError as elsewhere.

        A later vote of yes clears it. Does nothing if there is no vote, or the proof is known.
        """

    def finalise(self, pipeline: str, number: int) -> None:
        """Record that the work after COMPLETED is done (group offsets, retention). Not fenced: any process may repeat
        it.
        """

    def prune(self, pipeline: str, number: int) -> None:
        """Record, before the deletion, that the files of this delivered number are deleted (PRUNING)."""

    def forget_events(self, pipeline: str, keep: int, limit: int) -> int:
        """Delete some old events, from the oldest on. Returns 0 if none is left to delete.

        Deletes those of at most `limit` numbers, never of the newest `keep`, nor of an open number or one after it.
        Also deletes what runs wrote in `limit` epochs before the newest `keep` (at least 1,000), such as turns and
        stages that read nothing new. With it go events of epochs that commands took, and of barriers. The last turn of
        each of the newest two runs remains. So do other events of people's actions, and the numbers with their plans,
        votes and proofs.
        """

    def abort(
        self,
        pipeline: str,
        epoch: int,
        number: int,
        reason: Reason,
        message: str,
        after: AfterAbort,
        rewind_from: int | None = None,
        rewind_to: SparkPosition | None = None,
        *,
        tombstoned: bool = False,
    ) -> Checkpoint:
        """TRIGGERED, STAGED or PREPARED -> ABORTED; returns at once when it is ABORTED already.

        A QUARANTINED one only if it is not decided, and for a person (USER) or with a tombstone.
        A PREPARED or QUARANTINED one whose commit point is a participant's own transaction is aborted only when its
        tombstone was read (`tombstoned`), else StateConflictError: that transaction may have committed.

        With REWOUND: every undelivered published number >= `rewind_from` is marked rewound too (TRIGGERED and STAGED
        ones become ABORTED(PREDECESSOR_ABORTED), or USER where `reason` is that; PREPARED or COMMITTING ones raise
        StateConflictError: abort them first), the
        base becomes `rewind_to` (None: from the beginning), unclean, and the runs of these numbers are no longer
        `staged`. When a TWO_PHASE participant has begun an attempt, `rollback_pending` is set in the same write.
        """

    def record_rollback(
        self, pipeline: str, epoch: int, number: int, participant: str, given_up: str = ""
    ) -> Checkpoint:
        """Record that a TWO_PHASE participant no longer holds rows of an ABORTED number. Repeated: no effect.

        The last participant ends `rollback_pending`. `given_up`: why a participant that does not answer no longer
        counts.
        """

    def rewind(
        self, pipeline: str, epoch: int, rewind_from: int, rewind_to: SparkPosition | None, message: str
    ) -> None:
        """Rewind undelivered numbers as `abort` does, because a person asks for it (reason USER)."""

    def halt(
        self,
        pipeline: str,
        reason: HaltReason,
        message: str,
        *,
        code: str = "",
        remedy: str = "",
        participants: Sequence[ParticipantPlan] = (),
        found: tuple[int, ...] = (),
    ) -> None:
        """ACTIVE -> HALTED, by an error with this code, message and remedy. `code`: by default that of the reason.

        `participants`: the sinks, if no plan names them. An adoption reads them. `found`: the newest
        epoch and attempt in the write-ahead log. A resumed pipeline does not halt for them again.

        The first halt stays until `resume`. Another one is only logged.
        """

    def quarantine(self, pipeline: str, epoch: int, number: int, message: str, *, if_idle: bool = False) -> Checkpoint:
        """PREPARED or COMMITTING -> QUARANTINED, for a person; returns at once when it is that already.

        Condition: no earlier planned number is unsettled. Nothing later is planned or decided until `release`.

        Raises:
            LeaseHeldError: with `if_idle`, a process holds a lease.
        """


class RunLog(DeliveryLog, Protocol):
    """The runs of a pipeline: whose turn it is, what a run staged, and how it ended (`airflow_ft.protocol.steps`)."""

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

        `confirmed`: all rows of the run are delivered. Then its failure and those before its turn are cleared, and the
        failure of a later run stays. Warnings that were stored before this run's stage began are deleted. The run's
        result is fixed (`counted`): each confirmed number is in the result of one run. `counts=False` does not fix it,
        for a run that may still fail: that run counts later (`count_run`), or the next run does.
        """

    def adopt_run(self, pipeline: str, epoch: int, run: RunKey) -> None:
        """Let the run's delivery tasks share `epoch` from now on (a new try of a fenced task took it for the run)."""

    def undelivered(self, pipeline: str) -> int:
        """Return how many numbers have published rows that are still to be delivered (`is_undelivered`)."""

    def failed_in_a_row(self, pipeline: str) -> int:
        """Return how many numbers after the newest confirmed one were aborted for a reason that `counts`."""

    def record_failure(
        self,
        pipeline: str,
        run: RunKey,
        failure: Failure,
        *,
        follows: bool = False,
        participants: Sequence[ParticipantPlan] = (),
    ) -> None:
        """Store why the run failed, with an event. It is for people: no step depends on it.

        Does nothing if another run has the turn, or has begun later. `follows`: the failure is a consequence, so an
        earlier one of this run stays. `participants`: those of a run without a DAG, which the event names.
        """

    def record_warning(self, pipeline: str, warning: PipelineWarning) -> None:
        """Store a warning, or renew it. A new one, or one with another message, is also an event.

        A pipeline keeps `warning.MOST_WARNINGS`, and further ones are not stored. A confirmed run deletes those that
        were stored before its stage began (`leave_turn`).
        """

    def run_checkpoints(self, pipeline: str, run: RunKey, newest: int = 1000) -> Sequence[Checkpoint]:
        """The newest numbers staged in a run, ascending."""

    def last_published(self, pipeline: str, run: RunKey) -> int:
        """The newest number of a run that has published rows which were not rewound; 0: none."""

    def counted(self, pipeline: str, run: RunKey) -> Confirmed:
        """Return what the result of a confirmed run counts: numbers of its own, and recovered ones of others.

        Each confirmed number is in the result of at most one run, and in one as soon as a run that is confirmed after
        it ends its turn (`leave_turn`). A run has the same result whenever it is read.
        """


class AdminLog(DeliveryLog, Protocol):
    """Decisions of a person about a quarantine, a halt or a lost decision log."""

    def release(self, pipeline: str, epoch: int, number: int, message: str) -> Checkpoint:
        """QUARANTINED -> where it came from: COMMITTING when it was decided, else PREPARED. Repeated: no effect."""

    def resume(self, pipeline: str, who: str, reason: HaltReason | None = None, *, epoch: int | None = None) -> None:
        """Record that a person settled the reason of the halt.

        A RENAMED pipeline takes its name back: the same write fences the pipeline that continued it and makes that one
        RENAMED.

        After STORE_BEHIND_SINK the epoch grows by one. Attempts of the old epoch would stay below the sink's head and
        halt the pipeline again, as many times as the lost log had drawn attempts.

        Raises:
            StateConflictError: it is HALTED for another reason than `reason` by now, or has another epoch than `epoch`.
                Or the pipeline that continues a RENAMED one has published checkpoints: the same rows would come twice.
        """

    def adopt(
        self,
        pipeline: str,
        epoch: int,
        delivered: Mapping[str, int] | None,
        who: str,
        *,
        expected: int,
        choice: Mapping[str, Any] | None = None,
    ) -> int:
        """Continue above the sinks of a lost decision log; `delivered` is the last number by participant. Returns a
        new epoch.

        HALTED pipelines only, and nothing PREPARED or COMMITTING (else StateConflictError), and only while `expected`
        is the pipeline's epoch: it was read before the sinks were looked at. The new epoch is above `epoch`, and the
        next number above every delivered one. Leases are dropped. Staged numbers that are planned, or not above every
        delivered one, become ABORTED (SUPERSEDED, carried). `last_delivered` returns the sinks' numbers. The pipeline
        stays HALTED until `resume`.

        `delivered` None: numbers keep their places, also PREPARED and COMMITTING ones; only the epoch grows. `choice`:
        how prepared rows of a former owner end, kept in the event for later adoptions.
        """
