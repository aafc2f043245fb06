"""The conformance kit, and tests beside it, notice mistakes that only the Paimon sink can have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.sinks.base.document import OvertakenError
from airflow_ft.sinks.paimon import buckets, memory, table
from airflow_ft.sinks.paimon import keyed_rows as keyed_rows_module
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from airflow_ft.wal.local import local_path
from tests.conformance.test_paimon import Changed, Keyed
from tests.conformance.wrong import Defect, Play, each_play, is_noticed
from tests.sinks.paimon.servers.test_others import (
    a_death_before_the_snapshot_delivers_nothing,
    a_death_behind_the_snapshot_delivers_once,
    a_raised_fence_refuses_what_is_on_its_way,
    a_replaced_snapshot_halts,
    others_change_the_same_keys,
    rows_of_others_stay,
)
from tools.paimon import Paimon

pytestmark = pytest.mark.sampled
Chain: Any = memory.Chain
Place: Any = table.Place
Version: Any = table.Version
Buckets: Any = buckets.Buckets
keyed_rows: Any = keyed_rows_module
COMMIT, LAST, NUMBER = Version.commit, keyed_rows._last, keyed_rows.NUMBER


def _replacing(self: Any, folder: str, record: Mapping[str, Any]) -> None:
    path = local_path(self.uri(folder, f"{folder}-{record['id']}"))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))


def snapshot_replaced() -> None:
    """A snapshot takes its name whether it is given or not, as a rename does it."""
    Place.create = _replacing


def awaited_snapshot_not_settled() -> None:
    """The fence is raised beside a snapshot that may still come."""
    Version.settle = lambda self, ledger: None


def awaited_snapshot_taken_for_there() -> None:
    """Rows count as delivered as soon as their document is written."""
    Version.holds = lambda self, chain, awaited: True


def awaited_snapshot_not_looked_for() -> None:
    """A process that dies behind its snapshot has delivered nothing, for its successor."""

    def ledger(self: Any, group: str) -> Any:
        chain = Chain(self.place.files, self.place.root, group)
        found = chain.newest()
        return memory.Ledger(chain, found, found.awaited.without if found.awaited else found.memory, pending=False)

    Version.ledger = ledger


def chain_not_compared() -> None:
    """A document takes its name whether it is given or not."""

    def append(self: Any, document: Any) -> None:
        path = local_path(self.uri(document.number))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.data)

    Chain.append = append


def conflict_repeated() -> None:
    """A refused commit is tried again behind the newest document and snapshot."""

    def commit(self: Any, ledger: Any, *rest: Any) -> None:
        try:
            COMMIT(self, ledger, *rest)
        except OvertakenError:
            newest = Version.newest(self.place)
            ledger.found = newest.ledger(ledger.chain.group).found
            COMMIT(newest, ledger, *rest)

    Version.commit = commit


def nothing_remembered() -> None:
    """The rows are added without their marker."""

    def commit(self: Any, ledger: Any, entries: Any, says: Any) -> None:
        if entries:
            ledger = self.ledger(ledger.chain.group)
        COMMIT(self, ledger, entries, says)

    Version.commit = commit


def replaced_snapshot_not_looked_for() -> None:
    """The sink does not compare the newest snapshot with the one that it wrote."""
    Version.check_newest = lambda self, ledger: None


def first_change_kept() -> None:
    """Of several changes of a key the first one counts."""

    def last(rows: Any, key: Any) -> Any:
        backwards = rows.set_column(
            rows.column_names.index(NUMBER), NUMBER, rows[NUMBER].take(pa.array(range(len(rows) - 1, -1, -1)))
        )
        return LAST(backwards, key)

    keyed_rows._last = last


def changes_not_sorted() -> None:
    """A file holds its keys from the greatest to the least."""
    keyed_rows._last = lambda rows, key: LAST(rows, key)[::-1]


def deletes_inserted() -> None:
    """A delete writes its key."""
    keyed_rows.DELETE = keyed_rows.INSERT


def numbers_begin_again() -> None:
    """The changes of a checkpoint are numbered from 0."""
    Version.following = lambda self: {}


def buckets_of_another_hash() -> None:
    """A row's bucket is its key, divided by the number of buckets."""
    Buckets.of = lambda self, rows: rows.column("id").to_numpy() % self.count


KIT = ParticipantConformance()
CASES: list[tuple[Defect, Play]] = [
    (snapshot_replaced, rows_of_others_stay),
    (awaited_snapshot_not_settled, a_raised_fence_refuses_what_is_on_its_way),
    (awaited_snapshot_taken_for_there, a_death_before_the_snapshot_delivers_nothing),
    (awaited_snapshot_not_looked_for, a_death_behind_the_snapshot_delivers_once),
    (chain_not_compared, a_raised_fence_refuses_what_is_on_its_way),
    (conflict_repeated, a_raised_fence_refuses_what_is_on_its_way),
    (replaced_snapshot_not_looked_for, a_replaced_snapshot_halts),
    (nothing_remembered, KIT.test_to_commit_again_changes_nothing),
]
KEYED: list[tuple[Defect, Play]] = [
    (first_change_kept, KIT.test_the_last_change_of_a_key_counts),
    (changes_not_sorted, others_change_the_same_keys),
    (deletes_inserted, KIT.test_a_delete_deletes),
    (numbers_begin_again, KIT.test_a_delete_deletes),
    (buckets_of_another_hash, others_change_the_same_keys),
]
PATCHED = (
    (Place, "create"),
    (Chain, "append"),
    (Version, "commit"),
    (Version, "ledger"),
    (Version, "settle"),
    (Version, "holds"),
    (Version, "check_newest"),
    (Version, "following"),
    (Buckets, "of"),
    (keyed_rows, "_last"),
    (keyed_rows, "DELETE"),
)


@each_play(CASES)
def test_the_kit_notices(paimon: Paimon, tmp_path: Path, defect: Defect, play: Play) -> None:
    def world(folder: Path) -> World:
        folder.mkdir()
        target = Changed(folder, paimon)
        target.flaw = f"{defect.__module__}:{defect.__name__}" if folder.name == "wrong" else ""
        return World(target, folder)

    is_noticed(world, defect, play, tmp_path, *PATCHED)


@each_play(KEYED)
def test_mistakes_with_keys_are_noticed(paimon: Paimon, tmp_path: Path, defect: Defect, play: Play) -> None:
    def world(folder: Path) -> World:
        folder.mkdir()
        return World(Keyed(folder, paimon, buckets=3), folder)

    is_noticed(world, defect, play, tmp_path, *PATCHED)
