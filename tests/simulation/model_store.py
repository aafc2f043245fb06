"""A model of the decision log: the conditions of `airflow_ft.store` over plain values, for one pipeline.

It is ten times as fast as the real one, which makes a million schedules affordable. `test_model_store` plays schedules
over both and demands the same answers, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ft.protocol.errors import FencedError, LeaseHeldError, PipelineHaltedError, StateConflictError
from airflow_ft.protocol.failure import Halt
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointState,
    Plan,
    Promise,
    RunKey,
    Segment,
    SparkPosition,
)
from airflow_ft.protocol.pipelines import Event, HaltReason, Lease, Pipeline, PipelineStatus, Request, Run
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE, is_allowed
from airflow_ft.protocol.votes import Outcome, Proof, Vote
from tests.simulation.memory_database import INSTALLATION
from tests.simulation.model_streams import ModelStreams

S = CheckpointState
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


class ModelStore(ModelStreams):
    """See `airflow_ft.store.decision_log.DecisionLog`."""

    installation = INSTALLATION
    url = "model:"

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock  # microseconds
        self.version = 0
        self._pipeline: Pipeline | None = None
        self._next_attempt = 1
        self._needs_stage = False
        self._rows: dict[int, Checkpoint] = {}
        self._events: tuple[Event, ...] = ()
        self._planned_by: dict[int, int] = {}
        self._pruned: frozenset[int] = frozenset()
        self._runs: dict[RunKey, Run] = {}
        self._leases: dict[str, Lease] = {}
        self._entered: tuple[tuple[RunKey, bool], ...] = ()  # who has registered, or got the turn
        self._delivered: dict[str, int] = {}
        self._as_of: dict[int, datetime] = {}
        self._read: dict[RunKey, tuple[datetime, int]] = {}
        self._requests: dict[int, Request] = {}
        self._origin: SparkPosition | None = None
        self._counted: tuple[tuple[int, int, RunKey], ...] = ()

    def snapshot(self) -> dict[str, Any]:
        """A backup."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}

    def put_back(self, backup: Mapping[str, Any]) -> None:
        """The backup in place of what is there."""
        version = self.version
        vars(self).update({name: dict(value) if isinstance(value, dict) else value for name, value in backup.items()})
        self.version = version + 1

    def close(self) -> None:
        pass

    def now(self) -> datetime:
        return _BEGINNING + self._clock() * _TICK

    # --- conditions -----------------------------------------------------------------------------------------------

    def _require_epoch(self, pipeline: str, epoch: int) -> Pipeline:
        known = self._known(pipeline)
        if epoch < known.epoch:
            raise FencedError(f"epoch {epoch} is over, a newer owner holds epoch {known.epoch}.")
        if epoch > known.epoch or epoch < 1:
            raise StateConflictError(f"the decision log knows epochs up to {known.epoch} only.")
        return known

    def _require_active(self, pipeline: str) -> None:
        if self._known(pipeline).status is not PipelineStatus.ACTIVE:
            raise PipelineHaltedError("it is HALTED.")

    def _planned(self, number: int, participant: str) -> tuple[Checkpoint, Plan]:
        row = self._row(number)
        if row.plan is None or participant not in {p.name for p in row.plan.participants}:
            raise StateConflictError(f"the plan of {number} has no participant {participant}.")
        return row, row.plan

    def _change(self, row: Checkpoint, **changes: Any) -> Checkpoint:
        changed = self._rows[row.number] = replace(row, **changes)
        self._note(str(changes.get("state", "")), row.number)
        return changed

    def _move(self, row: Checkpoint, to: S, **changes: Any) -> Checkpoint:
        if not is_allowed(row.state, to):
            raise StateConflictError(f"checkpoint {row.number} is {row.state} and cannot become {to}.")
        return self._change(row, state=to, epoch=self._known("").epoch, **changes)

    def _set(self, **changes: Any) -> None:
        assert self._pipeline is not None
        self._pipeline = replace(self._pipeline, **changes)

    # --- who may act ----------------------------------------------------------------------------------------------

    def register(self, pipeline: str) -> Pipeline:
        if self._pipeline is None:
            self.version += 1
            self._pipeline = Pipeline(pipeline, 0, 1, PipelineStatus.ACTIVE, None, None, False, None, 0)
            self._note("REGISTERED")
        return self._pipeline

    def pipeline(self, pipeline: str) -> Pipeline:
        return self._known(pipeline)

    def leases(self, pipeline: str) -> Sequence[Lease]:
        self._known(pipeline)
        return [self._leases[holder] for holder in sorted(self._leases)]

    def take_epoch(self, pipeline: str, expected: int, seen: Mapping[str, int], lease: Lease, why: str) -> int:
        known = self._known(pipeline)
        self._require_active(pipeline)
        if known.epoch != expected or any(seen.get(held.holder) != held.counter for held in self._leases.values()):
            raise LeaseHeldError("another process works on the pipeline.")
        mine = self._leases.get(lease.holder)
        counter = lease.counter if mine is None else max(lease.counter, mine.counter + 1)
        left = {held.epoch for held in self._leases.values() if held.holder != lease.holder}
        epoch = known.epoch + 1
        self._set(epoch=epoch)
        self._leases = {lease.holder: replace(lease, epoch=epoch, counter=counter)}
        self._abort_unpublished(
            f"not published before epoch {epoch} began",
            lambda row: AbortReason.FENCED if row.epoch in left else AbortReason.ATTEMPT_ENDED,
        )
        self.version += 1
        return epoch

    def _abort_unpublished(self, message: str, why: Callable[[Checkpoint], AbortReason]) -> None:
        for row in list(self._rows.values()):
            if row.state is S.TRIGGERED:
                self._move(row, S.ABORTED, reason=why(row), message=message)

    def hold_lease(self, pipeline: str, epoch: int, lease: Lease) -> None:
        self._require_epoch(pipeline, epoch)
        for old in list(self._leases.values()):
            if lease.task and old.task == lease.task and old.try_number < lease.try_number:
                del self._leases[old.holder]
        held = self._leases.get(lease.holder)
        counter = lease.counter if held is None else max(lease.counter, held.counter + 1)
        self._leases[lease.holder] = replace(lease, epoch=epoch, counter=counter)
        self.version += 1

    def renew_lease(self, pipeline: str, epoch: int, holder: str, doing: str = "") -> None:
        self._require_epoch(pipeline, epoch)
        held = self._leases.get(holder)
        if held is None or held.epoch != epoch:
            raise FencedError("the lease is gone.")
        self._leases[holder] = replace(held, counter=held.counter + 1, doing=doing)
        self.version += 1

    def release_lease(self, pipeline: str, holder: str) -> None:
        self._known(pipeline)
        self._leases.pop(holder, None)
        self.version += 1

    def enter_turn(
        self, pipeline: str, run: RunKey, interval_end: datetime | None, ended: Collection[RunKey] = ()
    ) -> RunKey:
        known = self._known(pipeline)
        is_new = run not in self._runs
        if is_new:
            self._entered = (*self._entered, (run, False))
        self._runs.setdefault(run, Run(pipeline, run, 0, False, interval_end))
        holder = known.turn
        if takes := holder != run and (holder is None or holder in ended):
            self._set(turn=run)
            holder = run
            self._entered = (*self._entered, (run, True))
        if is_new or takes:
            self._note("TURN", 0, {**asdict(run), "has_turn": holder == run})
        self.version += 1
        return holder

    def overtaken_by(self, pipeline: str, run: RunKey) -> RunKey | None:
        self._known(pipeline)
        others = [index for index, (other, granted) in enumerate(self._entered) if granted and other != run]
        if not others or run not in [other for other, _ in self._entered[: others[-1]]]:
            return None
        return self._entered[others[-1]][0]

    def record_failure(
        self, pipeline: str, run: RunKey, failure: Any, *, follows: bool = False, participants: Any = ()
    ) -> None:
        self._known(pipeline)
        self.version += 1

    def record_problem(self, pipeline: str, epoch: int, number: int, participant: str, problem: Any) -> None:
        self._require_epoch(pipeline, epoch)
        row = self._rows.get(number)
        vote = row.votes.get(participant) if row is not None else None
        if row is not None and vote is not None and vote.proof is None:
            noted = replace(vote, problem=replace(problem, at=self._clock()))
            self._rows[number] = replace(row, votes={**row.votes, participant: noted})
        self.version += 1

    def leave_turn(self, pipeline: str, run: RunKey, *, confirmed: bool = False, counts: bool = True) -> None:
        turn = self._known(pipeline).turn
        if confirmed and counts and turn in (None, run):
            self._count(run, has_the_turn=turn == run)
        if turn == run:
            self._set(turn=None)
            self._note("TURN", 0, asdict(run))
        self.version += 1

    def _count(self, run: RunKey, *, has_the_turn: bool) -> None:
        above = self._counted[-1][1] if self._counted else 0
        open_ = (number for number, row in self._rows.items() if not row.is_settled)
        through = min(open_, default=max(self._rows, default=0) + 1) - 1
        own = any(row.run == run and row.is_confirmed and above < n <= through for n, row in self._rows.items())
        if through > above and (has_the_turn or own):
            self._counted = (*self._counted, (above, through, run))

    def run(self, pipeline: str, run: RunKey) -> Run | None:
        self._known(pipeline)
        return self._runs.get(run)

    def adopt_run(self, pipeline: str, epoch: int, run: RunKey) -> None:
        self._require_epoch(pipeline, epoch)
        self._runs[run] = replace(self._runs.get(run, Run(pipeline, run, 0, False, None)), epoch=epoch)
        self.version += 1

    def halt(self, pipeline: str, reason: HaltReason, message: str, *, code: str = "", remedy: str = "") -> None:
        if self._known(pipeline).status is PipelineStatus.ACTIVE:
            self._set(status=PipelineStatus.HALTED, halt=Halt(reason.value, code, message, remedy))
        self.version += 1

    def resume(self, pipeline: str, who: str, reason: HaltReason | None = None, *, epoch: int | None = None) -> None:
        known = self._known(pipeline)
        if epoch is not None and known.epoch != epoch:
            raise StateConflictError("it has another epoch by now.")
        if known.status is PipelineStatus.HALTED:
            if reason is not None and known.halt_reason is not reason:
                raise StateConflictError("it is HALTED for another reason by now.")
            behind = known.halt_reason is HaltReason.STORE_BEHIND_SINK
            self._set(status=PipelineStatus.ACTIVE, halt=None, epoch=known.epoch + behind)
        self.version += 1

    # --- staging --------------------------------------------------------------------------------------------------

    def begin_stage(self, pipeline: str, epoch: int, run: RunKey, task: str = "", spec: Any = None) -> int:
        self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        before = self._runs.get(run, Run(pipeline, run, 0, False, None))
        self._runs[run] = replace(
            before, epoch=epoch, staged=False, stage_task=task, stage_began=self.now(), through=0, complete=False
        )
        self._set(base_is_clean=False)
        self._needs_stage = False
        self.version += 1
        return self._draw()

    def spec(self, digest: str) -> Any:
        raise KeyError(digest)

    def _draw(self) -> int:
        self._next_attempt += 1
        self._set(last_attempt=self._next_attempt - 1)
        return self._next_attempt - 1

    def trigger(
        self,
        pipeline: str,
        epoch: int,
        run: RunKey | None,
        application: str = "",
        positions: Mapping[str, Any] | None = None,
    ) -> int:
        known = self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        self._require_open_stage(epoch, run)
        number = known.next_number
        self._set(next_number=number + 1)
        self._note("TRIGGERED", number)
        self._rows[number] = Checkpoint(
            pipeline, number, S.TRIGGERED, epoch, run, 0, None, None, None, positions or {}, None, "", None, None,
            None, False,
            False, {}, self.now(), None, None, None, None,
        )  # fmt: skip
        self.version += 1
        return number

    def _require_open_stage(self, epoch: int, run: RunKey | None) -> None:
        begun = None if run is None else self._runs.get(run)
        if begun is not None and begun.staged and begun.epoch == epoch:
            raise StateConflictError(f"the stage of run {run} has ended.")

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
        known = self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        row = self._row(number)
        if predecessor != known.last_published or number <= known.last_published or row.epoch != epoch:
            raise StateConflictError(f"checkpoint {number} cannot follow {predecessor}.")
        if self._needs_stage and (segment is not None or position is not None):
            raise StateConflictError("the pipeline was rewound after these rows were computed.")
        self._move(
            row,
            S.STAGED,
            predecessor=predecessor,
            segment=segment,
            position=position,
            positions=positions,
            staged_at=self.now(),
        )
        self._set(last_published=number)
        if as_of is not None:
            self._as_of[number] = as_of(self.now()) if callable(as_of) else as_of
        if position is not None:
            self._set(base=position, base_is_clean=False)
        self.version += 1

    def end_stage(
        self, pipeline: str, epoch: int, run: RunKey, position: SparkPosition | None, *, complete: bool = True
    ) -> None:
        known = self._require_epoch(pipeline, epoch)
        row = self._runs.get(run)
        if row is None or row.epoch != epoch or self._needs_stage:
            raise StateConflictError(f"the stage of {run} was not begun by epoch {epoch}.")
        self._runs[run] = replace(row, staged=True, through=known.last_published, complete=complete)
        if position is not None:
            self._set(base=position, base_is_clean=True)
        self.version += 1

    # --- delivery -------------------------------------------------------------------------------------------------

    def plan(self, pipeline: str, epoch: int, plan: Plan) -> Plan:
        self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        row = self._row(plan.number)
        if row.plan is not None and row.state in (S.STAGED, S.PREPARED, S.COMMITTING, S.COMPLETED):
            return row.plan
        if row.state is not S.STAGED:
            raise StateConflictError(f"checkpoint {plan.number} is {row.state}.")
        self._require_nothing_quarantined(plan.number)
        if (row.segment is not None) is not (plan.segments[-1].number == plan.number):
            raise StateConflictError("its own segment must be the last of its plan.")
        for segment in plan.segments:
            self._require_deliverable(plan.number, segment)
        self._change(row, plan=plan)
        for segment in plan.segments:
            part = self._rows[segment.number]
            self._planned_by[segment.number] = plan.number
            if part.number != plan.number and part.state is S.STAGED:
                self._move(part, S.SUBSUMED, subsumed_by=plan.number)
            elif part.number != plan.number and part.state is S.SUBSUMED:
                self._change(part, subsumed_by=plan.number)
        if not plan.mode.waits:
            for participant in plan.participants:
                self._vote(self._rows[plan.number], Vote(participant.name, 0, 0, None))
            self._remember(plan)
            self._move(self._rows[plan.number], S.COMMITTING, decided_at=self.now())
        self.version += 1
        return plan

    def _remember(self, plan: Plan) -> None:
        for participant in plan.participants:
            if participant.keeps_markers:
                self._delivered[participant.name] = max(plan.number, self._delivered.get(participant.name, 0))

    def _require_deliverable(self, number: int, segment: Segment) -> None:
        part = self._row(segment.number)
        other = self._planned_by.get(segment.number, number)
        free = other == number or self._rows[other].state is S.ABORTED
        settled = part.delivered_by is not None or part.after_abort is AfterAbort.REWOUND
        if part.segment != segment or settled or not free or part.state not in (S.STAGED, S.SUBSUMED, S.ABORTED):
            raise StateConflictError(f"segment {segment.number} is not free.")

    def begin_attempt(
        self, pipeline: str, epoch: int, number: int, participant: str, *, quarantined: bool = False
    ) -> int:
        self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        row = self._row(number)
        states = {S.STAGED, S.PREPARED, S.COMMITTING} | ({S.QUARANTINED} if quarantined else set())
        if row.state not in states and not row.rollback_pending:
            raise StateConflictError(f"checkpoint {number} is {row.state}.")
        row, plan = self._planned(number, participant)
        attempt = self._draw()
        vote = row.votes.get(participant, Vote(participant, 0, 0, None))
        two_phase = plan.participant(participant).promise is Promise.TWO_PHASE
        if two_phase and row.state is not S.COMMITTING:
            vote = replace(vote, prepared=0)
        self._vote(row, replace(vote, attempt=attempt))
        self._note("ATTEMPT", number, {"participant": participant})
        self.version += 1
        return attempt

    def _vote(self, row: Checkpoint, vote: Vote) -> Checkpoint:
        return self._change(row, votes=dict(sorted({**row.votes, vote.participant: vote}.items())))

    def vote(
        self,
        pipeline: str,
        epoch: int,
        number: int,
        participant: str,
        attempt: int,
        notes: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        row, plan = self._planned(number, participant)
        vote = row.votes.get(participant)
        if vote is None or vote.attempt != attempt:
            raise StateConflictError(f"attempt {attempt} at {participant} is not the newest one.")
        self.version += 1
        if vote.prepared == attempt:
            return row
        if row.state not in (S.STAGED, S.PREPARED):
            raise StateConflictError(f"checkpoint {number} is {row.state}: the votes are counted.")
        row = self._vote(row, replace(vote, prepared=attempt, notes=dict(notes or {}), problem=None))
        self._note("VOTED", number, {"participant": participant})
        if row.state is S.STAGED and set(_prepared(row)) == {p.name for p in plan.participants}:
            row = self._move(row, S.PREPARED, prepared_at=self.now())
        return row

    def decide(
        self, pipeline: str, epoch: int, number: int, prepared: Mapping[str, int], proof: Proof | None = None
    ) -> Checkpoint:
        self._require_epoch(pipeline, epoch)
        row = self._row(number)
        if row.state in (S.COMMITTING, S.COMPLETED):
            return row
        self._require_active(pipeline)
        if row.state is not S.PREPARED or row.plan is None:
            raise StateConflictError(f"checkpoint {number} is {row.state}.")
        self._require_nothing_quarantined(number)
        votes = _prepared(row)
        names = {p.name for p in row.plan.participants}
        if proof is not None and proof.participant == row.plan.commit_point:
            if (proof.outcome, proof.digest) != (Outcome.COMMITTED, row.plan.digest):
                raise StateConflictError("the marker is not this plan's.")
        elif set(votes) != names or dict(prepared) != votes:
            raise StateConflictError("the decision counts other votes than the stored ones.")
        self._remember(row.plan)
        self.version += 1
        return self._move(row, S.COMMITTING, decided_at=self.now())

    def record_proof(self, pipeline: str, epoch: int, number: int, proof: Proof) -> Checkpoint:
        self._require_epoch(pipeline, epoch)
        row, plan = self._planned(number, proof.participant)
        if proof.outcome is not Outcome.COMMITTED or proof.number != number or proof.digest != plan.digest:
            raise StateConflictError("the marker is not this plan's.")
        if row.state not in (S.COMMITTING, S.COMPLETED):
            raise StateConflictError(f"checkpoint {number} is {row.state}: a proof follows the decision.")
        vote = row.votes[proof.participant]
        self.version += 1
        if vote.proof is not None:
            return row
        row = self._vote(row, replace(vote, proof=proof))
        if all(row.votes[p.name].proof is not None for p in plan.participants):
            self._move(row, S.COMPLETED, completed_at=self.now())
            for segment in plan.segments:
                self._change(self._rows[segment.number], delivered_by=number)
        return self._rows[number]

    # --- quarantine -----------------------------------------------------------------------------------------------

    def quarantine(self, pipeline: str, epoch: int, number: int, message: str, *, if_idle: bool = False) -> Checkpoint:
        self._require_epoch(pipeline, epoch)
        if if_idle and self._leases:
            raise LeaseHeldError("another process works on the pipeline.")
        row = self._row(number)
        self.version += 1
        if row.state is S.QUARANTINED:
            return row
        for earlier in self.open_checkpoints(pipeline):
            planned = earlier.state is S.STAGED and earlier.plan is not None
            if earlier.number < number and (planned or earlier.state in MAY_BE_VISIBLE):
                raise StateConflictError(f"checkpoint {earlier.number} goes first.")
        return self._move(row, S.QUARANTINED, message=message)

    def release(self, pipeline: str, epoch: int, number: int, message: str) -> Checkpoint:
        self._require_epoch(pipeline, epoch)
        self._require_active(pipeline)
        row = self._row(number)
        was = S.PREPARED if row.decided_at is None else S.COMMITTING
        self.version += 1
        if row.state is was:
            return row
        if row.state is not S.QUARANTINED:
            raise StateConflictError(f"checkpoint {number} is {row.state}.")
        return self._move(row, was, message="")

    def _require_nothing_quarantined(self, number: int) -> None:
        if any(row.number < number and row.state is S.QUARANTINED for row in self._rows.values()):
            raise StateConflictError("a quarantined number goes first.")

    # --- afterwards -----------------------------------------------------------------------------------------------

    def finalise(self, pipeline: str, number: int) -> None:
        row = self._row(number)
        if row.state is not S.COMPLETED or row.plan is None:
            raise StateConflictError(f"checkpoint {number} is {row.state}.")
        for segment in row.plan.segments:
            self._change(self._rows[segment.number], finalised=True)
        self._change(self._rows[number], finalised=True)
        self.version += 1

    def prune(self, pipeline: str, number: int) -> None:
        row = self._row(number)
        if row.segment is None or row.delivered_by is None:
            raise StateConflictError(f"checkpoint {number} has no segment that was delivered.")
        self._pruned |= {number}
        self.version += 1

    def reset_state(
        self,
        pipeline: str,
        epoch: int,
        position: SparkPosition,
        message: str,
        *,
        had_state: bool = False,
        is_open: bool = False,
        seen_requests: Collection[int] | None = None,
    ) -> None:
        if seen_requests is not None and {request.id for request in self.open_requests(pipeline)} - set(seen_requests):
            raise StateConflictError("a request was made meanwhile.")
        self._move_base(pipeline, epoch, position)
        self._note("STATE_RESET", 0, {"state": had_state, "open": is_open})

    def restore(
        self,
        pipeline: str,
        epoch: int,
        position: SparkPosition | None,
        message: str,
        run: RunKey | None = None,
        savepoint: str = "",
        of: tuple[str, int] | None = None,
        again_from: int | None = None,
        life: str = "",
    ) -> None:
        before = self._runs.get(run, Run(pipeline, run, 0, False, None)) if run is not None else None
        self._require_epoch(pipeline, epoch)
        if before is not None and before.restored_from:
            raise StateConflictError(f"run {run} has gone on from a savepoint before.")
        self._move_base(pipeline, epoch, position)
        self._note("RESTORED")
        if before is not None:
            self._runs[before.key] = replace(before, restored_from=savepoint)
        if again_from is not None:
            for key, row in self._runs.items():
                if row.complete and row.through >= again_from:
                    self._runs[key] = replace(row, complete=False)
            self._read = {key: read for key, read in self._read.items() if read[1] < again_from}
            self._as_of = {number: as_of for number, as_of in self._as_of.items() if number < again_from}

    def note_savepoint(self, pipeline: str, number: int, message: str, detail: Mapping[str, Any]) -> None:
        self._row(number)
        self._note("SAVEPOINT", number, detail)
        self.version += 1

    def _note(self, kind: str, number: int = 0, detail: Mapping[str, Any] | None = None) -> None:
        assert self._pipeline is not None
        event = Event(self._pipeline.name, number, self.now(), 0, kind, "", dict(detail or {}))
        self._events = (event, *self._events)

    def _move_base(self, pipeline: str, epoch: int, position: SparkPosition | None) -> None:
        self._require_epoch(pipeline, epoch)
        for row in self.open_checkpoints(pipeline):
            if row.is_undelivered or row.state is S.TRIGGERED:
                raise StateConflictError(f"checkpoint {row.number} is {row.state}, and not delivered.")
        if position is None:
            if self._known(pipeline).base is not None:
                raise StateConflictError("it has read something.")
            self.version += 1
            return
        bases = [row for row in self._rows.values() if row.position and row.after_abort is not AfterAbort.REWOUND]
        for newest in bases[-1:]:
            self._rows[newest.number] = replace(newest, position=position)
        if not bases:
            self._origin = position
        self._set(base=position, base_is_clean=True)
        self.version += 1

    # --- aborting -------------------------------------------------------------------------------------------------

    def abort(
        self,
        pipeline: str,
        epoch: int,
        number: int,
        reason: AbortReason,
        message: str,
        after: AfterAbort,
        rewind_from: int | None = None,
        rewind_to: SparkPosition | None = None,
        *,
        tombstoned: bool = False,
    ) -> Checkpoint:
        known = self._require_epoch(pipeline, epoch)
        row = self._row(number)
        self.version += 1
        if row.state is S.ABORTED:
            return row
        if row.state is S.QUARANTINED and (row.decided_at or (reason is not AbortReason.USER and not tombstoned)):
            raise StateConflictError(f"{number} is QUARANTINED.")
        if row.state in (S.PREPARED, S.QUARANTINED) and row.plan and row.plan.commit_point and not tombstoned:
            raise StateConflictError(f"{number} is {row.state}, and there is no tombstone.")
        concerned = [c for c in self.open_checkpoints(pipeline) if rewind_from is not None and c.number >= rewind_from]
        if any(c.number != number and c.state in MAY_BE_VISIBLE for c in concerned):
            raise StateConflictError(f"later numbers than {number} are in doubt.")
        self._to_aborted(row, reason, message, after)
        if rewind_from is not None:
            theirs = reason if reason is AbortReason.USER else AbortReason.PREDECESSOR_ABORTED
            self._rewind(rewind_from, rewind_to, theirs, f"rewound with checkpoint {number}", {row.run, known.turn})
        return self._rows[number]

    def rewind(
        self, pipeline: str, epoch: int, rewind_from: int, rewind_to: SparkPosition | None, message: str
    ) -> None:
        known = self._require_epoch(pipeline, epoch)
        if any(c.state in MAY_BE_VISIBLE for c in self.open_checkpoints(pipeline) if c.number >= rewind_from):
            raise StateConflictError(f"later numbers than {rewind_from} are in doubt.")
        self.version += 1
        self._rewind(rewind_from, rewind_to, AbortReason.USER, message, {known.turn})

    def _rewind(
        self,
        rewind_from: int,
        rewind_to: SparkPosition | None,
        reason: AbortReason,
        message: str,
        runs: set[RunKey | None],
    ) -> None:
        for other in [c for c in self.open_checkpoints("") if c.number >= rewind_from]:
            if other.state in (S.TRIGGERED, S.STAGED):
                self._to_aborted(other, reason, message, AfterAbort.REWOUND)
                runs |= {other.run} if other.state is S.STAGED else set()
            elif other.is_undelivered:
                self._change(other, after_abort=AfterAbort.REWOUND)
                runs.add(other.run)
        for run in runs:
            if run is not None and run in self._runs:
                self._runs[run] = replace(self._runs[run], staged=False, complete=False)
        for run, staged in self._runs.items():
            if staged.complete and staged.through >= rewind_from:
                self._runs[run] = replace(staged, complete=False)
        self._read = {run: read for run, read in self._read.items() if read[1] < rewind_from}
        self._set(base=rewind_to, base_is_clean=False)
        self._needs_stage = True

    def _to_aborted(self, row: Checkpoint, reason: AbortReason, message: str, after: AfterAbort) -> None:
        participants = row.plan.participants if row.plan else ()
        pending = any(p.promise is Promise.TWO_PHASE and p.name in row.votes for p in participants)
        self._move(
            row,
            S.ABORTED,
            reason=reason,
            message=message,
            after_abort=None if row.state is S.TRIGGERED else after,
            rollback_pending=pending,
        )

    def record_rollback(
        self, pipeline: str, epoch: int, number: int, participant: str, given_up: str = ""
    ) -> Checkpoint:
        self._require_epoch(pipeline, epoch)
        row = self._row(number)
        if row.state is not S.ABORTED:
            raise StateConflictError(f"checkpoint {number} is {row.state}.")
        if participant in row.votes:
            row = self._vote(row, replace(row.votes[participant], rolled_back=True))
        names = [p.name for p in row.plan.participants if p.promise is Promise.TWO_PHASE] if row.plan else []
        left = [name for name in names if name in row.votes and not row.votes[name].rolled_back]
        self.version += 1
        return row if left else self._change(row, rollback_pending=False)


def _prepared(row: Checkpoint) -> dict[str, int]:
    return {name: vote.prepared for name, vote in row.votes.items() if vote.prepared}
