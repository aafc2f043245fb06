"""Commands that only look: pipelines, checkpoints, events, one checkpoint."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_ft.admin.commands.common import Size, age_text, command, open_store, print_table, say, time_text
from airflow_ft.admin.dag_runs import judged, known_to_have_ended
from airflow_ft.pipeline import settings
from airflow_ft.pipeline.actions.words import state_text
from airflow_ft.protocol.backpressure import held_back
from airflow_ft.protocol.errors import AirflowFtError, ConfigurationError, NewerReleaseError, StoreCorruptError, filled
from airflow_ft.protocol.explaining import explained
from airflow_ft.protocol.failure import Failure, with_fix
from airflow_ft.protocol.lag import Lag
from airflow_ft.protocol.lookup import checkpoint_of
from airflow_ft.protocol.model import DRAINED, Checkpoint, CheckpointState
from airflow_ft.protocol.overview import NEED_A_PERSON, Condition
from airflow_ft.protocol.pipelines import Event
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.set_aside import of_proof
from airflow_ft.spark.state.files import sizes

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog


@command
def pipelines(args: Namespace) -> None:
    """`airflow ft pipelines`."""
    with open_store(args) as store:
        rows = []
        ended = partial(known_to_have_ended, unknown=_say_unknown)
        found = {each.name: each for each in judged(store.overviews(), settings.lease_seconds(), ended)}
        lags, warnings, now = store.lags(list(found)), store.warnings(list(found)), store.now()
        for row in store.pipelines():
            if (overview := found.get(row.name)) is None:  # it was registered just now
                continue
            condition, turn = overview.condition, overview.turn if overview.is_at_work else None
            rests = condition is Condition.WAITING and (overview.paused or overview.retired)  # so no run delivers
            says = condition in NEED_A_PERSON or condition is Condition.RENAMED or rests
            why = explained(store, overview) if says else None
            summary = {
                "pipeline": row.name,
                "condition": condition.value,
                "status": f"HALTED ({row.halt.reason})" if row.halt is not None else row.status.value,
                "why": why.text if why else None,
                "code": (why.code or None) if why else None,
                "warnings": [str(each) for each in warnings.get(row.name, ())],
                "confirmed": None,
                "confirmed_at": None,
                "late": overview.late,
                "lag": [f"{lag.source} {lag.amount}{_age(lag, now)}" for lag in lags.get(row.name, ())],
                "unsettled": None,
                "epoch": row.epoch,
                "at_work": str(turn) if turn is not None else None,
                "alive_at": overview.alive_at,
                "doing": "; ".join(
                    lease.doing for lease in store.leases(row.name) if lease.doing and not overview.is_silent
                )
                or None,
                "held_back": None,
                "positions_left": None,
            }
            try:
                rows.append(summary | _of_checkpoints(store, row.name))
            except (NewerReleaseError, StoreCorruptError) as error:  # it must not hide the others
                sys.stderr.write(f"{error}\n")
                rows.append(summary | {"why": summary["why"] or error.headline, "code": summary["code"] or error.code})
        if args.output != "table":
            print_table(rows, args.output)
            return
        too_long = {"why", "code", "warnings", "alive_at", "positions_left"}  # too long for a column, or part of `why`
        print_table(
            [{name: value for name, value in each.items() if name not in too_long} for each in rows], args.output
        )
        for each in rows:
            if each["why"]:
                say(f"{each['pipeline']} is {Condition(each['condition']).words}: {each['why']}")
            for warning in each["warnings"]:
                say(f"{each['pipeline']}: warning {warning}")
            if each["positions_left"]:
                say(f"{each['pipeline']}: {each['positions_left']}")


def _age(lag: Lag, now: datetime) -> str:
    """Return the time since the driver measured the lag, as text; "" within the last minute."""
    age = now - lag.at if lag.at is not None else timedelta()
    return f" ({age_text(age)} ago)" if age >= timedelta(minutes=1) else ""


def _say_unknown(error: Exception) -> None:
    """Airflow alone knows that a run is over that was killed between two tasks: without it, it is shown as RUNNING."""
    sys.stderr.write(
        f"This machine cannot read Airflow's database ({type(error).__name__}), so a run that"
        " was killed between two tasks shows as RUNNING."
        "\nFix: Set [database] sql_alchemy_conn on this machine, or look at the page in Airflow's UI.\n"
    )


def _of_checkpoints(store: DecisionLog, pipeline: str) -> dict[str, Any]:
    latest = store.latest_confirmed(pipeline)
    held, left = held_back(store, pipeline), store.left_positions(pipeline)
    return {
        "confirmed": latest.number if latest else 0,
        "confirmed_at": latest.completed_at if latest else None,
        "unsettled": sum(not c.is_settled for c in store.open_checkpoints(pipeline)),
        "held_back": str(held) if held else None,
        "positions_left": with_fix(left.what, left.remedy) if left else None,
    }


@command
def checkpoints(args: Namespace) -> None:
    """`airflow ft checkpoints PIPELINE`."""
    with open_store(args) as store:
        rows = [
            {
                "number": c.number,
                "state": state_text(c),
                "rows": c.segment.total_rows if c.segment else 0,
                "bytes": Size(c.segment.bytes if c.segment else 0),
                "run": str(c.run) if c.run else None,
                "staged": c.staged_at,
                "decided": c.decided_at,
                "completed": c.completed_at,
                "took": c.completed_at - c.triggered_at if c.completed_at else None,
            }
            for c in store.checkpoints(args.pipeline, args.limit)
        ]
        print_table(rows, args.output)


@command
def events(args: Namespace) -> None:
    """`airflow ft events PIPELINE [NUMBER]`."""
    as_data = args.output in ("json", "yaml")
    with open_store(args) as store:
        rows = [
            {
                "at": e.at,
                "checkpoint": e.number or None,
                "epoch": e.epoch,
                "kind": e.kind,
                "message": e.message + _remedy(e, args.pipeline),
                **({"code": e.detail.get("code") or e.detail.get("reason")} if as_data else {}),
            }
            for e in store.events(args.pipeline, args.number, args.limit)
        ]
        if not rows and args.number is not None:
            checkpoint_of(store, args.pipeline, args.number)  # raises for a number that there is not
        print_table(rows, args.output)


@command
def show(args: Namespace) -> None:
    """`airflow ft show PIPELINE [NUMBER]`."""
    with open_store(args) as store:
        found = _chosen(store, args)
        if args.output in ("json", "yaml"):
            print_table([_whole(found)], args.output)
            return
        for line in describe(found):
            say(line)
        for warning in store.warnings([args.pipeline]).get(args.pipeline, ()):
            say(f"warning: {warning}")
        if left := store.left_positions(args.pipeline):
            say(with_fix(left.what, left.remedy))
        if held := held_back(store, args.pipeline):
            say(f"the stream triggers no checkpoint: {held.reason} since {time_text(held.since)}")
            say(f"  {held.reason.cause} {filled(held.reason.remedy, args.pipeline)}")


@command
def spec(args: Namespace) -> None:
    """`airflow ft spec PIPELINE [NUMBER]`."""
    with open_store(args) as store:
        checkpoint = _chosen(store, args)
        if not checkpoint.spec:
            raise ConfigurationError(
                "the decision log has no settings of this checkpoint.",
                code="spec_unknown",
                remedy="Look at another checkpoint. This one only carries the rows of others.",
                pipeline=args.pipeline,
                checkpoint=checkpoint.number,
            )
        found = dict(store.spec(checkpoint.spec))
        source = found.pop("job_source", "") if args.output == "table" else ""
        if args.output == "table":
            say(f"settings of checkpoint {checkpoint.number} of {args.pipeline}, digest {checkpoint.spec[:16]}...")
        print_table([{"field": name, "value": value} for name, value in found.items()], args.output)
        if source:
            say(f"\n{source}")


def _chosen(store: DecisionLog, args: Namespace) -> Checkpoint:
    """Return the checkpoint whose number is given, or else the newest."""
    if args.number is not None:
        return checkpoint_of(store, args.pipeline, args.number)
    for newest in store.checkpoints(args.pipeline, 1):
        return newest
    raise ConfigurationError(
        "the pipeline has no checkpoint yet.",
        code="checkpoint_unknown",
        remedy="Trigger a run of its DAG, or run its script.",
        pipeline=args.pipeline,
    )


def describe(checkpoint: Checkpoint) -> Iterator[str]:
    """One checkpoint in lines: state, rows, plan with its reasons, votes and proofs."""
    yield f"checkpoint {checkpoint.number} of {checkpoint.pipeline}: {state_text(checkpoint)}"
    if checkpoint.message:
        yield f"  {checkpoint.message}"
    if reason := checkpoint.reason:
        yield f"  cause     {reason.cause}"
        yield f"  its rows  {reason.rows}"
        yield f"  fix       {filled(reason.remedy, checkpoint.pipeline)}"
    yield f"  epoch {checkpoint.epoch}, predecessor {checkpoint.predecessor}, run {checkpoint.run or '-'}"
    for what in ("triggered", "staged", "prepared", "decided", "completed"):
        if at := getattr(checkpoint, f"{what}_at"):
            yield f"  {what:9} {time_text(at)}"
    if checkpoint.application:
        yield f"  Spark app {checkpoint.application}"
    if checkpoint.spec:
        yield f"  settings  {checkpoint.spec[:16]}... (`airflow ft spec {checkpoint.pipeline} {checkpoint.number}`)"
    if segment := checkpoint.segment:
        rows = ", ".join(f"{sink} {count:,}" for sink, count in segment.rows.items())
        yield f"  rows      {segment.total_rows:,} ({rows}), {segment.bytes:,} bytes"
        if checkpoint.lag:
            beyond = ", ".join(f"{source} {count:,}" for source, count in checkpoint.lag.items())
            yield f"  lag       {beyond} not read yet"
        yield f"  log       {segment.location} (digest {segment.digest[:16]}...)"
    for source, read_to in checkpoint.positions.items():
        if source != DRAINED:
            yield f"  source    {source}: {read_to}"
    if position := checkpoint.position:
        yield f"  Spark     {position.location}, batch {position.batch}"
        try:
            if state := checkpoint.state_sizes or sizes(position.location, position.batch):
                yield f"  state     {state}"
        except (AirflowFtError, OSError) as error:  # this machine may lack the disk or the bucket: show the rest
            yield f"  state     not known: {error}"
    if drained := checkpoint.drained:
        yield f"  drains    {drained.location}, batch {drained.batch}: open windows, joins and timers"
    if plan := checkpoint.plan:
        yield f"  plan      delivers {', '.join(str(s.number) for s in plan.segments)}; digest {plan.digest[:16]}..."
        for planned in plan.reasons:
            yield f"            {planned}"
        for participant in plan.participants:
            yield (
                f"  {participant.name}: {participant.kind} {participant.strategy} ({participant.promise}), after"
                f" checkpoint {participant.predecessor}; sinks {', '.join(participant.sinks)}"
            )
            vote = checkpoint.votes.get(participant.name)
            yield f"            {_vote(vote)}" if vote else "            no attempt yet"
            if problem := checkpoint.problem_of(participant.name):
                yield f"            last error: {problem.text}"
            for sink, aside in of_proof(checkpoint.proof_of(participant.name)).items():
                yield f"            {aside.text(sink)}"


def _whole(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return what `describe` prints, as plain data."""
    segment, position, reason, plan = checkpoint.segment, checkpoint.position, checkpoint.reason, checkpoint.plan
    return {
        "pipeline": checkpoint.pipeline,
        "number": checkpoint.number,
        "state": checkpoint.state.value,
        "message": checkpoint.message,
        "reason": None if reason is None else str(reason),
        "remedy": None if reason is None else filled(reason.remedy, checkpoint.pipeline),
        "epoch": checkpoint.epoch,
        "predecessor": checkpoint.predecessor,
        "run": str(checkpoint.run) if checkpoint.run else None,
        **{
            what: getattr(checkpoint, f"{what}_at")
            for what in ("triggered", "staged", "prepared", "decided", "completed")
        },
        "delivered_by": checkpoint.delivered_by,
        "application": checkpoint.application or None,
        "spec": checkpoint.spec or None,
        "rows": dict(segment.rows) if segment else {},
        "bytes": segment.bytes if segment else 0,
        "location": segment.location if segment else None,
        "digest": segment.digest if segment else None,
        "lag": dict(checkpoint.lag),
        "positions": {name: read_to for name, read_to in checkpoint.positions.items() if name != DRAINED},
        "spark": {"location": position.location, "batch": position.batch} if position else None,
        "delivers": [each.number for each in plan.segments] if plan else [],
        "reasons": list(plan.reasons) if plan else [],
        "participants": [
            {
                "name": each.name,
                "kind": each.kind,
                "strategy": each.strategy,
                "promise": each.promise.value,
                "predecessor": each.predecessor,
                "sinks": list(each.sinks),
                "attempt": vote.attempt if (vote := checkpoint.votes.get(each.name)) else None,
                "prepared": vote.prepared if vote else None,
                "proof": {"outcome": proof.outcome.value, "rows": dict(proof.counts)}
                if (proof := checkpoint.proof_of(each.name))
                else None,
                "last_error": _error(problem) if (problem := checkpoint.problem_of(each.name)) else None,
            }
            for each in checkpoint.participants
        ],
    }


def _error(problem: Failure) -> dict[str, Any]:
    """Return an error as plain data."""
    return {"class": problem.kind, "code": problem.code, "message": problem.message, "remedy": problem.remedy}


def _remedy(event: Event, pipeline: str) -> str:
    """Return what to do about a failed checkpoint, in the words of this release."""
    reason = event.detail.get("reason")
    if event.kind != CheckpointState.ABORTED or reason not in list(AbortReason):
        return ""
    return f"{'' if event.message.endswith('.') else '.'} {filled(AbortReason(reason).remedy, pipeline)}"


def _vote(vote: Any) -> str:
    text = f"voted yes (attempt {vote.prepared})" if vote.prepared else f"no vote yet (attempt {vote.attempt})"
    if vote.proof is not None:
        counts = ", ".join(f"{sink} {count:,}" for sink, count in vote.proof.counts.items())
        text += f"; proof of epoch {vote.proof.epoch}: {vote.proof.outcome}, {counts or 'no rows'}"
    return text
