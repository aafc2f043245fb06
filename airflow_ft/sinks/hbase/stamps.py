"""Cell timestamps, which take the place of a fence for rows: the higher one counts, whenever it is written.

A delete hides every put of the same or a lower timestamp, also one that is written later (HBASE-2256, HBASE-8626). So
the rows of a checkpoint are divided into batches of 1,000 rows, the same in each attempt. A batch has one timestamp
and one sink, all its rows have the same columns, and only the last change of a key in it is sent. If a delete precedes
it in the batch, the delete is sent with the timestamp below. So batches follow each other by two milliseconds.

The document holds the stamps of one number, given out once: above those of every earlier number, and not below
HBase's own clock. Cells that other programs wrote before are older, those that they write later are newer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

from airflow_ft.protocol.model import Plan
from airflow_ft.sinks.base.document import DocumentLedger
from airflow_ft.sinks.base.keyed import Chunk, stamps_lost

_ROWS = 1_000
_STEP = 2  # milliseconds: of a batch's deletes that others of its rows follow, and of its last changes
NONE_GIVEN: Mapping[str, Any] = {"number": 0, "digest": "", "first": 0, "last": 0}


def give(ledger: DocumentLedger, plan: Plan, now: int) -> dict[str, Any]:
    """Give out stamps for a plan, unless it has them. Return what its marker keeps of them; `now` is HBase's time."""
    stamps = ledger.others["stamps"]
    if (stamps["number"], stamps["digest"]) != (plan.number, plan.digest):
        first = max(stamps["last"] + 1, now)
        rows = sum(count for segment in plan.segments for count in segment.rows.values())
        sinks = sum(len(participant.sinks) for participant in plan.participants)
        last = first + _STEP * (rows // _ROWS + sinks * len(plan.segments) + 1)
        stamps = {"number": plan.number, "digest": plan.digest, "first": first, "last": last}
        ledger.others["stamps"] = stamps
    return {"stamps": [stamps["first"], stamps["last"]]}


def given(ledger: DocumentLedger, plan: Plan) -> int:
    """Return the first stamp of a plan. StoreBehindSinkError: it has none, though they were given out before."""
    stamps = ledger.others["stamps"]
    if (stamps["number"], stamps["digest"]) != (plan.number, plan.digest):
        raise stamps_lost("timestamps", "HBase", plan.number)
    return int(stamps["first"])


def batches(chunks: Iterator[Chunk]) -> Iterator[tuple[int, str, Iterator[Chunk]]]:
    """Yield the rows of batch after batch: its stamp, from 1 on; its sink; and its chunks, in the order of the log.

    The stamp below is the batch's, too. The chunks of a batch are read one by one, and before the next batch.
    """
    for (offset, sink), some in groupby(_stamped(chunks), key=lambda each: (each[0], each[1].sink)):
        yield offset, sink, (piece for _, piece in some)


def _stamped(chunks: Iterator[Chunk]) -> Iterator[tuple[int, Chunk]]:
    """Yield pieces of the chunks, each with the stamp of its batch."""
    changes, before = 0, None
    for chunk in chunks:
        kind = (chunk.sink, chunk.rows.schema)
        if before is not None and kind != before:
            changes += 1
        before = kind
        for piece in _pieces(chunk):
            yield (piece.first // _ROWS + changes) * _STEP + 1, piece


def _pieces(chunk: Chunk) -> Iterator[Chunk]:
    """Cut a chunk where a batch ends."""
    start, end = 0, chunk.rows.num_rows
    while start < end:
        stop = min(end, start + _ROWS - (chunk.first + start) % _ROWS)
        refused = {row - start: why for row, why in chunk.refused.items() if start <= row < stop}
        yield replace(
            chunk,
            first=chunk.first + start,
            rows=chunk.rows.slice(start, stop - start),
            deletes=chunk.deletes[start:stop],
            refused=refused,
        )
        start = stop
