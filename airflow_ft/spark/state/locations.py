"""Spark's own checkpoint location of each attempt: offsets, commits and operator state.

    <root>/<pipeline>/spark/<epoch>-<attempt>

Rules:

- After a clean end the next attempt continues in the same folder: its only writer is known to have ended.
- After an unclean end the next attempt works in a copy of its own, cut back to the last *published* batch. The
  replaced process may still be alive and keeps the old folder; and Spark's unpublished work never existed (I1).
- Cutting back drops later offsets, commits **and state versions**. Otherwise Spark would load state of a batch
  that was never published instead of the replay's: a snapshot of version n beats the replay's change log of version n.
- It also drops what Spark's log of read files has beyond that batch, so that the folder is listed again.
- A location refers only to itself, so older ones can be swept (`airflow_ft.spark.state.schema_paths`).
- The start of Kafka sources is frozen outside of it (`airflow_ft.spark.state.beginnings`), so "latest" is the same
  moment in every attempt until everything is read again (`incarnation_of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from airflow_ft.protocol.errors import ConfigurationError, WalCorruptError
from airflow_ft.protocol.model import SparkPosition
from airflow_ft.spark.state import schema_paths, source_log
from airflow_ft.spark.state.location_files import (
    COMMITS,
    OFFSETS,
    Entry,
    entry,
    has_entry,
    keep,
    newest_batch,
    note,
    offsets_of,
    parsed_offsets,
    replace_entry,
)
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import FileSystem, another_history, filesystem, link_tree, refuse_another_history
from airflow_ft.wal.local import Synced
from airflow_ft.wal.markers import OR_A_SAVEPOINT
from airflow_ft.wal.roots import require

_STATE_FILE = re.compile(r"^\.?(\d+)(?:_[^.]+)*\.(?:delta|snapshot|zip|changelog)(?:\.crc)*$")  # Spark's has Hadoop's
_LOG_FILE = re.compile(r"^\.?(\d+)(?:\.crc)?$")
_PART = re.compile(r"^\.?(?:offsets|commits|sources|state|metadata|airflow_ft_\w+(?:\.json)?)(?:\.[^/]*)?$")
"""Matches names of a location's entries, of their temporary files, and of Hadoop's checksums."""
_BATCH = re.compile(r"^(?:-1|\d+)$")  # -1: before the first
SOURCES_FILE = "airflow_ft_sources.json"
ORDER_FILE = "airflow_ft_order.json"  # the micro-batch at which either of these was changed
PLACES_FILE = "airflow_ft_places.json"  # of which source each line of offsets is, where a job uses one several times
TOPICS = "airflow_ft_topics"  # a folder: see `airflow_ft.spark.state.status`
LEFT = "airflow_ft_left"  # a folder: positions of sources that the job no longer uses (`source_changes`)
INCARNATION_FILE = "airflow_ft_life.json"  # see `incarnation_in`
START_FILE = "airflow_ft_start.json"  # the offsets before batch 0, where state was dropped (`state_reset`)


@dataclass(frozen=True, slots=True)
class SparkLocation:
    """The checkpoint location of one attempt; `batch` is the last one done in it when it was opened (-1: none).

    `how` it was opened is for the log. `memory`: of offsets that a query has read, by micro-batch, and of places.
    Neither changes while it runs.
    """

    root: str
    pipeline: str
    uri: str
    batch: int
    how: str = ""
    memory: dict[int | str, Any] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, base: SparkPosition, pipeline: str = "", root: str = "") -> SparkLocation:
        """The location of a position. `root` is needed only to `sync` it, or to copy it for the pipeline's own use."""
        return cls(root, pipeline, base.location, base.batch)

    def position(self, batch: int) -> SparkPosition:
        """Spark's position after a batch."""
        return SparkPosition(self.uri, batch)

    def is_committed(self, batch: int) -> bool:
        """Return whether Spark's own commit of the batch is there; a driver asks again and again."""
        files = filesystem(self.uri)
        return files.seen(files.uri(self.uri, COMMITS, str(batch)))

    def ends_at(self, batch: int) -> bool:
        """Return whether Spark has begun nothing after this batch, so another attempt may continue in this folder."""
        return newest_batch(self.uri, OFFSETS) == newest_batch(self.uri, COMMITS) == batch

    def sync(self, synced: Synced) -> None:
        """Makes all of it durable; `synced` is the memory between calls."""
        filesystem(self.uri).sync_tree(self.uri, self.root, synced)

    def offsets(self, batch: int) -> list[Any]:
        """The end offsets of a batch, source by source in Spark's order; of batch -1: those before the first."""
        if self.memory is not None:
            for old in [each for each in self.memory if isinstance(each, int) and each < batch - 1]:
                del self.memory[old]
        found: list[Any] = self._remembered(batch, lambda: self._offsets(batch))
        return found

    def _remembered(self, name: int | str, read: Callable[[], Any]) -> Any:
        if self.memory is None:
            return read()
        if name not in self.memory:
            self.memory[name] = read()
        return self.memory[name]

    def _offsets(self, batch: int) -> list[Any]:
        if batch < 0:
            return note(self.uri, START_FILE) or []
        return [offsets_of(line) for line in by_source(self, entry(self.uri, OFFSETS, batch))]

    def places(self) -> list[int] | None:
        """By line of Spark's offsets: which source it is of. None: each source has one line."""
        found: list[int] | None = self._remembered(PLACES_FILE, lambda: note(self.uri, PLACES_FILE))
        return found

    def sources(self) -> list[str]:
        """Their names, in Spark's order; empty before `check_sources`."""
        return note(self.uri, SOURCES_FILE) or []

    @property
    def ordered_since(self) -> int:
        """The micro-batch from which on lines of offsets are of these sources, and in these places."""
        return note(self.uri, ORDER_FILE) or 0


def by_source(location: SparkLocation, log_entry: Entry) -> list[str]:
    """Lines of offsets, source by source: Spark has one for each use of a source, and one folder `sources/<index>`
    for all of its uses.
    """
    places = location.places()
    return (
        list(log_entry.lines) if places is None else [log_entry.lines[places.index(n)] for n in range(max(places) + 1)]
    )


def by_use(location: SparkLocation, lines: Sequence[str]) -> tuple[str, ...]:
    """Do the opposite: turn one line a source into the lines that Spark has in the location."""
    places = location.places()
    return tuple(lines if places is None else [lines[place] for place in places])


def open_location(
    root: str, pipeline: str, epoch: int, attempt: int, base: SparkPosition | None, clean: bool
) -> SparkLocation:
    """The folder in which this attempt works: the base's own when clean, else a new one (see the module).

    A new one too when the log has moved to another root, so that no later run needs the old one.

    Raises WalCorruptError if the base's folder is missing or does not contain the base's batch, StageError if the new
    folder exists.
    """
    if base is None:
        return SparkLocation(root, pipeline, new_location(root, pipeline, epoch, attempt), -1, "from the beginning")
    old = SparkLocation(root, pipeline, base.location, base.batch, "in place")
    require_batch(old)
    files = filesystem(old.uri)
    last = source_log.last_ids(files, old.uri, old.offsets(base.batch))
    in_place = clean and location_root(old.uri) == filesystem(root).uri(root)
    if in_place and _ends_at(files, old.uri, base.batch, last) and schema_paths.are_own(files, old.uri):
        return old
    return copy_location(old, new_location(root, pipeline, epoch, attempt))


def copy_location(old: SparkLocation, uri: str) -> SparkLocation:
    """A copy in a new folder, cut back to the location's batch. Raises as `open_location` does."""
    files = filesystem(uri)
    last = source_log.last_ids(filesystem(old.uri), old.uri, old.offsets(old.batch))
    try:
        link_tree(old.uri, uri, lambda name: _survives(name, old.batch, last))
    except FileExistsError as error:
        raise another_history(uri, old.pipeline) from error
    schema_paths.copy(old.uri, uri, old.batch)
    if not _ends_at(files, uri, old.batch, last):
        files.remove_tree(uri)
        raise _lacks(old)
    return SparkLocation(old.root, old.pipeline, uri, old.batch, f"in a copy of {old.uri}, cut back to its batch")


def require_batch(location: SparkLocation) -> None:
    """WalCorruptError when Spark's offsets of the location's batch are not in it."""
    files = filesystem(location.uri)
    require(location.uri)
    if not files.exists(location.uri):
        require(location.uri)
        raise WalCorruptError(
            f"the folder {location.uri} is missing.",
            code="state_files_missing",
            remedy=f"Restore it from a backup, or run `airflow ft rewind PIPELINE`. {OR_A_SAVEPOINT}",
            pipeline=location.pipeline,
            path=location.uri,
        ).filled(location.pipeline)
    name = START_FILE if location.batch < 0 else f"offsets/{location.batch}"
    if not files.exists(files.uri(location.uri, *name.split("/"))):
        raise _lacks(location)


def new_location(root: str, pipeline: str, epoch: int, attempt: int) -> str:
    """The URI of an attempt's folder, which is not there yet; else StageError."""
    files = filesystem(root)
    uri = files.uri(root, pipeline, "spark", f"{epoch}-{attempt}")
    refuse_another_history(files, uri, pipeline)
    return uri


def location_of_epoch(root: str, pipeline: str, epoch: int) -> str:
    """The URI of a folder that is an epoch's own, since no attempt has the number 0; else as `new_location`."""
    return new_location(root, pipeline, epoch, 0)


def is_location(files: FileSystem, uri: str) -> bool:
    """Return whether a folder holds nothing but what Spark and this package put into a checkpoint location."""
    return all(_PART.match(name) for name in files.names(uri))


def location_root(uri: str) -> str:
    """The root of the log in which an attempt's folder lies."""
    return filesystem(uri).uri(uri).rsplit("/", 3)[0]


def new_beginning(root: str, pipeline: str, epoch: int) -> SparkPosition:
    """Return a position before everything, for a pipeline that has read something and must read it again.

    The first attempt from here freezes new beginnings of its sources: older ones belong to another `incarnation_of`.
    """
    location = SparkLocation(root, pipeline, location_of_epoch(root, pipeline, epoch), -1)
    keep(location.uri, START_FILE, [])
    location.sync({})
    return location.position(-1)


def behind_the_beginning(base: SparkPosition | None) -> SparkPosition | None:
    """The base of an attempt; None: it begins as the first one of a pipeline does, also at a `new_beginning`."""
    return None if base is not None and base.batch < 0 and note(base.location, START_FILE) == [] else base


def incarnation_of(base: SparkPosition | None) -> str:
    """Return the `new_beginning` of an attempt, as pipeline and folder; "": the pipeline's first life, or no base.

    A zombie of a former life freezes nothing of this one.
    """
    if base is None or behind_the_beginning(base) is not None:
        return ""
    pipeline, _, folder = base.location.rsplit("/", 3)[1:]
    return f"{pipeline}/{folder}"


def remember_incarnation(location: SparkLocation, incarnation: str) -> None:
    """In a new location: which life of its pipeline begins there (`incarnation_of`). Copies of it have that, too."""
    if incarnation:
        keep(location.uri, INCARNATION_FILE, incarnation)


def incarnation_in(uri: str) -> str:
    """The life, and its pipeline, in which a location was begun, or that of which it is a copy; "": the first one."""
    return note(uri, INCARNATION_FILE) or ""


def _lacks(location: SparkLocation) -> WalCorruptError:
    require(location.uri)
    return WalCorruptError(
        f"{location.uri} lacks Spark's state of batch {location.batch}, the last one published.",
        code="state_files_missing",
        pipeline=location.pipeline,
        remedy="Restore the folder from a backup, or rewind to an older checkpoint: `airflow ft rewind PIPELINE`."
        f" {OR_A_SAVEPOINT}",
        path=location.uri,
        batch=location.batch,
    ).filled(location.pipeline)


def lost_state(pipeline: str, location: str, batch: int) -> WalCorruptError:
    """Return the error for a location without the state of its batch."""
    return WalCorruptError(
        f"{location} lacks Spark's state of batch {batch}.",
        code="state_files_missing",
        remedy="Restore the folder from a backup. Or run"
        f" `airflow ft reset-state {pipeline}`, which drops the state and keeps the positions.",
        pipeline=pipeline,
        path=location,
        batch=batch,
    )


def check_sources(location: SparkLocation, names: Sequence[str]) -> None:
    """Spark knows the sources of a query by their order only: refuses another order than the location was made with.

    ConfigurationError names both.
    """
    before = location.sources()
    if not before:
        keep(location.uri, SOURCES_FILE, list(names))
    elif before != list(names):
        raise ConfigurationError(
            f"the job reads its sources in the order {list(names)}, but its checkpoints have the order {before}. Spark"
            " would mix up their positions.",
            code="sources_changed",
            pipeline=location.pipeline,
            remedy="Use the sources in `transform` as before, or give the changed pipeline a new name.",
            before=before,
            after=list(names),
        )


def has_places(base: SparkPosition | None, places: Sequence[int]) -> bool:
    """Return whether the job that made `base` used its sources in the same places: else they are changed in a copy."""
    if base is None:
        return True
    return stored_places(SparkLocation.of(base).places()) == stored_places(places)


def set_places(location: SparkLocation, places: Sequence[int]) -> None:
    """Record the places of the job's sources in a new location or a copy.

    Rewrites the newest offsets if the places changed: the same sources keep their positions.
    """
    if stored_places(location.places()) == stored_places(places):
        return
    rewrite_offsets(location, lambda lines: lines, places)


def rewrite_offsets(
    location: SparkLocation, rewritten: Callable[[list[str]], Sequence[str]], places: Sequence[int]
) -> None:
    """In a copy: other lines, source by source, and another use of them.

    Of the last micro-batch, and of the one before: Spark reads that one, too, and counts its lines.
    """
    for batch in range(max(location.batch - 1, 0), location.batch + 1):
        if has_entry(location.uri, OFFSETS, batch):
            log_entry = entry(location.uri, OFFSETS, batch)
            lines = rewritten(by_source(location, log_entry))
            log_entry = replace(log_entry, lines=tuple(lines[place] for place in places))
            replace_entry(location.uri, OFFSETS, batch, log_entry)
    keep(location.uri, PLACES_FILE, stored_places(places))
    if location.batch >= 0:
        keep(location.uri, ORDER_FILE, location.batch)


def stored_places(places: Sequence[int] | None) -> list[int] | None:
    """As they are kept: None when each source has one line."""
    return None if places is None or list(places) == list(range(len(places))) else list(places)


def _survives(name: PurePosixPath, batch: int, last: dict[str, int]) -> bool:
    """Return whether a file of a location belongs to the batches up to `batch`, and to the ids in `last` of read
    files.
    """
    if name.name.endswith((".tmp", ".tmp.crc")) or schema_paths.names_schemas(name):
        return False
    if name.parts[0] == source_log.FOLDER:
        return source_log.survives(name, last)
    if name.parts[0] == TOPICS:
        return _BATCH.match(name.name) is not None and int(name.name) <= batch
    if name.parts[0] in ("offsets", "commits"):
        match = _LOG_FILE.match(name.name)
        return match is not None and int(match[1]) <= batch
    if name.parts[0] == "state":
        if batch < 0:
            return False
        match = _STATE_FILE.match(name.name)
        return match is None or int(match[1]) <= batch + 1  # batch n writes version n + 1
    return True


def _ends_at(files: FileSystem, location: str, batch: int, last: dict[str, int]) -> bool:
    """Return whether all of Spark's logs in a location end with that batch."""
    return newest_batch(location, OFFSETS) == newest_batch(location, COMMITS) == batch and all(
        source_log.newest_id(files, location, index) == number for index, number in last.items()
    )


def first_offsets(text: str) -> tuple[str, dict[str, Any]]:
    """Return Spark's first offsets of a source: the text before the JSON (a zero byte, the version), and the JSON."""
    begin = text.find("{")
    found = parsed_offsets(text[begin:]) if begin >= 0 else None
    return (text[:begin], found) if isinstance(found, dict) else (text, {})


def begins_at(uri: str, index: int) -> dict[str, Any]:
    """The offsets at which a Kafka source of a location begins, as Spark has looked them up; {}: none, or no Kafka."""
    files = filesystem(uri)
    first = files.uri(uri, source_log.FOLDER, str(index), "0")
    return first_offsets(read_checked(files, first).decode(errors="replace"))[1] if files.exists(first) else {}


def is_kafka(offset: Any) -> bool:
    """Return whether these are offsets of Kafka: {"topic": {"0": 17}}."""
    return isinstance(offset, dict) and all(
        isinstance(partitions, dict) and all(isinstance(value, int) for value in partitions.values())
        for partitions in offset.values()
    )
