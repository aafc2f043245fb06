"""A decision log that was restored, or created anew, gives epoch and attempt out again: old folders are in the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import StageError
from airflow_ft.sources import FileSource
from airflow_ft.store import open_store
from tests.integration.stage_world import PIPELINE, StageWorld, world

pytestmark = [
    pytest.mark.sampled(among="Spark drivers"),
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.fixture
def pipeline(tmp_path: Path, sessions: Path) -> Iterator[StageWorld]:
    yield from world(tmp_path, sessions)


def test_no_row_is_skipped_because_a_lost_history_has_read_it(pipeline: StageWorld) -> None:
    """I10: Spark would go on after what it finds in the folder of epoch 1, attempt 1, which this log never saw."""
    sources = {"numbers": FileSource(path=str(pipeline.input), schema="k string, n bigint")}
    pipeline.add_file("f0", [{"k": "a", "n": n} for n in range(5)])
    assert pipeline.complete(pipeline.request("stage_jobs:Plain", sources)).numbers == (1,)
    pipeline.store.close()
    for suffix in ("", "-wal", "-shm"):
        (pipeline.folder / f"ft.db{suffix}").unlink(missing_ok=True)
    pipeline.store = open_store(pipeline.url)
    pipeline.store.register(PIPELINE)
    pipeline.add_file("f1", [{"k": "b", "n": 5}])
    with pytest.raises(StageError) as caught:
        pipeline.complete(pipeline.request("stage_jobs:Plain", sources))
    assert "decision log" in caught.value.what and str(pipeline.root) in caught.value.what
    pipeline.complete(pipeline.request("stage_jobs:Plain", sources))
    assert sorted(row["n"] for row in pipeline.all_rows()) == [0, 1, 2, 3, 4, 5]
