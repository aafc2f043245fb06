"""Acts on a whole pipeline."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.actions.words import loses_rows
from airflow_ft.protocol.coordinator import coordinating
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, require_understood
from airflow_ft.protocol.failure import with_fix
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.model import AfterAbort, RunKey
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.position import Position
from airflow_ft.protocol.recovery import give_up_undecided, in_doubt
from airflow_ft.protocol.recovery import recover as recover_pipeline
from airflow_ft.protocol.steps import require_active

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


def recover(by: Actor, store: DecisionLog, pipeline: str, min_age: timedelta = timedelta(0)) -> None:
    """Settle what has been in doubt for `min_age`: repeat its steps under the same markers.

    Raises:
        PipelineHaltedError: the pipeline is HALTED, so nothing is delivered until a person acts.
        QuarantinedError: a checkpoint is QUARANTINED, which has the same effect.
        StoreBehindSinkError: the decision log is older than its files.
    """
    from airflow_ft.wal import owners

    if store.pipeline(pipeline).status is PipelineStatus.ACTIVE and in_doubt(store, pipeline, min_age):
        owners.require_newest_files(store, pipeline)
    recovery = recover_pipeline(
        store, pipeline, by.participants, by.worker, min_age=min_age, lease_seconds=by.lease_seconds, who=by.signature
    )
    for number, state in recovery.settled:
        by.say(f"checkpoint {number} was in doubt and is now {state}")
    younger = in_doubt(store, pipeline)
    for checkpoint in younger:
        by.say(f"checkpoint {checkpoint.number} is {checkpoint.state} and was skipped (--min-age)")
    require_active(store, pipeline)
    if not recovery.settled and not younger:
        waiting = sum(each.is_undelivered for each in store.open_checkpoints(pipeline))
        then = f"; the next run delivers {count_text(waiting, 'staged checkpoint')}" if waiting else ""
        by.say(f"nothing is in doubt{then}")


def rewind(by: Actor, store: DecisionLog, pipeline: str) -> None:
    """Has the next run compute all again that is published and not decided; StateConflictError when more is there."""
    lost = loses_rows(store, pipeline)
    is_given = Position.stored(store.newest_position(pipeline) or store.rewound_position(pipeline)) is not None
    then = "Then give each position again." if is_given else "The next run computes them again."
    question = f"Discard all undelivered rows of {pipeline}? {then}"
    if lost:
        question = f"Discard all undelivered rows of {pipeline}? They are lost: the mode is AT_MOST_ONCE."
    by.sure(question)
    with coordinating(store, pipeline, by.participants, by.worker, by.signature, by.lease_seconds) as (coordinator, _):
        found_any = give_up_undecided(store, pipeline, coordinator, by.signature)
        # Last: a dead process's abort marker may have kept rows just now. If this process dies before, run it again.
        found_any = bool(store.discard_kept(pipeline, coordinator.epoch, by.signature)) or found_any
    if not found_any:
        by.say("nothing is undelivered, so nothing was changed")
    for found in (store.rewound_position(pipeline), store.newest_position(pipeline)):
        if found is not None and (position := Position.stored(found)) is not None:
            if found.after_abort is AfterAbort.REWOUND:
                by.say(f"give position {position} again, with its rows")
            elif found_any:
                by.say("no rows wait for delivery")
            return
    left = None if lost else store.pipeline(pipeline).base
    by.say(
        f"the next run starts from {left.location}, batch {left.batch}"
        if left
        else "the next run starts from the beginning of its sources"
    )


def reset_state(by: Actor, store: DecisionLog, pipeline: str, forget: Collection[str] = ()) -> None:
    """Drop operator state. The next run reads from where the last one ended.

    `forget`: sources that the job no longer reads, and whose positions are dropped, too.
    """
    from airflow_ft.spark.state.reset import reset_state as drop_state

    left_out = f", except of {', '.join(forget)}: if the job reads it again, it begins at its start" if forget else ""
    by.sure(f"Drop all counts, windows and other state of {pipeline}? Its source positions stay{left_out}.")
    with new_epoch(store, pipeline, by.worker, by.signature, by.lease_seconds) as (epoch, keeper):
        position = drop_state(store, pipeline, epoch, by.signature, forget=forget)
        keeper.check()
    if position is None:
        by.say(f"{pipeline} has no state to drop")
    else:
        by.say(f"the next run reads from where the last one ended, without state, in {position.location}")


def retire(by: Actor, store: DecisionLog, pipeline: str) -> None:
    """Silence its alerts, but not HALTED and QUARANTINED, until the next run.

    Raises:
        ConfigurationError: a run is active.
    """
    row = store.pipeline(pipeline)
    require_understood(row)
    if row.turn is not None and not _is_over(by, store, pipeline, row.turn):
        remedy = "End the program that runs it."
        if not row.turn.is_plain:  # a maintenance DAG cannot ask whether that DAG is gone
            remedy = (
                f"Let the run end, or mark it as failed in Airflow. To end a stream, run `airflow ft stop {pipeline}`."
                " If the DAG was renamed or removed, run"
                f" `airflow ft retire {pipeline}` when none of its tasks runs, or `airflow dags delete"
                f" {row.turn.dag_id}`."
            )
        raise ConfigurationError(
            f"run {row.turn} is active.", code="run_active", pipeline=pipeline, remedy=remedy, run=str(row.turn)
        )
    if waiting := store.undelivered(pipeline):
        by.say(
            f"{count_text(waiting, 'checkpoint is', 'checkpoints are')} not delivered."
            f" `airflow ft in-doubt --pipeline {pipeline}` shows those in doubt; only a run delivers others"
        )
    by.sure(f"Retire {pipeline}? Its alerts stay silent until its next run.")
    store.retire(pipeline, by.person, row.turn)
    by.say(f"{pipeline} is retired: it raises no alerts until its next run")


def _is_over(by: Actor, store: DecisionLog, pipeline: str, run: RunKey) -> bool:
    """Return whether a run can no longer continue.

    Airflow never ends a program's run, or a run whose DAG is gone. Such a run is over if no lease moves for
    `lease_seconds`.
    """
    if not run.is_plain:
        if by.is_over(run):
            return True
        if not by.is_stranded(run):
            return False
    by.say(f"waiting up to {by.lease_seconds:g} s to see whether a process of run {run} is alive")
    began, first = time.monotonic(), store.leases(pipeline)
    while time.monotonic() - began < by.lease_seconds:
        time.sleep(min(1.0, by.lease_seconds / 4))
        if store.leases(pipeline) != first:
            return False
    return run.is_plain or by.is_stranded(run)


def _given_back(store: DecisionLog, pipeline: str, renamed_to: str) -> str:
    """Return the root of a pipeline that gets its name back; "": it does not, or has read nothing."""
    from airflow_ft.spark.state.locations import location_root

    new = store.pipeline(renamed_to)
    gives_back = new.former is not None and new.former.pipeline == pipeline and not new.last_published
    return location_root(new.base.location) if gives_back and new.base is not None else ""


def _bring_frozen_back(root: str, pipeline: str, renamed_to: str) -> None:
    """Copy where sources begin that a run under the new name has looked up: "latest" would be another moment now."""
    from airflow_ft.spark.savepoints.taking import writing
    from airflow_ft.spark.state.beginnings import copy_frozen

    if root:
        with writing(root, pipeline):
            copy_frozen(root, renamed_to, root, pipeline)


def resume(by: Actor, store: DecisionLog, pipeline: str, seen: HaltReason | None = None) -> None:
    """Let a HALTED or RENAMED pipeline continue. No effect on any other pipeline.

    seen: StateConflictError if it is halted for another reason, or RENAMED; None: for any.
    """
    row = store.pipeline(pipeline)
    root = ""  # only a RENAMED pipeline has one to copy from
    require_understood(row)
    if row.status is PipelineStatus.ACTIVE:
        by.say(f"{pipeline} is not halted")
        return
    if row.halt is None:
        by.say(f"{pipeline} is RENAMED: it continues as {row.renamed_to}.")
        if row.last_published:
            by.sure("Give it its name back, and continue where it stopped? The new name stops working.")
        else:
            by.sure("Start it from the beginning? It has no checkpoints, so it reads all of its sources.")
        root = _given_back(store, pipeline, row.renamed_to)
        _bring_frozen_back(root, pipeline, row.renamed_to)
    else:
        by.say(with_fix(f"{pipeline} is {row.halt.headline}", row.halt.remedy))
        by.sure(f"Let {pipeline} continue? Remove the cause first.")
    store.resume(pipeline, by.person, seen or row.halt_reason)
    by.say(f"{pipeline} is {store.pipeline(pipeline).status}")
    try:
        _bring_frozen_back(root, pipeline, row.renamed_to)  # again: until then a run could look up more
    except AirflowFtError as error:  # it has resumed, and the first copy is there
        by.say(
            f"start positions that runs looked up meanwhile were not copied, so sources that start at 'latest' may skip"
            f" records since then: {error}"
        )
