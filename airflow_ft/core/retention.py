"""What follows COMPLETED: the sources' group offsets, pruning of markers and files, sweeping of what nobody needs.

The `finalised` flag is set when the offsets are committed. All of it runs in bounded batches, by whoever confirmed; a
failure here is logged and done again by the next run, since nothing depends on it. Order: the store
says PRUNING, then files go. Decisions are never pruned.
"""

from __future__ import annotations

import logging
from contextlib import closing

from airflow_ft.core.config import CheckpointConfig
from airflow_ft.core.errors import AirflowFtError
from airflow_ft.core.model import CheckpointState, Fence
from airflow_ft.core.ports import Archive, ParticipantFactory, Progress, Store

log = logging.getLogger(__name__)

BATCH = 200
MARKERS_TOGETHER = 20
"""The sinks are told to forget once in so many numbers: markers are small, and asking each sink in each run is not."""


def retain(
    store: Store,
    pipeline: str,
    config: CheckpointConfig,
    participants: ParticipantFactory,
    archive: Archive,
    progress: Progress,
) -> None:
    """Finalises what is COMPLETED, then prunes delivered numbers beyond `config.num_retained`."""
    finalise(store, pipeline, progress)
    try:
        _prune(store, pipeline, config, participants, archive)
        # In this order (I10): attempts of epochs below this one cannot publish any more, so what is referenced now is
        # all of theirs that ever will be. The other way round, one could publish between the two reads.
        epoch = store.pipeline(pipeline).epoch
        archive.sweep(pipeline, store.referenced_locations(pipeline), epoch)
    except (AirflowFtError, OSError) as error:
        log.warning("old checkpoints of %s were not pruned this time (the next run tries again): %s", pipeline, error)


def finalise(store: Store, pipeline: str, progress: Progress) -> None:
    """Tells the sources how far what is COMPLETED goes; such numbers are no longer among the open ones then."""
    try:
        waiting = [
            c
            for c in store.open_checkpoints(pipeline)
            if c.state is CheckpointState.COMPLETED and not c.finalised and c.plan
        ]
        if waiting and (plan := waiting[-1].plan):  # positions only grow: the last ones say it all
            progress(store.checkpoint(pipeline, plan.segments[-1].number))
        for checkpoint in waiting:
            store.finalise(pipeline, checkpoint.number)
    except AirflowFtError as error:
        log.warning("the group offsets of %s do not follow this time (the next run tries again): %s", pipeline, error)


def _prune(
    store: Store, pipeline: str, config: CheckpointConfig, participants: ParticipantFactory, archive: Archive
) -> None:
    old = store.prunable(pipeline, config.num_retained, BATCH)
    if not old:
        return
    latest = store.latest_confirmed(pipeline)
    if latest is None or latest.plan is None:
        return
    # Markers at or below the floor go: never that of the newest delivery, nor of anything still to be settled.
    unsettled = [c.number for c in store.open_checkpoints(pipeline) if not c.is_settled]
    floor = min([old[-1].number, latest.number - 1, *(number - 1 for number in unsettled)])
    fence = Fence(pipeline, store.installation, store.pipeline(pipeline).epoch, 0)
    # From the first that goes to the first that stays: the next time begins there, whatever numbers lie between.
    staying = store.prunable(pipeline, 0, len(old) + 1)[len(old) :]
    if not staying or old[0].number // MARKERS_TOGETHER != staying[0].number // MARKERS_TOGETHER:
        for participant in latest.plan.participants:
            with closing(participants(participant)) as sink:
                sink.forget(fence, floor)
    for checkpoint in old:
        store.prune(pipeline, checkpoint.number)
        if checkpoint.segment is not None:
            archive.delete(checkpoint.segment)
    log.info("pruned %d old checkpoints of %s, up to %d", len(old), pipeline, old[-1].number)
