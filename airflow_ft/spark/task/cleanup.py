"""Retention of a stream that has ended: `CheckpointConfig.externalized_retention`.

If checkpoints are not to be kept, this deletes those that are confirmed: rows and manifests in the write-ahead log,
and Spark's location with the operator state. A new location holds each source's position (`state_reset`), so the next
run neither skips a row nor reads one twice. While a checkpoint is unconfirmed, everything is kept (I10).

What if the process dies ...
- before the base is moved: nothing is deleted yet, and the incomplete new location is swept;
- after it: the state begins again; the remaining rows are deleted at the next end, or by `num_retained`. The next try
  answers a drain or savepoint that was requested since then as missing (`too_late`);
- while files are deleted: PRUNING was written before, and a sweep removes the rest.
An hour late, beside its successor: the epoch is not its run's any more, and nothing is deleted (I5).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import AirflowFtError, FencedError
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.model import ExternalizedRetention
from airflow_ft.protocol.numbers import count_text
from airflow_ft.protocol.retention import Progress, delete_delivered, finalise
from airflow_ft.protocol.steps import Context
from airflow_ft.protocol.write_ahead_log import Archive
from airflow_ft.spark.state.reset import reset_state

if TYPE_CHECKING:
    from airflow_ft.store.decision_log import DecisionLog

DELETED = "its checkpoints are deleted, and the next run starts with empty state"
NOT_DELETED = "its checkpoints were not deleted (see the task's log)"

log = logging.getLogger(__name__)


def deletes(config: CheckpointConfig, *, failed: bool) -> bool:
    """Return whether nothing is kept of a stream that has failed for good, or was asked to stop."""
    if failed:
        return config.externalized_retention is ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS
    return config.externalized_retention is not ExternalizedRetention.RETAIN_ON_CANCELLATION


def clean_up(
    context: Context[DecisionLog],
    epoch: int,
    config: CheckpointConfig,
    archive: Archive,
    progress: Progress,
    *,
    failed: bool,
    has_more: bool = True,
    seen_requests: Collection[int] | None = None,
) -> str:
    """Delete the checkpoints of a stream that ended under `epoch`, unless they must be kept.

    Keeps them too if a staged checkpoint is undelivered. Only logs errors of deletion. With `seen_requests` (ids)
    deletes nothing if there is another request for the stream by then. `has_more`: see `reset_state`. Returns the
    outcome for people; "": they had to be kept.
    """
    if not deletes(config, failed=failed):
        return ""
    how = "has failed" if failed else "was stopped"
    why = f"the stream {how}, and externalized_retention is {config.externalized_retention}"
    try:
        count = _delete(context, epoch, archive, progress, why, has_more, seen_requests)
    except (AirflowFtError, OSError) as error:
        log.warning("the checkpoints of %s were not deleted (%s): %s", context.pipeline, why, error)
        return NOT_DELETED
    log.info("deleted state and rows of %s of %s: %s", count_text(count, "checkpoint"), context.pipeline, why)
    return DELETED


def _delete(
    context: Context[DecisionLog],
    ended: int,
    archive: Archive,
    progress: Progress,
    why: str,
    has_more: bool,
    seen_requests: Collection[int] | None,
) -> int:
    store, pipeline = context.store, context.pipeline
    _require_last(pipeline, ended, store.pipeline(pipeline).epoch)
    finalise(store, pipeline, progress)
    # Check again: taking an epoch for nothing would fence an active process, or one that must answer a stop.
    with new_epoch(store, pipeline, context.worker, why, context.lease_seconds, after=ended) as (epoch, _):
        store.adopt_run(pipeline, epoch, context.run)
        # Read before the write that only an owner can make: what a successor publishes is none of it.
        through = store.pipeline(pipeline).last_published
        reset_state(store, pipeline, epoch, why, has_more=has_more, seen_requests=seen_requests)
        return delete_delivered(store, pipeline, archive, through)


def _require_last(pipeline: str, ended: int, newest: int) -> None:
    """Raise FencedError if another process took a later epoch than the stream's last (0: it did not begin)."""
    if newest != ended:
        raise FencedError(
            f"the stream ended in epoch {ended}, and another process has taken epoch {newest} since.",
            remedy="Do nothing: the checkpoints belong to the newer owner.",
            pipeline=pipeline,
            epoch=ended,
            newest=newest,
        )
