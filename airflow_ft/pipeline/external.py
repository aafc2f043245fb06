"""The stage of rows that a program of the author has computed: sealed, and published as one checkpoint.

What if the process dies ...
- before it publishes: the files belong to no one and are swept later. The next attempt seals the rows again, in a
  folder of its own.
- after it published: the decision log knows the position, so the next attempt publishes nothing.
- after it published some kept rows of later positions again (`_publish_kept`): the next attempt does the rest.
An older process beside its successor holds an older epoch, so its publication is refused (I5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_ft.pipeline import ready
from airflow_ft.pipeline import steps as pipeline_steps
from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    SealError,
    StageError,
    StorageUnavailableError,
    together,
)
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.position import Position, PositionKind, is_kept

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_ft.pipeline.resolved import ResolvedPipeline
    from airflow_ft.protocol.connections import ConnectionResolver
    from airflow_ft.protocol.model import Checkpoint, Segment
    from airflow_ft.store.decision_log import DecisionLog
    from airflow_ft.wal.incoming import Rows
    from airflow_ft.wal.writer import SegmentFolder

log = logging.getLogger(__name__)

Open = Callable[["SegmentFolder"], Mapping[str, "Rows"]]
"""Opens the rows by sink. The folder is that of the segment: files for a moment go beside it."""


@dataclass(frozen=True, slots=True)
class Published:
    """The checkpoint of a position. `is_repeated`: an earlier run has published it."""

    number: int
    is_repeated: bool


def stage(
    pipeline: ResolvedPipeline,
    run: steps.Context[DecisionLog],
    connections: ConnectionResolver,
    position: Position,
    open_rows: Open,
    columns: Callable[[], Mapping[str, pa.Schema]] = dict,
) -> Published:
    """Publish the rows of a position as one checkpoint, unless it is published.

    The error for a table that is missing has a statement that creates it, for these `columns` by sink.

    Raises:
        ConfigurationError: the position is older than the last one or of another kind, or leaves out one that was
            rewound; or the pipeline has checkpoints of a Spark job.
        ExternalRowsError: the rows cannot be read, or no sink can store them.
        UnfitTargetError, JobError: a sink would refuse them.
        TurnHeldError: another run has the turn.
        FencedError: another process took over.
    """
    from airflow_ft.spark.task.stage import look_first

    store, name = run.store, pipeline.pipeline
    store.register(name)
    steps.require_active(store, name)
    steps.require_own_stage(run)
    row = store.run(name, run.run)
    if (row is not None and row.staged) or not steps.take_turn(run):
        found = store.published_at(name, position.to_json())
        if found is None:
            raise _other_position(name, position)
        return _published(found, position, run)
    staging = replace(pipeline_steps.staging(pipeline, run, connections, lambda _: None), resume_drained=True)
    assert staging.spec is not None and staging.judge is not None
    try:
        look_first(run, staging)
    except AirflowFtError as error:
        _propose(error, pipeline, connections, columns)
        raise
    with _attempt(run, staging.spec) as (epoch, attempt):
        _publish_kept(store, name, epoch)
        if (found := store.published_at(name, position.to_json())) is not None:
            return _published(found, position, run)
        _require_next(store, name, position)
        published = _publish(pipeline, run, epoch, attempt, position, open_rows, staging.judge)
        try:
            _publish_kept(store, name, epoch)
        except StorageUnavailableError as error:  # these rows are published all the same
            log.warning("kept rows of later positions wait for the next stage: %s", error)
        return Published(published, False)


def _propose(
    error: AirflowFtError,
    pipeline: ResolvedPipeline,
    connections: ConnectionResolver,
    columns: Callable[[], Mapping[str, pa.Schema]],
) -> None:
    """Put statements for missing tables into the error. `airflow ft setup` cannot: the rows come with this run."""
    from airflow_ft.sinks.proposals import proposed, shown_below

    several = {"codes", "sinks"} <= error.fields.keys()
    found = zip(error.fields["codes"], error.fields["sinks"], strict=True) if several else [(error.code, error.sink)]
    lacking = [sink for code, sink in found if code == "table_missing"]
    if not lacking:
        return
    asked = [plan for plan in pipeline.plan.participants if error.participant in ("", plan.name)]
    try:
        known = columns()
        statements = {
            sink: lines
            for plan in asked
            for sink in (plan.sinks if "" in lacking else lacking)
            if (lines := proposed(plan, connections, known, [sink]))
        }
    except Exception:  # the run's own error counts
        log.debug("no statement can be proposed:", exc_info=True)
        return
    if statements:
        error.what, error.remedy = map(shown_below, (error.what, error.remedy))
        for sink, lines in statements.items():
            lines = [f"-- sink {sink}:", *lines] if len(statements) > 1 else lines
            error.remedy += "".join(f"\n{line}" for line in lines)
        error.located(pipeline=pipeline.pipeline)


def _published(found: Checkpoint, position: Position, run: steps.Context[DecisionLog]) -> Published:
    log.info(
        "position %s is checkpoint %d of %s: its rows are delivered once, so nothing is published again",
        position,
        found.number,
        found.run or "another run",
    )
    return Published(found.number, found.run != run.run)


@contextmanager
def _attempt(run: steps.Context[DecisionLog], spec: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """An epoch and an attempt for the stage of a run, which ends with the block."""
    from airflow_ft.spark.task.stage import give_up

    store, name = run.store, run.pipeline
    with new_epoch(store, name, run.worker, f"stage of {run.run}", run.lease_seconds) as (epoch, keeper):
        steps.require_own_stage(run)
        attempt = store.begin_stage(name, epoch, run.run, run.worker.task, spec)
        try:
            yield epoch, attempt
        except AirflowFtError as error:
            give_up(run, epoch, error, error.abort_reason)
            raise
        except Exception as error:  # of another package: its text may hold a secret
            known = StageError(f"the stage ended with a {type(error).__name__}.", code="stage_failed")
            give_up(run, epoch, known, known.abort_reason)
            raise
        keeper.check()
        # Not complete: when these rows were read is not known here. An interval says it with its end (`as_of`).
        store.end_stage(name, epoch, run.run, None, complete=False)


def _publish_kept(store: DecisionLog, pipeline: str, epoch: int) -> None:
    """Publish again what was rewound with a refused position, up to a position that its author must give again.

    The files stay where they are: only the number is new. Each number is published by one write. If the process dies
    between two, the next stage continues.
    """
    for left in store.rewound_positions(pipeline):
        position, segment = Position.stored(left), left.segment
        if not is_kept(left) or position is None or segment is None or not _is_there(segment):
            return
        number = store.trigger(pipeline, epoch, left.run)
        before = store.pipeline(pipeline).last_published
        segment = replace(segment, number=number)
        store.publish(pipeline, epoch, number, before, segment, None, position.to_json(), as_of=position.as_of)
        log.info("checkpoint %d published: position %s, as checkpoint %d had its rows", number, position, left.number)


def _is_there(segment: Segment) -> bool:
    """Return whether a segment has its manifest. If the disk is away, raise StorageUnavailableError."""
    from airflow_ft.wal import roots
    from airflow_ft.wal.filesystem import filesystem
    from airflow_ft.wal.manifest import MANIFEST

    roots.require(segment.location)
    files = filesystem(segment.location)
    return files.exists(files.uri(segment.location, MANIFEST))


def _require_next(store: DecisionLog, pipeline: str, position: Position) -> None:
    """Raise ConfigurationError for a position that cannot follow those that are published (I10)."""
    left = store.rewound_position(pipeline)
    skipped = Position.stored(left)
    if left is not None and skipped is not None and skipped != position:
        raise _skipped(pipeline, position, left, skipped, skipped)
    newest = store.newest_position(pipeline)
    last = Position.stored(newest)
    if store.pipeline(pipeline).base is not None or (newest is not None and last is None):
        raise ConfigurationError(
            "the checkpoints of this pipeline come from a Spark job.",
            code="pipeline_of_a_job",
            remedy="Give rows of other programs their own pipeline name.",
            pipeline=pipeline,
        )
    if last is not None:
        position.require_after(last, pipeline)
    for tried in store.unpublished_positions(pipeline):
        skipped = Position.stored(tried)
        if skipped is not None and position.skips(skipped, last):
            raise _skipped(pipeline, position, tried, skipped, skipped.before(position))
    if last is not None and position.is_gap_after(last):
        log.warning(
            "position %s begins after the end of the last one, %s: no run delivers the rows between them",
            position,
            last,
        )


def _publish(
    pipeline: ResolvedPipeline,
    run: steps.Context[DecisionLog],
    epoch: int,
    attempt: int,
    position: Position,
    open_rows: Open,
    judge: Callable[[Mapping[str, pa.Schema]], Any],
) -> int:
    from airflow_ft.wal import owners, roots
    from airflow_ft.wal.incoming import write_rows
    from airflow_ft.wal.manifest import MANIFEST
    from airflow_ft.wal.writer import SegmentFolder

    store, name = run.store, pipeline.pipeline
    ready.require_log(name, pipeline.wal_root, store)  # `look_first` leaves it out while a plan waits
    if shared_with := owners.register(store, pipeline.wal_root, name):
        log.warning("%s %s", shared_with, owners.REMEDY)
    folder = SegmentFolder(pipeline.wal_root, name, epoch, attempt, 0)
    before = store.pipeline(name)
    # From here on a position that fails is known, and is not skipped (I10). Text has no order, so it skips none.
    known = None if position.kind is PositionKind.NAME else position.to_json()
    number = store.trigger(name, epoch, run.run, positions=known)
    rows = open_rows(folder)
    if problems := judge({sink: each.schema for sink, each in rows.items()}):
        error = together(problems)
        error.remedy += " Nothing was published."
        raise error.located(pipeline=name)
    try:
        write_rows(folder, rows)
        segment = folder.seal(number, dict.fromkeys(rows, True), position.to_json())
    except AirflowFtError:
        raise
    except OSError as error:
        raise roots.away(pipeline.wal_root) or SealError(
            f"its files could not be written: {error.strerror or error}.",
            pipeline=name,
            checkpoint=number,
            remedy="Check whether the disk of wal_root is full or unreachable. Nothing was published: the next attempt"
            " writes the rows again.",
        ) from error
    try:
        folder.files.remove_tree(folder.beside)
    except (AirflowFtError, OSError) as error:  # such as a late task of Spark, which writes there
        log.warning("%s is not needed and could not be deleted (a later sweep tries again): %s", folder.beside, error)
    roots.require_files(segment.location, [(MANIFEST, None)])
    # One conditional write. Refused or unanswered: it is not repeated (I5). The next attempt finds the position or not.
    store.publish(name, epoch, number, before.last_published, segment, None, position.to_json(), as_of=position.as_of)
    each = ", ".join(f"{sink} {count:,}" for sink, count in segment.rows.items())
    log.info(
        "checkpoint %d published: position %s, %s (%s)", number, position, count_text(segment.total_rows, "row"), each
    )
    return number


def _skipped(
    pipeline: str, position: Position, left: Checkpoint, skipped: Position, empty: Position
) -> ConfigurationError:
    """`empty`: without rows, it leaves out those of `skipped`, and `position` can follow."""
    why = f" ({left.message})" if left.message else ""
    return ConfigurationError(
        f"position {skipped} comes first: checkpoint {left.number} was to deliver its rows, and did not{why}.",
        code="position_skipped",
        remedy="Give that position again, with rows that its sinks take. To leave its rows out, give the position"
        f" {empty} with a table that has no rows.",
        pipeline=pipeline,
        position=position.value,
        skipped=skipped.value,
        empty=empty.value,
    )


def _other_position(pipeline: str, position: Position) -> ConfigurationError:
    return ConfigurationError(
        f"this run has staged another position than {position}.",
        code="position_of_another_run",
        remedy="Trigger a new DAG run for other rows.",
        pipeline=pipeline,
        position=position.value,
    )
