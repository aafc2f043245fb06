"""A table's rows against those of the log, as multisets on disk (`airflow_ft.sinks.multiset`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow_ft.core.ports import SegmentReader, WalFile
from airflow_ft.core.verify import SAMPLES, Difference, SinkReport, sample
from airflow_ft.sinks.multiset import Multiset

Row = tuple[Any, ...]
InLog = Callable[[SegmentReader, str, WalFile], Iterator[list[Row]]]
"""The rows of one file of the log, some at a time, with values as the table gives them back."""


def compare(
    report: SinkReport, sent: Iterable[tuple[int, str, SegmentReader]], in_log: InLog, found: Iterable[Sequence[Row]]
) -> SinkReport:
    """The report, with what it finds. `sent`: number, sink and segment of each delivery; `found`: the table's rows."""
    with closing(Multiset()) as rows:
        parts: list[tuple[int, str, SegmentReader, WalFile]] = []
        for number, name, reader in sent:
            for file in reader.files(name):
                for some in in_log(reader, name, file):
                    rows.expect(len(parts), [_digest(row) for row in some])
                parts.append((number, name, reader, file))
        for each in found:
            rows.found([_digest(row) for row in each])
        differences = tuple(
            Difference(
                parts[i][0], parts[i][3].path, count, _samples(rows, in_log(parts[i][2], parts[i][1], parts[i][3]))
            )
            for i, count in rows.missing_by_part().items()
        )
        return replace(report, missing=rows.missing, repeated=rows.repeated, other=rows.other, differences=differences)


def _digest(row: Row) -> bytes:
    """Of values and their kinds; -0.0 is 0.0."""
    plain = [0.0 if isinstance(value, float) and value == 0 else value for value in row]
    return hashlib.blake2b(repr(plain).encode(), digest_size=20).digest()


def _samples(rows: Multiset, in_log: Iterator[list[Row]]) -> tuple[str, ...]:
    found: list[str] = []
    for some in in_log:
        found += [sample(some[index]) for index in rows.lacking([_digest(row) for row in some])]
        if len(found) >= SAMPLES:
            break
    return tuple(found[:SAMPLES])
