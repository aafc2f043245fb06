"""Settings that Spark keeps with a query's state. It ignores later changes, and at most logs that.

The second line of `offsets/<batch>` holds them (`spark.sql.shuffle.partitions`, the state store, formats). Spark uses
those whatever the session says, so a user may believe that a change is in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state.location_files import (
    COMMITS,
    OFFSETS,
    Entry,
    batches,
    entry,
    has_entry,
    keep,
    note,
    replace_entry,
)
from airflow_ft.wal.filesystem import filesystem

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
# Not among them, but in the format of the commits: a change fails.
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
UNIQUE_IDS = "stateUniqueIds"
_GIVEN = "airflow_ft_settings.json"
_PINNED = (PARTITIONS, "spark.sql.streaming.")
# What a user sets on purpose; the others have defaults that change with Spark's versions.
_NOT_CHANGEABLE = (PARTITIONS, PROVIDER)

log = logging.getLogger("airflow_ft.spark")


def remember_given(location: str, conf: Mapping[str, str]) -> None:
    """Keeps in a new location which of such settings were given: the job itself may set others when it runs."""
    if note(location, _GIVEN) is None:
        keep(location, _GIVEN, {name: value for name, value in conf.items() if name.startswith(_PINNED)})


def give(location: str, name: str, value: str) -> None:
    """Record such a setting as given, in a copy whose state was created again."""
    keep(location, _GIVEN, {**(note(location, _GIVEN) or {}), name: value})


def pin(location: str, name: str, value: str) -> None:
    """Give such a setting another value in all batches of a copy whose state was created again."""
    for batch in batches(location, OFFSETS):
        log_entry = entry(location, OFFSETS, batch)
        conf = {**log_entry.metadata["conf"], name: value}
        replace_entry(location, OFFSETS, batch, replace(log_entry, metadata={**log_entry.metadata, "conf": conf}))
    give(location, name, value)


def forget_unique_ids(location: str) -> None:
    """Convert the commits of a copy whose state was created again to checkpoint format 1."""
    for batch in batches(location, COMMITS):
        metadata = dict(entry(location, COMMITS, batch).metadata)
        metadata.pop(UNIQUE_IDS, None)
        replace_entry(location, COMMITS, batch, Entry("v1", metadata))
    give(location, FORMAT, "1")


def commit_format(base: SparkPosition | None) -> str | None:
    """Return the checkpoint format of what was committed at `base`; None where nothing is, "" where it is missing."""
    if base is None or base.batch < 0:
        return None
    if not has_entry(base.location, COMMITS, base.batch):
        return ""
    return entry(base.location, COMMITS, base.batch).version.removeprefix("v")


def unique_ids(location: str, batch: int) -> dict[str, Any]:
    """Return the unique ids of the state's files by operator, if Spark's commits have them (its checkpoint format
    2).
    """
    return entry(location, COMMITS, batch).metadata.get(UNIQUE_IDS) or {}


def set_unique_ids(location: str, batch: int, ids: Mapping[str, Any]) -> None:
    """In a copy."""
    log_entry = entry(location, COMMITS, batch)
    replace_entry(location, COMMITS, batch, replace(log_entry, metadata={**log_entry.metadata, UNIQUE_IDS: ids}))


def refuse_changed(pipeline: str, base: SparkPosition | None, conf: Mapping[str, str]) -> None:
    """ConfigurationError when settings are given that were not when the state at `base` was made, and it has others.

    Needs no JVM. Without state nothing is refused: there they change nothing but speed.
    """
    if changed := _changed(base, conf):
        differences = "; ".join(f"{name} is {conf[name]}, the state has {kept}" for name, kept in changed.items())
        raise ConfigurationError(
            f"the pipeline's state was created with other settings, which Spark cannot change: {differences}.",
            code="state_settings_changed",
            pipeline=pipeline,
            remedy=f"Set them as they were. Or drop the state (`airflow ft reset-state {pipeline}`). Or give the"
            " changed pipeline a new name.",
            settings={name: str(conf[name]) for name in changed},
            kept=dict(changed),
        )


def keep_configured(
    pipeline: str, base: SparkPosition | None, conf: Mapping[str, str], configured: Container[str]
) -> dict[str, str]:
    """The settings with what the state at `base` has in place of those that are `configured` for all pipelines.

    Such a new value is of pipelines to come: it was not meant for this one, which would stop until it said the old one.
    """
    changed = {name: kept for name, kept in _changed(base, conf).items() if name in configured}
    for name, kept in changed.items():
        log.warning(
            "%s of %s stays %s, because its state was created with it; only new state gets the %s of [airflow_ft]"
            " spark_conf",
            name,
            pipeline,
            kept,
            conf[name],
        )
    return {**conf, **changed}


def _changed(base: SparkPosition | None, conf: Mapping[str, str]) -> dict[str, str]:
    """Return what the state has where `conf` says something else, and else than was given when it was made."""
    kept = kept_settings(base)
    if base is None or not kept:
        return {}
    given = note(base.location, _GIVEN) or {}
    return {
        name: kept[name]
        for name, value in conf.items()
        if name in kept and not _same(value, kept[name]) and not _same(value, given.get(name, ""))
    }


def log_changed_settings(base: SparkPosition | None, session: Callable[[str], str | None]) -> None:
    """Log the settings of the session that are not in force; `session` returns one by name."""
    kept = kept_settings(base)
    for name in _NOT_CHANGEABLE:
        value = session(name)
        if name in kept and value is not None and not _same(value, kept[name]):
            log.warning(
                "%s stays %s, because the state was created with it; ignoring the session's %s",
                name,
                kept[name],
                value,
            )


def kept_settings(base: SparkPosition | None) -> dict[str, str]:
    """The settings that the state at `base` was made with; {} where there is no state."""
    if base is None or base.batch < 0:
        return {}
    files = filesystem(base.location)
    stateful = any(name.isdigit() for name in files.names(files.uri(base.location, "state")))
    if not stateful or not has_entry(base.location, OFFSETS, base.batch):
        return {}
    found = dict(entry(base.location, OFFSETS, base.batch).metadata.get("conf", {}))
    if has_entry(base.location, COMMITS, base.batch):
        found[FORMAT] = entry(base.location, COMMITS, base.batch).version.removeprefix("v")
    return found


def _same(one: str, other: str) -> bool:
    return one.strip().lower() == other.strip().lower()
