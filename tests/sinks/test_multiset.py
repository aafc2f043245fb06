from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from pathlib import Path

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.sinks.multiset import Multiset
from airflow_ft.sinks.sqlite.file import SqliteFile
from tests.raising import raises


def test_it_counts_what_is_missing_repeated_and_other() -> None:
    with closing(Multiset()) as rows:
        rows.expect(0, [b"a", b"a", b"b"])
        rows.expect(1, [b"a", b"c"])
        rows.found([b"a", b"b", b"b", b"x"])
        assert (rows.missing, rows.repeated, rows.other) == (3, 1, 1)
        assert rows.missing_by_part() == {0: 2, 1: 2}
        assert rows.lacking([b"b", b"a", b"c", b"x"]) == [1, 2]
        rows.found([b"c", b"a", b"a"])
        assert (rows.missing, rows.missing_by_part(), rows.lacking([b"a"])) == (0, {}, [])


def test_a_full_disk_is_not_the_sinks_fault(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "shop.db")
    with raises(SinkUnavailableError, "disk_full", path=None), file.opened(create=True), closing(Multiset()) as rows:
        rows._db.execute("PRAGMA max_page_count = 10")
        rows.expect(0, [number.to_bytes(200) for number in range(1_000)])


def test_it_agrees_with_a_counter() -> None:
    dice = random.Random(3)
    expected = [bytes([dice.randrange(40)]) for _ in range(500)]
    found = [bytes([dice.randrange(60)]) for _ in range(500)]
    with closing(Multiset()) as rows:
        for start in range(0, 500, 70):
            rows.expect(start, expected[start : start + 70])
        for start in range(0, 500, 90):
            rows.found(found[start : start + 90])
        want, have = Counter(expected), Counter(found)
        assert rows.missing == sum((want - have).values())
        assert rows.repeated == sum(n - want[d] for d, n in have.items() if d in want and n > want[d])
        assert rows.other == sum(n for d, n in have.items() if d not in want)
