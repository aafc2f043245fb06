"""The steps of a resolved pipeline. Airflow's tasks are shells over them, and so is `run`.

`connections` reads Airflow's connections in the way that the process has; `run` is the run as the core sees it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow_ft.pipeline import ready
from airflow_ft.pipeline.decision_log import store_url
from airflow_ft.pipeline.spark_connection import spark_master
from airflow_ft.protocol import steps
from airflow_ft.protocol.backpressure import retained_batches
from airflow_ft.protocol.errors import AirflowFtError, HaltError
from airflow_ft.protocol.model import CheckpointingMode, CheckpointState
from airflow_ft.protocol.numbers import MOST_LISTED, count_text
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.protocol.planning import live_plans, stranded
from airflow_ft.protocol.sharing import require_own_targets
from airflow_ft.sources import KafkaSource

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.clients.buckets import BucketSettings
    from airflow_ft.pipeline.actions.actor import Actor
    from airflow_ft.pipeline.resolved import DeliveryContext, ResolvedPipeline
    from airflow_ft.protocol.announced import Announcement
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.errors import AirflowFtError
    from airflow_ft.protocol.from_savepoint import FromSavepoint
    from airflow_ft.protocol.model import Checkpoint, RunKey, SparkPosition
    from airflow_ft.protocol.pipelines import Pipeline
    from airflow_ft.protocol.planning import Delivery
    from airflow_ft.protocol.recovery import Recovery
    from airflow_ft.sources import Source
    from airflow_ft.spark.request import StageRequest
    from airflow_ft.spark.task.launcher import Driver
    from airflow_ft.spark.task.stage import Beside, Staging
    from airflow_ft.store.decision_log import DecisionLog

log = logging.getLogger(__name__)
spark_log = logging.getLogger("airflow_ft.spark")


def rewind(run: steps.Context[DecisionLog], by: Actor, *, again: bool = False) -> None:
    """Rewind as `airflow ft rewind`, for a run that asks for it before its stage; later it does nothing.

    Raises what `recover` raises.

    Raises:
        StateConflictError: a decided checkpoint is undelivered.
    """
    from airflow_ft.pipeline.actions import pipelines

    run.store.register(run.pipeline)
    steps.require_active(run.store, run.pipeline)
    if not steps.take_turn(run, again=again):
        return
    row = run.store.run(run.pipeline, run.run)
    if row is not None and row.stage_began is not None:
        log.info("this run has already begun to stage, so it does not rewind again")
        return
    asked = replace(by, participants=run.participants, worker=run.worker, lease_seconds=run.lease_seconds)
    pipelines.rewind(asked, run.store, run.pipeline)


def recover(
    run: steps.Context[DecisionLog],
    savepoint: FromSavepoint | None,
    sources: Mapping[str, Source],
    wal_root: str,
    *,
    again: bool = False,
) -> Recovery:
    """Take the turn, settle checkpoints of earlier runs, and restore this run's savepoint once.

    Raises:
        TurnHeldError, LeaseHeldError: another process works on the pipeline. Also what a restore raises.
        StoreBehindSinkError: the decision log is older than its files.
    """
    from airflow_ft.wal import owners

    store, name = run.store, run.pipeline
    given = savepoint if savepoint is not None and savepoint.is_given else None
    is_active = store.register(name).status is PipelineStatus.ACTIVE
    if is_active and _must_look(run, restores=given is not None, again=again):
        # Before an epoch is taken. Else the stage looks, which knows the sinks that an adoption needs.
        owners.require_newest(store, wal_root, name)
    restore, renames = None, False
    if given is not None:
        restore, renames = partial(_restore, run, given, sources, wal_root), given.renames
    recovery = steps.recover_step(run, again=again, restore=restore, renames=renames)
    for number, state in recovery.settled:
        log.info("checkpoint %d was in doubt: it is %s now", number, state)
    return recovery


def _must_look(run: steps.Context[DecisionLog], *, restores: bool, again: bool) -> bool:
    """Return whether `recover` looks at the files itself: the stage may not, before rows are delivered.

    The stage of a run that has staged does not look, nor does that of a drained pipeline, nor a stream (`again`) that
    is stopped at once.
    """
    from airflow_ft.spark.state.draining import drain_of

    if drain_of(run.store, run.pipeline) is not None:
        return True
    row, opened = run.store.run(run.pipeline, run.run), run.store.open_checkpoints(run.pipeline)
    is_staged = row is not None and row.staged
    is_planned = any(each.plan is not None for each in opened)
    return bool(opened) and (restores or again or is_staged or is_planned or bool(stranded(opened)))


def _restore(
    run: steps.Context[DecisionLog], savepoint: FromSavepoint, sources: Mapping[str, Source], wal_root: str
) -> None:
    if savepoint.is_beginning:
        ready.require_beginnings(run.pipeline, sources)
    from airflow_ft.spark.savepoints.restoring import restore_once

    who = (run.pipeline, run.run, run.participants, run.worker)
    restore_once(run.store, savepoint, *who, wal_root=wal_root, lease_seconds=run.lease_seconds)


def stage(
    pipeline: ResolvedPipeline,
    run: steps.Context[DecisionLog],
    connections: ConnectionResolver,
    on_start: Callable[[Driver], None] = lambda _: None,
) -> dict[str, Any] | None:
    """Stages what is new, once in a run; None: it has been staged before."""
    from airflow_ft.spark.task.stage import stage_step

    overlap = delivering(pipeline, connections) if pipeline.overlap else None
    result = stage_step(run, staging(pipeline, run, connections, on_start), overlap)
    return None if result is None else {**result.published.to_json(), "rows": dict(result.rows)}


def staging(
    pipeline: ResolvedPipeline,
    run: steps.Context[DecisionLog],
    connections: ConnectionResolver,
    on_start: Callable[[Driver], None],
) -> Staging:
    """Return the dependencies of each stage."""
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    from airflow_ft.protocol.noting import warn
    from airflow_ft.sinks.fitting import schema_problems
    from airflow_ft.spark.task.stage import Staging

    participants, config = pipeline.plan.participants, pipeline.checkpointing

    def make(before: Pipeline, epoch: int, attempt: int) -> StageRequest:
        # Again: it may have gone away since, and a stream begins many attempts.
        ready.require_log(pipeline.pipeline, pipeline.wal_root, run.store)
        return request(pipeline, run.run, before, epoch, attempt, connections)

    def preflight() -> None:
        from airflow_ft.wal import owners

        ready.require_log(pipeline.pipeline, pipeline.wal_root, run.store)
        owners.require_newest(run.store, pipeline.wal_root, pipeline.pipeline, participants)
        ready.require_sources(pipeline.pipeline, pipeline.sources, connections, pipeline.spark)
        former = run.store.pipeline(run.pipeline).former
        try:
            ready.require_ready(
                pipeline.pipeline, participants, connections, former, run.participants, run.store.installation
            )
        except HaltError as error:  # no plan names the sinks yet, of which an adoption must know
            headline, code, remedy = error.headline, error.code, error.remedy
            run.store.halt(run.pipeline, error.reason, headline, code=code, remedy=remedy, participants=participants)
            raise
        require_own_targets(run.store, run.pipeline, participants, run.participants, staged=False)

    def judge(schemas: Mapping[str, pa.Schema]) -> Sequence[AirflowFtError]:
        return schema_problems(participants, connections, schemas, partial(warn, run.store, run.pipeline))

    return Staging(
        make_request=make,
        on_line=spark_log.info,
        on_start=on_start,
        # Hides what Airflow knows to be secret, wherever Jinja has put it.
        spec=cast("dict[str, Any]", redact(pipeline.stored)),
        preflight=preflight,
        judge=judge,
        # AT_MOST_ONCE continues nothing, so no row is delivered twice.
        resume_drained=config.resume_drained or config.mode is CheckpointingMode.AT_MOST_ONCE,
    )


def delivering(pipeline: ResolvedPipeline, connections: ConnectionResolver) -> Beside:
    """Return what a delivery beside the stage needs."""
    from airflow_ft.sources.progress import GroupOffsets
    from airflow_ft.wal.retention import WalArchive

    progress = GroupOffsets(pipeline.sources, connections)
    return pipeline.plan, pipeline.checkpointing, progress, WalArchive(pipeline.wal_root)


def request(
    pipeline: ResolvedPipeline, run: RunKey, before: Pipeline, epoch: int, attempt: int, connections: ConnectionResolver
) -> StageRequest:
    """Return the request for the Spark driver; it holds credentials of sources and of the decision log, none of sinks.

    `before` is the pipeline's row as this attempt finds it. Checks the sources' connections here, since Spark takes its
    time to start.

    Raises:
        SinkAccessError, ConfigurationError: a source cannot be read with its connection.
    """
    from airflow_ft.spark.request import StageRequest
    from airflow_ft.spark.state.locations import behind_the_beginning
    from airflow_ft.spark.state.settings import keep_configured

    sources, spark = pipeline.sources, pipeline.spark
    users = {source.conn_id: source for source in sources.values() if source.conn_id}
    try:
        found = {
            conn_id: source.connection(connections) if isinstance(source, KafkaSource) else connections(conn_id)
            for conn_id, source in sorted(users.items())
        }
        for source in sources.values():
            if isinstance(source, KafkaSource):
                source.reader_options(found[source.conn_id])
        master = spark_master(spark.master, connections)
    except AirflowFtError as error:
        raise error.located(pipeline=pipeline.pipeline) from error.__cause__
    if before.base is not None and behind_the_beginning(before.base) is None:
        ready.require_beginnings(pipeline.pipeline, sources)
    return StageRequest(
        pipeline=pipeline.pipeline,
        run=run,
        epoch=epoch,
        attempt=attempt,
        base=before.base,
        base_is_clean=before.base_is_clean,
        last_published=before.last_published,
        store_url=store_url(pipeline.store, connections),
        wal_root=pipeline.wal_root,
        job=pipeline.job,
        job_arguments=pipeline.job_args,
        sources={name: source.to_json() for name, source in sources.items()},
        connections=found,
        sinks=pipeline.required_sinks,
        optional_sinks=pipeline.optional_sinks,
        dead_letters=pipeline.dead_letters,
        packages=spark.packages,
        checkpointing=pipeline.checkpointing,
        streaming=pipeline.streaming,
        retained_batches=retained_batches(pipeline.checkpointing, streaming=pipeline.streaming),
        restart=None if pipeline.restart is None else pipeline.restart.to_json(),
        master=master,
        conf=keep_configured(pipeline.pipeline, before.base, spark.conf, spark.configured),
        jars=spark.jars,
        python_path=_python_path(),
        keep_session=spark.keep_session.total_seconds(),
        standby=spark.standby,
        buckets=[each.to_json() for each in _buckets(pipeline.wal_root, before.base)],
    )


def _buckets(root: str, base: SparkPosition | None) -> list[BucketSettings]:
    """Return the settings for buckets of the log: of this one, and of that where the last run worked."""
    from airflow_ft.clients.buckets import BucketPlace, is_bucket, renew

    places = [BucketPlace.of(uri) for uri in (root, base.location if base else "") if is_bucket(uri)]
    return [renew(place) for place in {place.conn_id: place for place in places}.values()]


def announce(
    run: steps.Context[DecisionLog], delivery: DeliveryContext, plan: Delivery, participant: str
) -> Announcement | None:
    """Plans what is staged, and begins an attempt whose branches other processes load; None: there is none."""
    ready.require_root(delivery.wal_root)
    return steps.announce_step(run, plan, delivery.checkpointing, participant)


def prepare(
    run: steps.Context[DecisionLog],
    delivery: DeliveryContext,
    plan: Delivery,
    participant: str,
    announced: Announcement | None = None,
) -> Sequence[Checkpoint]:
    """Plans what is staged, and asks one participant for its vote; a refusal aborts and rewinds."""
    ready.require_root(delivery.wal_root)
    return steps.prepare_step(run, plan, delivery.checkpointing, participant, announced)


def log_plan(plan: Delivery) -> None:
    """Log why the sinks are delivered in this order."""
    for reason in plan.reasons:
        log.info("plan: %s", reason)


def commit(run: steps.Context[DecisionLog], participant: str, restores: bool) -> list[int]:
    """Make one participant's rows visible. Returns the newest proven numbers; none: there was nothing to deliver.

    `restores`: the run names a savepoint, valid or not. While it has not restored that, it decides nothing: the restore
    aborts what is undecided.
    """
    committed = steps.commit_step(run, participant, only_decided=restores and _waits(run))
    numbers: Sequence[int] = [each.number for each in committed if each.proof_of(participant) is not None]  # I6
    if not numbers:  # another try, or recover, or an overlapping stage may have committed this run's numbers before
        numbers = run.store.proven(run.pipeline, run.run, participant, MOST_LISTED)
    return list(numbers[-MOST_LISTED:])


def undecided(run: steps.Context[DecisionLog]) -> str:
    """Return why some rows of the run are not decided yet, so that no commit can deliver them; "": all are decided."""
    row = run.store.run(run.pipeline, run.run)
    if row is None or not row.staged:
        return "the stage of this run has not finished"
    plans = live_plans(run.store.open_checkpoints(run.pipeline))  # read first: a plan that ends meanwhile is settled
    decided = [c for c in plans if c.state is CheckpointState.COMMITTING]
    covered = {c.number for c in decided} | {s.number for c in decided if c.plan for s in c.plan.segments}
    first = next((c for c in run.unsettled(sys.maxsize) if c.number not in covered), None)
    return "" if first is None else f"checkpoint {first.number} is {first.state} and not decided yet"


def _waits(run: steps.Context[DecisionLog]) -> bool:
    """Return whether a run that names a savepoint still has to restore it."""
    run.store.register(run.pipeline)
    row = run.store.run(run.pipeline, run.run)
    return row is None or not row.restored_from


def confirm(
    run: steps.Context[DecisionLog],
    delivery: DeliveryContext,
    sources: Mapping[str, Source],
    connections: ConnectionResolver,
    restores: bool,
) -> steps.Confirmation:
    """Confirms on proof alone, retains and prunes; NotDeliveredError says which numbers are not, and why.

    `restores`: the run names a savepoint, valid or not. While it has not restored that, it quarantines nothing: its
    `commit` did not try to deliver.
    """
    from airflow_ft.sources.progress import GroupOffsets
    from airflow_ft.wal.retention import WalArchive

    config = delivery.checkpointing
    if restores and _waits(run):
        config = replace(config, quarantine_after=None)
    archive, progress = WalArchive(delivery.wal_root), GroupOffsets(sources, connections)
    return steps.confirm_step(run, config, archive, progress)


def report_confirmed(confirmation: steps.Confirmation) -> dict[str, Any]:
    """Log what was confirmed, and return it as plain data."""
    confirmed = confirmation.confirmed
    if confirmed.numbers.count:
        log.info("confirmed in this run: checkpoints %s (%s)", confirmed.numbers, count_text(confirmed.rows, "row"))
        if confirmed.recovered.count:
            rows = count_text(confirmed.recovered_rows, "row")
            log.info("of these, earlier runs computed: checkpoints %s (%s)", confirmed.recovered, rows)
    else:
        log.info(
            "no rows are counted in this run: it computed none, or another run counts them; the newest confirmed"
            " checkpoint of the pipeline is %s",
            confirmation.latest or "none",
        )
    for sink, aside in confirmed.set_aside.items():
        log.warning("confirmed, but not with all rows: %s", aside.text(sink))
    return {**confirmed.to_json(), "latest": confirmation.latest}


def _python_path() -> tuple[str, ...]:
    """Return what is on this process's path besides the interpreter's own folders.

    The job usually lies beside the DAG, in a folder that Airflow has put there; or in the working directory ("").
    """
    from airflow_ft.spark.session.home import added_folders

    return tuple(added_folders([path or str(Path.cwd()) for path in sys.path]))
