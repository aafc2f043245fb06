"""Aborting loses no row: what was published is carried by a later number, or rewound and computed again."""

from __future__ import annotations

from collections.abc import Collection

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, RunKey, SparkPosition
from airflow_ft.protocol.planning import not_rolled_back
from airflow_ft.protocol.position import SOURCE, is_kept
from airflow_ft.protocol.reasons import AbortReason, Reason
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.store.checkpoint_rows import select_checkpoints, to_checkpoints
from airflow_ft.store.database import Database
from airflow_ft.store.events import EventKind
from airflow_ft.store.positions import LEFT
from airflow_ft.store.reading import OF_RUN
from airflow_ft.store.rows import key_of, shown_text, to_pipeline
from airflow_ft.store.writing import PipelineWrite, pipeline_write

S = CheckpointState


class AbortingOperations:
    """The part of the store that aborts and rewinds. It works on a HALTED pipeline too: it delivers nothing."""

    _database: Database

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
        """See `DeliveryLog.abort`.

        `after` is kept for published checkpoints only: of one that was TRIGGERED there are no rows to carry or to
        rewind. REWOUND needs `rewind_from`, at most `number`; CARRIED takes none (ConfigurationError).
        """
        _check_rewind(pipeline, number, after, rewind_from, rewind_to)
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            checkpoint = write.checkpoint(number)
            if checkpoint.state is S.ABORTED:
                return checkpoint
            carrier = checkpoint.plan.commit_point if checkpoint.plan else None
            if checkpoint.state is S.QUARANTINED and (
                checkpoint.decided_at is not None or (reason is not AbortReason.USER and not tombstoned)
            ):
                raise write.wrong_state(checkpoint, "only a person can abort it, and only if it is not decided")
            if checkpoint.state in (S.PREPARED, S.QUARANTINED) and carrier is not None and not tombstoned:
                # R3: it was STAGED when this was asked for. Since then it was voted upon, and perhaps committed.
                raise write.conflict(
                    number,
                    f"it is {checkpoint.state} and has no abort marker yet, so {carrier} may have committed it.",
                    code="abort_marker_missing",
                    state=checkpoint.state.value,
                    commit_point=carrier,
                )
            write.abort(checkpoint, reason, message, after)
            if rewind_from is not None:
                _rewind(write, rewind_from, rewind_to, reason, f"rewound with checkpoint {number}", also=checkpoint)
            return write.checkpoint(number)

    def record_rollback(
        self, pipeline: str, epoch: int, number: int, participant: str, given_up: str = ""
    ) -> Checkpoint:
        """See `DeliveryLog.record_rollback`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            checkpoint = write.checkpoint(number)
            if checkpoint.state is not S.ABORTED:
                raise write.wrong_state(checkpoint, "only an ABORTED checkpoint can be rolled back")
            vote = checkpoint.votes.get(participant)
            if vote is None or vote.rolled_back:
                return checkpoint
            write.update_vote(number, participant, rolled_back=1)
            found = (
                f"the rollback in {participant} is given up: {given_up}"
                if given_up
                else f"{participant} holds no rows of it"
            )
            write.event(EventKind.ROLLED_BACK, found, number=number)
            if not not_rolled_back(write.checkpoint(number)):
                write.update_checkpoint(checkpoint, rollback_pending=0)
            return write.checkpoint(number)

    def rewind(
        self, pipeline: str, epoch: int, rewind_from: int, rewind_to: SparkPosition | None, message: str
    ) -> None:
        """See `DeliveryLog.rewind`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            _rewind(write, rewind_from, rewind_to, AbortReason.USER, message)

    def discard_kept(self, pipeline: str, epoch: int, message: str) -> int:
        """Discard published rows that a rewind has kept, because a person asks for it (reason USER).

        Return the number of checkpoints. Their authors give each position again.
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            left = to_checkpoints(write.rows(select_checkpoints(LEFT), pipeline))
            kept = [checkpoint for checkpoint in left if is_kept(checkpoint)]
            for checkpoint in kept:
                write.update_checkpoint(checkpoint, reason=AbortReason.USER.value, message=shown_text(message))
                write.event(EventKind.REWOUND, f"{message}; it is given again", number=checkpoint.number)
            return len(kept)


def _check_rewind(
    pipeline: str, number: int, after: AfterAbort, rewind_from: int | None, rewind_to: SparkPosition | None
) -> None:
    if after is AfterAbort.REWOUND and (rewind_from is None or rewind_from > number):
        what = (
            f"REWOUND needs `rewind_from`, the first checkpoint to compute again: at most {number}, not {rewind_from}."
        )
    elif after is AfterAbort.CARRIED and (rewind_from is not None or rewind_to is not None):
        what = "CARRIED rewinds nothing, but `rewind_from` or `rewind_to` is given."
    else:
        return
    raise ConfigurationError(
        what,
        code="arguments_conflict",
        remedy="Give `rewind_from` with REWOUND, and only then.",
        pipeline=pipeline,
        checkpoint=number,
        argument="rewind_from",
        value=rewind_from,
    )


def unresolved(write: PipelineWrite, checkpoint: Checkpoint, why: str) -> StateConflictError:
    """The error for a checkpoint that must be delivered or aborted before the write."""
    state = checkpoint.state.value
    return write.conflict(
        checkpoint.number,
        f"it is {state}: {why}.",
        code="checkpoint_unresolved",
        remedy=f"Let the next run deliver it, or run `airflow ft recover {write.name}`.",
        state=state,
    )


def _rewind(
    write: PipelineWrite,
    rewind_from: int,
    rewind_to: SparkPosition | None,
    reason: Reason,
    message: str,
    also: Checkpoint | None = None,
) -> None:
    """Mark everything undelivered from `rewind_from` on to be computed again, from `rewind_to`.

    TRIGGERED checkpoints are aborted too, and nothing is published before the next `begin_stage`. A running attempt
    has a state that contains the rewound rows (I1), and its publications would leave them out (I10).

    Nothing computes given rows again: the reason of each position says whether its author must give it again
    (`protocol.position.is_kept`).
    """
    concerned = [c for c in write.open_checkpoints() if c.number >= rewind_from]
    for checkpoint in concerned:
        if checkpoint.state in MAY_BE_VISIBLE:
            raise unresolved(
                write, checkpoint, f"checkpoint {rewind_from} and later ones cannot be rewound before it is resolved"
            )
    # Theirs were not refused, and did not expire: they only follow.
    theirs = reason if reason is AbortReason.USER else AbortReason.PREDECESSOR_ABORTED
    refused = [segment.number for segment in also.plan.segments] if also is not None and also.plan else []
    # The run at work counts on what is rewound, even where it has published nothing itself (I9): it stages again.
    runs = {to_pipeline(write.row).turn} | ({also.run} if also is not None else set())
    for checkpoint in concerned:
        if checkpoint.state in (S.TRIGGERED, S.STAGED):
            write.abort(checkpoint, theirs, message, AfterAbort.REWOUND)
            if checkpoint.state is S.STAGED:
                runs.add(checkpoint.run)
        elif checkpoint.is_undelivered:  # SUBSUMED or carried by a number that was aborted
            given = SOURCE in checkpoint.positions
            why = reason if [checkpoint.number] == refused else theirs
            known = {"reason": why.value, "message": shown_text(message)} if given else {}
            write.update_checkpoint(checkpoint, after_abort=AfterAbort.REWOUND.value, **known)
            fate = "its rows are computed again"
            if given:
                fate = "its rows are kept" if why is AbortReason.PREDECESSOR_ABORTED else "it is given again"
            write.event(EventKind.REWOUND, f"{message}; {fate}", number=checkpoint.number)
            runs.add(checkpoint.run)
    _unstage(write, runs)
    # I9: no run has read all of the input any more, up to where it is computed again. One that waits for these numbers
    # without the turn, and has published none of them, must not succeed either.
    write.change(
        "UPDATE run SET complete = 0, staged = 0 WHERE pipeline = ? AND staged = 1 AND published_through >= ?",
        write.name,
        rewind_from,
    )
    write.change(
        "UPDATE run SET read_as_of = NULL WHERE pipeline = ? AND read_as_of IS NOT NULL AND read_through >= ?",
        write.name,
        rewind_from,
    )
    write.set_pipeline(
        base_location=None if rewind_to is None else rewind_to.location,
        base_batch=None if rewind_to is None else rewind_to.batch,
        base_clean=0,
        needs_stage=1,
    )
    rewound = concerned if also is None else [*concerned, also]
    if any(SOURCE in checkpoint.positions for checkpoint in rewound):
        fate = "are not delivered: each position is given or published again"
    else:
        start = "the beginning" if rewind_to is None else f"Spark's batch {rewind_to.batch} at {rewind_to.location}"
        fate = f"are computed again from {start}"
    write.event(
        EventKind.REWOUND,
        f"checkpoint {rewind_from} and later {fate}, by epoch {write.row['epoch']}: {message}",
        detail={"rewind_from": rewind_from, "reason": reason.value},
    )


def _unstage(write: PipelineWrite, runs: Collection[RunKey | None]) -> None:
    for run in runs:
        if run is not None:
            write.change(f"UPDATE run SET staged = 0, complete = 0 WHERE {OF_RUN}", write.name, *key_of(run))
