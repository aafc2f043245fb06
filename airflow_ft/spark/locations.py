"""Spark's own checkpoint location of each attempt: offsets, commits and operator state.

    <root>/<pipeline>/spark/<epoch>-<attempt>

Rules (DESIGN 3 and 9, 'publish after commit, own copy'):

- After a clean end the next attempt continues in the same folder: its only writer is known to have ended.
- After an unclean end the next attempt works in a copy of its own, cut back to the last *published* batch. The process
  that it replaces may still be alive and keeps the old folder to itself; and what Spark had done beyond the published
  batch never existed (I1).
- Cutting back drops later offsets, commits **and state versions**. State left behind by a batch that was never
  published would be loaded in preference to what the replay computes: a snapshot of version n beats the replay's
  change log of version n.
- Without a base, the positions at which the sources began are frozen once (`origin`), so that "latest" means the same
  moment in every attempt.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from airflow_ft.core.errors import ConfigurationError, StageError, WalCorruptError
from airflow_ft.core.model import SparkPosition, canonical_json
from airflow_ft.wal.filesystem import FileSystem, filesystem

_STATE_FILE = re.compile(r"^\.?(\d+)(?:_[^.]+)*\.(?:delta|snapshot|zip|changelog)(?:\.crc)?$")
_LOG_FILE = re.compile(r"^\.?(\d+)(?:\.crc)?$")
SOURCES_FILE = "airflow_ft_sources.json"
TOPICS = "airflow_ft_topics"  # a folder in a location, a key in an origin: see `airflow_ft.spark.standing`


@dataclass(frozen=True, slots=True)
class SparkLocation:
    """The checkpoint location of one attempt; `batch` is the last one done in it when it was opened (-1: none)."""

    root: str
    pipeline: str
    uri: str
    batch: int
    how: str

    def position(self, batch: int) -> SparkPosition:
        """Spark's position after a batch."""
        return SparkPosition(self.uri, batch)

    def is_committed(self, batch: int) -> bool:
        """Whether Spark's own commit of the batch is there."""
        files = filesystem(self.uri)
        return files.exists(files.uri(self.uri, "commits", str(batch)))

    def sync(self, synced: set[tuple[str, int, int]]) -> None:
        """Makes all of it durable; `synced` is the memory between calls."""
        filesystem(self.uri).sync_tree(self.uri, self.root, synced)

    def offsets(self, batch: int) -> list[Any]:
        """The end offsets of a batch, source by source in Spark's order; [] for batch -1."""
        files = filesystem(self.uri)
        if batch < 0:
            return []
        lines = files.read(files.uri(self.uri, "offsets", str(batch))).decode().splitlines()
        # Line 1 is the format, line 2 metadata; then a line for each source, "-" when it has no data yet.
        return [None if line == "-" else parsed_offsets(line) for line in lines[2:]]


def open_location(
    root: str, pipeline: str, epoch: int, attempt: int, base: SparkPosition | None, clean: bool
) -> SparkLocation:
    """The folder in which this attempt works: the base's own when clean, else a new one (see the module).

    WalCorruptError when the base's folder is gone or does not contain the base's batch, StageError when the new folder
    is there already.
    """
    files = filesystem(root)
    uri = files.uri(root, pipeline, "spark", f"{epoch}-{attempt}")
    if (
        base is not None
        and clean
        and _newest(base.location, "offsets") == _newest(base.location, "commits") == base.batch
    ):
        return SparkLocation(root, pipeline, base.location, base.batch, "in place")
    refuse_another_history(files, uri, pipeline)
    if base is None:
        return SparkLocation(root, pipeline, uri, -1, "from the beginning")
    files.link_tree(base.location, uri, lambda name: _survives(name, base.batch))
    if not (_newest(uri, "offsets") == _newest(uri, "commits") == base.batch):
        files.remove_tree(uri)
        raise WalCorruptError(
            f"Spark's state of batch {base.batch}, the last one published, is not in {base.location}",
            pipeline=pipeline,
            remedy="restore the folder from a backup; or rewind the pipeline to an older checkpoint",
        )
    return SparkLocation(root, pipeline, uri, base.batch, f"in a copy of {base.location}, cut back to its batch")


def refuse_another_history(files: FileSystem, uri: str, pipeline: str) -> None:
    """An attempt's folder is its own: one that is there was made under a decision log that this one knows nothing of.

    A log that was restored from a backup, or made anew, gives the same numbers out again. Spark would go on from what
    it finds there, and leave rows out that this log never saw (I10).
    """
    if files.exists(uri):
        raise StageError(
            f"{uri} is there already, from another history of the decision log (restored from a backup, or made anew).",
            remedy="nothing, if that is so: the next try works in a folder of its own.",
            pipeline=pipeline,
        )


def check_sources(location: SparkLocation, names: Sequence[str]) -> None:
    """Spark knows the sources of a query by their order only: refuses another order than the location was made with.

    ConfigurationError names both.
    """
    files = filesystem(location.uri)
    where = files.uri(location.uri, SOURCES_FILE)
    if location.batch < 0 or not files.exists(where):
        if not files.exists(where):
            files.write(where, canonical_json(list(names)).encode())
        return
    before = json.loads(files.read(where))
    if before != list(names):
        raise ConfigurationError(
            f"the job reads its sources in the order {list(names)}, its checkpoints were made with {before}; Spark"
            " would mix up their positions.",
            pipeline=location.pipeline,
            remedy="use the sources in `transform` as before, or give the changed pipeline a new name.",
        )


def restore_origin(location: SparkLocation, sources: Mapping[str, Any]) -> None:
    """Into a new, empty location: the starting positions that an earlier attempt of this pipeline has frozen."""
    files = filesystem(location.uri)
    origin = origin_file(location.root, location.pipeline, sources)
    if location.batch < 0 and files.exists(origin):
        for index, text in json.loads(files.read(origin)).items():
            if index != TOPICS:
                files.write(files.uri(location.uri, "sources", index, "0"), text.encode())


def freeze_origin(
    location: SparkLocation,
    sources: Mapping[str, Any],
    kafka: Sequence[int],
    topic_ids: Callable[[Mapping[int, Any]], Mapping[int, Mapping[str, str]]],
) -> None:
    """Freezes the starting positions of the Kafka sources (by index), before anything is published from them.

    `topic_ids` gives the ids of the topics in these positions, or raises. The first attempt to freeze them wins.
    StageError when that was another one which began elsewhere: this attempt must not publish; the next one begins where
    the frozen positions say.
    """
    files = filesystem(location.uri)
    origin = origin_file(location.root, location.pipeline, sources)
    begun: dict[str, Any] = {}
    for index in kafka:
        where = files.uri(location.uri, "sources", str(index), "0")
        if files.exists(where):
            begun[str(index)] = files.read(where).decode()
    if not begun:
        return
    ids = topic_ids({int(index): parsed_offsets(text[text.find("{") :]) for index, text in begun.items()})
    begun[TOPICS] = {str(index): dict(topics) for index, topics in ids.items()}
    try:
        files.write(origin, canonical_json(begun).encode())
    except FileExistsError:
        if json.loads(files.read(origin)) != begun:
            raise StageError(
                "another attempt began to read the sources at other positions.",
                pipeline=location.pipeline,
                remedy="nothing to do: the next attempt begins where that one did.",
            ) from None


def origin_file(root: str, pipeline: str, sources: Mapping[str, Any]) -> str:
    """The file of the frozen starting positions: another one when other sources are declared.

    Whether lost data fail the job says nothing of where it starts; only files of an earlier version go by that too.
    """
    files = filesystem(root)
    declared = ({name: _strict(source) for name, source in sources.items()}, sources)
    digests = [hashlib.sha256(canonical_json(each).encode()).hexdigest()[:16] for each in declared]
    found = [files.uri(root, pipeline, "spark", f"origin-{digest}.json") for digest in digests]
    return next((origin for origin in found if files.exists(origin)), found[0])


def _strict(source: Any) -> Any:
    return {**source, "fail_on_data_loss": True} if "fail_on_data_loss" in source else source


def _survives(name: PurePosixPath, batch: int) -> bool:
    """Whether a file of a location belongs to the batches up to `batch`."""
    if name.name.endswith((".tmp", ".tmp.crc")):
        return False
    if name.parts[0] in ("offsets", "commits", TOPICS):
        match = _LOG_FILE.match(name.name)
        return match is not None and int(match[1]) <= batch
    if name.parts[0] == "state":
        match = _STATE_FILE.match(name.name)
        return match is None or int(match[1]) <= batch + 1  # batch n writes version n + 1
    return True


def _newest(location: str, log: str) -> int:
    files = filesystem(location)
    return max((int(name) for name in files.names(files.uri(location, log)) if name.isdigit()), default=-1)


def parsed_offsets(line: str) -> Any:
    """A source's offsets: JSON of every source that Spark brings, else the text."""
    try:
        return json.loads(line)
    except ValueError:
        return line
