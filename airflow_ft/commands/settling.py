"""Commands that act on a whole pipeline, or give a checkpoint up."""

from __future__ import annotations

import getpass
from argparse import Namespace
from datetime import timedelta

from airflow_ft.commands.common import (
    command,
    lease,
    loses_rows,
    open_store,
    participants,
    rows_text,
    say,
    signature,
    state_text,
    sure,
    worker,
)
from airflow_ft.core.adoption import adopt as adopt_pipeline
from airflow_ft.core.adoption import look
from airflow_ft.core.coordinator import coordinating
from airflow_ft.core.errors import StateConflictError
from airflow_ft.core.lease import new_epoch
from airflow_ft.core.lookup import checkpoint_of
from airflow_ft.core.model import AbortReason, AfterAbort, CheckpointState, PipelineStatus
from airflow_ft.core.planning import quarantined
from airflow_ft.core.recovery import give_up_undecided, in_doubt
from airflow_ft.core.recovery import recover as recover_pipeline
from airflow_ft.core.remnants import PreparedEnding


@command
def recover(args: Namespace) -> None:
    """`airflow ft recover PIPELINE`."""
    age = timedelta(seconds=args.min_age)
    with open_store(args) as store:
        recovery = recover_pipeline(
            store,
            args.pipeline,
            participants(),
            worker(),
            min_age=age,
            lease_seconds=lease(),
        )
        for number, state in recovery.settled:
            say(f"checkpoint {number} was in doubt: it is {state} now")
        younger = in_doubt(store, args.pipeline)
        for checkpoint in younger:
            say(f"checkpoint {checkpoint.number} is {checkpoint.state}, and was left alone (--min-age)")
        waiting = quarantined(store.open_checkpoints(args.pipeline))
        for checkpoint in waiting:
            say(f"checkpoint {checkpoint.number} is QUARANTINED, and is settled by `airflow ft in-doubt` only")
        if not recovery.settled and not younger and not waiting:
            say("nothing is in doubt")


@command
def abort(args: Namespace) -> None:
    """`airflow ft abort PIPELINE NUMBER`."""
    after = AfterAbort.REWOUND if args.rewind else AfterAbort.CARRIED
    with open_store(args) as store:
        found = checkpoint_of(store, args.pipeline, args.number)
        if found.state not in (CheckpointState.STAGED, CheckpointState.PREPARED):
            raise StateConflictError(
                f"it is {found.state}: only what is STAGED or PREPARED can be aborted.",
                remedy=f"`airflow ft show {args.pipeline} {args.number}` says how it stands.",
                pipeline=args.pipeline,
                checkpoint=args.number,
            )
        rows = "lost (AT_MOST_ONCE)" if args.rewind and loses_rows(store, args.pipeline) else after
        sure(args, f"Abort checkpoint {found.number} ({found.state}, {rows_text(found)} rows), its rows are {rows}?")
        why = signature(args, "abort")
        with coordinating(store, args.pipeline, participants(), worker(), why, lease()) as (coordinator, _):
            found = coordinator.abort(args.number, AbortReason.USER, why, after)
        say(f"checkpoint {found.number} is {state_text(found)}")


@command
def rewind(args: Namespace) -> None:
    """`airflow ft rewind PIPELINE`: all that is published and not decided is computed again by the next run."""
    with open_store(args) as store:
        lost = loses_rows(store, args.pipeline)
        question = f"Compute again what {args.pipeline} has not delivered?"
        if lost:
            question = f"Lose what {args.pipeline} has not delivered? With mode AT_MOST_ONCE it is not computed again."
        sure(args, question)
        why = signature(args, "rewind")
        with coordinating(store, args.pipeline, participants(), worker(), why, lease()) as (coordinator, _):
            give_up_undecided(store, args.pipeline, coordinator, why)
        left = None if lost else store.pipeline(args.pipeline).base
        say(f"the next run starts from {left.location} batch {left.batch}" if left else "the next run starts anew")


@command
def reset_state(args: Namespace) -> None:
    """`airflow ft reset-state PIPELINE`: the next run reads on where the last one ended, without operator state."""
    from airflow_ft.spark.state.reset import reset_state as drop_state

    with open_store(args) as store:
        sure(args, f"Drop all counts, windows and other state of {args.pipeline}? Its positions are kept.")
        why = signature(args, "reset-state")
        with new_epoch(store, args.pipeline, worker(), why, lease()) as (epoch, keeper):
            position = drop_state(store, args.pipeline, epoch, why)
            keeper.check()
        if position is None:
            say(f"{args.pipeline} has no state to drop")
        else:
            say(f"the next run reads on from where the last one ended, without state, in {position.location}")


@command
def resume(args: Namespace) -> None:
    """`airflow ft resume PIPELINE`."""
    with open_store(args) as store:
        row = store.pipeline(args.pipeline)
        if row.status is not PipelineStatus.HALTED:
            say(f"{args.pipeline} is not halted")
            return
        say(f"{args.pipeline} is HALTED ({row.halt_reason}): {row.halt_message}")
        sure(args, "Is the cause gone, and shall it go on?")
        store.resume(args.pipeline, getpass.getuser())
        say(f"{args.pipeline} is {store.pipeline(args.pipeline).status}")


@command
def adopt(args: Namespace) -> None:
    """`airflow ft adopt PIPELINE`."""
    with open_store(args) as store:
        factory = participants()
        for name, estate in look(store, args.pipeline, factory).items():
            head = estate.head
            say(
                f"{name}: delivered up to checkpoint {head.number}, owner {head.installation}, epoch {head.epoch}"
                if head
                else f"{name}: remembers nothing"
            )
            for remnant in estate.remnants:
                number = f"checkpoint {remnant.number}: " if remnant.number else ""
                say(f"  {number}{remnant.text}, left by installation {remnant.installation}")
                if remnant.commit:
                    say(f"    by hand: {remnant.commit}; or: {remnant.roll_back};")
        say(f"this decision log is installation {store.installation} ({store.url})")
        say(
            "It does not know what was read before it was made: the sources began where starting_offsets (or the files"
            " in the folder) say, and rows that were delivered before come again. Unless that is wanted, stop here and"
            " read docs/operations.md, 'When the decision log is lost'."
        )
        sure(args, "Is the other decision log gone for good, and shall this one go on after what the sinks hold?")
        ending = PreparedEnding(args.prepared) if args.prepared else None
        adoption = adopt_pipeline(
            store, args.pipeline, factory, getpass.getuser(), ending=ending, accept_partial=args.accept_partial
        )
        say(f"{args.pipeline} is {store.pipeline(args.pipeline).status}, with epoch {adoption.epoch}")
        if adoption.uneven:
            say(
                "The sinks stood at different checkpoints: the lost log was delivering one. Compare them: rows of the"
                " newest are missing in the others, and cannot be delivered from here."
            )
