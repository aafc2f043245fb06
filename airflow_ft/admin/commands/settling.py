"""Commands that act on a whole pipeline."""

from __future__ import annotations

from argparse import Namespace
from datetime import timedelta

from airflow_ft.admin.commands.common import actor, command, open_store, participants, person, say, sure
from airflow_ft.pipeline.actions import pipelines
from airflow_ft.protocol.adoption import adopt as adopt_pipeline
from airflow_ft.protocol.adoption import judge, look, require_adoptable
from airflow_ft.protocol.orphans import PreparedEnding
from airflow_ft.protocol.verify import lost_and_pruned


@command
def recover(args: Namespace) -> None:
    """`airflow ft recover PIPELINE`."""
    age = timedelta(seconds=args.min_age)
    with open_store(args) as store:
        pipelines.recover(actor(args, "recover"), store, args.pipeline, age)


@command
def rewind(args: Namespace) -> None:
    """`airflow ft rewind PIPELINE`: all that is published and not decided is computed again by the next run."""
    with open_store(args) as store:
        pipelines.rewind(actor(args, "rewind"), store, args.pipeline)


@command
def reset_state(args: Namespace) -> None:
    """`airflow ft reset-state PIPELINE`: the next run reads on where the last one ended, without operator state."""
    with open_store(args) as store:
        pipelines.reset_state(actor(args, "reset-state"), store, args.pipeline, args.forget_sources or ())


@command
def resume(args: Namespace) -> None:
    """`airflow ft resume PIPELINE`."""
    with open_store(args) as store:
        pipelines.resume(actor(args, "resume"), store, args.pipeline)


@command
def retire(args: Namespace) -> None:
    """`airflow ft retire PIPELINE`."""
    with open_store(args) as store:
        pipelines.retire(actor(args, "retire"), store, args.pipeline)


@command
def adopt(args: Namespace) -> None:
    """`airflow ft adopt PIPELINE`."""
    with open_store(args) as store:
        factory = participants()
        require_adoptable(store.pipeline(args.pipeline))  # before what is printed about a lost log
        ending = PreparedEnding(args.prepared) if args.prepared else None
        found = look(store, args.pipeline, factory)
        for name, estate in found.items():
            head = estate.head
            say(
                f"{name}: delivered up to checkpoint {head.number}, owner {head.installation}, epoch {head.epoch}"
                if head
                else f"{name}: has no marker of the pipeline"
            )
            if head and head.lost:
                say("  its fence is gone, or older than its markers, shown above. `adopt` writes it again")
            for orphan in estate.orphans:
                number = f"checkpoint {orphan.number}: " if orphan.number else ""
                say(f"  {number}{orphan.text}, from the decision log {orphan.installation}")
                if orphan.commit:
                    say(f"    commit it by hand: {orphan.commit}; or roll it back: {orphan.roll_back};")
        say(f"this decision log is {store.installation} ({store.url})")
        known = store.latest_confirmed(args.pipeline)
        if known is None:
            say(
                "It does not know how far the lost log had read. The pipeline reads its sources from their beginning"
                " (starting_offsets, or all files of the folder), and delivers those rows again. To avoid that, answer"
                " no and read 'The decision log is lost' in docs/recovery.md."
            )
        else:
            say(
                f"It has confirmed checkpoint {known.number}. Rows that a sink got later by another log are delivered"
                " again. Rows that a sink has lost are not: `airflow ft verify` names them."
            )
        for report in lost_and_pruned(store, args.pipeline, factory):
            say(f"{report.participant}: {report.error} Write these numbers down: `verify` does not name them later.")
        judge(store, store.pipeline(args.pipeline), found, ending, args.accept_partial)  # what is refused is not asked
        sure(
            args,
            "Is the other decision log, or what a sink has lost, gone for good? The pipeline then continues with the"
            " sinks as they are.",
        )
        adoption = adopt_pipeline(
            store, args.pipeline, factory, person(), ending=ending, accept_partial=args.accept_partial
        )
        say(f"{args.pipeline} is {store.pipeline(args.pipeline).status}, with epoch {adoption.epoch}")
        if adoption.forgetful:
            say(
                f"{', '.join(adoption.forgetful)} had lost deliveries, or their markers. Lost rows are not delivered"
                f" again. `airflow ft recover {args.pipeline}` delivers the checkpoints that wait."
            )
        if adoption.uneven:
            say(
                "The sinks are at different checkpoints, because the lost log was delivering one. Compare them: some"
                " lack rows of the newest checkpoint, and this decision log cannot deliver them."
            )
