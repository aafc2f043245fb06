"""Files in a folder do what the protocol demands: in every format, with and without partitions, and in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_ft.testing import ParticipantConformance, Target
from tests.sinks.files.bucket import Bucket
from tests.sinks.files.world import Folder
from tools.servers import S3

pytestmark = pytest.mark.rotating
IDS = [1, 2, 3, 4]
NAN = pa.table({"id": IDS, "text": ["a", "b", "c", "d"], "ratio": [0.5, float("nan"), 1.5, float("inf")]})
DAYS = pa.table({"id": IDS, "text": ["a", "b", "c", "d"], "day": pa.array([0, 2**30, 1, -(2**30)], pa.date32())})
EMPTY = pa.table({"id": IDS, "text": ["a", "", None, "d" * 300]})


class TestParquet(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        yield Folder(tmp_path)


class TestPartitions(ParticipantConformance):
    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[Target]:
        folder = Folder(tmp_path, partition_by=("text",))
        folder.refused, folder.taken, folder.texts = EMPTY, (1, 3), 16
        yield folder


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
        bucket.refused, bucket.taken, bucket.texts = EMPTY, (1, 3), 16
        yield bucket
