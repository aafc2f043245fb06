"""Actions of a person on a checkpoint in doubt: a closed list, each through the coordinator (`airflow ft in-doubt`).

| action | on | does |
| --- | --- | --- |
| commit | PREPARED, COMMITTING, QUARANTINED | delivers it, decided or not, behind what is planned before it |
| abort | STAGED, PREPARED, QUARANTINED and not decided | abort marker first, then ABORTED |
| abort | ABORTED, and not rolled back everywhere | rolls it back |
| give-up | ABORTED, and not rolled back everywhere | rolls it back, and gives up one participant if that fails there |
| quarantine | PREPARED, COMMITTING | keeps it as it is; nothing later is delivered |
| redeliver | as commit, if decided | as commit; the person confirms that the rows of a lost token are not there |
| dead-letter | as commit, if decided | as commit; rows that a sink refuses, and only those, are set aside |

Each takes a new epoch, which shuts out other processes (I5), and is repeatable. If the process dies between two steps,
the checkpoint is in doubt as before, or settled. `who` goes into the event log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_ft.protocol.coordinator import Coordinator, coordinating
from airflow_ft.protocol.delivery_log import AdminLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    StateConflictError,
    StoreBehindSinkError,
    require_understood,
)
from airflow_ft.protocol.lease import LEASE_SECONDS, Worker
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, Fence
from airflow_ft.protocol.participant import Expiring, ParticipantFactory
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.transitions import IN_DOUBT, MAY_BE_VISIBLE

log = logging.getLogger(__name__)

S = CheckpointState


@dataclass(frozen=True, slots=True)
class Resolver:
    """Acts on one pipeline for a person, `who` (command, name and reason, for the event log)."""

    store: AdminLog
    pipeline: str
    participants: ParticipantFactory
    who: str
    worker: Worker
    lease_seconds: float = LEASE_SECONDS

    def commit(self, number: int) -> Checkpoint:
        """Deliver it: COMPLETED, or ABORTED if the deciding sink holds an abort marker.

        Delivers planned numbers before it that are still STAGED first (I4). A pipeline that is HALTED because a part
        of it was committed by hand (HEURISTIC_COMMIT) resumes; then the number may itself be planned and STAGED.
        """
        if self._halted() is HaltReason.HEURISTIC_COMMIT:
            found = self._require(number, MAY_BE_VISIBLE | {S.STAGED}, "a later checkpoint has its rows now")
            if found.plan is None:
                raise self._refusal(
                    found,
                    "none of its rows was prepared.",
                    f"Run `airflow ft in-doubt --pipeline {self.pipeline}` to see which checkpoint to commit.",
                )
            self._first_in_line(number)  # what is refused leaves the pipeline as it was
            self.store.resume(self.pipeline, self.who, HaltReason.HEURISTIC_COMMIT)
        else:
            self._require(number, MAY_BE_VISIBLE, "there is nothing to commit")
        with self._coordinating() as coordinator:
            self._first_in_line(number)
            for earlier in self.store.open_checkpoints(self.pipeline):
                if earlier.number < number and earlier.state is S.STAGED and earlier.plan is not None:
                    coordinator.deliver(earlier.number)
            with self._taken_back(coordinator.epoch, number):
                return coordinator.deliver(number)

    def abort(self, number: int, after: AfterAbort) -> Checkpoint:
        """Gives it up; its rows are carried or rewound. Everything later that is planned is aborted too (carried).

        If it is already ABORTED, rolls back what participants hold prepared. An abort marker keeps what its writer
        said of the rows. If that differs from `after`, StateConflictError says so after the abort.
        """
        pending = self.store.checkpoint(self.pipeline, number)
        if pending.rollback_pending:
            if after is AfterAbort.REWOUND:
                raise self._refusal(
                    pending,
                    "it is ABORTED already, so the fate of its rows is decided.",
                    f"Leave out --rewind. {self._rewind_text()} afterwards.",
                )
            with self._coordinating() as coordinator:
                return coordinator.deliver(number)
        self._require_undecided(number)
        with self._coordinating() as coordinator:  # QUARANTINED until ABORTED: nothing delivers it in between
            # Again: it may have been delivered before this epoch. Later numbers are aborted first, so they would be.
            self._require_undecided(number)
            found = coordinator.abort(number, AbortReason.USER, self.who, after)
        if after is AfterAbort.REWOUND and found.after_abort is AfterAbort.CARRIED:
            raise self._refusal(
                found,
                "it is ABORTED now, but an earlier abort had decided that the next number delivers its rows.",
                f"{self._rewind_text()}.",
            )
        if after is AfterAbort.CARRIED and found.after_abort is AfterAbort.REWOUND:
            raise self._refusal(
                found,
                "it is ABORTED now, but an earlier abort had decided that its rows are computed again.",
                "Do nothing: the next run computes them. With AT_MOST_ONCE they are lost.",
            )
        return found

    def _rewind_text(self) -> str:
        return f"To compute all undelivered rows again, run `airflow ft rewind {self.pipeline}`"

    def _require_undecided(self, number: int) -> None:
        found = self._require(number, MAY_BE_VISIBLE | {S.STAGED}, "there is nothing to abort")
        if found.state is S.COMMITTING or found.decided_at is not None:
            raise self._refusal(
                found,
                f"it is {found.state} and was decided. A sink may already show its rows, so it can only be delivered.",
                "Remove what it waits for, then use --commit."
                + ("" if found.state is S.QUARANTINED else " Or use --quarantine meanwhile."),
                "already_decided",
            )

    def give_up(self, number: int, participant: str) -> Checkpoint:
        """Roll an ABORTED one back, and give up this participant if that fails there. Repeated: no effect.

        Raises:
            StateConflictError: it is not ABORTED.
            ConfigurationError: it has no such participant.
            SinkUnavailableError, SinkAccessError, ConfigurationError: another participant fails.
        """
        states = frozenset({S.ABORTED})
        found = self._require(number, states, "only prepared rows of an ABORTED checkpoint can be given up")
        if not found.rollback_pending:
            return found
        if participant not in (names := [each.name for each in found.participants]):
            raise ConfigurationError(
                f"checkpoint {number} has no sink {participant!r}.",
                code="argument_invalid",
                remedy=f"Give one of {', '.join(names)}. `airflow ft in-doubt --pipeline {self.pipeline}` shows them.",
                argument="--sink",
                pipeline=self.pipeline,
                checkpoint=number,
            )
        with self._coordinating() as coordinator:
            return coordinator.give_up_rollback(number, participant, self.who)

    def quarantine(self, number: int) -> Checkpoint:
        """Keeps it as it is until a person takes it back by `commit` or `abort`. On a HALTED pipeline too."""
        self._require(number, MAY_BE_VISIBLE, "only what is PREPARED or COMMITTING can be quarantined")
        if self._halted() is not None:
            # No epoch or delivery can start now, so the mark needs no epoch of its own.
            epoch = self.store.pipeline(self.pipeline).epoch
            return self.store.quarantine(self.pipeline, epoch, number, self.who)
        with self._coordinating() as coordinator:
            return self.store.quarantine(self.pipeline, coordinator.epoch, number, self.who)

    def redeliver(self, number: int) -> Checkpoint:
        """Deliver a decided number also into a sink that lost its token: the person confirms that the rows are not
        there.

        A pipeline that is HALTED for this reason (TOKEN_LOST) resumes.
        """
        found = self._require(number, MAY_BE_VISIBLE, "there is nothing to redeliver")
        if found.decided_at is None:
            remedy = f"Run `airflow ft in-doubt --pipeline {self.pipeline} --commit {number}` to deliver it."
            raise self._refusal(found, "it is not decided, so nothing was delivered yet.", remedy, "not_decided")
        if self._halted() is HaltReason.TOKEN_LOST:
            self._first_in_line(number)
            self.store.resume(self.pipeline, self.who, HaltReason.TOKEN_LOST)
        with self._coordinating() as coordinator:
            self._first_in_line(number)
            with self._taken_back(coordinator.epoch, number):
                # Read again: another process may have delivered to some of the sinks before this epoch.
                self._set_lost_tokens(coordinator.epoch, self.store.checkpoint(self.pipeline, number))
                return coordinator.deliver(number)

    def dead_letter(self, number: int) -> Checkpoint:
        """Deliver a decided number; rows that a sink refuses go into dead letters under the same marker (I2).

        The permission covers this call only. If the process dies, it has committed nothing, or a marker that names the
        rows. A later try delivers all rows again, unless the person permits it again.
        """
        found = self._require(number, MAY_BE_VISIBLE, "nothing of it can be set aside")
        if found.decided_at is None:
            raise self._refusal(
                found,
                "it is not decided. If a sink refuses it before any sink shows it, it is aborted and its rows are"
                " computed again.",
                "Use --commit to deliver it, or --abort to give it up.",
                "not_decided",
            )
        with self._coordinating() as coordinator:
            self._first_in_line(number)
            with self._taken_back(coordinator.epoch, number):
                return coordinator.deliver(number, set_aside=True)

    def _set_lost_tokens(self, epoch: int, found: Checkpoint) -> None:
        """Set the lost tokens of each participant to the number before this one."""
        assert found.plan is not None  # decided
        for participant in found.plan.participants:
            if found.proof_of(participant.name) is not None:
                continue
            with closing(self.participants(participant)) as sink:
                if isinstance(sink, Expiring):
                    if sink.remembers(self.pipeline):
                        continue
                    attempt = self.store.begin_attempt(self.pipeline, epoch, found.number, participant.name)
                    number = participant.predecessor
                    log.warning("lost tokens of %s are set to %d for %s", participant.name, number, self.who)
                    sink.restore(Fence(self.pipeline, self.store.installation, epoch, attempt), found.plan)
                elif (head := sink.head(self.pipeline)) is None or head.lost:
                    raise StoreBehindSinkError(
                        "the sink has lost its markers of the pipeline. They do not expire, so they were deleted.",
                        remedy="Restore the tables or files in which the sink keeps its markers.",
                        pipeline=self.pipeline,
                        checkpoint=found.number,
                        participant=participant.name,
                    )

    # --- what the actions share ----------------------------------------------------------------------------------

    @contextmanager
    def _coordinating(self) -> Iterator[Coordinator]:
        with coordinating(self.store, self.pipeline, self.participants, self.worker, self.who, self.lease_seconds) as (
            coordinator,
            keeper,
        ):
            yield coordinator
            keeper.check()

    def _halted(self) -> HaltReason | None:
        row = self.store.pipeline(self.pipeline)
        require_understood(row)
        return row.halt_reason if row.status is PipelineStatus.HALTED else None

    def _require(self, number: int, states: frozenset[S], otherwise: str) -> Checkpoint:
        found = self.store.checkpoint(self.pipeline, number)
        if found.state not in states:
            raise self._refusal(
                found,
                f"it is {found.state}: {otherwise}.",
                f"Run `airflow ft show {self.pipeline} {number}` to see its state.",
            )
        return found

    def _first_in_line(self, number: int) -> None:
        """I4: no sink takes a number before its predecessor."""
        for earlier in self.store.open_checkpoints(self.pipeline):
            if earlier.number < number and earlier.state in MAY_BE_VISIBLE:
                raise self._refusal(
                    self.store.checkpoint(self.pipeline, number),
                    f"checkpoint {earlier.number} is {earlier.state} and comes first.",
                    f"Settle checkpoint {earlier.number} first.",
                    "earlier_first",
                    earlier=earlier.number,
                )

    @contextmanager
    def _taken_back(self, epoch: int, number: int) -> Iterator[None]:
        """Out of quarantine for the block, and back into it when the block fails: then nothing was resolved."""
        found = self.store.checkpoint(self.pipeline, number)
        if found.state is not S.QUARANTINED:
            yield
            return
        self.store.release(self.pipeline, epoch, number, self.who)
        try:
            yield
        except FencedError:
            raise
        except Exception as error:  # also of a disk, say
            if self.store.checkpoint(self.pipeline, number).state in IN_DOUBT:
                why = error.what if isinstance(error, AirflowFtError) else f"{type(error).__name__}: {error}"
                cause = found.message.partition("\n")[0]  # without an earlier failure, or each one makes it longer
                self.store.quarantine(self.pipeline, epoch, number, f"{cause}\n{self.who} failed: {why}")
            raise

    def _refusal(
        self, found: Checkpoint, what: str, remedy: str, code: str = "action_refused", **fields: Any
    ) -> StateConflictError:
        fields = {"state": found.state.value, "pipeline": self.pipeline, "checkpoint": found.number, **fields}
        return StateConflictError(what, code=code, remedy=remedy, **fields)
