"""Aborting loses no row: what was published is carried by a later number, or rewound and computed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, StateConflictError
from airflow_ft.protocol.model import (
    AbortReason,
    AfterAbort,
    Checkpoint,
    CheckpointState,
    Former,
    PipelineStatus,
    Promise,
    Reason,
    RunKey,
    SparkPosition,
)
from airflow_ft.protocol.transitions import MAY_BE_VISIBLE
from airflow_ft.store.database import Database
from airflow_ft.store.events import EventKind
from airflow_ft.store.rows import json_text, to_pipeline
from airflow_ft.store.writing import NO_TURN, PipelineWrite, lock_pipeline, pipeline_write

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
        """See `Store.abort`.

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
            if checkpoint.state is S.PREPARED and carrier is not None and not tombstoned:
                # R3: it was STAGED when this was asked for. Since then it was voted upon, and perhaps committed.
                raise write.conflict(
                    number,
                    f"it is PREPARED and has no abort marker yet, so {carrier} may have committed it.",
                    code="abort_marker_missing",
                    state=checkpoint.state.value,
                    commit_point=carrier,
                )
            write.abort(checkpoint, reason, message, after)
            if rewind_from is not None:
                _rewind(write, rewind_from, rewind_to, reason, f"rewound with checkpoint {number}", also=checkpoint)
            return write.checkpoint(number)

    def record_rollback(self, pipeline: str, epoch: int, number: int, participant: str) -> Checkpoint:
        """See `Store.record_rollback`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            checkpoint = write.checkpoint(number)
            if checkpoint.state is not S.ABORTED:
                raise write.wrong_state(checkpoint, "only an ABORTED checkpoint can be rolled back")
            changed = write.change(
                "UPDATE vote SET rolled_back = 1"
                " WHERE pipeline = ? AND number = ? AND participant = ? AND rolled_back = 0",
                pipeline,
                number,
                participant,
            )
            if not changed:
                return checkpoint
            write.event(EventKind.ROLLED_BACK, f"{participant} holds no rows of it", number=number)
            plan = checkpoint.plan
            names = [p.name for p in plan.participants if p.promise is Promise.TWO_PHASE] if plan else []
            left = write.rows(
                "SELECT participant FROM vote WHERE pipeline = ? AND number = ? AND rolled_back = 0", pipeline, number
            )
            if not {row["participant"] for row in left} & set(names):
                write.update_checkpoint(checkpoint, rollback_pending=0)
            return write.checkpoint(number)

    def rewind(
        self, pipeline: str, epoch: int, rewind_from: int, rewind_to: SparkPosition | None, message: str
    ) -> None:
        """See `Store.rewind`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            _rewind(write, rewind_from, rewind_to, AbortReason.USER, message)

    def reset_state(
        self,
        pipeline: str,
        epoch: int,
        position: SparkPosition,
        message: str,
        *,
        seen_requests: Collection[int] | None = None,
    ) -> None:
        """See `Store.reset_state`."""
        with pipeline_write(self._database, pipeline) as write:
            if seen_requests is not None:
                _require_seen(write, seen_requests)
            number = _move_base(write, epoch, position)
            write.event(
                EventKind.STATE_RESET,
                f"the state after checkpoint {number} is dropped, its positions are kept in {position.location}, by"
                f" epoch {epoch}: {message}",
                detail={"number": number, "location": position.location},
            )

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
        """See `Store.restore`."""
        with pipeline_write(self._database, pipeline) as write:
            number = _move_base(write, epoch, position)
            if run is not None:
                _remember_restored(write, run, savepoint)
            _restored(write, number, position, message, of)

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
        """See `Store.rename`."""
        with self._database.write() as tx:
            rows = {name: lock_pipeline(tx, name) for name in sorted((former, pipeline))}
            old, new = rows[former], rows[pipeline]
            old.require_epoch(held)
            old.require_active()
            for checkpoint in old.open_checkpoints():
                if not checkpoint.is_settled or checkpoint.rollback_pending:
                    raise unresolved(
                        old,
                        checkpoint,
                        "the pipeline can be renamed only when every checkpoint is confirmed or aborted",
                    )
            number = _move_base(new, epoch, position)
            if new.row["published"]:
                raise new.conflict(
                    number,
                    "the pipeline has checkpoints of its own, so no other pipeline can get its name.",
                    code="pipeline_not_new",
                    remedy="Choose a name that no pipeline has: `airflow ft pipelines` lists all.",
                )
            below = max(old.row["next_number"], new.row["next_number"])
            new.set_pipeline(next_number=below, former=json_text(asdict(Former(former, delivered, below))))
            dags = [each.row[name] for each in rows.values() for name in ("first_dag", "last_dag") if each.row[name]]
            if dags:  # who may see the one may see the other
                new.set_pipeline(first_dag=min(dags), last_dag=max(dags))
            if run is not None:
                _remember_restored(new, run, savepoint)
            _restored(new, number, position, message)
            says = f"it continues as {pipeline}, after checkpoint {delivered}."
            old.set_pipeline(status=PipelineStatus.RENAMED.value, halt_message=says, late_after=None, **NO_TURN)
            old.event(EventKind.RENAMED, f"{says} {message}", detail={"as": pipeline})
            for write in rows.values():
                write.flush()

    def note_savepoint(self, pipeline: str, number: int, message: str, detail: Mapping[str, Any]) -> None:
        """See `Store.note_savepoint`."""
        with pipeline_write(self._database, pipeline) as write:
            write.event(EventKind.SAVEPOINT, message, number=number, detail=dict(detail))


def _require_seen(write: PipelineWrite, seen_requests: Collection[int]) -> None:
    found = write.rows("SELECT id FROM request WHERE pipeline = ? AND outcome IS NULL ORDER BY id", write.name)
    if since := [row["id"] for row in found if row["id"] not in seen_requests]:
        raise StateConflictError(
            f"request {since[0]} arrived in the meantime and may need the state, so the state stays.",
            code="request_pending",
            remedy="Do nothing: the stream deletes the state when it ends the next time.",
            pipeline=write.name,
            request=since[0],
        )


def _restored(
    write: PipelineWrite,
    number: int,
    position: SparkPosition | None,
    message: str,
    of: tuple[str, int] | None = None,
) -> None:
    epoch, start = write.row["epoch"], "where its sources begin" if position is None else position.location
    if write.row["status"] == PipelineStatus.RENAMED.value:  # another one had gone on as this one, and was taken back
        write.set_pipeline(status=PipelineStatus.ACTIVE.value, halt_message="")
    write.event(
        EventKind.RESTORED,
        f"what follows checkpoint {number} is computed from {start}, by epoch {epoch}: {message}",
        detail={
            "number": number,
            "location": "" if position is None else position.location,
            **({"of": {"pipeline": of[0], "number": of[1]}} if of is not None else {}),
        },
    )


def _remember_restored(write: PipelineWrite, run: RunKey, savepoint: str) -> None:
    noted = write.change(
        "INSERT INTO run (pipeline, dag_id, run_id, map_index, epoch, staged, restored_from)"
        " VALUES (?, ?, ?, ?, 0, 0, ?)"
        " ON CONFLICT (pipeline, dag_id, run_id, map_index) DO UPDATE SET restored_from = excluded.restored_from"
        " WHERE run.restored_from = ''",
        write.name,
        run.dag_id,
        run.run_id,
        run.map_index,
        savepoint,
    )
    if noted != 1:
        raise write.conflict(
            0,
            f"run {run} has restored a savepoint before.",
            code="already_restored",
            remedy="Trigger a new DAG run to restore another savepoint.",
            run=str(run),
        )


def _move_base(write: PipelineWrite, epoch: int, position: SparkPosition | None) -> int:
    """The base, and where a rewind of the next number goes to; returns the newest number with a position (0: none).

    None: it has no base, and gets none.
    """
    write.require_epoch(epoch)
    for checkpoint in write.open_checkpoints():
        if checkpoint.is_undelivered or checkpoint.state is S.TRIGGERED:
            raise unresolved(write, checkpoint, "its rows are not delivered yet")
    if position is None:
        if write.row["base_location"] is not None:
            raise write.conflict(
                0,
                "the pipeline has read rows, so it cannot begin without a position.",
                code="pipeline_not_new",
                remedy="Restore a savepoint, or use a new pipeline.",
            )
        return 0
    newest = write.rows(
        "SELECT number FROM checkpoint WHERE pipeline = ? AND is_base = 1 ORDER BY number DESC LIMIT 1", write.name
    )
    number: int = newest[0]["number"] if newest else 0
    write.change(
        "UPDATE checkpoint SET spark_location = ?, spark_batch = ? WHERE pipeline = ? AND number = ?",
        position.location,
        position.batch,
        write.name,
        number,
    )
    if not number:  # also where it began with a savepoint, whose state is dropped now
        write.set_pipeline(origin_location=position.location, origin_batch=position.batch)
    write.set_pipeline(base_location=position.location, base_batch=position.batch, base_clean=1)
    return number


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
    """
    concerned = [c for c in write.open_checkpoints() if c.number >= rewind_from]
    for checkpoint in concerned:
        if checkpoint.state in MAY_BE_VISIBLE:
            raise unresolved(
                write, checkpoint, f"checkpoint {rewind_from} and later ones cannot be rewound before it is resolved"
            )
    # Theirs were not refused, and did not expire: they only follow.
    theirs = reason if reason is AbortReason.USER else AbortReason.PREDECESSOR_ABORTED
    # The run at work counts on what is rewound, even where it has published nothing itself (I9): it stages again.
    runs = {to_pipeline(write.row).turn} | ({also.run} if also is not None else set())
    for checkpoint in concerned:
        if checkpoint.state in (S.TRIGGERED, S.STAGED):
            write.abort(checkpoint, theirs, message, AfterAbort.REWOUND)
            if checkpoint.state is S.STAGED:
                runs.add(checkpoint.run)
        elif checkpoint.is_undelivered:  # SUBSUMED or carried by a number that was aborted
            write.update_checkpoint(checkpoint, after_abort=AfterAbort.REWOUND.value)
            write.event(EventKind.REWOUND, f"{message}; its rows are computed again", number=checkpoint.number)
            runs.add(checkpoint.run)
    _unstage(write, runs)
    # I9: nobody has read all of the input any more, up to where it is computed again.
    write.change(
        "UPDATE run SET complete = 0 WHERE pipeline = ? AND complete = 1 AND published_through >= ?",
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
    start = "the beginning" if rewind_to is None else f"Spark's batch {rewind_to.batch} at {rewind_to.location}"
    write.event(
        EventKind.REWOUND,
        f"checkpoint {rewind_from} and later are computed again from {start}, by epoch {write.row['epoch']}: {message}",
        detail={"rewind_from": rewind_from, "reason": reason.value},
    )


def _unstage(write: PipelineWrite, runs: Collection[RunKey | None]) -> None:
    for run in runs:
        if run is not None:
            write.change(
                "UPDATE run SET staged = 0, complete = 0"
                " WHERE pipeline = ? AND dag_id = ? AND run_id = ? AND map_index = ?",
                write.name,
                run.dag_id,
                run.run_id,
                run.map_index,
            )
