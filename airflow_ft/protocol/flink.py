"""Flink's keys for checkpoints and restarts (those of Flink 2, and older names): the meaning of each, or why it is
refused.

docs/from-flink.md explains the same for people; a test compares the two.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, TypeVar

from airflow_ft.protocol.arguments import kind_of, standard_time, wrong
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.flink_values import attempts, duration, flag, in_flinks_units, interval, mode, number, whole
from airflow_ft.protocol.kinds import Choice, Duration, Kind
from airflow_ft.protocol.model import CheckpointingMode, ExternalizedRetention

log = logging.getLogger(__name__)
Made = TypeVar("Made")

_PREFIX = "execution.checkpointing."
_ENABLED = timedelta(milliseconds=1)
"""Smallest interval at which Flink makes checkpoints."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """Becomes the setting `name`."""

    name: str
    read: Callable[[Any], Any]
    plain: str


@dataclass(frozen=True, slots=True)
class _Refused:
    """A setting that would promise something that is not done, except for values in `same`, which hold anyway."""

    why: str
    same: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Idle:
    """A setting without an effect that a user would miss: reported, and left out."""

    why: str


_A_DURATION = 'a duration of one number and one unit, such as "10 min" or "90 s"'
_A_COUNT = "a whole number"
_SPARK_STATE = "Spark's own settings decide how state is stored (spark_conf)"
_NO_CHANNELS = "there are no barriers among operators: Spark cuts between micro-batches"
_CHANGES = (
    "RocksDB writes what has changed with each checkpoint, and full snapshots now and then, unless spark_conf says"
    " otherwise (docs/checkpoints.md)"
)
_RECOVERY = "use from_savepoint of the pipeline, or `airflow ft savepoint restore`"
_NO_ALIGNMENT = "Flink gives up alignment after it only with execution.checkpointing.unaligned.enabled=true"
KEYS: Mapping[str, _Taken | _Refused | _Idle] = {
    "timeout": _Taken("timeout", duration, _A_DURATION),
    "num-retained": _Taken("num_retained", whole, _A_COUNT),
    "mode": _Taken("mode", mode, "EXACTLY_ONCE or AT_LEAST_ONCE"),
    "interval": _Taken("interval", interval, _A_DURATION),
    "interval-during-backlog": _Refused("a backlog is read in slices, as the sources are bounded, without a pause"),
    "min-pause": _Taken("min_pause", duration, _A_DURATION),
    "max-concurrent-checkpoints": _Taken("max_concurrent", whole, _A_COUNT),
    "tolerable-failed-checkpoints": _Taken("tolerable_failures", whole, "a whole number, -1 for all"),
    "externalized-checkpoint-retention": _Taken(
        "externalized_retention",
        Choice(ExternalizedRetention).from_json,
        f"one of {', '.join(ExternalizedRetention)}",
    ),
    "unaligned.enabled": _Taken("unaligned", flag, "true or false"),
    "unaligned": _Taken("unaligned", flag, "true or false"),
    "aligned-checkpoint-timeout": _Taken("aligned_timeout", duration, _A_DURATION),
    "unaligned.forced": _Idle(_NO_CHANNELS),
    "unaligned.interruptible-timers.enabled": _Idle(_NO_CHANNELS),
    "unaligned.max-subtasks-per-channel-state-file": _Idle(_NO_CHANNELS),
    "unaligned.recover-output-on-downstream.enabled": _Idle(_NO_CHANNELS),
    "unaligned.during-recovery.enabled": _Idle(_NO_CHANNELS),
    "checkpoints-after-tasks-finish": _Refused("a run ends with what its sources held when it began", ("true",)),
    "incremental": _Idle(f"{_SPARK_STATE}: RocksDB with changelog, which is incremental, unless they say otherwise"),
    "storage": _Idle("the write-ahead log and Spark's locations lie under wal_root"),
    "dir": _Idle("the write-ahead log and Spark's locations lie under wal_root"),
    "savepoint-dir": _Idle("savepoints go to [airflow_ft] savepoint_dir, or where a command says"),
    "create-subdir": _Idle("each pipeline has a folder of its own"),
    "cleaner.parallel-mode": _Idle("what is not retained is deleted when a run is confirmed"),
    "local-backup.enabled": _Idle(_SPARK_STATE),
    "local-backup.dirs": _Idle(_SPARK_STATE),
    "data-inline-threshold": _Idle(_SPARK_STATE),
    "write-buffer-size": _Idle(_SPARK_STATE),
    "file-merging.enabled": _Idle(_SPARK_STATE),
    "file-merging.across-checkpoint-boundary": _Idle(_SPARK_STATE),
    "file-merging.max-file-size": _Idle(_SPARK_STATE),
    "file-merging.max-space-amplification": _Idle(_SPARK_STATE),
    "file-merging.max-subtasks-per-file": _Idle(_SPARK_STATE),
    "file-merging.pool-blocking": _Idle(_SPARK_STATE),
    "snapshot-compression": _Idle(_SPARK_STATE),
    "state.backend.type": _Refused(
        f"{_SPARK_STATE}: RocksDB, unless they name another spark.sql.streaming.stateStore.providerClass", ("rocksdb",)
    ),
    "state.changelog.enabled": _Idle(_CHANGES),
    "state.changelog.storage": _Idle(_CHANGES),
    "state.changelog.max-failures-allowed": _Idle(_CHANGES),
    "state.changelog.periodic-materialize.enabled": _Idle(_CHANGES),
    "state.changelog.periodic-materialize.interval": _Idle(_CHANGES),
    "execution.state-recovery.path": _Refused(_RECOVERY),
    "execution.state-recovery.claim-mode": _Refused(_RECOVERY),
    "execution.state-recovery.ignore-unclaimed-state": _Refused(_RECOVERY, ("false",)),
    "execution.state-recovery.from-local": _Idle(_SPARK_STATE),
    "execution.state-recovery.approximate-local-recovery": _Idle("a restart computes all partitions again"),
    "execution.state-recovery.without-channel-state.checkpoint-id": _Idle(_NO_CHANNELS),
}
"""Without their prefix where that is `execution.checkpointing.`; all that Flink 2 has, and what it renamed below."""
_OLDER = {
    "execution.checkpointing.alignment-timeout": "aligned-checkpoint-timeout",
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "checkpoints-after-tasks-finish",
    "execution.checkpointing.approximate-local-recovery": "execution.state-recovery.approximate-local-recovery",
    "execution.checkpointing.recover-without-channel-state.checkpoint-id": (
        "execution.state-recovery.without-channel-state.checkpoint-id"
    ),
    "execution.savepoint.path": "execution.state-recovery.path",
    "execution.savepoint-restore-mode": "execution.state-recovery.claim-mode",
    "execution.savepoint.ignore-unclaimed-state": "execution.state-recovery.ignore-unclaimed-state",
    "savepoints.state.backend.fs.dir": "savepoint-dir",
    "state.backend": "state.backend.type",
    "state.backend.changelog.enabled": "state.changelog.enabled",
    "state.backend.changelog.max-failures-allowed": "state.changelog.max-failures-allowed",
    "state.backend.changelog.periodic-materialize.enabled": "state.changelog.periodic-materialize.enabled",
    "state.backend.changelog.periodic-materialize.interval": "state.changelog.periodic-materialize.interval",
    "state.backend.changelog.storage": "state.changelog.storage",
    "state.backend.fs.checkpointdir": "dir",
    "state.backend.fs.memory-threshold": "data-inline-threshold",
    "state.backend.fs.write-buffer-size": "write-buffer-size",
    "state.backend.local-recovery": "local-backup.enabled",
    "state.storage.fs.memory-threshold": "data-inline-threshold",
    "state.storage.fs.write-buffer-size": "write-buffer-size",
    "taskmanager.state.local.root-dirs": "local-backup.dirs",
    "state.checkpoints.num-retained": "num-retained",
    "state.checkpoint-storage": "storage",
    "state.checkpoints.dir": "dir",
    "state.savepoints.dir": "savepoint-dir",
    "state.backend.incremental": "incremental",
    "state.checkpoints.create-subdir": "create-subdir",
    "state.checkpoint.cleaner.parallel-mode": "cleaner.parallel-mode",
}
_NAMES = {name if name.startswith(("state.", "execution.")) else _PREFIX + name: name for name in KEYS} | _OLDER
"""Map each of Flink's keys to its name in `KEYS`."""

_RESTART = "restart-strategy."
RESTART_TYPES: Mapping[str, str] = {
    "none": "none",
    "off": "none",
    "disable": "none",
    "fixed-delay": "fixed-delay",
    "fixeddelay": "fixed-delay",
    "failure-rate": "failure-rate",
    "failurerate": "failure-rate",
    "exponential-delay": "exponential-delay",
    "exponentialdelay": "exponential-delay",
}
"""Flink's names of restart strategies, and the names here."""
_NO_RESTART = "Flink has no such key for restarts, or a newer one has"
RESTART_KEYS: Mapping[str, _Taken] = {
    "fixed-delay.attempts": _Taken("attempts", attempts, _A_COUNT),
    "fixed-delay.delay": _Taken("delay", duration, _A_DURATION),
    "failure-rate.max-failures-per-interval": _Taken("max_failures_per_interval", whole, _A_COUNT),
    "failure-rate.failure-rate-interval": _Taken("failure_rate_interval", duration, _A_DURATION),
    "failure-rate.delay": _Taken("delay", duration, _A_DURATION),
    "exponential-delay.initial-backoff": _Taken("initial_backoff", duration, _A_DURATION),
    "exponential-delay.max-backoff": _Taken("max_backoff", duration, _A_DURATION),
    "exponential-delay.backoff-multiplier": _Taken("backoff_multiplier", number, "a number"),
    "exponential-delay.reset-backoff-threshold": _Taken("reset_backoff_threshold", duration, _A_DURATION),
    "exponential-delay.jitter-factor": _Taken("jitter_factor", number, "a number"),
    "exponential-delay.attempts-before-reset-backoff": _Taken("attempts_before_reset_backoff", attempts, _A_COUNT),
}


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A key that is not taken: as it is shown, with its value if that matters, and why."""

    shown: str
    why: str
    code: str = "argument_invalid"


@dataclass(slots=True)
class Given:
    """Settings that were given under Flink's keys."""

    values: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    """By setting, its key and value, as an error shows them."""

    def build(self, owner: Callable[..., Made], kinds: Mapping[str, Kind]) -> Made:
        """Make what the settings are of; ConfigurationError names the key of each that cannot be."""
        _raise_for(
            [
                _Refusal(self.written[name], _bounds(kinds[name]))
                for name, value in self.values.items()
                if name in self.written and not kinds[name].is_good(value)
            ]
        )
        try:
            return owner(**self.values)
        except ConfigurationError as error:
            keys = [shown for name, shown in self.written.items() if re.search(rf"\b{name}\b", error.what)]
            raise ConfigurationError(
                f"from_flink: {', '.join(keys)}: {error.what}",
                code=error.code,
                remedy=error.remedy,
                **{**error.fields, "keys": [key.partition("=")[0] for key in keys]},
            ) from None


def _bounds(kind: Kind) -> str:
    if isinstance(kind, Duration):
        return f"give at least {in_flinks_units(kind.least)}"
    return kind.remedy.removesuffix(".").replace("Give", "give", 1)


def settings_of(given: Mapping[str, Any]) -> Given:
    """Return the settings of `CheckpointConfig` for Flink's keys; accepts nested keys, as in its config.yaml.

    Skips the keys of restart strategies (see `restart_of`). An interval of 0 or less, which disables checkpoints in
    Flink, becomes AT_MOST_ONCE without a pause. Logs a warning for each key without an effect.

    Raises:
        ConfigurationError: keys are unknown or promise something unsupported; names each one with the reason.
    """
    found = Given()
    refused: list[_Refusal] = []
    for key, value in _flat(given):
        meaning = KEYS.get(_NAMES.get(key, ""))
        if _is_of_restarts(key):
            continue
        if meaning is None:
            refused.append(_Refusal(key, _unknown(key), "argument_unknown"))
        elif isinstance(meaning, _Taken):
            _take(meaning, key, value, found, refused)
        elif isinstance(meaning, _Idle):
            log.warning("%s has no effect: %s", key, meaning.why)
        elif str(value).strip().lower() not in [same.lower() for same in meaning.same]:
            refused.append(_Refusal(f"{key}={value!r}", meaning.why, "setting_unsupported"))
    values = found.values
    if values.get("interval", _ENABLED) < _ENABLED:
        if "mode" in values:
            why = "Flink makes no checkpoints with an interval of 0 or less"
            refused.append(_Refusal(f"{_PREFIX}mode={values['mode']}", why, "arguments_conflict"))
        values |= {"interval": timedelta(0), "mode": CheckpointingMode.AT_MOST_ONCE}
    if "aligned_timeout" in values and not values.get("unaligned"):
        log.warning("%s has no effect: %s", found.written["aligned_timeout"], _NO_ALIGNMENT)
        del values["aligned_timeout"]
    _raise_for(refused)
    return found


def _is_of_restarts(key: str) -> bool:
    """Return whether `restart_of` reads it."""
    name = key.removeprefix(_RESTART)
    return key == _RESTART.removesuffix(".") or (name != key and (name == "type" or name in RESTART_KEYS))


def _flat(given: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with dots, also where they are nested, as in Flink's config.yaml; a section with nothing in it has none."""
    if not isinstance(given, Mapping):
        raise wrong(
            "from_flink",
            kind_of(given),
            'Give a dictionary by key, such as {"execution.checkpointing.interval": "10 s"}. Read a config.yaml with'
            " yaml.safe_load first.",
        )
    for key, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None or not _is_section(f"{prefix}{key}"):
            yield f"{prefix}{key}", value


def _is_section(key: str) -> bool:
    return key not in _NAMES and any(name.startswith(f"{key}.") for name in _NAMES)


def _unknown(key: str) -> str:
    if key.lower().startswith(_RESTART):
        near = get_close_matches(key.lower(), [f"{_RESTART}{name}" for name in ("type", *RESTART_KEYS)], 1)
        return f"{_NO_RESTART}{f' (did you mean {near[0]}?)' if near else ''}"
    if key.startswith(("state.backend.rocksdb.", "state.backend.forst.")):
        return f"{_SPARK_STATE}: spark.sql.streaming.stateStore.rocksdb.*"
    close = [_PREFIX + key] if _PREFIX + key in _NAMES else get_close_matches(key, _NAMES, 1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"Flink has no such key for checkpoints, or a newer one has{hint}"


def restart_of(given: Mapping[str, Any]) -> tuple[str, Given]:
    """Return the type of the restart strategy for Flink's keys, and its settings.

    Skips the keys of checkpoints (see `settings_of`). Without any key of restarts it is Flink's default for jobs with
    checkpoints: exponential-delay. Logs a warning for settings of another strategy than the chosen one, which Flink
    ignores too.

    Raises:
        ConfigurationError: names every unknown key and every unreadable value.
    """
    given = {key: value for key, value in _flat(given) if key not in _NAMES}
    types = {key: given[key] for key in (f"{_RESTART}type", _RESTART.removesuffix(".")) if key in given}
    # `off` is False in YAML 1.1. An empty value is None there, which is not Flink's word `none`.
    named = ["off" if value is False else "" if value is None else str(value) for value in types.values()]
    kinds = {RESTART_TYPES.get(name.strip().lower()) for name in named} or {"exponential-delay"}
    kind = kinds.pop()
    shown = ", ".join(f"{key}={value!r}" for key, value in types.items())
    if kind is None:
        _raise_for([_Refusal(shown, f"give one of {', '.join(RESTART_TYPES)}")])
    if kinds:
        _raise_for([_Refusal(shown, "they are two names of one key, with two values")])
    found = Given()
    refused: list[_Refusal] = []
    for key, value in given.items():
        meaning = RESTART_KEYS.get(key.removeprefix(_RESTART)) if key.startswith(_RESTART) else None
        if key in types:
            continue
        if meaning is None:
            refused.append(_Refusal(key, _unknown(key), "argument_unknown"))
        elif not types:
            refused.append(_Refusal(key, f"Flink ignores it without {_RESTART}type", "argument_missing"))
        elif not key.startswith(f"{_RESTART}{kind}."):
            log.warning("%s has no effect: the strategy is %s", key, kind)
        else:
            _take(meaning, key, value, found, refused)
    _raise_for(refused)
    return str(kind), found


def _take(meaning: _Taken, key: str, value: Any, found: Given, refused: list[_Refusal]) -> None:
    value = standard_time(value)
    shown = f"{key}={in_flinks_units(value)}" if isinstance(value, timedelta) else f"{key}={value!r}"
    try:
        read = meaning.read(value)
    except (TypeError, ValueError, OverflowError):
        refused.append(_Refusal(shown, f"give {meaning.plain}"))
        return
    if isinstance(read, timedelta) and not isinstance(value, str):
        shown = f"{key}={in_flinks_units(read)}"
    if found.values.setdefault(meaning.name, read) != read:
        why = "another name of the same key has another value"
        refused.append(_Refusal(shown, why, "arguments_conflict"))
    found.written.setdefault(meaning.name, shown)


def _raise_for(refused: list[_Refusal]) -> None:
    if not refused:
        return
    codes = {each.code for each in refused}
    raise ConfigurationError(
        f"from_flink: {'; '.join(f'{each.shown}: {each.why}' for each in refused)}.",
        code=codes.pop() if len(codes) == 1 else "several_problems",
        remedy="Correct or remove these keys. docs/from-flink.md says what to use instead.",
        keys=[each.shown.partition("=")[0] for each in refused],
        codes=[each.code for each in refused],
        values=[each.shown.partition("=")[2] for each in refused],
    )
