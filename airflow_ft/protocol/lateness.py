"""The default of `late_after` for a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LEAST_SECONDS = 600.0
"""No stream is late before this, even with a short interval."""
INTERVALS = 10
_INTERVAL, _TIMEOUT = 10.0, 600.0  # the defaults of CheckpointConfig


def stream_is_late_after(spec: Mapping[str, Any]) -> float:
    """Return the seconds without a confirmation after which a stream without `late_after` is late.

    Ten checkpoint intervals, or the time-out of a checkpoint, or ten minutes: the longest of them.

    Args:
        spec: the specification as plain data (`PipelineSpec.to_json`).
    """
    given = spec.get("checkpointing")
    config = given if isinstance(given, Mapping) else {}
    interval, timeout = _seconds(config.get("interval"), _INTERVAL), _seconds(config.get("timeout"), _TIMEOUT)
    return max(INTERVALS * interval, timeout, LEAST_SECONDS)


def _seconds(value: object, usual: float) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else usual
