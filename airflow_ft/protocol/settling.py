"""Settle a checkpoint: record what a sink has proven, or abort what is not decided."""

from __future__ import annotations

import logging
from typing import NoReturn

from airflow_ft.protocol.acting import Acting
from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    AirflowFtError,
    CheckpointExpiredError,
    ConfigurationError,
    DeclinedError,
    HeuristicCommitError,
    SinkAccessError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
    TerminalError,
)
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, Plan
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.planning import live_plans, may_be_heuristic, not_rolled_back, read_tombstone, tombstone_detail
from airflow_ft.protocol.position import Position
from airflow_ft.protocol.reasons import AbortReason, Reason
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.protocol.votes import Outcome, Proof

log = logging.getLogger(__name__)

S = CheckpointState

_MOST_POSITIONS = 10
"""Positions that the error for refused rows names."""
_IF_IT_RETURNS = "If it returns, end what it holds prepared, as docs/recovery.md says"


def way_out_of_rollback(pipeline: str, number: int, sink: str) -> str:
    """Return what a person can do if the sink of a pending rollback never answers again."""
    return (
        "If that sink is gone for good, remove it from the pipeline. Then run"
        f" `airflow ft in-doubt --pipeline {pipeline} --give-up {number} --sink {sink}`."
    )


class Settling(Acting):
    """The half of a coordinator that ends checkpoints."""

    def _settle(self, checkpoint: Checkpoint, plan: Plan, proof: Proof) -> Checkpoint:
        """Records in the store what a sink's own marker says."""
        number = checkpoint.number
        if proof.digest != plan.digest:
            self._halt(
                StoreBehindSinkError(
                    "the sink has another delivery under this number. The decision log was restored from a backup, or"
                    " is not the one that delivered there.",
                    remedy="Restore the newer decision log, then run `airflow ft resume`. If it is gone for good,"
                    " compare the sink with the decision log, then run `airflow ft adopt`.",
                    pipeline=self._pipeline,
                    checkpoint=number,
                    participant=proof.participant,
                )
            )
        if proof.outcome is Outcome.ABORTED:
            reason, message, after = read_tombstone(proof.detail)
            log.info("checkpoint %d: %s has its abort marker: %s", number, proof.participant, message)
            return self.abort(number, reason, message, after)
        self._check_counts(plan, proof)
        if checkpoint.state is S.PREPARED:
            self._decide(checkpoint, proof)
        checkpoint = self._store.record_proof(self._pipeline, self.epoch, number, proof)
        log.log(
            self._level,
            "checkpoint %d: %s committed %s; it is %s",
            number,
            proof.participant,
            ", ".join(f"{count_text(rows, 'row')} into {sink}" for sink, rows in proof.counts.items()) or "no rows",
            checkpoint.state,
        )
        for sink, aside in of_proof(proof).items():
            log.warning("checkpoint %d: %s", number, aside.text(sink))
        return checkpoint

    def _decide(self, checkpoint: Checkpoint, proof: Proof | None = None) -> Checkpoint:
        prepared = {name: vote.prepared for name, vote in checkpoint.votes.items()}
        return self._store.decide(self._pipeline, self.epoch, checkpoint.number, prepared, proof)

    def _check_counts(self, plan: Plan, proof: Proof) -> None:
        found = of_proof(proof)
        for sink in plan.participant(proof.participant).sinks:
            expected = sum(segment.rows.get(sink, 0) for segment in plan.segments)
            aside = found[sink].rows if sink in found else 0
            if proof.counts.get(sink, 0) + aside != expected:
                raise TerminalError(
                    f"the sink's marker counts {count_text(proof.counts.get(sink, 0), 'row')} and"
                    f" {count_text(aside, 'row')} set aside, but the plan has {expected}.",
                    code="counts_differ",
                    remedy="Change nothing and report this: it is a defect of airflow-ft or of the sink.",
                    counted=proof.counts.get(sink, 0),
                    set_aside=aside,
                    expected=expected,
                    pipeline=self._pipeline,
                    checkpoint=plan.number,
                    participant=proof.participant,
                    sink=sink,
                )

    def expire(self) -> None:
        """Aborts all that is undecided after its time-out; CheckpointExpiredError names the first.

        A carrier that is away cannot be asked whether it has decided: then its number stays (SinkUnavailableError).
        """
        first: CheckpointExpiredError | None = None
        for found in self._store.open_checkpoints(self._pipeline) if self._timeout is not None else ():
            # What was aborted before it has taken some of the later ones with it.
            checkpoint = self._store.checkpoint(self._pipeline, found.number) if first else found
            try:
                self._require_in_time(checkpoint)
            except CheckpointExpiredError as error:
                first = first or error
        if first is not None:
            raise first

    def _require_in_time(self, checkpoint: Checkpoint) -> None:
        if self._timeout is None or checkpoint.state not in (S.STAGED, S.PREPARED):
            return
        now = self._store.now()
        self._began = min(self._began or now, now)
        # A time in the future is of a clock that was ahead.
        since = self._began if checkpoint.triggered_at > now else max(checkpoint.triggered_at, self._began)
        if now - since <= self._timeout:
            return
        timeout = self._timeout.total_seconds()
        self.abort(checkpoint.number, AbortReason.EXPIRED, f"not decided within {timeout:g} s", AfterAbort.CARRIED)
        raise CheckpointExpiredError(
            f"it was not decided within CheckpointConfig.timeout ({timeout:g} s), so it is aborted (EXPIRED). No sink"
            " shows its rows. The next checkpoint delivers them.",
            pipeline=self._pipeline,
            checkpoint=checkpoint.number,
            remedy="Look in the task's log why the sinks are slow. Or raise CheckpointConfig(timeout=...).",
            seconds=timeout,
        )

    def abort(self, number: int, reason: Reason, message: str, after: AfterAbort) -> Checkpoint:
        """Abort a number and first, newest first, every later planned one, since they expect it as their predecessor.

        Raises:
            HeuristicCommitError: prepared rows of one of them were committed by hand. Nothing is aborted.
        """
        later_ones = [c for c in live_plans(self._store.open_checkpoints(self._pipeline)) if c.number > number]
        first = self._store.checkpoint(self._pipeline, number)
        for concerned in [first, *later_ones]:
            self._refuse_heuristic(concerned, first, message)
        plan = first.plan
        if later_ones and first.state in (S.PREPARED, S.QUARANTINED) and plan is not None and plan.commit_point:
            with self._open(plan, plan.commit_point) as sink:
                proof = sink.proof(plan)
            if proof is not None and proof.outcome is Outcome.COMMITTED:  # then the later ones stay
                self._refuse_committed(first, plan, proof)
        for later in reversed(live_plans(self._store.open_checkpoints(self._pipeline))):
            if later.number > number:
                why = f"checkpoint {number} was aborted."
                self._abort_one(later, AbortReason.PREDECESSOR_ABORTED, why, AfterAbort.CARRIED)
        return self._abort_one(self._store.checkpoint(self._pipeline, number), reason, message, after)

    def _decline(self, number: int, error: DeclinedError) -> None:
        """Abort a number whose rows a participant refuses. The error names the positions of given rows."""
        self.abort(number, AbortReason.DECLINED, str(error), AfterAbort.REWOUND)
        aborted = self._store.checkpoint(self._pipeline, number)
        if aborted.after_abort is not AfterAbort.REWOUND:  # an earlier abort marker says that its rows are carried
            return
        plan = aborted.plan
        parts = [self._store.checkpoint(self._pipeline, each.number) for each in plan.segments] if plan else []
        given = [position for part in parts if (position := Position.stored(part)) is not None]
        if not given:
            return
        named = given[:_MOST_POSITIONS]
        names = ", ".join(map(str, named))
        if others := len(given) - len(named):
            names += f", and {count_text(others, 'other position')}"
        error.fields["positions"] = [position.value for position in named]
        if len(given) == 1:
            error.what = f"position {names}: {error.what}"
            then = f"Then deliver position {names} again, with its rows. Rows of other positions are kept."
        else:
            error.what = f"one of the positions {names}: {error.what}"
            then = "Their rows are kept. The next call delivers each position alone, and names the refused one."
        error.remedy = f"{error.remedy} {then}".lstrip()
        error.filled(self._pipeline)

    def _abort_one(self, checkpoint: Checkpoint, reason: Reason, message: str, after: AfterAbort) -> Checkpoint:
        plan = checkpoint.plan
        tombstoned = False
        if checkpoint.state in (S.PREPARED, S.QUARANTINED) and plan is not None and plan.commit_point is not None:
            # The tombstone goes first (R3): a COMMIT that is still under way must not find the place free.
            attempt = self._store.begin_attempt(
                self._pipeline,
                self.epoch,
                checkpoint.number,
                plan.commit_point,
                quarantined=reason is AbortReason.USER,
            )
            with self._open(plan, plan.commit_point) as sink:
                proof = sink.abort(plan, self._fence(attempt), tombstone_detail(reason, message, after))
            if proof.outcome is Outcome.COMMITTED:
                self._refuse_committed(checkpoint, plan, proof)
            reason, message, after = read_tombstone(proof.detail)
            tombstoned = True
        aborted = self._write_abort(checkpoint, reason, message, after, tombstoned=tombstoned)
        try:
            return self._roll_back(aborted)
        except (SinkUnavailableError, SinkAccessError) as error:  # decided all the same: rolled back by what comes next
            log.warning(
                "checkpoint %d is ABORTED, but a sink has not rolled back yet (the next run does): %s",
                checkpoint.number,
                error,
            )
            return aborted

    def _refuse_committed(self, checkpoint: Checkpoint, plan: Plan, proof: Proof) -> NoReturn:
        """Record a decision that the abort of a checkpoint has met, and raise StateConflictError."""
        remedy = f"Run `airflow ft in-doubt --pipeline {self._pipeline} --commit {checkpoint.number}`."
        if checkpoint.state is S.PREPARED:
            self._settle(checkpoint, plan, proof)
            remedy = "Do nothing: the next retry or run delivers it to the other sinks."
        raise StateConflictError(
            f"it cannot be aborted, because {plan.commit_point} has committed it.",
            code="already_committed",
            remedy=remedy,
            pipeline=self._pipeline,
            checkpoint=checkpoint.number,
        )

    def _refuse_heuristic(self, checkpoint: Checkpoint, first: Checkpoint, why: str) -> None:
        """I3: what a sink shows already is not aborted. One that is away is asked by the rollback, after the abort.

        `first` is the oldest checkpoint of the abort.
        """
        for participant in checkpoint.participants:
            plan = checkpoint.plan
            if plan is None or checkpoint.state is S.ABORTED or not may_be_heuristic(checkpoint, participant):
                continue
            try:
                with self._open(plan, participant.name) as sink:
                    found = sink.heuristic(plan)
            except (SinkUnavailableError, SinkAccessError) as error:
                log.warning("checkpoint %d: cannot look for commits by hand: %s", checkpoint.number, error)
                continue
            # Read after the sink: commits follow the decision, so what is undecided now was committed by hand.
            now = self._store.checkpoint(self._pipeline, checkpoint.number)
            if found and now.decided_at is None and now.state in (S.STAGED, S.PREPARED, S.QUARANTINED):
                halting, remedy = self._way_out(checkpoint, first)
                self._halt(
                    halting(
                        f"it cannot be aborted ({why.rstrip('.')}): {found}",
                        remedy=remedy,
                        pipeline=self._pipeline,
                        checkpoint=checkpoint.number,
                        participant=participant.name,
                    )
                )

    def _way_out(self, checkpoint: Checkpoint, first: Checkpoint) -> tuple[type[HeuristicCommitError], str]:
        """Return error and remedy for rows that were committed by hand. An abort marker leaves only their deletion."""
        delete = f"the visible rows as described above, then run `airflow ft resume {self._pipeline}`"
        if (holder := self._tombstoned_at(first)) is not None:
            return (
                AbortedHeuristicCommitError,
                f"Delete {delete}. Checkpoint {first.number} can no longer be delivered, because {holder} has its"
                " abort marker. A later checkpoint delivers its rows, or they are computed again.",
            )
        return (
            HeuristicCommitError,
            f"Run `airflow ft in-doubt --pipeline {self._pipeline} --commit {checkpoint.number}`: it delivers the"
            f" rest, so that all sinks have the rows. Or delete {delete}.",
        )

    def _tombstoned_at(self, checkpoint: Checkpoint) -> str | None:
        """Return the deciding sink if it holds an abort marker. If it is away, return None: a commit asks it again."""
        plan = checkpoint.plan
        if plan is None or plan.commit_point is None:
            return None
        try:
            with self._open(plan, plan.commit_point) as sink:
                proof = sink.proof(plan)
        except (SinkUnavailableError, SinkAccessError) as error:
            log.warning("checkpoint %d: cannot look for an abort marker: %s", checkpoint.number, error)
            return None
        return plan.commit_point if proof is not None and proof.outcome is Outcome.ABORTED else None

    def give_up_rollback(self, number: int, participant: str, why: str) -> Checkpoint:
        """Roll an ABORTED number back, and give up this participant if it fails, as a person confirmed.

        ABORTED is decided, so no process commits what it holds. If it returns, that stays prepared (locks, disk).
        The error of another participant is raised after that.
        """
        return self._roll_back(self._store.checkpoint(self._pipeline, number), participant, why)

    def _roll_back(self, checkpoint: Checkpoint, gone: str = "", given_up: str = "") -> Checkpoint:
        """Ends what TWO_PHASE participants hold of an ABORTED number: the decision went before it.

        `gone`: a participant that is no longer asked if it fails, with the reason `given_up`; "": none.
        """
        plan = checkpoint.plan
        if not checkpoint.rollback_pending or plan is None:
            return checkpoint
        detail = tombstone_detail(
            checkpoint.reason or AbortReason.USER, checkpoint.message, checkpoint.after_abort or AfterAbort.CARRIED
        )
        failed: AirflowFtError | None = None
        for name in [each.name for each in not_rolled_back(checkpoint)]:
            attempt = self._store.begin_attempt(self._pipeline, self.epoch, checkpoint.number, name)
            why = ""
            try:
                with self._open(plan, name) as sink:
                    sink.abort(plan, self._fence(attempt), detail)
            except (SinkUnavailableError, SinkAccessError, ConfigurationError) as error:
                if name != gone:
                    way_out = way_out_of_rollback(self._pipeline, checkpoint.number, name)
                    error.remedy = f"{error.remedy} {way_out}".lstrip()
                    if not gone:
                        raise
                    failed = failed or error
                    continue
                why = f"{given_up} ({error.what.rstrip('.')}). {_IF_IT_RETURNS}"
            checkpoint = self._store.record_rollback(self._pipeline, self.epoch, checkpoint.number, name, why)
        if failed is not None:
            raise failed
        return checkpoint

    def _write_abort(
        self, checkpoint: Checkpoint, reason: Reason, message: str, after: AfterAbort, *, tombstoned: bool
    ) -> Checkpoint:
        number = checkpoint.number
        if after is AfterAbort.CARRIED:
            return self._store.abort(self._pipeline, self.epoch, number, reason, message, after, tombstoned=tombstoned)
        # Later PREPARED numbers are out of the way (abort() saw to that, or order (I4) forbids them a marker).
        segments = checkpoint.plan.segments if checkpoint.plan else ()
        first = min([number, *(segment.number for segment in segments)])
        base = self._store.position_before(self._pipeline, first)
        return self._store.abort(
            self._pipeline, self.epoch, number, reason, message, after, first, base, tombstoned=tombstoned
        )
