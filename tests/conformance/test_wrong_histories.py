"""The conformance kit notices wrong SQLite sinks whose mistake needs a longer history, several segments or sinks."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_ft.protocol.votes import Outcome, Proof
from airflow_ft.sinks import refused
from airflow_ft.sinks.base import comparison, memory
from airflow_ft.sinks.base import one_transaction as module
from airflow_ft.sinks.base.one_transaction import OneTransactionParticipant
from airflow_ft.sinks.base.sql_ledger import SqlLedger
from airflow_ft.sinks.set_aside import DeliveredLog
from airflow_ft.sinks.sqlite import columns
from airflow_ft.sinks.sqlite.file import SqliteFile
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests.conformance.test_sqlite import File

pytestmark = pytest.mark.sampled
Change = Callable[[Any, str, Any], None]
WRONG: dict[str, tuple[Callable[[Change], None], str, dict[str, Any]]] = {}
"""By name: what makes the mistake, the case that notices it, and its parameters."""
_MINE = "pipeline = ? AND participant = ?"


def noticed_by(case: str, **parameters: Any) -> Callable[[Callable[[Change], None]], Callable[[Change], None]]:
    def register(make: Callable[[Change], None]) -> Callable[[Change], None]:
        WRONG[make.__name__] = (make, case, parameters)
        return make

    return register


# --- heads and markers ------------------------------------------------------------


def without_raising(change: Change, step: str) -> None:
    """The step compares the head, and leaves it as it is."""
    own, raised = getattr(OneTransactionParticipant, step), OneTransactionParticipant._raised

    def compared(self: Any, ledger: Any, fence: Any) -> Any:
        head = ledger.head()
        memory.check_owner(head, fence)
        return head

    def leaving(self: Any, *of: Any) -> Any:
        OneTransactionParticipant._raised = compared  # type: ignore[method-assign]
        try:
            return own(self, *of)
        finally:
            OneTransactionParticipant._raised = raised  # type: ignore[method-assign]

    change(OneTransactionParticipant, step, leaving)


@noticed_by("test_each_step_fences_older_owners", step="commit")
def a_commit_does_not_raise_the_head(change: Change) -> None:
    without_raising(change, "_deliver")


@noticed_by("test_each_step_fences_older_owners", step="abort")
def an_abort_does_not_raise_the_head(change: Change) -> None:
    without_raising(change, "_abort")


def as_texts(head: Any, fence: Any) -> None:
    if [*map(str, head.rank)] > [*map(str, fence.rank)]:
        memory.check_owner(replace(head, epoch=fence.epoch + 1), fence)


@noticed_by("test_numbers_and_epochs_are_compared_as_numbers")
def ranks_are_compared_as_texts(change: Change) -> None:
    change(module, "check_owner", as_texts)


@noticed_by("test_numbers_and_epochs_are_compared_as_numbers")
def the_greatest_text_is_the_last_number(change: Change) -> None:
    sql = f"UPDATE {{head}} SET last_delivered = max(CAST(last_delivered AS TEXT), CAST(? AS TEXT)) WHERE {_MINE}"
    change(SqlLedger, "deliver_head", lambda self, number: self.run(sql, number, *self.key))


@noticed_by("test_numbers_and_epochs_are_compared_as_numbers")
def markers_are_pruned_by_their_texts(change: Change) -> None:
    sql = f"DELETE FROM {{ledger}} WHERE {_MINE} AND CAST(number AS TEXT) <= CAST(? AS TEXT)"
    change(SqlLedger, "prune", lambda self, floor: self.run(sql, *self.key, floor))


@noticed_by("test_it_remembers_what_was_delivered_last")
def a_head_that_is_past_a_number_proves_it(change: Change) -> None:
    proof = OneTransactionParticipant._proof

    def inferred(self: Any, plan: Any) -> Any:
        found, head = proof(self, plan), self._head(plan.pipeline)
        if found is None and head is not None and head.number >= plan.number:
            return Proof(self.name, plan.number, Outcome.COMMITTED, plan.digest, 1, {"rows": 40}, {})
        return found

    change(OneTransactionParticipant, "_proof", inferred)


@noticed_by("test_an_aborted_number_never_comes")
def to_abort_again_gives_another_reason(change: Change) -> None:
    abort = OneTransactionParticipant._abort
    change(
        OneTransactionParticipant,
        "_abort",
        lambda self, plan, fence, detail: replace(abort(self, plan, fence, detail), detail=dict(detail)),
    )


@noticed_by("test_an_aborted_number_stays_aborted")
def to_prepare_again_removes_the_tombstone(change: Change) -> None:
    raise_head = SqlLedger.raise_head

    def removing(self: Any, fence: Any) -> None:
        raise_head(self, fence)
        self.run(f"DELETE FROM {{ledger}} WHERE {_MINE} AND kind = 'aborted'", *self.key)

    change(SqlLedger, "raise_head", removing)


@noticed_by("test_a_floor_is_never_lowered")
def a_floor_is_lowered(change: Change) -> None:
    sql = f"UPDATE {{head}} SET floor = ? WHERE {_MINE}"
    change(SqlLedger, "raise_floor", lambda self, floor: self.run(sql, floor, *self.key))


@noticed_by("test_participants_of_one_database_are_apart", other="another")
def to_forget_prunes_for_all_participants(change: Change) -> None:
    sql = "DELETE FROM {ledger} WHERE pipeline = ? AND number <= ?"
    change(SqlLedger, "prune", lambda self, floor: self.run(sql, self.pipeline, floor))


@noticed_by("test_numbers_and_epochs_are_compared_as_numbers")
def each_marker_is_of_the_first_epoch(change: Change) -> None:
    write = SqlLedger.write_marker

    def written(self: Any, plan: Any, fence: Any, *of: Any) -> None:
        write(self, plan, replace(fence, epoch=1), *of)

    change(SqlLedger, "write_marker", written)


@noticed_by("test_marks_of_a_former_owner_stand_in_the_way")
def its_own_marks_are_orphans(change: Change) -> None:
    orphans = OneTransactionParticipant._orphans
    change(OneTransactionParticipant, "_orphans", lambda self, pipeline, _: orphans(self, pipeline, ""))


@noticed_by("test_marks_of_a_former_owner_stand_in_the_way")
def marks_of_a_former_owner_are_not_listed(change: Change) -> None:
    change(SqlLedger, "markers_of_others", lambda *_: [])


@noticed_by("test_marks_of_a_former_owner_stand_in_the_way")
def a_former_owner_is_shut_out_by_the_adoption_alone(change: Change) -> None:
    change(OneTransactionParticipant, "_end_orphans", lambda *_: None)


@noticed_by("test_what_is_committed_is_visible_once_and_proven")
def a_proof_names_another_participant(change: Change) -> None:
    proof = memory.Marker.proof
    change(memory.Marker, "proof", lambda self, _, number: proof(self, "another", number))


@noticed_by("test_a_checkpoint_without_rows_is_delivered")
def a_number_without_rows_has_no_marker(change: Change) -> None:
    write = SqlLedger.write_marker

    def of_rows(self: Any, plan: Any, fence: Any, outcome: Any, counts: Any, detail: Any) -> None:
        if outcome is Outcome.ABORTED or any(counts.values()):
            write(self, plan, fence, outcome, counts, detail)

    change(SqlLedger, "write_marker", of_rows)


@noticed_by("test_it_meets_later_numbers_when_it_wakes_up", step="trial")
def a_trial_does_not_look_whether_it_comes_late(change: Change) -> None:
    def trying(self: Any, plan: Any, fence: Any, readers: Any) -> dict[str, Any]:
        if plan.commit_point != self.name:
            with self._writing(fence, plan, keep=False) as (db, _):
                self._insert(db, plan, readers, None)
        return {}

    change(OneTransactionParticipant, "_vote", trying)


# --- rows of several segments and sinks ------------------------------------------------------------


@noticed_by("test_values_to_the_ends_of_their_ranges_arrive_as_they_are")
def whole_numbers_go_through_floating_point(change: Change) -> None:
    values = columns._values

    def rounded(column: pa.Array) -> list[Any]:
        found = values(column)
        return [int(float(each)) if isinstance(each, int) and abs(each) < 2**62 else each for each in found]

    change(columns, "_values", rounded)


@noticed_by("test_values_to_the_ends_of_their_ranges_arrive_as_they_are")
def texts_end_at_a_zero(change: Change) -> None:
    values = columns._values

    def cut(column: pa.Array) -> list[Any]:
        return [each.partition("\0")[0] if isinstance(each, str) else each for each in values(column)]

    change(columns, "_values", cut)


def apart(change: Change, parts: str) -> None:
    """Commit between the segments, or the sinks, of a checkpoint: also in processes of the kit."""
    change(File, "flaw", f"{__name__}:commit_between_{parts}")


def commit_between_segments() -> None:
    insert = SqliteParticipant._insert

    def committing(self: Any, db: Any, plan: Any, readers: Sequence[Any], dead_letters: Any) -> dict[str, int]:
        counts = dict.fromkeys(self.sinks, 0)
        for index, reader in enumerate(readers):
            if index:
                db.execute("COMMIT")
                db.execute("BEGIN IMMEDIATE")
            for sink, count in insert(self, db, plan, [reader], dead_letters).items():
                counts[sink] += count
        return counts

    SqliteParticipant._insert = committing  # type: ignore[method-assign]


def commit_the_trial() -> None:
    def trying(self: Any, plan: Any, fence: Any, readers: Any) -> dict[str, Any]:
        if plan.commit_point != self.name:
            with self._writing(fence, plan) as (db, _):
                self._insert(db, plan, readers, None)
            with self._writing(fence, plan) as (db, _):
                for sink, of in self.sinks.items():
                    rows = [
                        each for reader in readers for file in reader.files(sink) for each in reader.batches(sink, file)
                    ]
                    ids = ", ".join(str(id) for batch in rows for id in batch.column("id").to_pylist())
                    db.execute(f"DELETE FROM {of.table} WHERE id IN ({ids})")
        return {}

    OneTransactionParticipant._vote = trying  # type: ignore[method-assign]


@noticed_by("test_a_step_killed_at_any_call_is_settled_by_another_process", step="prepare")
def a_trial_is_committed_and_taken_back(change: Change) -> None:
    change(File, "flaw", f"{__name__}:{commit_the_trial.__name__}")


def commit_between_sinks() -> None:
    insert = SqliteParticipant._insert

    def committing(self: Any, db: Any, plan: Any, readers: Any, dead_letters: Any) -> dict[str, int]:
        counts, sinks = {}, self.sinks
        for index, sink in enumerate(sinks):
            if index:
                db.execute("COMMIT")
                db.execute("BEGIN IMMEDIATE")
            self.sinks = {sink: sinks[sink]}
            counts |= insert(self, db, plan, readers, dead_letters)
        self.sinks = sinks
        return counts

    SqliteParticipant._insert = committing  # type: ignore[method-assign]


@noticed_by("test_a_step_killed_at_any_call_is_settled_by_another_process", step="commit")
def each_segment_is_committed(change: Change) -> None:
    apart(change, "segments")


@noticed_by("test_sinks_of_one_participant_come_together")
def each_sink_is_committed(change: Change) -> None:
    apart(change, "sinks")


@noticed_by("test_sinks_of_one_participant_come_together")
def only_the_first_sink_comes(change: Change) -> None:
    insert = SqliteParticipant._insert

    def first(self: Any, *of: Any) -> dict[str, int]:
        sinks = self.sinks
        self.sinks = dict([next(iter(sinks.items()))])
        counts = insert(self, *of)
        self.sinks = sinks
        return {**dict.fromkeys(sinks, 0), **counts}

    change(SqliteParticipant, "_insert", first)


@noticed_by("test_sinks_of_one_participant_come_together")
def counts_of_all_sinks_are_one(change: Change) -> None:
    insert = SqliteParticipant._insert

    def summed(self: Any, *of: Any) -> dict[str, int]:
        counts = insert(self, *of)
        return {next(iter(counts)): sum(counts.values())}

    change(SqliteParticipant, "_insert", summed)


# --- dead letters ------------------------------------------------------------

ASIDE = "test_rows_that_are_set_aside_are_named_and_the_others_come"


@noticed_by(ASIDE)
def rows_are_counted_from_the_beginning_of_their_batch(change: Change) -> None:
    around = refused.Refused.around
    change(refused.Refused, "around", lambda self, sink, segment, file, _, *of: (
        around(self, sink, segment, file, 0, *of)
    ))  # fmt: skip


@noticed_by(ASIDE)
def letters_of_the_first_segment_alone_are_written(change: Change) -> None:
    write = refused.Refused.write

    def first(self: Any) -> Any:
        for sink, rows in self._rows.items():
            self._rows[sink] = [row for row in rows if row.segment == rows[0].segment]
        return write(self)

    change(refused.Refused, "write", first)


@noticed_by("test_no_row_is_set_aside_unless_a_person_says_so")
def rows_are_set_aside_though_no_person_says_so(change: Change) -> None:
    deliver = OneTransactionParticipant._deliver
    change(OneTransactionParticipant, "_deliver", lambda self, plan, fence, _, more: (
        deliver(self, plan, fence, True, more)
    ))  # fmt: skip


@noticed_by(ASIDE)
def verify_takes_what_was_set_aside_for_lost(change: Change) -> None:
    of = DeliveredLog.of
    change(comparison.DeliveredLog, "of", lambda wal, delivered: of(
        wal, [replace(each, proof=replace(each.proof, detail={})) for each in delivered]
    ))  # fmt: skip


@noticed_by("test_values_that_it_does_not_hold_are_set_aside")
def unfit_rows_vanish_when_rows_are_set_aside(change: Change) -> None:
    around = refused.Refused.around

    def fit(self: Any, sink: Any, segment: Any, file: Any, first: Any, rows: Any, wrong: Any, put: Any) -> int:
        keep = pa.array([row not in wrong for row in range(rows.num_rows)], pa.bool_())
        return around(self, sink, segment, file, first, rows.filter(keep), {}, put)

    change(refused.Refused, "around", fit)


@noticed_by("test_values_that_it_does_not_hold_are_set_aside")
def unfit_rows_enter_changed_when_rows_are_set_aside(change: Change) -> None:
    around = refused.Refused.around
    change(refused.Refused, "around", lambda self, sink, segment, file, first, rows, _, put: (
        around(self, sink, segment, file, first, rows, {}, put)
    ))  # fmt: skip


# --- what is left behind ------------------------------------------------------------


@noticed_by("test_a_closed_participant_holds_nothing")
def each_step_leaves_a_connection(change: Change) -> None:
    left, opened = [], SqliteFile.opened

    @contextmanager
    def leaving(self: Any, **where: Any) -> Iterator[Any]:
        with opened(self, **where) as db:
            if db is not None:
                left.append(sqlite3.connect(self.path))
                left[-1].execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield db

    change(SqliteFile, "opened", leaving)


# --- the tests ------------------------------------------------------------


@pytest.mark.parametrize("name", list(WRONG))
def test_it_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParticipantConformance, "places", (0, 1))
    make, case, parameters = WRONG[name]
    make(monkeypatch.setattr)
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        getattr(ParticipantConformance(), case)(World(File(tmp_path), tmp_path), **parameters)
    assert not isinstance(caught.value, NameError | ImportError | TypeError | AttributeError), "the kit notices it"
