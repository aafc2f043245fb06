"""Tables with a primary key: the last change of a key counts, in sorted files of each bucket."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.protocol.errors import DeclinedError, UnfitTargetError
from airflow_ft.protocol.participant import Judging
from airflow_ft.protocol.verify import Delivered, SinkReport
from airflow_ft.sinks.paimon import keyed_rows, verify
from airflow_ft.sinks.paimon.binary_row import decoded
from airflow_ft.sinks.paimon.keyed_rows import KIND, NUMBER
from airflow_ft.sinks.paimon.reading import path_of
from airflow_ft.testing.world import SINK, World
from airflow_ft.wal import open_wal
from airflow_ft.wal.local import local_path
from tests.raising import raises
from tests.sinks.paimon.world import current_of, table_of, world_of

Change = tuple[str, int | None, str | None]


def changes(*given: Change) -> pa.Table:
    columns = list(zip(*given, strict=True))
    return pa.table({"op": columns[0], "id": pa.array(columns[1], pa.int64()), "text": columns[2]})


def keyed(folder: Path, **settings: Any) -> World:
    return world_of(folder, **{"primary_key": ["id"], "change_column": "op", **settings})


def current(world: World) -> dict[int, str]:
    return {id: row["text"] for id, row in current_of(table_of(world).path, "id").items()}


def compared(world: World, *delivered: Delivered) -> SinkReport:
    [found] = verify.verify(delivered, world.participant_plan(), table_of(world).connection, open_wal())
    return found


@pytest.mark.parametrize("buckets", [1, 3])
def test_files_are_sorted_and_their_entries_say_so(tmp_path: Path, buckets: int) -> None:
    world = keyed(tmp_path, buckets=buckets)
    for first in (0, 5):
        world.deliver(world.plan(changes(*(("insert", id % 13, f"{first} {id}") for id in range(40, 0, -1)))))
    version = table_of(world).version()
    assert version.schema is not None and version.schema["primaryKeys"] == ["id"]
    numbers: dict[int, list[int]] = {}
    for record in version.manifests.live(version.manifests.listed(version.snapshot)):
        file = record["_FILE"]
        rows = pq.read_table(local_path(path_of(version, record)))
        assert rows.column_names == ["_KEY_id", NUMBER, KIND, "id", "text"]
        ids = rows["_KEY_id"].to_pylist()
        assert ids == sorted(set(ids)) and ids == rows["id"].to_pylist()
        assert [decoded(file[f"_{end}_KEY"], ["bigint"]) for end in ("MIN", "MAX")] == [[ids[0]], [ids[-1]]]
        assert (file["_LEVEL"], file["_DELETE_ROW_COUNT"], file["_ROW_COUNT"]) == (0, 0, len(ids))
        found = rows[NUMBER].to_pylist()
        assert (file["_MIN_SEQUENCE_NUMBER"], file["_MAX_SEQUENCE_NUMBER"]) == (min(found), max(found))
        numbers.setdefault(record["_BUCKET"], []).extend(found)
    assert all(len(set(found)) == len(found) for found in numbers.values())
    last = {id % 13: f"5 {id}" for id in range(40, 0, -1)}
    assert current(world) == last


def test_files_are_synced_before_the_commit_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync, synced = os.fsync, set()

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    world = keyed(tmp_path)
    world.deliver(world.plan(changes(("insert", 1, "a"))))
    files = [*table_of(world).path.rglob("*.parquet")]
    assert files and {file.stat().st_ino for file in files} <= synced


def test_deletes_and_later_changes(tmp_path: Path) -> None:
    world = keyed(tmp_path)
    world.deliver(world.plan(changes(("insert", 1, "a"), ("insert", 2, "a"), ("insert", 3, "a"))))
    world.deliver(
        world.plan(changes(("delete", 1, None), ("delete", 2, None), ("insert", 2, "again"), ("delete", 9, None)))
    )
    assert current(world) == {2: "again", 3: "a"}
    version = table_of(world).version()
    live = version.manifests.live(version.manifests.listed(version.snapshot))
    assert sorted(record["_FILE"]["_DELETE_ROW_COUNT"] for record in live) == [0, 2]


def test_rows_that_are_many_become_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_rows, "_AT_ONCE", 1)
    world = keyed(tmp_path)
    plan = world.plan_of(1, world.segment_of(1, *(changes(("insert", 1, text), ("update", 2, text)) for text in "abc")))
    assert world.deliver(plan).counts == {SINK: 6}
    assert len(list((table_of(world).path / "bucket-0").iterdir())) == 3
    assert current(world) == {1: "c", 2: "c"}


def test_rows_without_a_key_or_a_known_kind_are_refused(tmp_path: Path) -> None:
    world = keyed(tmp_path)
    plan = world.plan(changes(("insert", 1, "a"), ("insert", None, "b"), ("upwards", 2, "c")))
    vote = world.prepare(plan)
    with raises(DeclinedError, "null_refused", sink=SINK) as caught:
        world.commit(plan, vote)
    assert caught.error is not None and Path(caught.error.fields["path"]).is_file()
    assert caught.error.fields["path"] in caught.error.what
    proof = world.commit(plan, world.vote_without_prepare(plan), set_aside=True)
    assert proof.counts == {SINK: 1} and current(world) == {1: "a"}


@pytest.mark.parametrize("row", [("insert", None, "a"), ("upserted", 2, "a")])
def test_a_dry_run_judges_rows_with_a_kind_of_change(tmp_path: Path, row: Change) -> None:
    world = keyed(tmp_path)
    good, bad = world.plan(changes(("insert", 1, "a"))), world.plan(changes(row))
    world.deliver(good)
    participant = world.participant(bad)
    assert isinstance(participant, Judging)
    participant.judge(world.pipeline, [open_wal().open(each) for each in good.segments])
    with raises(DeclinedError, "null_refused" if row[1] is None else "row_refused", sink=SINK):
        participant.judge(world.pipeline, [open_wal().open(each) for each in bad.segments])


def test_partitions_and_buckets_by_a_part_of_the_key(tmp_path: Path) -> None:
    world = keyed(tmp_path, primary_key=["text", "id"], partition_by=["text"], buckets=2, bucket_key=["id"])
    world.deliver(world.plan(changes(("insert", 1, "a"), ("insert", 1, "b"), ("insert", 2, "a"))))
    world.deliver(world.plan(changes(("delete", 1, "a"))))
    version = table_of(world).version()
    assert version.layout.trimmed_key == ["id"] and version.layout.partition_by == ["text"]
    rows = table_of(world).read().to_pylist()
    assert len(rows) == 4 and {path.name for path in table_of(world).path.glob("text=*")} == {"text=a", "text=b"}


@pytest.mark.parametrize("key", [["text"], []])
def test_another_key_than_the_table_s_is_refused(tmp_path: Path, key: list[str]) -> None:
    world = keyed(tmp_path)
    world.deliver(world.plan(changes(("insert", 1, "a"))))
    world.target.sink = replace(table_of(world).sink, primary_key=key, change_column="op" if key else None)
    plan = world.plan(pa.table({"id": [1], "text": ["a"], **({"op": ["insert"]} if key else {})}))
    with raises(UnfitTargetError, "key_unfit", sink=SINK, primary_key=["id"]):
        world.prepare(plan)


def test_verify_finds_keys_that_others_have_changed(tmp_path: Path) -> None:
    world = keyed(tmp_path, buckets=2)
    given: list[Delivered] = []
    for text in ("a", "b"):
        plan = world.plan(changes(("insert", 1, text), ("insert", 2, text), ("delete", 3, None), ("insert", 4, text)))
        given.append(Delivered(plan, world.deliver(plan), None))
    assert compared(world, *given).is_exact
    other = world_of(tmp_path, primary_key=["id"], change_column="op", shared=True)
    other.deliver(other.plan(changes(("update", 2, "other"), ("insert", 3, "there"), ("delete", 4, None))))
    found = compared(world, *given)
    assert not found.is_exact and found.missing == 3
