"""Where Kafka sources begin: looked up by the first attempt, and frozen for all later ones.

    <root>/<pipeline>/spark/begun-<digest>.json

A source begins when its pipeline has no base, or has one in whose making it was not used. Where that is ("latest", a
time, where a group stands) is frozen before anything is published from it, so that it is one moment whatever fails
afterwards, and whatever is rewound. It is frozen for each source by itself: what else the job reads does not matter.
Only what says where the source starts counts: with `max_offsets_per_trigger`, say, which a person changes because the
first batch was too large, "latest" must not become another moment. In another life of the pipeline
(`locations.life_of`), when everything is read anew, it begins anew.

Earlier versions kept one file for all sources of a pipeline without a base, the origin; it is still read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_ft.core.errors import StageError
from airflow_ft.core.model import canonical_json
from airflow_ft.sources.kafka import GROUP_OFFSETS
from airflow_ft.spark.state import source_log
from airflow_ft.spark.state.locations import SparkLocation, first_offsets, life_in
from airflow_ft.spark.state.standing import Ids, Standing, without
from airflow_ft.wal.filesystem import filesystem
from airflow_ft.wal.parsing import read_json

if TYPE_CHECKING:
    from airflow_ft.spark.request import StageRequest

_FROZEN = re.compile(r"^(?:begun|origin)-[0-9a-f]+(?:-\d+)*\.json$")


@dataclass(frozen=True, slots=True)
class Beginnings:
    """Of the declared sources in one life of a pipeline. `places`: names by the sources' places in the query."""

    root: str
    pipeline: str
    life: str
    sources: Mapping[str, Any]

    @classmethod
    def of(cls, request: StageRequest) -> Beginnings:
        """Of the life in which an attempt goes on."""
        life = request.life if request.base is None else life_in(request.base.location)
        return cls(request.wal_root, request.pipeline, life, request.sources)

    def has(self, name: str) -> bool:
        """Whether an attempt has frozen where this one begins, or an earlier version where all do."""
        files = filesystem(self.root)
        return files.exists(self._file(name)) or files.exists(self._origin())

    def standing(self, places: Mapping[int, str]) -> Standing:
        """Where they begin, and the ids of their topics, as far as it is frozen."""
        told = {index: found for index, name in places.items() if (found := self._told(name, places)) is not None}
        offsets = {index: first_offsets(each["first"])[1] for index, each in told.items()}
        return Standing(offsets, {index: each["ids"] for index, each in told.items() if each["ids"]})

    def restore(self, location: SparkLocation, places: Mapping[int, str], known: Ids, void: Ids) -> None:
        """Into an attempt's own location: where they begin, as far as it is frozen.

        Before that it gets the ids of topics that it lacks, and loses the topics whose positions are void: in one step,
        so that "latest" never becomes another moment. An attempt that has begun before finds something else than its
        own, and publishes nothing.
        """
        files = filesystem(self.root)
        for index, name in places.items():
            if (told := self._told(name, places)) is None:
                continue
            head, before = first_offsets(told["first"])
            left = without(before, void.get(index, {}))
            first = told["first"] if len(left) == len(before) else head + canonical_json(left)
            ids = {topic: each for topic, each in {**told["ids"], **known.get(index, {})}.items() if topic in left}
            if (mended := {"first": first, "ids": ids}) != told:
                files.replace(self._file(name), canonical_json(mended).encode())
            target = filesystem(location.uri)
            target.write(target.uri(location.uri, source_log.FOLDER, str(index), "0"), first.encode())

    def freeze(
        self, location: SparkLocation, places: Mapping[int, str], topic_ids: Callable[[Mapping[int, Any]], Ids]
    ) -> None:
        """Freezes where they begin by what Spark has looked up, before anything is published from it.

        `topic_ids` gives the ids of the topics in these positions, or raises. The first attempt to freeze a source
        wins. StageError when that was another one, which began elsewhere: this attempt must not publish; the next one
        begins where the frozen positions say.
        """
        files = filesystem(self.root)
        looked_up = {}
        for index in places:
            if files.exists(where := files.uri(location.uri, source_log.FOLDER, str(index), "0")):
                looked_up[index] = files.read(where).decode()
        ids = topic_ids({index: first_offsets(first)[1] for index, first in looked_up.items()})
        for index, first in looked_up.items():
            frozen, told = self._file(places[index]), {"first": first, "ids": dict(ids.get(index, {}))}
            try:
                files.write(frozen, canonical_json(told).encode())
            except FileExistsError:
                if read_json(frozen) != told:
                    raise StageError(
                        f"another attempt began to read source {places[index]!r} at another position.",
                        pipeline=self.pipeline,
                        remedy="nothing to do: the next attempt begins where that one did.",
                    ) from None

    def _told(self, name: str, places: Mapping[int, str]) -> dict[str, Any] | None:
        """Of one source: "first", as Spark has written it, and "ids" of its topics; None: it is not frozen."""
        files = filesystem(self.root)
        if files.exists(file := self._file(name)):
            return dict(read_json(file))
        if not files.exists(origin := self._origin()):
            return None
        frozen = read_json(origin)
        order: list[str] | None = frozen.get("airflow_ft_sources")  # the first versions went by the job's order
        index = {place: each for each, place in places.items()}[name] if order is None else order.index(name)
        first = frozen.get(str(index))
        ids = frozen.get("airflow_ft_topics", {}).get(str(index), {})
        return None if first is None else {"first": first, "ids": ids}

    def _file(self, name: str) -> str:
        source = self.sources[name]
        stem = f"begun-{_digest([name, start_of(source), *([self.life] if self.life else [])])}"
        return self._of_times(stem, [] if (time := _rendered_time(source)) is None else [time])

    def _origin(self) -> str:
        """Where an earlier version has frozen all sources at once, in a file by what is declared of them.

        The first ones took all of it, and not only what says where they start.
        """
        life = self.life.rpartition("/")[2]
        starts = {name: start_of(source) for name, source in self.sources.items()}
        times = [time for source in self.sources.values() if (time := _rendered_time(source)) is not None]
        strict = {
            name: {**source, "fail_on_data_loss": True} if "fail_on_data_loss" in source else source
            for name, source in self.sources.items()
        }
        said = (starts,) if times else (starts, strict, self.sources)
        found = [self._of_times(f"origin-{_digest([life, each] if life else each)}", times) for each in said]
        return next((origin for origin in found if filesystem(self.root).exists(origin)), found[0])

    def _of_times(self, stem: str, times: list[int]) -> str:
        """Of starts that each run renders as another time: the earliest that is frozen, unless these are earlier.

        A run that failed before it published anything has read its records for nothing, and a later one begins there,
        not at its own time (I10).
        """
        files = filesystem(self.root)
        folder = files.uri(self.root, self.pipeline, "spark")
        plain = files.uri(folder, f"{stem}.json")  # of an added source, earlier versions froze one for all times
        if not times or files.exists(plain):
            return plain
        frozen = []
        for file in files.names(folder):
            if (match := re.fullmatch(re.escape(stem) + r"((?:-\d+)+)\.json", file)) is not None:
                before = [int(time) for time in match[1][1:].split("-")]
                if all(one <= other for one, other in zip(before, times, strict=True)):
                    frozen.append(before)
        return files.uri(folder, "-".join([stem, *map(str, min(frozen, default=times))]) + ".json")


def copy_frozen(root: str, pipeline: str, target: str) -> None:
    """Into another root on the same file system: all that attempts have frozen of where sources begin."""
    files = filesystem(root)
    folder = files.uri(root, pipeline, "spark")
    for name in files.names(folder):
        if _FROZEN.match(name):
            files.write(files.uri(target, pipeline, "spark", name), files.read(files.uri(folder, name)))


def start_of(source: Any) -> Any:
    """What of a declared source says where it starts; nothing is frozen of files, but that there are some."""
    names = ["kind"]
    if source.get("kind") == "kafka":
        names += ["topics", "pattern", "conn_id", "starting_offsets"]
        names += ["group_id"] if source.get("starting_offsets") == GROUP_OFFSETS else []
    found = {name: source.get(name) for name in names}
    return found if _rendered_time(source) is None else {**found, "starting_offsets": source["start_declared"]}


def _rendered_time(source: Any) -> int | None:
    """Milliseconds since 1970 of a start that Airflow has rendered; None: it is no time, or was written as it is."""
    start = source.get("starting_offsets")
    if not source.get("start_declared") or not isinstance(start, Mapping) or "timestamp" not in start:
        return None
    return max(0, int(datetime.fromisoformat(start["timestamp"]).timestamp() * 1000))


def _digest(said: Any) -> str:
    return hashlib.sha256(canonical_json(said).encode()).hexdigest()[:16]
