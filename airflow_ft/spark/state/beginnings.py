"""Start offsets of Kafka sources: the first attempt looks them up, and they are frozen for all later ones.

    <root>/<pipeline>/spark/begun-<digest>.json

A source begins when its pipeline has no base, or a base that was made without it. The position ("latest", a time, a
group's offsets) is frozen before anything is published from it, so it stays the same over failures and rewinds. Each
source is frozen alone, independent of the job's other sources. Only the settings of its start count. If a person
lowers `max_offsets_per_trigger` because the first batch was too large, "latest" must keep its position. In another
life of the pipeline (`locations.incarnation_of`), when everything is read again, a source gets a new beginning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_ft.protocol.errors import StageError
from airflow_ft.protocol.model import canonical_json
from airflow_ft.sources.kafka import GROUP_OFFSETS
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.locations import (
    SparkLocation,
    first_offsets,
    incarnation_in,
    location_root,
)
from airflow_ft.spark.state.status import Ids, LocationStatus, without
from airflow_ft.wal.checksums import read_checked
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.parsing import digest_of, json_with_digest, read_json

if TYPE_CHECKING:
    from airflow_ft.spark.request import StageRequest

_FROZEN = re.compile(r"^begun-[0-9a-f]+\.json$")


@dataclass(frozen=True, slots=True)
class Begun:
    """Beginning of one use of a source: `first`, as Spark wrote it, the `ids` of its topics, and their file.

    `is_elsewhere`: it was read from the log that holds the base.
    """

    first: str
    ids: Mapping[str, str]
    file: str
    is_elsewhere: bool = False

    @property
    def offsets(self) -> dict[str, Any]:
        """By topic and partition."""
        return first_offsets(self.first)[1]


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Beginnings of the declared sources in one life of a pipeline. `places`: names by the sources' places in the
    query.

    A job that reads one source twice, which is possible while it has no base, has two places of that name.
    `base_root`: root of the log that holds its base; "": it has none.
    """

    root: str
    pipeline: str
    incarnation: str
    sources: Mapping[str, Any]
    base_root: str = ""

    @classmethod
    def of(cls, request: StageRequest) -> Beginnings:
        """Return those of the life in which an attempt continues. Create it as the attempt begins: a sweep of its base
        sweeps them too.
        """
        incarnation, root = request.incarnation, ""
        if request.base is not None:
            incarnation, root = incarnation_in(request.base.location), location_root(request.base.location)
        return cls(request.wal_root, request.pipeline, incarnation, request.sources, root)

    def has(self, name: str) -> bool:
        """Return whether the beginning is frozen, as far as that is known before the job names its sources."""
        return self._found(name) is not None

    def read(self, places: Mapping[int, str]) -> dict[int, Begun]:
        """Return the frozen beginnings. Read them once, so that an attempt uses the same ones throughout."""
        found = {}
        for index, use in _uses(places).items():
            if (frozen := self._found(*use)) is not None:
                data, file = read_json(frozen), self._file(*use)
                found[index] = Begun(data["first"], data["ids"], file, is_elsewhere=frozen != file)
        return found

    @staticmethod
    def location_status(begun: Mapping[int, Begun]) -> LocationStatus:
        """Return what was read, as an attempt compares it with what is there now."""
        offsets = {index: each.offsets for index, each in begun.items()}
        return LocationStatus(offsets, {index: each.ids for index, each in begun.items() if each.ids})

    @staticmethod
    def restore(location: SparkLocation, begun: Mapping[int, Begun], known: Ids, void: Ids) -> None:
        """Write the beginnings that were read into an attempt's own location.

        Before, it gets the ids of topics that it lacks, and loses the topics whose positions are void: in one step, so
        that "latest" never becomes another moment. An earlier attempt then finds a beginning other than its own, and
        publishes nothing. Nor does this one if another attempt has frozen meanwhile what it has not read.
        """
        target = filesystem(location.uri)
        for index, each in begun.items():
            head, before = first_offsets(each.first)
            left = without(before, void.get(index, {}))
            first = each.first if len(left) == len(before) else head + canonical_json(left)
            ids = {topic: id for topic, id in {**each.ids, **known.get(index, {})}.items() if topic in left}
            data, files = json_with_digest({"first": first, "ids": ids}), filesystem(each.file)
            if each.is_elsewhere:
                with suppress(FileExistsError):
                    files.write(each.file, data)
            elif (first, ids) != (each.first, each.ids):
                files.replace(each.file, data)
            target.write(target.uri(location.uri, source_log.FOLDER, str(index), "0"), first.encode())

    def freeze(
        self, location: SparkLocation, places: Mapping[int, str], topic_ids: Callable[[Mapping[int, Any]], Ids]
    ) -> None:
        """Freeze the starting positions that Spark has looked up, before anything is published from them.

        `topic_ids` gives the ids of the topics in these positions, or raises. The first attempt to freeze a source
        wins. StageError if another attempt froze another position: this one must not publish, and the next one begins
        at the frozen positions.
        """
        files = filesystem(self.root)
        looked_up = {}
        for index in places:
            if files.exists(where := files.uri(location.uri, source_log.FOLDER, str(index), "0")):
                looked_up[index] = read_checked(files, where).decode()
        ids = topic_ids({index: first_offsets(first)[1] for index, first in looked_up.items()})
        uses = _uses(places)
        for index, first in looked_up.items():
            name, use = uses[index]
            frozen, data = self._file(name, use), {"first": first, "ids": dict(ids.get(index, {}))}
            try:
                files.write(frozen, json_with_digest(data))
            except FileExistsError:
                if read_json(frozen) != data:
                    raise StageError(
                        f"another attempt started to read source {name!r} at another position.",
                        code="starting_position_taken",
                        pipeline=self.pipeline,
                        remedy="Do nothing. The next attempt starts at the same position as the other one.",
                        source=name,
                    ) from None

    def _found(self, name: str, use: int = 0) -> str | None:
        """Return where it is frozen: here, or in the log from which the pipeline has moved with its base."""
        places = (self, replace(self, root=self.base_root)) if self.base_root else (self,)
        return next((it for it in (place._file(name, use) for place in places) if filesystem(it).exists(it)), None)

    def _file(self, name: str, use: int = 0) -> str:
        life, again = [self.incarnation] if self.incarnation else [], [use] if use else []
        digest = _digest([name, start_of(self.sources[name]), *life, *again])
        return filesystem(self.root).uri(self.root, self.pipeline, "spark", f"begun-{digest}.json")


def _uses(places: Mapping[int, str]) -> dict[int, tuple[str, int]]:
    """Return which use of which source each place is: the first of a name is 0."""
    found: dict[int, tuple[str, int]] = {}
    for index, name in sorted(places.items()):
        found[index] = name, sum(other == name for other, _ in found.values())
    return found


def copy_frozen(root: str, pipeline: str, target: str, name: str) -> None:
    """Copy the frozen beginnings of a pipeline to another name, or to another log."""
    files, others = filesystem(root), filesystem(target)
    folder = files.uri(root, pipeline, "spark")
    for file in files.names(folder):
        if _FROZEN.match(file):
            others.replace(others.uri(target, name, "spark", file), files.read(files.uri(folder, file)))


def start_of(source: Any) -> Any:
    """Return the settings of a declared source that determine its start. Sources other than Kafka have only their
    kind.
    """
    names = ["kind"]
    if source.get("kind") == "kafka":
        names += ["topics", "pattern", "conn_id", "starting_offsets"]
        names += ["group_id"] if source.get("starting_offsets") == GROUP_OFFSETS else []
    return {name: source.get(name) for name in names}


def _digest(said: Any) -> str:
    return digest_of(said)[:16]
