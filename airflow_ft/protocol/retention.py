"""Work after COMPLETED: commit the sources' group offsets, prune markers and files, sweep unneeded files.

The `finalised` flag is set when the offsets are committed. The process that confirmed does all of it in bounded
batches. It logs failures, and the next run repeats the work, since nothing depends on it. The store records PRUNING
before files are deleted. Decisions and their proofs are never pruned; events of old numbers are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Protocol

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.delivery_log import DeliveryLog
from airflow_ft.protocol.errors import AirflowFtError, FencedError, StorageUnavailableError
from airflow_ft.protocol.model import Checkpoint, CheckpointState, Fence, ParticipantPlan, Segment
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.participant import Expiring, ParticipantFactory
from airflow_ft.protocol.pipelines import PipelineStatus
from airflow_ft.protocol.write_ahead_log import Archive

log = logging.getLogger(__name__)

BATCH = 200
BATCHES = 10
"""Most batches at once: more than a delivery, or a run that delivers at its end, leaves behind."""
FORGOTTEN_TOGETHER = 20
"""Numbers whose events are deleted in one transaction."""
_OF_ONE_FOLDER = ("privilege_missing", "access_refused", "folder_busy")
"""Codes of a StorageUnavailableError that say nothing of other folders."""
MARKERS_TOGETHER = 20
"""Numbers after which sinks forget markers: these are small, and a request to each sink in each run is expensive."""

POSITIONS_KEPT = 100
"""Newest numbers that keep their source positions for certain: a full refresh compares with them."""


class Progress(Protocol):
    """Report to the sources' systems how far a confirmed checkpoint reaches. Repeatable; no guarantee depends on it."""

    def __call__(self, checkpoint: Checkpoint, /) -> None: ...


def retain(
    store: DeliveryLog,
    pipeline: str,
    config: CheckpointConfig,
    participants: ParticipantFactory,
    archive: Archive,
    progress: Progress,
    must_stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Finalises what is COMPLETED, prunes delivered numbers beyond `config.num_retained`, and forgets old events.

    While the pipeline is HALTED no file is deleted. If one of these fails, the others are done anyway. Returns False
    if `must_stop` ended the sweep (`Archive.sweep`).
    """
    is_swept = True
    finalise(store, pipeline, progress)
    with _tried("prune old checkpoints", pipeline):
        for _ in range(BATCHES):
            if _prune(store, pipeline, config, participants, archive) < BATCH:
                break
    with _tried("delete unneeded files", pipeline):
        is_swept = _sweep(store, pipeline, archive, must_stop)
    with _tried("delete old events", pipeline):
        for _ in range(BATCHES * BATCH // FORGOTTEN_TOGETHER):
            if not store.forget_events(pipeline, config.num_retained_events, FORGOTTEN_TOGETHER):
                break
    return is_swept


@contextmanager
def _tried(doing: str, pipeline: str) -> Iterator[None]:
    """Only log that it failed."""
    try:
        yield
    except (AirflowFtError, OSError) as error:
        log.warning("cannot %s of %s (the next run tries again): %s", doing, pipeline, error)


def delete_delivered(store: DeliveryLog, pipeline: str, archive: Archive, through: int) -> int:
    """Prunes every delivered number up to `through`, also the newest ones, and sweeps; returns how many.

    If a segment cannot be deleted, raises the error when all others are.

    Nothing of what is not confirmed (I10). Markers wait for the next `retain`, so no sink is asked.
    """
    count = 0
    left: list[Segment] = []
    while old := [c for c in store.prunable(pipeline, 0, BATCH) if c.number <= through]:
        left += _delete(store, pipeline, archive, old)
        count += len(old)
    _sweep(store, pipeline, archive)
    for segment in left:  # the sweep may have failed as well, so this raises what is still wrong
        archive.delete(segment)
    return count


def finalise(store: DeliveryLog, pipeline: str, progress: Progress) -> bool:
    """Report confirmed positions to the sources, and close COMPLETED numbers. Returns whether every report succeeded.

    Skips numbers after an unsettled one: a sink that the pipeline no longer declares may still lack its rows.

    If a report fails, only the newest number stays open for the next call, because its report covers the others.
    Otherwise the open numbers, and the log, would grow with every checkpoint while a source's cluster takes no offsets
    (R19).
    """
    try:
        opened = store.open_checkpoints(pipeline)
        waiting = [c for c in opened if c.state is CheckpointState.COMPLETED and not c.finalised and c.plan is not None]
        first = min((c.number for c in opened if not c.is_settled), default=math.inf)
        reportable = [c for c in waiting if c.number < first]
        behind = waiting[len(reportable) :]
        for checkpoint in (*reportable[:-1], *behind[:-1]):
            store.finalise(pipeline, checkpoint.number)
        if reportable:
            plan = reportable[-1].plan
            assert plan is not None
            progress(store.checkpoint(pipeline, plan.segments[-1].number))  # positions only grow
            store.finalise(pipeline, reportable[-1].number)
        return not behind
    except AirflowFtError as error:
        log.warning("cannot commit the group offsets of %s (the next confirmation tries again): %s", pipeline, error)
        return False


def _prune(
    store: DeliveryLog, pipeline: str, config: CheckpointConfig, participants: ParticipantFactory, archive: Archive
) -> int:
    """One batch; how many numbers it had."""
    old = store.prunable(pipeline, config.num_retained, BATCH)
    if not old:
        return 0
    if (row := store.pipeline(pipeline)).status is PipelineStatus.HALTED:  # a sink may lack rows, `verify` names them
        return 0
    latest = store.latest_confirmed(pipeline)
    if latest is None or latest.plan is None:
        return 0
    # Markers at or below the floor go: never that of the newest delivery, nor of anything still to be settled.
    unsettled = [c.number - 1 for c in store.unsettled(pipeline, limit=1)]
    floor = min([old[-1].number, latest.number - 1, *unsettled])
    fence = Fence(pipeline, store.installation, row.epoch, 0)
    # From the first that goes to the first that stays: the next time begins there, whatever numbers lie between.
    staying = store.prunable(pipeline, 0, len(old) + 1)[len(old) :]
    if not staying or old[0].number // MARKERS_TOGETHER != staying[0].number // MARKERS_TOGETHER:
        for participant in latest.plan.participants:
            _forget(participants, participant, fence, floor)
    _delete(store, pipeline, archive, old)
    log.info("pruned %s of %s, up to %d", count_text(len(old), "old checkpoint"), pipeline, old[-1].number)
    return len(old)


def _forget(participants: ParticipantFactory, participant: ParticipantPlan, fence: Fence, floor: int) -> None:
    """Let a sink forget old markers. If it fails, only log that: the rows are confirmed, and the next floor is higher.

    Raises:
        FencedError: a newer process works on the pipeline.
    """
    try:
        with closing(participants(participant)) as sink:
            sink.forget(fence, floor)
            if isinstance(sink, Expiring):
                sink.renew(fence)
    except FencedError:
        raise
    except AirflowFtError as error:
        log.warning(
            "sink %s of %s cannot delete its markers up to %d (the next pruning tries again): %s",
            participant.name,
            fence.pipeline,
            floor,
            error,
        )
    except Exception as error:
        log.warning(
            "sink %s of %s cannot delete its markers up to %d (the next pruning tries again). Report this to the author"
            " of the sink: %s: %s",
            participant.name,
            fence.pipeline,
            floor,
            type(error).__name__,
            error,
            exc_info=error,
        )


def _delete(store: DeliveryLog, pipeline: str, archive: Archive, old: Sequence[Checkpoint]) -> list[Segment]:
    """Prune these numbers. Returns the segments that could not be deleted, which is logged."""
    left: list[Segment] = []
    for checkpoint in old:
        store.prune(pipeline, checkpoint.number)
        if checkpoint.segment is None:
            continue
        try:
            archive.delete(checkpoint.segment)
        except (AirflowFtError, OSError) as error:
            if isinstance(error, StorageUnavailableError) and error.code not in _OF_ONE_FOLDER:
                raise  # else each segment would wait for it
            log.warning("cannot delete %s (a later sweep tries again): %s", checkpoint.segment.location, error)
            left.append(checkpoint.segment)
    return left


def _sweep(store: DeliveryLog, pipeline: str, archive: Archive, must_stop: Callable[[], bool] = lambda: False) -> bool:
    # In this order (I10): attempts of epochs below this one cannot publish any more, so what is referenced now is
    # all of theirs that ever will be. The other way round, one could publish between the two reads.
    row = store.pipeline(pipeline)
    if row.status is PipelineStatus.HALTED:  # the files may belong to a newer decision log, which may come back
        return True
    return archive.sweep(pipeline, store.referenced_locations(pipeline), row.epoch, must_stop)
