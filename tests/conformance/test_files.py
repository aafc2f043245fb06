"""Files in a folder do what the protocol demands: in every format, with and without partitions, and in a bucket."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from airflow_ft import FilesSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.testing import Bag, ParticipantConformance, Target, Values, plain
from airflow_ft.testing.tables import Row
from tests.conformance.values import (
    AS_JSON,
    CLOCK,
    EARLY,
    FINITE,
    LATE,
    LATE_MOMENT,
    NESTED,
    NOT_FINITE,
    REFUSED_BY_JSON,
    digits,
    instant,
    without,
)
from tests.sinks.files.bucket import Bucket
from tests.sinks.files.world import Folder
from tools.servers import S3

pytestmark = pytest.mark.sampled
IDS = [1, 2, 3, 4]
NAN = pa.table({"id": IDS, "text": ["a", "b", "c", "d"], "ratio": [0.5, float("nan"), 1.5, float("inf")]})
DAYS = pa.table({"id": IDS, "text": ["a", "b", "c", "d"], "day": pa.array([0, 2**30, 1, -(2**30)], pa.date32())})
EMPTY = pa.table({"id": IDS, "text": ["a", "", None, "d" * 300]})
NO_PLACE_IN_TEXT = {"before the year 1": ("day", EARLY), "a late day": ("day", LATE), "late": ("local", LATE_MOMENT)}


NO_CSV = {"binary": ("text", pa.array([b"a"])), "a list": ("text", pa.array([[1]]))}
AS_CSV: dict[str, Callable[[Any], Any]] = {
    "amount": digits,
    "day": date.isoformat,
    "moment": lambda value: instant(value, " ", "Z"),
    "local": lambda value: instant(value, " "),
    "clock": lambda value: value.isoformat("microseconds"),
}


class Changed(Folder):
    """A folder that somebody else can change: whole files, with all their rows."""

    def plant(self, what: str, id: int) -> int:
        [file] = [self.path / name for name in self.files() if id in self.ids_in(name)]
        rows = len(self.ids_in(str(file.relative_to(self.path))))
        if what == "loss":
            file.unlink()
        elif what == "double":
            shutil.copy(file, file.with_name(f"again-{file.name}"))
        else:
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.unlink()  # it may be a file of the log, too
            file.write_bytes(data)
        return rows

    def bag(self) -> Bag | None:
        if self.sink.partition_by:
            return None  # a partition is a folder of its own
        path = self.path.with_name("bag")

        def rows() -> list[Row]:
            found = [
                row for file in parts(path) for row in ds.dataset(file, format=self.sink.format).to_table().to_pylist()
            ]
            return [(each.get("id"), each.get("text") or None, each.get("note") or None) for each in found]

        return Bag(replace(self.sink, folder=str(path)), rows)

    def mistaken(self) -> dict[str, tuple[SinkSpec, ConnectionInfo]]:
        folder = self.path.parent
        (folder / "file").write_bytes(b"something")
        marked = folder / "theirs" / "_airflow_ft"
        marked.mkdir(parents=True, exist_ok=True)
        (marked / "pipeline.json").write_text('{"pipeline": "another", "staged": "inside"}')
        made = {
            "no folder": replace(self.sink, folder=f"{folder}/file/orders"),
            "another pipeline's": replace(self.sink, folder=str(marked.parent)),
            "no such column": replace(self.sink, folder=f"{folder}/new", partition_by=("country",)),
        }
        return {name: (sink, self.connection) for name, sink in made.items()}

    def values(self) -> Values | None:
        return None if self.sink.partition_by else kinds(self.sink, self.path.with_name("kinds"))


def kinds(sink: FilesSink, folder: Path) -> Values:
    """Into a folder of its own."""
    into = replace(sink, folder=str(folder))
    if sink.format == "json":
        columns = {**FINITE, **CLOCK, **NESTED}
        return Values(into, columns, lambda: json_rows(folder), AS_JSON, {**REFUSED_BY_JSON, **NO_PLACE_IN_TEXT})
    if sink.format == "csv":
        columns = without({**FINITE, **NOT_FINITE, **CLOCK}, "raw")
        return Values(into, columns, lambda: csv_rows(folder, columns), AS_CSV, {**NO_PLACE_IN_TEXT, **NO_CSV})
    columns = {**FINITE, **NOT_FINITE, **CLOCK, **NESTED, "late": pa.concat_arrays([EARLY, LATE])}
    return Values(
        into, columns, lambda: [row for file in parts(folder) for row in plain(pq.read_table(file, partitioning=None))]
    )


def parts(folder: Path) -> list[Path]:
    """The files of all checkpoints."""
    return sorted(folder.glob("checkpoint=*/part-*"))


def json_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in parts(folder) for line in gzip.decompress(file.read_bytes()).splitlines()]


def csv_rows(folder: Path, columns: dict[str, pa.Array]) -> list[dict[str, Any]]:
    """By PyArrow's reader, which tells NULL from an empty text; what has digits that it might change is text."""
    kept = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    types = {
        name: array.type if any(is_one(array.type) for is_one in kept) else pa.string()
        for name, array in columns.items()
    }
    converting = csv.ConvertOptions(
        column_types={"id": pa.int64(), **types},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        null_values=[""],
    )
    parsing = csv.ParseOptions(newlines_in_values=True)
    tables = [csv.read_csv(file, parse_options=parsing, convert_options=converting) for file in parts(folder)]
    return [row for table in tables for row in plain(table)]


class TestParquet(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield Changed(tmp_path)


class TestPartitions(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        folder = Changed(tmp_path, partition_by=("text",))
        folder.refused, folder.taken, folder.texts = EMPTY, (1, 3), 16
        yield folder


class TestCsv(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        folder = Changed(tmp_path, format="csv")
        folder.refused, folder.taken = DAYS, (1, 3)
        yield folder


class TestJson(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        folder = Changed(tmp_path, format="json", compression="gzip")
        folder.refused, folder.taken = NAN, (1, 3)
        yield folder


@pytest.mark.server
class TestS3(ParticipantConformance):
    @pytest.fixture
    def target(self, s3: S3) -> Iterator[Target]:
        yield Bucket(s3)


@pytest.mark.server
class TestPartitionsInS3(ParticipantConformance):
    @pytest.fixture
    def target(self, s3: S3) -> Iterator[Target]:
        bucket = Bucket(s3, partition_by=("text",))
        bucket.refused, bucket.taken, bucket.texts, bucket.at_once = EMPTY, (1, 3), 16, False
        yield bucket
