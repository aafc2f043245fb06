"""The conformance kit notices mistakes that a sink can make whose rows are guarded by timestamps alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airflow_ft.sinks.base.keyed import Chunk
from airflow_ft.sinks.hbase import participant as participant_module
from airflow_ft.sinks.hbase import stamps
from airflow_ft.sinks.hbase.wire import BINARY
from tests.conformance.test_hbase import Rows
from tests.conformance.wrong import Case, each, marker_first, notices
from tests.sinks.hbase.reading import in_binary
from tools.servers import HBase

pytestmark = [pytest.mark.server, pytest.mark.sampled(among="HBase")]
participant: Any = participant_module
FEW = 10
"""Rows of a batch here, so that the cases of the kit have many of them."""
Changes, Participant = participant.Changes, participant.HBaseParticipant
PATCHED = (
    (stamps, "_ROWS"), (participant, "give"), (participant, "batches"), (participant, "mutations"),
    (Changes, "replace"), (Changes, "mutate"), (Participant, "_deliver"), (Participant, "_send"),
)  # fmt: skip


def right() -> None:
    """Make batches small, as all defects do."""
    stamps._ROWS = FEW


def no_stamps() -> None:
    """Cells have the time at which they are written, and nobody looks at the head."""
    right()

    def mutate(self: Any, client: Any, table: str, rows: Any, stamp: int) -> None:
        read = [in_binary(row) for row in rows]
        client.mutateRows(table.encode(), read, {})

    Changes.mutate = mutate


def stamps_of_each_attempt() -> None:
    """A successor gives out stamps of its own, above those of the process that died."""
    right()

    def give(ledger: Any, plan: Any, now: int) -> dict[str, Any]:
        first = max(ledger.others["stamps"]["last"] + 1, now)
        ledger.others["stamps"] = {
            "number": plan.number, "digest": plan.digest, "first": first, "last": first + 1_000_000
        }  # fmt: skip
        return {}

    participant.give = give


def one_stamp() -> None:
    """All batches have the stamp of the first one."""
    right()
    batches = stamps.batches

    def same(chunks: Iterator[Chunk]) -> Iterator[tuple[int, str, list[Chunk]]]:
        return ((0, sink, some) for _, sink, some in batches(chunks))

    participant.batches = same


def every_change() -> None:
    """All changes of a key are sent, with one stamp."""
    right()

    def send(self: Any, db: Any, chunks: Any) -> None:
        first = stamps.given(db.ledger, db.plan)
        for offset, name, some in stamps.batches(chunks):
            for chunk in some:
                for row in range(chunk.rows.num_rows):
                    one = Chunk(0, name, chunk.rows.slice(row, 1), chunk.deletes[row : row + 1], {})
                    changes = list(participant.mutations(self.sinks[name], one, BINARY).values())
                    db.mutate(db.documents.client, self.sinks[name].table, changes, first + offset)

    Participant._send = send


def first_change_counts() -> None:
    right()
    make = participant.mutations

    def reversed_(sink: Any, chunk: Chunk, form: Any) -> Any:
        found: dict[bytes, Any] = {}
        for row in range(chunk.rows.num_rows):
            one = Chunk(0, chunk.sink, chunk.rows.slice(row, 1), chunk.deletes[row : row + 1], {})
            found = {**make(sink, one, form), **found}
        return found

    participant.mutations = reversed_


def no_deletes() -> None:
    right()
    make = participant.mutations
    participant.mutations = lambda sink, chunk, form: make(
        sink, replace(chunk, refused=dict.fromkeys(np.flatnonzero(chunk.deletes).tolist(), "a delete")), form
    )


def document_without_comparison() -> None:
    right()

    def replace_(self: Any) -> None:
        document = participant.Mutation(column=participant._COLUMN, value=self.ledger.text.encode())
        row = self.documents.row(self.fence.pipeline)
        self.documents.client.mutateRow(self.documents.table, row, [document], {})

    Changes.replace = replace_


def marker_before_rows() -> None:
    """The rows follow the marker, so a process that dies between them loses rows."""
    right()

    Participant._deliver = marker_first(lambda _, changes, plan: stamps.give(changes.ledger, plan, changes.seen.at))


CASES: list[Case] = [
    (no_stamps, "test_a_zombie_overwrites_no_row_of_a_later_checkpoint", {"at": 0}),
    (stamps_of_each_attempt, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
    (one_stamp, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
    (every_change, "test_a_delete_deletes", {}),
    (first_change_counts, "test_the_last_change_of_a_key_counts", {}),
    (no_deletes, "test_a_delete_deletes", {}),
    (document_without_comparison, "test_it_meets_later_numbers_when_it_wakes_up", {"step": "commit"}),
    (marker_before_rows, "test_no_key_goes_back_when_a_successor_continues", {"at": 103}),
]


@each(CASES)
def test_the_kit_notices(hbase: HBase, tmp_path: Path, case: Case) -> None:
    notices(lambda: nullcontext(Rows(hbase, "text", 0)), case, tmp_path, *PATCHED, right=right)
