"""Settings that Spark keeps with a query's state: it takes no others later, and says so in its own log at most.

The second line of `offsets/<batch>` holds them (`spark.sql.shuffle.partitions`, the state store, formats), and Spark
goes on with those, whatever the session says. Who has changed one believes that it is in force.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping

from airflow_ft.core.errors import ConfigurationError
from airflow_ft.core.model import SparkPosition, canonical_json
from airflow_ft.wal.filesystem import FileSystem, filesystem

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
# Not among them, but in the format of the commits: a change fails.
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_GIVEN = "airflow_ft_settings.json"
_PINNED = ("spark.sql.shuffle.partitions", "spark.sql.streaming.")
# What a user sets on purpose; the others have defaults that change with Spark's versions.
_TOLD = ("spark.sql.shuffle.partitions", PROVIDER)

log = logging.getLogger("airflow_ft.spark")


def remember_given(location: str, conf: Mapping[str, str]) -> None:
    """Keeps in a new location which of such settings were given: the job itself may set others when it runs."""
    files = filesystem(location)
    where = files.uri(location, _GIVEN)
    if not files.exists(where):
        given = {name: value for name, value in conf.items() if name.startswith(_PINNED)}
        files.write(where, canonical_json(given).encode())


def give(location: str, name: str, value: str) -> None:
    """In a copy whose state was made anew: such a setting as if it had been given."""
    files = filesystem(location)
    where = files.uri(location, _GIVEN)
    given = json.loads(files.read(where)) if files.exists(where) else {}
    files.replace(where, canonical_json({**given, name: value}).encode())


def pin(location: str, name: str, value: str) -> None:
    """In a copy whose state was made anew: has all of its batches keep another value of such a setting."""
    files = filesystem(location)
    for batch in files.names(files.uri(location, "offsets")):
        if batch.isdigit():
            version, told, *positions = files.read(files.uri(location, "offsets", batch)).decode().split("\n")
            metadata = json.loads(told)
            metadata["conf"][name] = value
            text = "\n".join([version, json.dumps(metadata, separators=(",", ":")), *positions])
            _replace(files, location, "offsets", batch, text)
    give(location, name, value)


def forget_unique_ids(location: str) -> None:
    """In a copy whose state was made anew: its commits become those of checkpoint format 1."""
    files = filesystem(location)
    for batch in files.names(files.uri(location, "commits")):
        if batch.isdigit():
            told = json.loads(files.read(files.uri(location, "commits", batch)).decode().partition("\n")[2])
            told.pop("stateUniqueIds", None)
            _replace(files, location, "commits", batch, f"v1\n{json.dumps(told, separators=(',', ':'))}")
    give(location, FORMAT, "1")


def _replace(files: FileSystem, location: str, log: str, batch: str, text: str) -> None:
    """Never edited in place: the location that was copied shares the file. Its checksum would not fit any more."""
    files.remove(files.uri(location, log, f".{batch}.crc"))
    files.replace(files.uri(location, log, batch), text.encode())


def refuse_changed(pipeline: str, base: SparkPosition | None, conf: Mapping[str, str]) -> None:
    """ConfigurationError when settings are given that were not when the state at `base` was made, and it has others.

    Needs no JVM. Without state nothing is refused: there they change nothing but speed.
    """
    kept, given = kept_settings(base), _given(base)
    if given is None:
        return
    changed = {
        name: value
        for name, value in conf.items()
        if name in kept and not _same(value, kept[name]) and not _same(value, given.get(name, ""))
    }
    if changed:
        differences = "; ".join(f"{name} is {value}, the state has {kept[name]}" for name, value in changed.items())
        raise ConfigurationError(
            f"the pipeline goes on with state that was made with other settings, which Spark keeps: {differences}.",
            pipeline=pipeline,
            remedy="set them as they were: the pipeline's spark_conf goes before `[airflow_ft] spark_conf`; or drop the"
            f" state (`airflow ft reset-state {pipeline}`); or give the changed pipeline a new name.",
        )


def tell_changed(base: SparkPosition | None, session: Callable[[str], str | None]) -> None:
    """Logs which settings of the session are not in force, wherever they come from; `session` tells one by name."""
    kept = kept_settings(base)
    for name in _TOLD:
        value = session(name)
        if name in kept and value is not None and not _same(value, kept[name]):
            log.warning("%s stays %s, as the state was made; the session's %s is ignored", name, kept[name], value)


def kept_settings(base: SparkPosition | None) -> dict[str, str]:
    """The settings that the state at `base` was made with; {} where there is no state."""
    if base is None or base.batch < 0:
        return {}
    files = filesystem(base.location)
    offsets, commit = (files.uri(base.location, log, str(base.batch)) for log in ("offsets", "commits"))
    stateful = any(name.isdigit() for name in files.names(files.uri(base.location, "state")))
    if not stateful or not files.exists(offsets):
        return {}
    lines = files.read(offsets).decode().splitlines()
    found: dict[str, str] = json.loads(lines[1]).get("conf", {}) if len(lines) > 1 else {}
    if files.exists(commit) and (version := files.read(commit).decode().partition("\n")[0]).startswith("v"):
        found[FORMAT] = version[1:]
    return found


def _given(base: SparkPosition | None) -> dict[str, str] | None:
    """What `remember_given` has kept; None where it has not: in locations that are older than it."""
    if base is None:
        return None
    files = filesystem(base.location)
    where = files.uri(base.location, _GIVEN)
    return json.loads(files.read(where)) if files.exists(where) else None


def _same(one: str, other: str) -> bool:
    return one.strip().lower() == other.strip().lower()
