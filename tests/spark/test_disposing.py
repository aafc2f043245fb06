"""Deletion of savepoints: whose they are, what a deletion that was killed leaves, and what lies beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.from_savepoint import ClaimMode
from airflow_ft.spark.savepoints.metadata import read_metadata
from airflow_ft.store.errors import UnknownPipelineError
from tests.raising import raises
from tests.spark.test_savepoints import _restore, _taken, saved_scene
from tests.store.scene import PIPELINE, Scene

pytestmark = pytest.mark.slow


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with saved_scene(tmp_path) as scene:
        yield scene


def test_a_copy_does_not_claim_the_savepoint_of_another_pipeline(scene: Scene, tmp_path: Path) -> None:
    uri = _taken(scene, tmp_path)
    with raises(ConfigurationError, "arguments_conflict", pipeline="copy", other=PIPELINE, path=uri):
        _restore(scene, uri, pipeline="copy", wal_root=str(tmp_path / "wal"), claim=ClaimMode.CLAIM)
    with pytest.raises(UnknownPipelineError):
        scene.store.pipeline("copy")
    assert read_metadata(uri)
