"""Files in a folder do what the protocol demands, in every format, with and without partitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_ft import FilesSink
from airflow_ft.core.ports import ConnectionInfo
from airflow_ft.testing import ParticipantConformance, Target
from airflow_ft.testing.world import World

pytestmark = pytest.mark.rotating
IDS = [1, 2, 3, 4]
NAN = pa.table({"id": IDS, "text": ["a", "b", "c", "d"], "ratio": [0.5, float("nan"), 1.5, float("inf")]})
DAYS = pa.table({"id": IDS, "text": ["a", "b", "c", "d"], "day": pa.array([0, 2**30, 1, -(2**30)], pa.date32())})
EMPTY = pa.table({"id": IDS, "text": ["a", "", None, "d" * 300]})


class Folder(Target):
    """A folder that is not there yet, read by PyArrow, which lists it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.path = folder / "orders"
        self.sink = FilesSink(folder=str(self.path), **settings)
        self.connection = ConnectionInfo(self.sink.participant, "")
        self.format = self.sink.format

    def ids(self) -> list[int]:
        if not self.path.is_dir():
            return []
        found = ds.dataset(self.path, format=self.format).files
        return sorted(id for file in found for id in ds.dataset(file, format=self.format).to_table()["id"].to_pylist())


class TestParquet(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield Folder(tmp_path)


class TestPartitions(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        folder = Folder(tmp_path, partition_by=("text",))
        folder.refused, folder.taken = EMPTY, (1, 3)
        yield folder

    def test_memory_does_not_grow_with_rows(self, world: World) -> None:
        pytest.skip("each row would have a folder of its own")


class TestCsv(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield Folder(tmp_path, format="csv")


class TestJson(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        folder = Folder(tmp_path, format="json", compression="gzip")
        folder.refused, folder.taken = NAN, (1, 3)
        yield folder
