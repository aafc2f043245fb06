"""Pipelines, epochs, leases, turns and halts: who may act on a pipeline."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from airflow_ft.protocol.errors import ConfigurationError, FencedError, LeaseHeldError, StateConflictError
from airflow_ft.protocol.failure import Halt
from airflow_ft.protocol.model import AfterAbort, Checkpoint, CheckpointState, ParticipantPlan, RunKey
from airflow_ft.protocol.pipelines import HaltReason, Lease, Pipeline, PipelineStatus
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.store.counting import count
from airflow_ft.store.database import Database, Transaction
from airflow_ft.store.events import EventKind, lease_text, run_detail
from airflow_ft.store.reports import clear_reports
from airflow_ft.store.rows import clean_text, from_time, key_of, shown_text, to_former, to_lease, to_pipeline
from airflow_ft.store.writing import NO_HALT, NO_TURN, PipelineWrite, lock_pipeline, pipeline_write

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

_INSERT_PIPELINE = (
    "INSERT INTO pipeline (name, epoch, next_number, next_attempt, next_event, published, status, base_clean,"
    " needs_stage, created_at) VALUES (?, 0, 1, 1, 1, 0, 'ACTIVE', 0, 0, ?)"
    " ON CONFLICT (name) DO NOTHING"
)
_PUT_LEASE = (
    "INSERT INTO lease (pipeline, holder, epoch, task, try_number, counter, renewed_at, lease_time)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (pipeline, holder) DO UPDATE SET epoch = excluded.epoch, task = excluded.task,"
    " try_number = excluded.try_number, counter = excluded.counter, renewed_at = excluded.renewed_at,"
    " lease_time = excluded.lease_time"
)


class EpochOperations:
    """Operations of the store that decide who may act."""

    _database: Database

    def register(self, pipeline: str) -> Pipeline:
        """See `RunLog.register`; ConfigurationError for a name that sinks and paths could not bear."""
        if not _NAME.fullmatch(pipeline):
            raise ConfigurationError(
                f"{pipeline!r} cannot be the name of a pipeline.",
                code="name_invalid",
                remedy="Use 1 to 63 characters of a-z, 0-9, '_' and '-'. The first one is a letter or a digit.",
                value=pipeline,
            )
        rows = self._database.read("SELECT * FROM pipeline WHERE name = ?", pipeline)
        if rows:
            return to_pipeline(rows[0])
        with self._database.write() as tx:
            created = tx.change(_INSERT_PIPELINE, pipeline, tx.now()) == 1
            write = lock_pipeline(tx, pipeline)
            if created:
                write.event(EventKind.REGISTERED, "registered in the decision log")
            write.flush()
            return to_pipeline(write.row)

    def take_epoch(self, pipeline: str, expected: int, seen: Mapping[str, int], lease: Lease, why: str) -> int:
        """See `EpochLog.take_epoch`; also PipelineHaltedError."""
        with pipeline_write(self._database, pipeline) as write:
            if not to_pipeline(write.row).was_taken_back:
                write.require_active()
            current: int = write.row["epoch"]
            if current != expected:
                raise LeaseHeldError(
                    f"the pipeline has epoch {current}, not {expected}: another process took over.",
                    code="epoch_taken",
                    remedy="Read the pipeline again. The other process may have done the work.",
                    pipeline=pipeline,
                    epoch=expected,
                    current=current,
                )
            held = require_no_other_lease(write, seen)
            write.change("DELETE FROM lease WHERE pipeline = ?", pipeline)
            write.set_pipeline(epoch=current + 1)
            _put_lease(write, lease, (other.counter for other in held if other.holder == lease.holder))
            dropped = [lease_text(other) for other in held if other.holder != lease.holder]
            taken_from = f"; dropped the lease of {'; '.join(dropped)}" if dropped else ""
            write.event(
                EventKind.EPOCH,
                f"epoch {current + 1} taken by {lease_text(lease)}: {why}{taken_from}",
                detail={
                    "epoch": current + 1,
                    "holder": lease.holder,
                    "task": lease.task,
                    "try": lease.try_number,
                    "dropped": [other.holder for other in held],
                },
            )
            # I5: their processes hold an older epoch and cannot publish them any more.
            left = {other.epoch for other in held if other.holder != lease.holder}
            abort_unpublished(
                write,
                f"not published before epoch {current + 1} began",
                lambda c: AbortReason.FENCED if c.epoch in left else AbortReason.ATTEMPT_ENDED,
            )
            return current + 1

    def hold_lease(self, pipeline: str, epoch: int, lease: Lease) -> None:
        """See `EpochLog.hold_lease`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            if lease.task:
                sql = "DELETE FROM lease WHERE pipeline = ? AND task = ? AND try_number < ?"
                write.change(sql, pipeline, lease.task, lease.try_number)
            rows = write.rows("SELECT counter FROM lease WHERE pipeline = ? AND holder = ?", pipeline, lease.holder)
            _put_lease(write, lease, (row["counter"] for row in rows))

    def renew_lease(self, pipeline: str, epoch: int, holder: str, doing: str = "") -> None:
        """See `EpochLog.renew_lease`."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            renewed = write.change(
                "UPDATE lease SET counter = counter + 1, doing = ?, renewed_at = ?"
                " WHERE pipeline = ? AND holder = ? AND epoch = ?",
                clean_text(doing),
                write.now,
                pipeline,
                holder,
                epoch,
            )
            if renewed != 1:
                raise FencedError(
                    f"the lease of {holder} is gone.",
                    code="lease_lost",
                    remedy="Do nothing: this process ends, and another one completes or repeats its work.",
                    pipeline=pipeline,
                    holder=holder,
                )

    def release_lease(self, pipeline: str, holder: str) -> None:
        """See `EpochLog.release_lease`."""
        with pipeline_write(self._database, pipeline) as write:
            write.change("DELETE FROM lease WHERE pipeline = ? AND holder = ?", pipeline, holder)

    def enter_turn(
        self, pipeline: str, run: RunKey, interval_end: datetime | None, ended: Collection[RunKey] = ()
    ) -> RunKey:
        """See `RunLog.enter_turn`; an event only when something changed, since waiting runs ask again and again."""
        end = None if interval_end is None else from_time(interval_end)
        with pipeline_write(self._database, pipeline) as write:
            _require_one_map_index(write, run)
            write.note_dag(run)
            registered = write.change(
                "INSERT INTO run (pipeline, dag_id, run_id, map_index, epoch, staged, interval_end)"
                " VALUES (?, ?, ?, ?, 0, 0, ?)"
                " ON CONFLICT (pipeline, dag_id, run_id, map_index) DO UPDATE SET interval_end = excluded.interval_end"
                " WHERE run.interval_end IS NULL AND excluded.interval_end IS NOT NULL",
                pipeline,
                *key_of(run),
                end,
            )
            holder = to_pipeline(write.row).turn
            changes = [f"run {run} registered"] if registered else []
            if holder != run and (holder is None or holder in ended):
                write.set_pipeline(
                    turn_dag_id=run.dag_id,
                    turn_run_id=run.run_id,
                    turn_map_index=run.map_index,
                    failure=None,
                    retired=0,
                )
                changes.append(f"run {run} has the turn" + (f", after {holder}" if holder else ""))
                holder = run
            if changes:
                detail = {**run_detail(run), "has_turn": holder == run}
                write.event(EventKind.TURN, "; ".join(changes), detail=detail)
            return holder

    def leave_turn(self, pipeline: str, run: RunKey, *, confirmed: bool = False, counts: bool = True) -> None:
        """See `RunLog.leave_turn`."""
        with pipeline_write(self._database, pipeline) as write:
            if confirmed:
                clear_reports(write, run)
                if counts:
                    count(write, run)
            if to_pipeline(write.row).turn == run:
                write.set_pipeline(**NO_TURN)
                write.event(EventKind.TURN, f"run {run} gave its turn back", detail=run_detail(run))

    def adopt_run(self, pipeline: str, epoch: int, run: RunKey) -> None:
        """See `RunLog.adopt_run`; registers the run when there is none."""
        with pipeline_write(self._database, pipeline) as write:
            write.require_epoch(epoch)
            write.note_dag(run)
            write.change(
                "INSERT INTO run (pipeline, dag_id, run_id, map_index, epoch, staged) VALUES (?, ?, ?, ?, ?, 0)"
                " ON CONFLICT (pipeline, dag_id, run_id, map_index) DO UPDATE SET epoch = excluded.epoch",
                pipeline,
                *key_of(run),
                epoch,
            )
            write.event(
                EventKind.RUN_ADOPTED,
                f"the tasks of run {run} share epoch {epoch}",
                detail={**run_detail(run), "epoch": epoch},
            )

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
        """See `DeliveryLog.halt`."""
        halt = Halt(reason.value, code or reason.code, shown_text(message), shown_text(remedy))
        columns = {f"halt_{name}": text for name, text in asdict(halt).items()}
        with pipeline_write(self._database, pipeline) as write:
            if write.row["status"] == PipelineStatus.ACTIVE.value:
                write.set_pipeline(status=PipelineStatus.HALTED.value, **columns)
            elif all(write.row[name] == text for name, text in columns.items()):
                return
            detail: dict[str, object] = {"reason": halt.reason, "code": halt.code}
            if participants:
                detail["participants"] = [each.to_json() for each in participants]
            if found:
                detail["found"] = list(found)
            write.event(EventKind.HALTED, halt.text, detail=detail)

    def resume(self, pipeline: str, who: str, reason: HaltReason | None = None, *, epoch: int | None = None) -> None:
        """See `AdminLog.resume`; no effect on an ACTIVE pipeline."""
        with self._database.write() as tx:
            names = _going_on_as(tx, pipeline)
            rows = {name: lock_pipeline(tx, name) for name in sorted({pipeline, *names})}
            write = rows[pipeline]
            for each in rows.values():
                each.require_understood()
            if epoch is not None and (current := write.row["epoch"]) != epoch:
                raise write.conflict(
                    0,
                    f"the pipeline has epoch {current}, not {epoch}: another process worked on it.",
                    code="epoch_taken",
                    remedy="Look at `airflow ft pipelines`. If the pipeline is HALTED, do what its message says.",
                    epoch=epoch,
                    current=current,
                )
            if write.row["status"] != PipelineStatus.ACTIVE.value:
                found = write.row["halt_reason"] or write.row["status"]
                if reason is not None and found != reason.value:
                    now = f"HALTED for {found}" if write.row["halt_reason"] else write.row["status"]
                    raise write.conflict(
                        0,
                        f"the pipeline is now {now}, not HALTED for {reason}.",
                        code="action_refused",
                        remedy=f"Look at the new reason with `airflow ft pipelines`. Then run `airflow ft resume"
                        f" {pipeline}` again.",
                        status=write.row["status"],
                        reason=write.row["halt_reason"],
                    )
                if found == PipelineStatus.RENAMED.value:
                    if names != _going_on_as(tx, pipeline):
                        raise write.conflict(0, "another process renamed the pipeline at the same moment.")
                    for name in names:
                        _take_back(rows[name], write.name, who)
                write.set_pipeline(status=PipelineStatus.ACTIVE.value, renamed_to=None, **NO_HALT)
                if found == HaltReason.STORE_BEHIND_SINK.value:
                    write.set_pipeline(epoch=write.row["epoch"] + 1)
                write.event(EventKind.RESUMED, f"by {who}, after {found}", detail={"who": who, "reason": found})
            for each in rows.values():
                each.flush()

    def retire(self, pipeline: str, who: str, ended: RunKey | None = None) -> None:
        """Silence the pipeline: it is neither late nor failed until its next run takes the turn, or fails before that.

        Frees a turn of `ended`.

        Raises:
            StateConflictError: another run has the turn.
        """
        with pipeline_write(self._database, pipeline) as write:
            write.require_understood()
            if (turn := to_pipeline(write.row).turn) is not None:
                if turn != ended:
                    raise write.conflict(
                        0,
                        f"run {turn} is active.",
                        code="run_active",
                        remedy="Let the run end, or mark it as failed in Airflow. To end a stream, run"
                        f" `airflow ft stop {pipeline}`.",
                        run=str(turn),
                    )
                write.set_pipeline(**NO_TURN)
            if not write.row["retired"]:
                write.set_pipeline(late_after=None, failure=None, retired=1)
                write.event(EventKind.RETIRED, f"by {who}", detail={"who": who})


def _going_on_as(tx: Transaction, pipeline: str) -> list[str]:
    """The pipelines that this one was renamed to; of several all but one were a mistake."""
    rows = tx.rows("SELECT * FROM pipeline WHERE former IS NOT NULL ORDER BY name")
    formers = ((row["name"], to_former(row)) for row in rows)
    return [name for name, former in formers if former is not None and former.pipeline == pipeline]


def _take_back(new: PipelineWrite, pipeline: str, who: str) -> None:
    """Let `pipeline` continue itself, and nothing under the name `new`, which fences its processes (I5)."""
    if new.row["published"]:
        raise StateConflictError(
            f"it continues as {new.name}, which has checkpoints of its own: both would deliver the same rows.",
            code="pipeline_not_new",
            remedy=f"Let {new.name} continue. Or take a savepoint of it, and restore it under another name"
            " (`airflow ft savepoint restore PATH --pipeline NAME --rename`).",
            pipeline=pipeline,
            other=new.name,
        )
    says = f"it continues as {pipeline}, which has its name back."
    new.set_pipeline(
        status=PipelineStatus.RENAMED.value,
        renamed_to=pipeline,
        epoch=new.row["epoch"] + 1,
        former=None,
        base_location=None,
        base_batch=None,
        origin_location=None,
        origin_batch=None,
        **NO_HALT,
        **NO_TURN,
    )
    new.event(EventKind.RENAMED, f"{says} By {who}.", detail={"as": pipeline})


def _require_one_map_index(write: PipelineWrite, run: RunKey) -> None:
    """A pipeline reads its sources once in a DAG run: of two map indexes one would find nothing left, unnoticed."""
    others = write.rows(
        "SELECT map_index FROM run WHERE pipeline = ? AND dag_id = ? AND run_id = ? AND map_index <> ? LIMIT 1",
        write.name,
        *key_of(run),
    )
    if others:
        other = RunKey(run.dag_id, run.run_id, others[0]["map_index"])
        raise ConfigurationError(
            f"run {run} has the same pipeline as run {other}. A pipeline works once in a DAG run.",
            code="map_index_conflict",
            pipeline=write.name,
            remedy="Give each map index its own pipeline: set `suffix=`, or use Jinja in `pipeline=`. If the mapped"
            " values have changed, trigger a new DAG run instead of clearing this one.",
            run=str(run),
            other=str(other),
        )


def _put_lease(write: PipelineWrite, lease: Lease, counters: Iterable[int]) -> None:
    # A holder that comes again counts on: a challenger must see that it lives.
    write.change(
        _PUT_LEASE,
        write.name,
        lease.holder,
        write.row["epoch"],
        lease.task,
        lease.try_number,
        max([lease.counter, *(counter + 1 for counter in counters)]),
        write.now,
        round(lease.seconds * 1e6),
    )


def require_no_other_lease(write: PipelineWrite, seen: Mapping[str, int]) -> list[Lease]:
    """Return the leases; LeaseHeldError for one without this counter in `seen`."""
    held = [to_lease(row) for row in write.rows("SELECT * FROM lease WHERE pipeline = ?", write.name)]
    for other in held:
        if seen.get(other.holder) != other.counter:
            raise LeaseHeldError(
                f"{lease_text(other)} works on the pipeline (epoch {other.epoch}).",
                remedy="Wait until it ends, or until its lease expires.",
                pipeline=write.name,
                holder=other.holder,
                epoch=other.epoch,
            )
    return held


def abort_unpublished(write: PipelineWrite, message: str, why: Callable[[Checkpoint], AbortReason]) -> None:
    """Abort TRIGGERED checkpoints, for the reason that `why` returns."""
    for checkpoint in write.open_checkpoints(CheckpointState.TRIGGERED):
        write.abort(checkpoint, why(checkpoint), message, AfterAbort.CARRIED)
