"""The ports of the decision log."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from airflow_ft.protocol.failure import Failure
from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.meter import Meter
from airflow_ft.protocol.model import (
    AbortReason,
    AfterAbort,
    Barrier,
    Checkpoint,
    Event,
    HaltReason,
    Lease,
    Pipeline,
    Plan,
    Proof,
    Reason,
    Request,
    RequestKind,
    Run,
    RunKey,
    Segment,
    SparkPosition,
    StateSizes,
)
from airflow_ft.protocol.numbers import Numbers
from airflow_ft.protocol.overview import Noted, Only, Origin, Overview, Tally
from airflow_ft.protocol.set_aside import SetAside
from airflow_ft.protocol.timing import Delivered, Timing
from airflow_ft.protocol.warning import PipelineWarning

if TYPE_CHECKING:
    from airflow_ft.protocol.filling import Filling


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Numbers of a run whose rows are proven to be in every sink, and their rows, by sink.

    `set_aside`, by sink: of all that was delivered together with these numbers.
    """

    numbers: Numbers = field(default_factory=Numbers)
    by_sink: Mapping[str, int] = field(default_factory=dict)
    set_aside: Mapping[str, SetAside] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Over all sinks."""
        return sum(self.by_sink.values())

    def told(self) -> dict[str, Any]:
        """Plain data for other tasks."""
        aside = {sink: each.rows for sink, each in self.set_aside.items()}
        return {**self.numbers.told(), "rows": self.rows, "set_aside": aside}


class RootLog(Protocol):
    """The memory of the decision log for storage roots (`airflow_ft.wal.roots`)."""

    def root(self, uri: str) -> str | None:
        """Return the id that the marker of a storage root holds; None: the log does not know this root."""

    def remember_root(self, uri: str, id: str) -> str:
        """Remember the id of a root, unless one is known; return the id that counts."""

    def locations_below(self, uri: str) -> frozenset[str]:
        """Return Spark locations of all pipelines' bases, and segments of open checkpoints, that lie below a URI."""


class Versioned(Protocol):
    """Reports changes to tasks and triggers that wait."""

    def marks(self) -> Mapping[str, str]:
        """Return the version token of each pipeline, by name; it changes on every write to the pipeline."""


class Store(RootLog, Versioned, Protocol):
    """The decision log.

    Every write is one transaction: it locks the pipeline's row, checks its conditions, changes the rows and appends
    one event. The conditions are: the pipeline is ACTIVE where rows are staged, planned or decided; `epoch` is the
    pipeline's; `core.transitions` allows the change. A condition that fails raises FencedError (the epoch is newer),
    PipelineHaltedError or StateConflictError, and changes nothing. A write whose answer was lost raises
    StoreUnavailableError(unanswered=True). Names of pipelines that do not exist raise KeyError in reads.
    """

    meter: Meter
    """Is told what the writes of this object do to checkpoints, once they are done; whoever has opened it sets it."""

    @property
    def installation(self) -> str:
        """UUID (text, 36 characters) born with the store."""

    @property
    def url(self) -> str:
        """Return where it is, without secrets, for people."""

    def close(self) -> None: ...

    def now(self) -> datetime:
        """The store's clock, UTC with microseconds."""

    # pipelines, leases, epochs
    def register(self, pipeline: str) -> Pipeline:
        """Creates the pipeline's row when there is none (epoch 0, next number 1); returns it."""

    def pipeline(self, pipeline: str) -> Pipeline: ...

    def pipelines(self) -> Sequence[Pipeline]: ...

    def overview(self, dag_id: str = "") -> Sequence[Overview]:
        """Return all pipelines by name, or those of which a DAG made checkpoints.

        Reads one row for each returned pipeline, and with `dag_id` one more where other DAGs made checkpoints too.
        """

    def standing(self, pipeline: str) -> Overview:
        """One pipeline in short."""

    def mark(self, pipeline: str = "") -> str:
        """Return a version token that changes on every write to the pipeline, or to any ("").

        A client compares it to decide whether to query again. Reads one entry at the end of an index.
        """

    def origins(self, pipeline: str, limit: int) -> Sequence[Origin]:
        """Return the origins of the newest checkpoints, newest first. Reads no plan and no vote."""

    def timings(self, pipeline: str, limit: int, only: Only | None = None) -> Sequence[Timing]:
        """Return the timings of the newest checkpoints, newest first, filtered by `only`. Reads no plan and no vote."""

    def recent(self, pipelines: Collection[str], limit: int) -> Mapping[str, Sequence[Delivered]]:
        """The newest completed checkpoints of each of these pipelines (100 at most), newest first. One statement."""

    def doing(self, pipelines: Collection[str]) -> Mapping[str, Sequence[str]]:
        """Return the progress texts of lease holders on these pipelines, by holder; omits holders without one."""

    def lags(self, pipelines: Collection[str]) -> Mapping[str, Sequence[Lag]]:
        """Return the last reported lags of the sources, by pipeline; omits pipelines without a report."""

    def tell_lags(self, pipeline: str, epoch: int, number: int, lags: Sequence[Lag]) -> None:
        """Replace the lags of the sources, and store them with the checkpoint `number` (0: with none). Writes no
        event.

        Nothing is decided by it, so it may be late or missing.

        Raises:
            FencedError: the epoch is newer.
        """

    def tell_state(self, pipeline: str, epoch: int, number: int, sizes: StateSizes) -> None:
        """Notes with the checkpoint how large the state was after it. No event; otherwise as `tell_lags`."""

    def warnings(self, pipelines: Collection[str]) -> Mapping[str, Sequence[PipelineWarning]]:
        """The warnings of these pipelines by code and subject; without pipelines that have none."""

    def tell_warning(self, pipeline: str, warning: PipelineWarning) -> None:
        """Stores a warning, or renews it. A new one, or one with another message, is also an event.

        A pipeline keeps `MOST_WARNINGS`; further ones are left out. A run that is confirmed deletes those that were
        stored before its stage began (`leave_turn`).
        """

    def tell_failure(self, pipeline: str, run: RunKey, failure: Failure, *, follows: bool = False) -> None:
        """Stores why the run failed, with an event; for people, nothing is decided by it.

        Left out when another run has the turn, or has begun later. `follows`: the failure is a consequence, so an
        earlier one of this run stays.
        """

    def tell_problem(self, pipeline: str, epoch: int, number: int, participant: str, problem: Failure) -> None:
        """Stores with the participant's vote why its newest attempt failed. No event; FencedError as elsewhere.

        A later vote of yes clears it. Left out when there is no vote, or its proof is known.
        """

    def tally(self, pipeline: str) -> Tally:
        """Count the ended checkpoints by outcome; the cost does not depend on the length of the history."""

    def number_at(self, pipeline: str, at: datetime) -> int:
        """Up to which number all were triggered at that time or before; 0: none was. Some 20 look-ups of a million."""

    def noted(self, pipeline: str, kind: Noted) -> Event | None:
        """The newest event of this kind."""

    def leases(self, pipeline: str) -> Sequence[Lease]: ...

    def take_epoch(self, pipeline: str, expected: int, seen: Mapping[str, int], lease: Lease, why: str) -> int:
        """Takes the next epoch for `lease` (whose epoch field is ignored), or raises.

        Conditions: the epoch is still `expected`, and every lease on the pipeline is in `seen` (holder -> counter)
        with that very counter, else LeaseHeldError; and it is ACTIVE (PipelineHaltedError), or RENAMED with nothing
        published, so that a pipeline may be renamed to it. The same transaction drops all other leases and aborts
        TRIGGERED checkpoints, which can no longer be published. The reason is FENCED where another holder's lease of
        their epoch was dropped, else ATTEMPT_ENDED.
        """

    def hold_lease(self, pipeline: str, epoch: int, lease: Lease) -> None:
        """Adds a lease under the current epoch (a delivery task joining its run's epoch). No event."""

    def renew_lease(self, pipeline: str, epoch: int, holder: str, doing: str = "") -> None:
        """Counter + 1, and what the holder says of itself. No event.

        FencedError when the epoch is newer or the lease is gone.
        """

    def release_lease(self, pipeline: str, holder: str) -> None:
        """Drops the lease if it is there. No event."""

    # runs
    def enter_turn(
        self, pipeline: str, run: RunKey, interval_end: datetime | None, ended: Collection[RunKey] = ()
    ) -> RunKey:
        """Register the run, and give it the turn if the turn is free or its holder is in `ended`. Returns the holder.

        Raises:
            ConfigurationError: another map index of the same DAG run is registered.
        """

    def leave_turn(self, pipeline: str, run: RunKey, *, confirmed: bool = False) -> None:
        """Frees the turn if this run has it.

        `confirmed`: all of the run is delivered. Then its failure is cleared, and what failed before it had the turn;
        the failure of a later run stays. Warnings that were stored before this run's stage began are deleted.
        """

    def run(self, pipeline: str, run: RunKey) -> Run | None: ...

    def runs(self, pipeline: str, dag_id: str, run_id: str) -> Sequence[Run]:
        """The runs of a DAG run, by map index."""

    def adopt_run(self, pipeline: str, epoch: int, run: RunKey) -> None:
        """The run's delivery tasks share `epoch` from now on (a new try of a fenced task took it for the run)."""

    # staging
    def begin_stage(
        self, pipeline: str, epoch: int, run: RunKey, task: str = "", spec: Mapping[str, Any] | None = None
    ) -> int:
        """Give the run this epoch with `staged` false, and mark the base unclean. Returns a new attempt number.

        `task` becomes the run's `stage_task`, and the current time its `stage_began`. The stage reads its sources only
        after this call. `spec` (plain JSON, no secret) is the specification of the run and of each number that it
        triggers.
        """

    def trigger(self, pipeline: str, epoch: int, run: RunKey | None, application: str = "") -> int:
        """A new number, TRIGGERED. `application`: Spark's id of the one that computes it, for people.

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
        as_of: datetime | None = None,
        parts: Mapping[str, float] | None = None,
    ) -> None:
        """TRIGGERED -> STAGED, and the pipeline's base becomes `position` (unclean) unless that is None.

        Conditions: `predecessor` is the highest number ever published before (0: none). `segment` is None for a number
        that only carries earlier segments. `as_of`: everything that the sources held at that time, by the store's
        clock, is in this or an earlier number (None: unknown). `parts`: for traces, the seconds of its consecutive
        parts.
        """

    def begin_again(self, pipeline: str, epoch: int, run: RunKey) -> int:
        """As `begin_stage`, for a stage that this epoch has begun: a new attempt in the same process, as told before.

        What the attempt before it has TRIGGERED becomes ABORTED(ATTEMPT_ENDED), so it can no longer be published.
        StateConflictError when this epoch has not begun the run's stage.
        """

    def give_up(self, pipeline: str, epoch: int, reason: AbortReason, message: str) -> None:
        """Abort TRIGGERED checkpoints with `reason`, because their attempt ended and they can no longer be
        published.
        """

    def read_all(self, pipeline: str, epoch: int, run: RunKey, as_of: datetime) -> None:
        """Record for a running stream that the published numbers contain everything that the sources held at
        `as_of`.
        """

    def end_stage(
        self, pipeline: str, epoch: int, run: RunKey, position: SparkPosition | None, *, complete: bool = True
    ) -> None:
        """The run is `staged`; with a position the base becomes that, clean (its process is known to have ended).

        `complete`: it has read everything that was there when it began.
        """

    # requests
    def ask(self, pipeline: str, kind: RequestKind, arguments: Mapping[str, Any], by: str) -> int:
        """Store a request (plain JSON, no secret) for the process that runs the pipeline; returns its id."""

    def open_requests(self, pipeline: str) -> Sequence[Request]:
        """Return the unanswered requests, ascending."""

    def request(self, pipeline: str, id: int) -> Request: ...

    def answer(self, pipeline: str, id: int, outcome: str, *, epoch: int | None = None) -> None:
        """Says what became of it; the first answer counts. With `epoch` only while no newer one was taken (I5)."""

    # barriers
    def inject(self, barrier: str, pipelines: Collection[str], by: str) -> Sequence[Barrier]:
        """Puts a barrier into each of the pipelines, at one moment of the store's clock; those rows, by pipeline.

        All or none: KeyError when one of the pipelines does not exist. The first injection into a pipeline counts.
        """

    def barrier(self, barrier: str) -> Sequence[Barrier]:
        """Return where it was injected, by pipeline."""

    def barriers(self, limit: int = 100) -> Sequence[Barrier]:
        """Newest first: a row for each barrier and pipeline."""

    # delivery
    def plan(self, pipeline: str, epoch: int, plan: Plan) -> Plan:
        """Stores the plan of a STAGED number that has none; returns the stored one (perhaps another's).

        Where a participant begins (it has no predecessor), the stored one names the pipeline's `former`.
        In the same transaction the STAGED numbers among its segments become SUBSUMED by it, and it becomes COMMITTING
        when the plan waits for no votes. Condition: none of its segments is in the plan of another number that is not
        ABORTED, or delivered, or rewound.
        """

    def begin_attempt(self, pipeline: str, epoch: int, number: int, participant: str) -> int:
        """A new attempt number for a participant's step, from the pipeline's counter.

        STAGED, PREPARED, COMMITTING, and ABORTED while a rollback is pending.
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

    def decide(self, pipeline: str, epoch: int, number: int, prepared: Mapping[str, int]) -> Checkpoint:
        """PREPARED -> COMMITTING, naming the attempt counted of each participant; all must be the stored votes.

        Returns at once when it is COMMITTING or COMPLETED already.
        """

    def record_proof(self, pipeline: str, epoch: int, number: int, proof: Proof) -> Checkpoint:
        """Stores a participant's proof of COMMITTED (digest equal to the plan's, else StateConflictError).

        COMMITTING only; repeated: no effect. The last proof writes COMPLETED and `delivered_by` of every segment.
        """

    def record_rollback(self, pipeline: str, epoch: int, number: int, participant: str) -> Checkpoint:
        """A TWO_PHASE participant of an ABORTED number holds nothing of it any more. Repeated: no effect.

        The last one ends `rollback_pending`.
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

        A PREPARED one whose commit point is a participant's own transaction is aborted only when its tombstone was
        read (`tombstoned`), else StateConflictError: that transaction may have committed.

        With REWOUND: every undelivered published number >= `rewind_from` is marked rewound too (TRIGGERED and STAGED
        ones become ABORTED(PREDECESSOR_ABORTED), or USER where `reason` is that; PREPARED or COMMITTING ones raise
        StateConflictError: abort them first), the
        base becomes `rewind_to` (None: from the beginning), unclean, and the runs of these numbers are no longer
        `staged`. When a TWO_PHASE participant has begun an attempt, `rollback_pending` is set in the same write.
        """

    def finalise(self, pipeline: str, number: int) -> None:
        """Record that the work after COMPLETED is done (group offsets, retention). Not fenced: any process may repeat
        it.
        """

    def halt(self, pipeline: str, reason: HaltReason, message: str) -> None: ...

    def resume(self, pipeline: str, who: str, reason: HaltReason | None = None) -> None:
        """Record that a person settled the reason of the halt.

        A RENAMED pipeline takes its name back: the same write fences the pipeline that continued it and makes that one
        RENAMED.

        After STORE_BEHIND_SINK the epoch grows by one. Attempts of the old epoch would stay below the sink's head and
        halt the pipeline again, as many times as the lost log had drawn attempts.

        Raises:
            StateConflictError: it is HALTED for another reason than `reason` by now; or the pipeline that continues a
                RENAMED one has published checkpoints, so both would deliver the same rows.
        """

    def retire(self, pipeline: str, who: str, ended: RunKey | None = None) -> None:
        """Silence the pipeline: it is neither late nor failed until its next run takes the turn, or fails before that.

        Frees a turn of `ended`.

        Raises:
            StateConflictError: another run has the turn.
        """

    def adopt(self, pipeline: str, epoch: int, delivered: Mapping[str, int], who: str, *, expected: int) -> int:
        """Continue above the sinks of a lost decision log; `delivered` is the last number by participant. Returns a
        new epoch.

        HALTED pipelines only, and nothing PREPARED or COMMITTING (else StateConflictError), and only while `expected`
        is the pipeline's epoch: it was read before the sinks were looked at. The new epoch is above `epoch`, and the
        next number above every delivered one. Leases are dropped, planned numbers become ABORTED (SUPERSEDED,
        carried), and `last_delivered` returns the sinks' numbers. The pipeline stays HALTED until `resume`.
        """

    def quarantine(self, pipeline: str, epoch: int, number: int, message: str) -> Checkpoint:
        """PREPARED or COMMITTING -> QUARANTINED, for a person; returns at once when it is that already.

        Condition: no earlier planned number is unsettled. Nothing later is planned or decided until `release`.
        """

    def release(self, pipeline: str, epoch: int, number: int, message: str) -> Checkpoint:
        """QUARANTINED -> where it came from: COMMITTING when it was decided, else PREPARED. Repeated: no effect."""

    def rewind(
        self, pipeline: str, epoch: int, rewind_from: int, rewind_to: SparkPosition | None, message: str
    ) -> None:
        """As in `abort`, asked for by a person, for numbers that are undelivered (reason USER)."""

    def reset_state(
        self,
        pipeline: str,
        epoch: int,
        position: SparkPosition,
        message: str,
        *,
        seen_requests: Collection[int] | None = None,
    ) -> None:
        """Set the base, and Spark's position of the newest published number, to `position`, clean.

        Condition: nothing is TRIGGERED, and nothing published is undelivered (StateConflictError), since a rewind to
        an earlier position would bring the state back. With `heard`, the open requests that the caller has read:
        StateConflictError if there are others, since they may need the state.
        """

    def restore(
        self,
        pipeline: str,
        epoch: int,
        position: SparkPosition | None,
        message: str,
        run: RunKey | None = None,
        savepoint: str = "",
        of: tuple[str, int] | None = None,
    ) -> None:
        """As `reset_state`, to the copy of a savepoint; for a pipeline without numbers it is where they begin. None
        keeps a pipeline without a base as it is (StateConflictError for any other).

        `run`: the DAG run that asks for it, which may do so once (StateConflictError); `Run.restored_from` is its
        savepoint. `of`: the savepoint's pipeline if it is another one, and the checkpoint that it covers.
        """

    def rename(
        self,
        former: str,
        held: int,
        delivered: int,
        pipeline: str,
        epoch: int,
        position: SparkPosition,
        message: str,
        run: RunKey | None = None,
        savepoint: str = "",
    ) -> None:
        """As `restore`, of a pipeline without published numbers that continues `former` after its number `delivered`.

        The same write makes `former`, whose epoch is `held`, RENAMED, silences its late alert and takes its turn. Its
        numbers continue in `pipeline`, which records it as `former`. Until `pipeline` has checkpoints, the DAGs of
        `former` are its own.

        Condition: nothing of `former` is unsettled (StateConflictError).
        """

    def note_savepoint(self, pipeline: str, number: int, message: str, detail: Mapping[str, Any]) -> None:
        """Writes into the event log that a savepoint was taken of this number. It depends on nothing here."""

    def prune(self, pipeline: str, number: int) -> None:
        """Writes that the files of this delivered number are being deleted (PRUNING goes before the files)."""

    def forget_events(self, pipeline: str, keep: int, limit: int) -> int:
        """Delete the events of some old numbers, from the oldest on; returns how many (0: none left).

        Deletes those of at most `limit` numbers, never of the newest `keep`, nor of an open number or one after it.
        Events of the pipeline itself remain, and so do the numbers with their plans, votes and proofs.
        """

    # reading
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
        """Newest first; with `before` only lower numbers, with `only` those alone, those that failed for `reason`, and
        those that were staged in `run`.
        """

    def open_checkpoints(self, pipeline: str, before: int | None = None) -> Sequence[Checkpoint]:
        """In ascending order: all that are unfinished, undelivered, to be rolled back, or not finalised.

        With `before` only lower numbers. The cost is independent of the history.
        """

    def unsettled(
        self, pipeline: str, *, run: RunKey | None = None, through: int | None = None, limit: int = 100
    ) -> Sequence[Checkpoint]:
        """The first of those for which something is left to do (not `is_settled`), ascending.

        With `run` only what that run has staged, with `through` only numbers up to that one.
        """

    def planned_before(self, pipeline: str, number: int) -> Checkpoint | None:
        """The highest number below `number` with a plan that is neither delivered nor aborted, nor QUARANTINED."""

    def fillings(self, pipeline: str) -> Sequence[Filling]:
        """Return what all *other* pipelines have delivered into, by each participant's newest plan, and what they have
        planned (number 0). The cost is some look-ups of each pipeline. A plan that cannot be read is left out.
        """

    def undelivered(self, pipeline: str) -> int:
        """Return how many have published rows that some number still has to deliver (`is_undelivered`)."""

    def run_checkpoints(self, pipeline: str, run: RunKey, newest: int = 1000) -> Sequence[Checkpoint]:
        """The newest numbers staged in a run, ascending."""

    def last_published(self, pipeline: str, run: RunKey) -> int:
        """The newest number of a run that has published rows which were not rewound; 0: none."""

    def confirmed(self, pipeline: str, run: RunKey) -> Confirmed:
        """Return what is confirmed of a run. Reads each of its numbers, a page at a time: for the end of a run."""

    def proven(self, pipeline: str, run: RunKey, participant: str, newest: int = 1000) -> Sequence[int]:
        """The newest numbers staged in a run that the participant has proof of, ascending."""

    def prunable(self, pipeline: str, retain: int, limit: int) -> Sequence[Checkpoint]:
        """Ascending: delivered, finalised, unpruned numbers with a segment, but not the newest `retain` delivered."""

    def position_before(self, pipeline: str, number: int) -> SparkPosition | None:
        """Spark's position of the highest published, not rewound number below `number`: where a rewind goes to.

        Where there is none: the savepoint with which the pipeline began; None: it began with its sources.
        """

    def referenced_locations(self, pipeline: str) -> frozenset[str]:
        """Segment locations and Spark locations of all published, unpruned, not rewound numbers, and the base's.

        Also Spark's of the newest delivered number that has a position, pruned or not: a rewind goes there.
        """

    def latest_confirmed(self, pipeline: str) -> Checkpoint | None:
        """The COMPLETED checkpoint with the highest number."""

    def read_through(self, pipeline: str, at: datetime) -> int | None:
        """Return the number up to which everything is published that the sources held at `at`; None: unknown.

        The answer comes from a `complete` stage that began at or after it, from a stream's checkpoint, or from a
        stream that found nothing new since. Rewound numbers do not count.
        """

    def read_as_of(self, pipeline: str, through: int) -> datetime | None:
        """Return the latest known time at which everything in the sources is in numbers up to `through`.

        None: no such time is known. Rewound numbers do not count.
        """

    def delivered_with(self, pipeline: str, number: int) -> int:
        """The number whose plan has delivered the newest delivered one that is at most `number`; 0: there is none."""

    def complete_around(self, pipeline: str, number: int) -> tuple[int, int | None]:
        """Return the two complete numbers around `number`. The first is the highest that is at most `number` (0:
        none), the second the lowest that is at least `number`. A number is complete if it is `through` of a complete
        run, or a stream's checkpoint with an `as_of`: then all input of some moment is published.
        """

    def is_rewound(self, pipeline: str, after: int, through: int) -> bool:
        """Return whether a number above `after`, and at most `through`, was rewound."""

    def failed_in_a_row(self, pipeline: str) -> int:
        """Return how many numbers after the newest confirmed one were aborted for a reason that `counts`."""

    def last_delivered(self, pipeline: str, participant: str) -> int:
        """The highest decided (COMMITTING, COMPLETED) number that the participant has to remember; 0: none.

        That is each whose plan contains it, unless with the promise AT_LEAST_ONCE, which leaves nothing in the sink.
        """

    def events(self, pipeline: str, number: int | None = None, limit: int = 100) -> Sequence[Event]:
        """Newest first; all numbers, or one. Those of old numbers are gone (`forget_events`)."""

    def spec(self, digest: str) -> Mapping[str, Any]:
        """Return the specification with this digest, as `begin_stage` stored it.

        Raises:
            KeyError: it is unknown.
        """
