"""What the commands of `airflow ft` do: thin shells over the core, which works from the stored plans alone."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any

from airflow.cli.simple_table import AirflowConsole

from airflow_ft import settings
from airflow_ft.core.adoption import adopt as adopt_pipeline
from airflow_ft.core.adoption import heads
from airflow_ft.core.coordinator import Coordinator
from airflow_ft.core.errors import AirflowFtError, ConfigurationError, StateConflictError
from airflow_ft.core.lease import Worker, new_epoch
from airflow_ft.core.model import AbortReason, AfterAbort, Checkpoint, CheckpointState, PipelineStatus
from airflow_ft.core.planning import live_plans
from airflow_ft.core.recovery import in_doubt
from airflow_ft.core.recovery import recover as recover_pipeline
from airflow_ft.hooks.connections import server_connections
from airflow_ft.hooks.store import open_configured_store, participant_factory

if TYPE_CHECKING:
    from airflow_ft.core.ports import Store


Command = Callable[[Namespace], None]


def _command(function: Command) -> Command:
    """Errors of ours end the command with their message and status 1, without a traceback."""

    @wraps(function)
    def run(args: Namespace) -> None:
        try:
            function(args)
        except AirflowFtError as error:
            raise SystemExit(str(error)) from error

    return run


@contextmanager
def _store(args: Namespace) -> Iterator[Store]:
    with closing(open_configured_store(args.store, server_connections)) as store:
        if pipeline := getattr(args, "pipeline", None):
            try:
                store.pipeline(pipeline)
            except KeyError:
                known = ", ".join(row.name for row in store.pipelines()) or "none"
                raise ConfigurationError(
                    f"the decision log {store.url} knows no pipeline {pipeline!r}.",
                    remedy=f"known are: {known}. Another log is named by --store.",
                ) from None
        yield store


def _checkpoint(store: Store, args: Namespace) -> Checkpoint:
    try:
        return store.checkpoint(args.pipeline, args.number)
    except KeyError:
        raise ConfigurationError(
            "there is no such checkpoint.",
            remedy=f"`airflow ft checkpoints {args.pipeline}` lists them.",
            pipeline=args.pipeline,
            checkpoint=args.number,
        ) from None


def _print(rows: Sequence[dict[str, Any]], output: str) -> None:
    AirflowConsole().print_as(data=list(rows), output=output)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _sure(args: Namespace, question: str) -> None:
    if args.yes:
        return
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise SystemExit("Nothing was changed.")


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z" if at else ""


def _rows(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.segment.total_rows:,}" if checkpoint.segment else "0"


def _state(checkpoint: Checkpoint) -> str:
    text = checkpoint.state.value
    if checkpoint.reason is not None:
        text += (
            f" ({checkpoint.reason}, {checkpoint.after_abort})" if checkpoint.after_abort else f" ({checkpoint.reason})"
        )
    if checkpoint.state is not CheckpointState.COMPLETED and checkpoint.delivered_by:
        text += f", delivered by {checkpoint.delivered_by}"
    return text


@_command
def pipelines(args: Namespace) -> None:
    """`airflow ft pipelines`."""
    with _store(args) as store:
        rows = []
        for row in store.pipelines():
            latest = store.latest_confirmed(row.name)
            rows.append(
                {
                    "pipeline": row.name,
                    "status": f"HALTED ({row.halt_reason})"
                    if row.status is PipelineStatus.HALTED
                    else row.status.value,
                    "confirmed": latest.number if latest else 0,
                    "confirmed_at": _time(latest.completed_at) if latest else "",
                    "unsettled": sum(not c.is_settled for c in store.open_checkpoints(row.name)),
                    "epoch": row.epoch,
                    "at_work": str(row.turn) if row.turn else "",
                }
            )
        _print(rows, args.output)


@_command
def checkpoints(args: Namespace) -> None:
    """`airflow ft checkpoints PIPELINE`."""
    with _store(args) as store:
        rows = [
            {
                "number": c.number,
                "state": _state(c),
                "rows": _rows(c),
                "run": str(c.run) if c.run else "",
                "staged": _time(c.staged_at),
                "decided": _time(c.decided_at),
                "completed": _time(c.completed_at),
            }
            for c in store.checkpoints(args.pipeline, args.limit)
        ]
        _print(rows, args.output)


@_command
def events(args: Namespace) -> None:
    """`airflow ft events PIPELINE [NUMBER]`."""
    with _store(args) as store:
        rows = [
            {"at": _time(e.at), "checkpoint": e.number or "", "epoch": e.epoch, "kind": e.kind, "message": e.message}
            for e in store.events(args.pipeline, args.number, args.limit)
        ]
        _print(rows, args.output)


@_command
def show(args: Namespace) -> None:
    """`airflow ft show PIPELINE NUMBER`."""
    with _store(args) as store:
        for line in describe(_checkpoint(store, args)):
            _say(line)


def describe(checkpoint: Checkpoint) -> Iterator[str]:
    """One checkpoint in lines: state, rows, plan with its reasons, votes and proofs."""
    yield f"checkpoint {checkpoint.number} of {checkpoint.pipeline}: {_state(checkpoint)}"
    if checkpoint.message:
        yield f"  {checkpoint.message}"
    if checkpoint.reason is not None:
        yield f"  {checkpoint.reason.explanation}"
    yield f"  epoch {checkpoint.epoch}, predecessor {checkpoint.predecessor}, run {checkpoint.run or '-'}"
    for what in ("triggered", "staged", "prepared", "decided", "completed"):
        if at := getattr(checkpoint, f"{what}_at"):
            yield f"  {what:9} {_time(at)}"
    if segment := checkpoint.segment:
        rows = ", ".join(f"{sink} {count:,}" for sink, count in segment.rows.items())
        yield f"  rows      {segment.total_rows:,} ({rows}), {segment.bytes:,} bytes"
        yield f"  log       {segment.location} (digest {segment.digest[:16]}...)"
    if plan := checkpoint.plan:
        yield f"  plan      delivers {', '.join(str(s.number) for s in plan.segments)}; digest {plan.digest[:16]}..."
        for reason in plan.reasons:
            yield f"            {reason}"
        for participant in plan.participants:
            yield (
                f"  {participant.name}: {participant.kind} {participant.strategy} ({participant.promise}), after"
                f" checkpoint {participant.predecessor}; sinks {', '.join(participant.sinks)}"
            )
            vote = checkpoint.votes.get(participant.name)
            yield f"            {_vote(vote)}" if vote else "            not asked yet"


def _vote(vote: Any) -> str:
    text = f"voted yes (attempt {vote.prepared})" if vote.prepared else f"asked (attempt {vote.attempt})"
    if vote.proof is not None:
        counts = ", ".join(f"{sink} {count:,}" for sink, count in vote.proof.counts.items())
        text += f"; proof of epoch {vote.proof.epoch}: {vote.proof.outcome}, {counts or 'no rows'}"
    return text


@_command
def recover(args: Namespace) -> None:
    """`airflow ft recover PIPELINE`."""
    age = timedelta(seconds=args.min_age)
    with _store(args) as store:
        recovery = recover_pipeline(
            store,
            args.pipeline,
            participant_factory(server_connections),
            _worker(),
            min_age=age,
            lease_seconds=_lease(),
        )
        for number, state in recovery.settled:
            _say(f"checkpoint {number} was in doubt: it is {state} now")
        younger = in_doubt(store, args.pipeline)
        for checkpoint in younger:
            _say(f"checkpoint {checkpoint.number} is {checkpoint.state}, and was left alone (--min-age)")
        if not recovery.settled and not younger:
            _say("nothing is in doubt")


@_command
def abort(args: Namespace) -> None:
    """`airflow ft abort PIPELINE NUMBER`."""
    after = AfterAbort.REWOUND if args.rewind else AfterAbort.CARRIED
    with _store(args) as store:
        found = _checkpoint(store, args)
        if found.state not in (CheckpointState.STAGED, CheckpointState.PREPARED):
            raise StateConflictError(
                f"it is {found.state}: only what is STAGED or PREPARED can be aborted.",
                remedy=f"`airflow ft show {args.pipeline} {args.number}` says how it stands.",
                pipeline=args.pipeline,
                checkpoint=args.number,
            )
        _sure(args, f"Abort checkpoint {found.number} ({found.state}, {_rows(found)} rows), its rows are {after}?")
        why = f"`airflow ft abort` by {getpass.getuser()}" + (f": {args.reason}" if args.reason else "")
        with new_epoch(store, args.pipeline, _worker(), why, _lease()) as (epoch, _):
            coordinator = Coordinator(store, args.pipeline, epoch, participant_factory(server_connections))
            found = coordinator.abort(args.number, AbortReason.USER, why, after)
        _say(f"checkpoint {found.number} is {_state(found)}")


@_command
def rewind(args: Namespace) -> None:
    """`airflow ft rewind PIPELINE`: all that is published and not decided is computed again by the next run."""
    with _store(args) as store:
        _sure(args, f"Compute again what {args.pipeline} has not delivered?")
        why = f"`airflow ft rewind` by {getpass.getuser()}" + (f": {args.reason}" if args.reason else "")
        with new_epoch(store, args.pipeline, _worker(), why, _lease()) as (epoch, _):
            coordinator = Coordinator(store, args.pipeline, epoch, participant_factory(server_connections))
            for planned in live_plans(store.open_checkpoints(args.pipeline)):
                if planned.state is CheckpointState.COMMITTING:
                    raise StateConflictError(
                        "it is decided, so it can only be delivered.",
                        remedy=f"`airflow ft recover {args.pipeline}` first.",
                        pipeline=args.pipeline,
                        checkpoint=planned.number,
                    )
            if planned_now := live_plans(store.open_checkpoints(args.pipeline)):
                coordinator.abort(planned_now[0].number, AbortReason.USER, why, AfterAbort.REWOUND)
            undelivered = [c for c in store.open_checkpoints(args.pipeline) if c.is_undelivered]
            if undelivered:
                first = min(c.number for c in undelivered)
                store.rewind(args.pipeline, epoch, first, store.position_before(args.pipeline, first), why)
        left = store.pipeline(args.pipeline).base
        _say(f"the next run starts from {left.location} batch {left.batch}" if left else "the next run starts anew")


@_command
def resume(args: Namespace) -> None:
    """`airflow ft resume PIPELINE`."""
    with _store(args) as store:
        row = store.pipeline(args.pipeline)
        if row.status is not PipelineStatus.HALTED:
            _say(f"{args.pipeline} is not halted")
            return
        _say(f"{args.pipeline} is HALTED ({row.halt_reason}): {row.halt_message}")
        _sure(args, "Is the cause gone, and shall it go on?")
        store.resume(args.pipeline, getpass.getuser())
        _say(f"{args.pipeline} is {store.pipeline(args.pipeline).status}")


@_command
def adopt(args: Namespace) -> None:
    """`airflow ft adopt PIPELINE`."""
    with _store(args) as store:
        factory = participant_factory(server_connections)
        for name, head in heads(store, args.pipeline, factory).items():
            _say(
                f"{name}: delivered up to checkpoint {head.number}, owner {head.installation}, epoch {head.epoch}"
                if head
                else f"{name}: remembers nothing"
            )
        _say(f"this decision log is installation {store.installation} ({store.url})")
        _sure(args, "Is the other decision log gone for good, and shall this one go on after what the sinks hold?")
        adoption = adopt_pipeline(store, args.pipeline, factory, getpass.getuser())
        _say(f"{args.pipeline} is {store.pipeline(args.pipeline).status}, with epoch {adoption.epoch}")
        if adoption.uneven:
            _say(
                "The sinks stood at different checkpoints: the lost log was delivering one. Compare them: rows of the"
                " newest are missing in the others, and cannot be delivered from here."
            )


def _worker() -> Worker:
    return Worker(task="", try_number=1)


def _lease() -> float:
    return settings.lease_seconds()
