"""Flink's own keys for checkpoints (those of Flink 2, and older names): what each means here, or why it is refused.

docs/from-flink.md tells the same for people; a test compares the two.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from airflow_ft.core.errors import ConfigurationError

log = logging.getLogger(__name__)

_PREFIX = "execution.checkpointing."
_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "min": timedelta(minutes=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
    "": timedelta(milliseconds=1),
}
_LONG = {"day": "d", "hour": "h", "minute": "min", "second": "s", "sec": "s", "milli": "ms", "millisecond": "ms"}
_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*", re.IGNORECASE)


def _duration(value: object) -> timedelta:
    match = _DURATION.fullmatch(str(value))
    unit = match[2].lower() if match else ""
    unit = _LONG.get(unit.removesuffix("s") if len(unit) > 2 else unit, unit)
    if match is None or unit not in _UNITS:
        raise ValueError
    return int(match[1]) * _UNITS[unit]


@dataclass(frozen=True, slots=True)
class _Taken:
    """Becomes the setting `name`."""

    name: str
    read: Callable[[Any], Any]
    plain: str


@dataclass(frozen=True, slots=True)
class _Refused:
    """Would promise what is not done; but `same` is what is done anyway."""

    why: str
    same: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Idle:
    """Changes nothing that a user would miss: told, and left out."""

    why: str


_SPARK_STATE = "Spark's own settings decide how state is stored (spark_conf)"
_NO_BARRIERS = "there are no barriers among operators: Spark cuts between micro-batches"
KEYS: Mapping[str, _Taken | _Refused | _Idle] = {
    "timeout": _Taken("timeout", _duration, 'a duration, such as "10 min"'),
    "num-retained": _Taken("num_retained", int, "a whole number"),
    "mode": _Refused("every checkpoint is delivered exactly once, and nothing less is offered", ("EXACTLY_ONCE",)),
    "interval": _Refused(
        "a pipeline is cut by the DAG's schedule, and within a run by max_offsets_per_trigger or max_files_per_trigger"
        " of its source"
    ),
    "interval-during-backlog": _Refused("a pipeline is cut by the DAG's schedule, whatever its backlog"),
    "min-pause": _Refused("the DAG's schedule says how often it runs", ("0", "0 ms", "0 s")),
    "max-concurrent-checkpoints": _Refused(
        "it is not bounded by number: without overlap=True a stage ends before its checkpoints are delivered"
    ),
    "tolerable-failed-checkpoints": _Refused(
        "a checkpoint that fails ends the attempt, and the task's retries say how often that may be", ("0",)
    ),
    "externalized-checkpoint-retention": _Refused(
        "checkpoints are never deleted because a run was ended", ("RETAIN_ON_CANCELLATION",)
    ),
    "unaligned.enabled": _Refused(_NO_BARRIERS, ("false",)),
    "unaligned": _Refused(_NO_BARRIERS, ("false",)),
    "aligned-checkpoint-timeout": _Refused(_NO_BARRIERS, ("0", "0 ms", "0 s")),
    "unaligned.forced": _Refused(_NO_BARRIERS, ("false",)),
    "checkpoints-after-tasks-finish": _Refused("a run ends with what its sources held when it began", ("true",)),
    "incremental": _Idle(f"{_SPARK_STATE}: RocksDB with changelog, which is incremental, unless they say otherwise"),
    "storage": _Idle("the write-ahead log and Spark's locations lie under wal_root"),
    "dir": _Idle("the write-ahead log and Spark's locations lie under wal_root"),
    "savepoint-dir": _Idle("there are no savepoints"),
    "create-subdir": _Idle("each pipeline has a folder of its own"),
    "cleaner.parallel-mode": _Idle("what is not retained is deleted when a run is confirmed"),
    "local-backup.enabled": _Idle(_SPARK_STATE),
    "local-backup.dirs": _Idle(_SPARK_STATE),
    "data-inline-threshold": _Idle(_SPARK_STATE),
    "write-buffer-size": _Idle(_SPARK_STATE),
    "file-merging.enabled": _Idle(_SPARK_STATE),
}
_OLDER = {
    "state.checkpoints.num-retained": "num-retained",
    "state.checkpoint-storage": "storage",
    "state.checkpoints.dir": "dir",
    "state.savepoints.dir": "savepoint-dir",
    "state.backend.incremental": "incremental",
    "state.checkpoints.create-subdir": "create-subdir",
    "state.checkpoint.cleaner.parallel-mode": "cleaner.parallel-mode",
}


def settings_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `CheckpointConfig` that Flink's keys stand for.

    ConfigurationError names every key that is not known, or would promise what is not done, with the reason. A key that
    makes no difference is told by a warning.
    """
    found: dict[str, Any] = {}
    refused: list[str] = []
    for key, value in given.items():
        name = _OLDER.get(key, key.removeprefix(_PREFIX))
        meaning = KEYS.get(name) if key in _OLDER or key.startswith(_PREFIX) else None
        if meaning is None:
            refused.append(f"{key}: Flink has no such key for checkpoints, or a newer one has")
        elif isinstance(meaning, _Taken):
            try:
                found[meaning.name] = meaning.read(value)
            except (TypeError, ValueError, OverflowError):
                refused.append(f"{key}={value!r}: give {meaning.plain}")
        elif isinstance(meaning, _Idle):
            log.warning("%s has no effect: %s", key, meaning.why)
        elif str(value).strip().lower() not in [same.lower() for same in meaning.same]:
            refused.append(f"{key}={value!r}: {meaning.why}")
    if refused:
        raise ConfigurationError(
            f"from_flink: {'; '.join(refused)}.", remedy="leave these out; docs/from-flink.md says what to use instead."
        )
    return found
