"""Savepoints in a bucket are refused before anything is read or written there."""

from __future__ import annotations

from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.spark.savepoints.metadata import dispose, listing, of_pipeline, read_metadata
from airflow_ft.spark.savepoints.taking import new_folder
from tests.raising import raises

PLACE = "s3://lake@wal/savepoints"


def test_no_savepoint_is_taken_into_a_bucket_or_read_from_one() -> None:
    with raises(ConfigurationError, "log_in_bucket", path=PLACE):
        new_folder(PLACE, "orders", 1)
    for use in (
        read_metadata,
        dispose,
        lambda folder: list(listing(folder)),
        lambda folder: of_pipeline(folder, "", "", 1),
    ):
        with raises(ConfigurationError, "log_in_bucket", path=PLACE):
            use(PLACE)
