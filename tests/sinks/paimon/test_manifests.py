"""Manifests that are put together, and damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import SinkAccessError
from airflow_ft.sinks.paimon import manifests
from airflow_ft.sinks.paimon.binary_row import encoded
from airflow_ft.sinks.paimon.manifests import DELETED, Manifests, Record, Slot, entry
from airflow_ft.wal.filesystem import filesystem
from tests.raising import raises

KINDS = ["string"]


def of(name: str, partition: str | None = "a") -> dict[str, Any]:
    return entry(Slot(encoded([partition], KINDS)), name, 100, 7, 0)


def deleted(name: str) -> dict[str, Any]:
    return {**of(name), "_KIND": DELETED}


def names(found: list[Record]) -> list[str]:
    return sorted(record["_FILE"]["_FILE_NAME"] for record in found)


@pytest.fixture
def these(tmp_path: Path) -> Manifests:
    (tmp_path / "manifest").mkdir()
    return Manifests(filesystem(str(tmp_path)), tmp_path.as_uri())


def test_entries_read_back_and_bounds_pass_a_manifest(these: Manifests) -> None:
    listed = these.write([of("1", "b"), of("2", None), of("3", "a long text of a partition")], KINDS, 4)
    stats = listed["_PARTITION_STATS"]
    assert stats["_MIN_VALUES"] == encoded(["a long text of a partition"], KINDS)
    assert (stats["_MAX_VALUES"], stats["_NULL_COUNTS"]) == (encoded(["b"], KINDS), [1])
    name, size = these.write_list([listed])
    [read] = these.listed({"baseManifestList": name, "deltaManifestList": these.write_list([])[0]})
    assert read == {**read, **listed} and names(these.live([read])) == ["1", "2", "3"] and size > 0


def test_a_file_that_was_deleted_stays_deleted(these: Manifests, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the entry that deletes it lies in a manifest that is too large to be put together."""
    listed = [these.write([of(str(number))], KINDS, 0) for number in range(40)]
    listed.append({**these.write([deleted("7"), of("large")], KINDS, 0), "_FILE_SIZE": 9 << 20})
    listed += [these.write([of(str(number))], KINDS, 0) for number in range(40, 80)]
    listed.append(these.write([deleted("8"), deleted("50")], KINDS, 0))
    wanted = sorted({str(number) for number in range(80)} - {"7", "8", "50"} | {"large"})
    assert names(these.live(listed)) == wanted
    merged = these.merged(listed, KINDS, 0)
    assert len(merged) == 3 and names(these.live(merged)) == wanted
    assert [record["_NUM_DELETED_FILES"] for record in merged] == [0, 1, 1], "8 lies in another one"
    assert these.merged(merged, KINDS, 0) == merged, "few are left alone"
    monkeypatch.setattr(manifests, "_MERGED_FROM", 2)
    few = [these.write([of("1")], KINDS, 0), these.write([deleted("1")], KINDS, 0)]
    assert these.merged(few, KINDS, 0) == []


def test_a_damaged_manifest_is_named(these: Manifests, tmp_path: Path) -> None:
    listed = these.write([of("1")], KINDS, 0)
    path = tmp_path / "manifest" / listed["_FILE_NAME"]
    whole = path.read_bytes()
    for data in (b"", b"something", whole[:-30], whole[:100]):
        path.write_bytes(data)
        with raises(SinkAccessError, "log_unreadable", path=path.as_uri()):
            these.live([listed])
    path.unlink()
    with raises(SinkAccessError, "log_unreadable", path=path.as_uri()):
        these.live([listed])


def test_what_no_snapshot_names_is_removed(these: Manifests, tmp_path: Path) -> None:
    these.write([of("1")], KINDS, 0)
    these.write_list([])
    these.discard()
    assert not list((tmp_path / "manifest").iterdir())
