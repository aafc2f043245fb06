"""Acts on a whole pipeline."""

from __future__ import annotations

from datetime import timedelta

from airflow_ft.acts.requester import Requester
from airflow_ft.acts.words import loses_rows
from airflow_ft.core.coordinator import coordinating
from airflow_ft.core.errors import ConfigurationError, require_understood
from airflow_ft.core.lease import new_epoch
from airflow_ft.core.model import PipelineStatus
from airflow_ft.core.planning import quarantined
from airflow_ft.core.ports import Store
from airflow_ft.core.recovery import give_up_undecided, in_doubt
from airflow_ft.core.recovery import recover as recover_pipeline


def recover(by: Requester, store: Store, pipeline: str, min_age: timedelta = timedelta(0)) -> None:
    """Settles what has been in doubt for `min_age`, by doing the same again under the same marker."""
    recovery = recover_pipeline(
        store, pipeline, by.participants, by.worker, min_age=min_age, lease_seconds=by.lease_seconds, who=by.signature
    )
    for number, state in recovery.settled:
        by.say(f"checkpoint {number} was in doubt: it is {state} now")
    younger = in_doubt(store, pipeline)
    for checkpoint in younger:
        by.say(f"checkpoint {checkpoint.number} is {checkpoint.state}, and was left alone (--min-age)")
    waiting = quarantined(store.open_checkpoints(pipeline))
    for checkpoint in waiting:
        by.say(f"checkpoint {checkpoint.number} is QUARANTINED, and is settled by `airflow ft in-doubt` only")
    if not recovery.settled and not younger and not waiting:
        by.say("nothing is in doubt")


def rewind(by: Requester, store: Store, pipeline: str) -> None:
    """Has the next run compute all again that is published and not decided; StateConflictError when more is there."""
    lost = loses_rows(store, pipeline)
    question = f"Compute again what {pipeline} has not delivered?"
    if lost:
        question = f"Lose what {pipeline} has not delivered? With mode AT_MOST_ONCE it is not computed again."
    by.sure(question)
    with coordinating(store, pipeline, by.participants, by.worker, by.signature, by.lease_seconds) as (coordinator, _):
        give_up_undecided(store, pipeline, coordinator, by.signature)
    left = None if lost else store.pipeline(pipeline).base
    by.say(f"the next run starts from {left.location} batch {left.batch}" if left else "the next run starts anew")


def reset_state(by: Requester, store: Store, pipeline: str) -> None:
    """Has the next run read on where the last one ended, without operator state."""
    from airflow_ft.spark.state.reset import reset_state as drop_state

    by.sure(f"Drop all counts, windows and other state of {pipeline}? Its positions are kept.")
    with new_epoch(store, pipeline, by.worker, by.signature, by.lease_seconds) as (epoch, keeper):
        position = drop_state(store, pipeline, epoch, by.signature)
        keeper.check()
    if position is None:
        by.say(f"{pipeline} has no state to drop")
    else:
        by.say(f"the next run reads on from where the last one ended, without state, in {position.location}")


def retire(by: Requester, store: Store, pipeline: str) -> None:
    """Silence FAILED, NOT RUNNING and LATE until the next run; ConfigurationError while a run is active."""
    row = store.pipeline(pipeline)
    require_understood(row)
    if row.turn is not None and not by.is_over(row.turn):
        raise ConfigurationError(
            f"run {row.turn} is at work.", pipeline=pipeline, remedy="stop it, or pause its DAG and let it end, first."
        )
    if waiting := store.undelivered(pipeline):
        by.say(f"{waiting} of its checkpoints are not delivered; `airflow ft in-doubt` and a run would settle them")
    by.sure(f"Retire {pipeline}?")
    store.retire(pipeline, by.person, row.turn)
    by.say(f"{pipeline} is retired: it counts neither as late nor as failed until its next run")


def resume(by: Requester, store: Store, pipeline: str) -> None:
    """Lets a HALTED or RENAMED pipeline go on; no effect on another one."""
    row = store.pipeline(pipeline)
    require_understood(row)
    if row.status is PipelineStatus.ACTIVE:
        by.say(f"{pipeline} is not halted")
        return
    if row.status is PipelineStatus.RENAMED:
        by.say(f"{pipeline} is RENAMED: {row.halt_message}")
        if row.last_published:
            by.sure("Shall it have its name back, and go on where it stood? Nothing goes on under the new name then.")
        else:
            by.sure("Shall it begin anew? Nothing was ever staged under this name: it would read all that there is.")
    else:
        by.say(f"{pipeline} is HALTED ({row.halt_reason}): {row.halt_message}")
        by.sure("Is the cause gone, and shall it go on?")
    store.resume(pipeline, by.person, row.halt_reason)
    by.say(f"{pipeline} is {store.pipeline(pipeline).status}")
