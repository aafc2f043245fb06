"""Checksums beside the small files of a location, which Hadoop does not write."""

from __future__ import annotations

from pathlib import Path

from airflow_ft.spark.state.sealing import Lacking, seal


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_checksum_goes_with_its_file(tmp_path: Path) -> None:
    """Spark removes old files of its logs without it: a stream would gather checksums for ever."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    for number in range(3):
        (offsets / str(number)).write_text("v1")
        seal(tmp_path.as_uri(), Lacking(logs=True), first=number == 0)
    assert names(offsets) == {"0", "1", "2", ".0.crc", ".1.crc", ".2.crc"}
    (offsets / "0").unlink()
    (offsets / ".3.tmp").write_text("of Spark, at this moment")
    seal(tmp_path.as_uri(), Lacking(logs=True), first=False)
    assert names(offsets) == {"1", "2", ".1.crc", ".2.crc", ".3.tmp"}


def test_checksums_that_hadoop_writes_are_left_alone(tmp_path: Path) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (offsets / ".7.crc").write_bytes(b"of a file that Hadoop renames at this moment")
    seal(tmp_path.as_uri(), Lacking(), first=True)
    assert names(offsets) == {".7.crc"}
