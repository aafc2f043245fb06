"""The steps of a run, each safe to repeat: what the Airflow tasks are shells over, and what plain PySpark can call.

    recover -> (stage, in airflow_ft.spark) -> prepare per participant -> commit in the plan's order -> confirm

A run has the turn from its `recover` to its `confirm`. The turn is politeness: it keeps two runs of one DAG from
fencing each other; safety rests on epochs and attempts alone (I5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from airflow_ft.protocol.announced import Announcement
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.confirmed import Confirmed
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.delivery_log import RunLog
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    NotDeliveredError,
    QuarantinedError,
    TurnHeldError,
    require_runnable,
)
from airflow_ft.protocol.lease import LEASE_SECONDS, Worker, joined_epoch, new_epoch
from airflow_ft.protocol.model import Checkpoint, CheckpointState, RunKey
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.planning import Delivery, free_segments, live_plans, quarantined, unplanned
from airflow_ft.protocol.recovery import Recovery, recover
from airflow_ft.protocol.retention import Progress, retain
from airflow_ft.protocol.unresolved import quarantine_unresolved
from airflow_ft.protocol.write_ahead_log import Archive

log = logging.getLogger(__name__)
LogT = TypeVar("LogT", bound=RunLog, covariant=True)

PROBLEMS = 20  # most undelivered numbers of a run that are named one by one
CLEAR_FAILED = "Read the log of the task that failed first. Clear the run's failed tasks, or let the next run deliver."
CLEAR_STAGE = (
    "Read the log of the task that failed first. Clear that task, the stage and all tasks after the stage, or let the"
    " next run deliver."
)


@dataclass(frozen=True, slots=True)
class Context(Generic[LogT]):
    """One run of one pipeline, and the dependencies of its steps.

    `run_is_over` returns whether no task of another run works, so that this run may take its turn (not RUNNING).
    `is_own_stage` returns whether the task that staged this run is the stage of this step (None: it must be).
    """

    store: LogT
    pipeline: str
    run: RunKey
    participants: ParticipantFactory
    worker: Worker
    interval_end: datetime | None = None
    lease_seconds: float = LEASE_SECONDS
    run_is_over: Callable[[RunKey], bool] = lambda _: False
    is_own_stage: Callable[[str], bool] | None = None

    def unsettled(self, limit: int = 1) -> Sequence[Checkpoint]:
        """Return the first numbers of this run that are not settled.

        A run that has staged waits for all that was published when its stage ended: it may have found some of its input
        published by others (I9).
        """
        store, pipeline = self.store, self.pipeline
        if left := store.unsettled(pipeline, run=self.run, limit=limit):
            return left
        own, row = store.run(pipeline, self.run), store.pipeline(pipeline)
        if own is not None and own.staged:
            return store.unsettled(pipeline, through=own.through, limit=limit)
        if row.turn not in (None, self.run) or store.last_published(pipeline, self.run):
            return ()
        return store.unsettled(pipeline, through=row.last_published, limit=limit)

    def is_finished(self) -> bool:
        """This run has staged, and all its numbers are settled: read before you take (a cleared, old run)."""
        row = self.store.run(self.pipeline, self.run)
        if row is None or not row.staged or self.unsettled():
            return False
        # Read before and after: a rewind in between has set aside numbers that seem to be settled, and the stage's end.
        return self.store.run(self.pipeline, self.run) == row


def require_active(store: QueryLog, pipeline: str) -> None:
    """PipelineHaltedError or QuarantinedError while nothing may be staged or delivered: why, and the way out.

    NewerReleaseError where only a newer release knows why.
    """
    require_runnable(store.pipeline(pipeline))
    for checkpoint in quarantined(store.open_checkpoints(pipeline)):
        what = f"it is QUARANTINED: {checkpoint.message}"
        remedy = f"Run `airflow ft in-doubt --pipeline {pipeline}`: it shows what each sink has and what to do."
        raise QuarantinedError(what, remedy=remedy, pipeline=pipeline, checkpoint=checkpoint.number)


def require_own_stage(context: Context[RunLog]) -> None:
    """ConfigurationError when another task has staged this run: two in one DAG run have rendered the same pipeline.

    The second would find the run staged, compute nothing, and confirm what the first one has delivered.
    """
    if context.is_own_stage is None:
        return
    row = context.store.run(context.pipeline, context.run)
    if row is not None and row.stage_task and not context.is_own_stage(row.stage_task):
        raise ConfigurationError(
            f"{row.stage_task} has staged this pipeline in the same DAG run, so"
            f" {context.worker.task or 'this process'} computed nothing.",
            code="pipeline_twice_in_run",
            remedy="Give each group of the DAG its own pipeline name. Put the other steps of a pipeline before and"
            " after its stage.",
            pipeline=context.pipeline,
            task=row.stage_task,
        )


def take_turn(context: Context[RunLog], *, again: bool = False) -> bool:
    """True: this run has the turn. False: it needs none, since all that it staged is settled (and it is not `again`).

    TurnHeldError when another run that can still continue has it.
    """
    store, pipeline, run = context.store, context.pipeline, context.run
    if store.register(pipeline).turn == run:
        return True
    if not again and context.is_finished():
        return False
    holder = store.enter_turn(pipeline, run, context.interval_end)
    if holder != run and context.run_is_over(holder):
        log.info("run %s is not confirmed, and none of its tasks works now: this run takes its turn", holder)
        holder = store.enter_turn(pipeline, run, context.interval_end, ended=[holder])
    if holder != run:
        what = f"run {holder} works on the pipeline."
        remedy = "Do nothing: this run continues when that one has ended."
        if holder.dag_id != run.dag_id and not holder.is_plain:  # Airflow ends no run of a DAG that is paused or gone
            remedy += f" If the DAG {holder.dag_id} is paused, unpause it or mark the run as failed."
            remedy += f" If the DAG was renamed or removed, run `airflow ft retire {pipeline}`."
        raise TurnHeldError(what, holder=holder, pipeline=pipeline, remedy=remedy)
    return True


def recover_step(
    context: Context[RunLog],
    *,
    again: bool = False,
    restore: Callable[[], object] | None = None,
    renames: bool = False,
) -> Recovery:
    """Take the turn and settle numbers of earlier runs. Does nothing for a finished run, unless it runs `again`.

    `restore` restores this run's savepoint. That aborts undecided numbers, so they are not delivered before.
    `renames`: it renames another pipeline to this one, whose name may have been taken back before.
    """
    store, pipeline = context.store, context.pipeline
    row = store.register(pipeline)
    if not (renames and row.was_taken_back):
        require_active(store, pipeline)
    require_own_stage(context)
    if not take_turn(context, again=again):
        log.info("run %s is finished: all its checkpoints are settled, so there is nothing to do", context.run)
        return Recovery()
    who, lease = (store, pipeline, context.participants, context.worker), context.lease_seconds
    before = Recovery()
    if restore is not None:
        before = recover(*who, only_decided=True, lease_seconds=lease)
        restore()
        require_active(store, pipeline)
    after = recover(*who, run=context.run, lease_seconds=lease)
    return Recovery((*before.settled, *after.settled))


@contextmanager
def delivering(context: Context[RunLog]) -> Iterator[Coordinator]:
    """A coordinator with the epoch that the run's delivery tasks share.

    When that epoch is fenced, the first try reads and gives up; a new try takes an epoch for the run (if the leases
    are free), as recover would.
    """
    store, pipeline, worker = context.store, context.pipeline, context.worker
    row = store.run(pipeline, context.run)
    epoch = row.epoch if row else 0
    with ExitStack() as stack:
        try:
            keeper = stack.enter_context(joined_epoch(store, pipeline, epoch, worker, context.lease_seconds))
        except FencedError as error:
            if epoch and worker.try_number == 1:
                raise
            log.info("the epoch of this run is fenced (%s): this try takes a new epoch", error.what)
            why = f"{worker.task or 'a process'} after FENCED"
            epoch, keeper = stack.enter_context(new_epoch(store, pipeline, worker, why, context.lease_seconds))
            store.adopt_run(pipeline, epoch, context.run)
        yield stack.enter_context(closing(Coordinator(store, pipeline, epoch, context.participants)))
        keeper.check()


@contextmanager
def _forgiving(context: Context[RunLog]) -> Iterator[None]:
    """Read the state again when FENCED. It is no failure if another process has finished this run's checkpoints."""
    try:
        yield
    except FencedError as error:
        if not context.is_finished():
            raise
        log.info("%s All checkpoints of this run are settled, so nothing is left to do", error.what)


def has_work(context: Context[RunLog]) -> bool:
    """Return whether anything staged or planned waits for delivery."""
    checkpoints = context.store.open_checkpoints(context.pipeline)
    return bool(live_plans(checkpoints) or free_segments(checkpoints) or unplanned(checkpoints))


def announce_step(
    context: Context[RunLog], delivery: Delivery, config: CheckpointConfig, participant: str
) -> Announcement | None:
    """Plan staged numbers, and announce the one with the most rows; earlier ones are prepared first.

    A head names one attempt, so one number can be announced. None: `prepare_step` has nothing to continue.
    """
    require_active(context.store, context.pipeline)
    require_own_stage(context)
    if not take_turn(context) or not has_work(context):
        log.info("no staged rows wait for delivery")
        return None
    with _forgiving(context), delivering(context) as coordinator:
        numbers = coordinator.plan(delivery, config.max_delivery_rows)
        largest = max(numbers, key=lambda number: _rows(context, number, participant), default=0)
        for number in numbers:
            if number == largest:
                return coordinator.announce(number, participant)
            coordinator.prepare(number, participant)
    return None


def _rows(context: Context[RunLog], number: int, participant: str) -> int:
    plan = context.store.checkpoint(context.pipeline, number).plan
    if plan is None or participant not in plan.names:
        return 0
    return sum(segment.rows.get(sink, 0) for segment in plan.segments for sink in plan.participant(participant).sinks)


def load_step(context: Context[RunLog], announced: Announcement, branch: str) -> bool:
    """Store one branch of an announced attempt, under its epoch; False: the attempt no longer holds, or was fenced.

    Never takes an epoch or a turn: an epoch of its own would end the announcement. Retries would be fenced again.
    """
    require_active(context.store, context.pipeline)
    if not announced.holds(context.store.checkpoint(context.pipeline, announced.number), announced.epoch):
        return False
    store, pipeline, epoch = context.store, context.pipeline, announced.epoch
    try:
        with (
            joined_epoch(store, pipeline, epoch, context.worker, context.lease_seconds) as keeper,
            closing(Coordinator(store, pipeline, epoch, context.participants)) as coordinator,
        ):
            loaded = coordinator.load(announced, branch)
            keeper.check()
            return loaded
    except FencedError as error:
        log.info("branch %s is left to a newer attempt: %s", branch, error.what)
        return False


def prepare_step(
    context: Context[RunLog],
    delivery: Delivery,
    config: CheckpointConfig,
    participant: str,
    announced: Announcement | None = None,
) -> Sequence[Checkpoint]:
    """Plan staged numbers and request one participant's vote on each; returns their new state.

    `announced`: the attempt whose branches other processes have loaded.
    """
    require_active(context.store, context.pipeline)
    require_own_stage(context)
    if not take_turn(context) or not has_work(context):
        log.info("no staged rows wait for delivery")
        return []
    prepared: dict[int, Checkpoint] = {}
    with _forgiving(context), delivering(context) as coordinator:
        numbers = coordinator.plan(delivery, config.max_delivery_rows)
        if announced is not None and announced.number in numbers:  # first: an attempt at another one raises the head
            prepared[announced.number] = coordinator.prepare(announced.number, participant, announced=announced)
        for number in numbers:
            if number not in prepared:
                prepared[number] = coordinator.prepare(number, participant)
    return [prepared[number] for number in sorted(prepared)]


def commit_step(context: Context[RunLog], participant: str, *, only_decided: bool = False) -> Sequence[Checkpoint]:
    """Delivers one participant's part of every number that is decided, or that it decides; in order.

    `only_decided`: it decides none.
    """
    context.store.register(context.pipeline)  # the task runs also where nothing before it did
    require_active(context.store, context.pipeline)
    require_own_stage(context)
    waiting = [
        c.number
        for c in live_plans(context.store.open_checkpoints(context.pipeline))
        if c.state is CheckpointState.COMMITTING or (c.state is not CheckpointState.STAGED and not only_decided)
    ]
    if not take_turn(context) or not waiting:
        log.info("no decided checkpoint waits for %s", participant)
        return []
    committed: list[Checkpoint] = []
    with _forgiving(context), delivering(context) as coordinator:
        for number in waiting:
            committed.append(coordinator.commit(number, participant))
    return committed


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Result of `confirm`: what the run counts as confirmed (`RunLog.counted`), and the pipeline's newest confirmed
    number (0: none).
    """

    confirmed: Confirmed
    latest: int


def confirm_step(
    context: Context[RunLog],
    config: CheckpointConfig,
    archive: Archive,
    progress: Progress = lambda _: None,
    *,
    counts: bool = True,
) -> Confirmation:
    """Succeeds when every published number of the run is confirmed (I9), then finalises, retains, gives the turn back.

    NotDeliveredError names each number that is not, its state and what to do. The turn is given back in any case.
    `counts`: see `RunLog.leave_turn`.
    """
    store, pipeline = context.store, context.pipeline
    store.register(pipeline)
    require_own_stage(context)
    try:
        problems, left, is_staged = _confirmed_or_why(context, config, archive, progress)
    except BaseException:
        with suppress(AirflowFtError):  # the decision log may be what is away: then a later run finds this one over
            store.leave_turn(pipeline, context.run)
        raise
    store.leave_turn(pipeline, context.run, confirmed=not problems, counts=counts)
    if problems:
        raise NotDeliveredError(
            "; ".join(problems) + ".",
            code=NotDeliveredError.code if left else "stage_unfinished",
            remedy=CLEAR_FAILED if is_staged else CLEAR_STAGE,
            pipeline=pipeline,
            open={checkpoint.number: checkpoint.state.value for checkpoint in left},
        )
    latest = store.latest_confirmed(pipeline)
    return Confirmation(store.counted(pipeline, context.run), latest.number if latest else 0)


def _confirmed_or_why(
    context: Context[RunLog], config: CheckpointConfig, archive: Archive, progress: Progress
) -> tuple[list[str], list[Checkpoint], bool]:
    """Retain; return why the run is not confirmed ([]: it is), its first open checkpoints, and whether it is staged."""
    store, pipeline = context.store, context.pipeline
    quarantine_unresolved(store, pipeline, context.participants, config.quarantine_after)
    row = store.run(pipeline, context.run)
    left = list(context.unsettled(PROBLEMS + 1))
    problems = [*map(_problem, left[:PROBLEMS]), *(["and others"] if len(left) > PROBLEMS else [])]
    # Read before and after (I9): a rewind in between sets aside numbers that seem to be settled, and the stage's end.
    is_staged = row is not None and row.staged and store.run(pipeline, context.run) == row
    if not is_staged:
        newest = store.run_checkpoints(pipeline, context.run, PROBLEMS)
        why = next((c for c in reversed(newest) if c.message), None)
        problems.append(
            "the stage of this run has not finished"
            + (f" (checkpoint {why.number} {why.state}: {why.message})" if why else "")
        )
    retain(store, pipeline, config, context.participants, archive, progress)
    return problems, left, is_staged


def _problem(checkpoint: Checkpoint) -> str:
    text = f"checkpoint {checkpoint.number} is {checkpoint.state}"
    if checkpoint.reason is not None:
        text += f" ({checkpoint.reason}: {checkpoint.message} {checkpoint.reason.explanation})"
    waiting = [name for name, vote in checkpoint.votes.items() if vote.proof is None]
    if checkpoint.state is CheckpointState.COMMITTING and waiting:
        text += f", waiting for {', '.join(sorted(waiting))}"
    if checkpoint.state is CheckpointState.QUARANTINED:
        text += f" ({checkpoint.message} `airflow ft in-doubt` shows how to settle it)"
    return text
