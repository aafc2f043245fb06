"""When a stream may trigger its next checkpoint, and the reason for a wait.

The driver and the status views compute both from the decision log, so they need no message between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.decision_log import QueryLog
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import CheckpointState
from airflow_ft.protocol.planning import quarantined
from airflow_ft.protocol.reasons import WaitReason

RETAINED_BATCHES = 1000
"""Default number of micro-batches for which Spark keeps state, unless fewer are enough."""
SPARE_BATCHES = 2
"""Batches beyond those that wait for delivery: the last delivered one, to which a rewind goes, and the current one."""
_LEAST_RETAINED = 100
_NEWEST = 20
_LIVE = (CheckpointState.STAGED, CheckpointState.PREPARED, CheckpointState.COMMITTING)


@dataclass(frozen=True, slots=True)
class Wait:
    """No checkpoint may be triggered, and since when none was: by the store's clock."""

    reason: WaitReason
    since: datetime

    def __str__(self) -> str:
        return f"{self.reason} since {self.since:%Y-%m-%d %H:%M:%S}"


def retained_batches(config: CheckpointConfig, *, streaming: bool) -> int:
    """Return how many micro-batches Spark keeps state for: a stream looks at all of them with each checkpoint."""
    if not streaming or config.unaligned:
        return RETAINED_BATCHES
    return min(RETAINED_BATCHES, max(_LEAST_RETAINED, 2 * config.concurrent))


def capacity(store: QueryLog, pipeline: str, config: CheckpointConfig, retained: int) -> int | Wait:
    """Return how many checkpoints a stream may trigger now, at least one; or what it waits for."""
    opened = store.open_checkpoints(pipeline)
    newest = max((each.staged_at or each.triggered_at for each in opened), default=None)
    if quarantined(opened):
        assert newest is not None
        return Wait(WaitReason.NOT_ACTIVE, newest)
    waiting = [each for each in opened if each.is_undelivered]
    # What was given up, or is delivered with a later one, is not between TRIGGERED and COMPLETED any more.
    live = [each for each in waiting if each.state in _LIVE]
    if config.unaligned:
        now = store.now()
        live = [each for each in live if timedelta(0) <= now - each.triggered_at < config.aligned_timeout]
    left = min(config.concurrent - len(live), retained - SPARE_BATCHES - len(waiting))
    if left <= 0:
        return Wait(WaitReason.TOO_MANY_QUEUED, newest or store.now())
    if config.min_pause and (latest := store.latest_confirmed(pipeline)) and latest.completed_at:
        passed = store.now() - latest.completed_at
        if timedelta(0) <= passed < config.min_pause:  # below 0: the clock was put back
            return Wait(WaitReason.MIN_PAUSE, latest.completed_at)
    return left


def held_back(store: QueryLog, pipeline: str) -> Wait | None:
    """Return why a running stream triggers nothing although its sources have more; None: it need not wait.

    Returns None also when the stream has read everything that its driver reported, and when the settings are unknown.
    The settings are those of the newest checkpoint.
    """
    if store.pipeline(pipeline).turn is None:
        return None
    made_with = next((each.spec for each in store.origins(pipeline, _NEWEST) if each.spec), "")
    try:
        spec: Mapping[str, Any] = store.spec(made_with) if made_with else {}
        config = CheckpointConfig.from_json(spec.get("checkpointing") or {})
    except (KeyError, ConfigurationError):  # not there any more; or of a version that knew other settings
        return None
    if not spec.get("streaming"):
        return None
    found = capacity(store, pipeline, config, retained_batches(config, streaming=True))
    if not isinstance(found, Wait):
        return None
    if any(each.state is CheckpointState.TRIGGERED for each in store.open_checkpoints(pipeline)):
        return None  # one is computed
    lags = {each.source: each.behind for each in store.lags([pipeline]).get(pipeline, ())}
    has_read_all = bool(lags) and lags.keys() >= spec.get("sources", {}).keys() and not any(lags.values())
    return None if has_read_all else found
