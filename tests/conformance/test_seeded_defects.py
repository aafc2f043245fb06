"""The conformance kit notices what a sink's author may get wrong: mistakes in the SQLite sink, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base import memory
from airflow_ft.sinks.base import one_transaction as module
from airflow_ft.sinks.sqlite import columns
from airflow_ft.sinks.sqlite import participant as of_sqlite
from airflow_ft.sinks.sqlite.ledger import Ledger
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests.conformance.test_sqlite import File

Change = Callable[[Any, str, Any], None]
DEFECTS: dict[str, tuple[Callable[[Change], None], str, dict[str, Any]]] = {}
"""By name: what makes it, the test that notices it, and that test's parameters."""


def noticed_by(test: str, **parameters: Any) -> Callable[[Callable[[Change], None]], Callable[[Change], None]]:
    def register(defect: Callable[[Change], None]) -> Callable[[Change], None]:
        DEFECTS[defect.__name__] = (defect, test, parameters)
        return defect

    return register


@noticed_by("test_to_commit_again_changes_nothing")
def no_marker_is_written(change: Change) -> None:
    write = Ledger.write_marker
    change(Ledger, "write_marker", lambda self, plan, fence, outcome, *of: (
        write(self, plan, fence, outcome, *of) if outcome is Outcome.ABORTED else None
    ))  # fmt: skip


@noticed_by("test_an_aborted_number_never_comes")
def no_tombstone_is_written(change: Change) -> None:
    write = Ledger.write_marker
    change(Ledger, "write_marker", lambda self, plan, fence, outcome, *of: (
        write(self, plan, fence, outcome, *of) if outcome is Outcome.COMMITTED else None
    ))  # fmt: skip


@noticed_by("test_a_committed_number_is_not_aborted")
def a_tombstone_takes_the_place_of_a_marker(change: Change) -> None:
    settled = SqliteParticipant._is_settled

    def lenient(self: Any, ledger: Any, head: Any, plan: Any, fence: Any, *, exactly: bool) -> bool:
        if exactly:
            return settled(self, ledger, head, plan, fence, exactly=exactly)
        ledger.db.execute("DELETE FROM airflow_ft_ledger WHERE number = ?", (plan.number,))
        return False

    change(SqliteParticipant, "_is_settled", lenient)


@noticed_by("test_an_older_owner_is_fenced", epoch=1, attempt=9)
def the_rank_is_not_compared(change: Change) -> None:
    def lenient(head: Any, fence: Any) -> None:
        memory.check_owner(head and replace(head, epoch=0), fence)

    change(module, "check_owner", lenient)


@noticed_by("test_an_older_owner_is_fenced", epoch=1, attempt=9)
def prepare_does_not_raise_the_head(change: Change) -> None:
    def unraised(self: Any, ledger: Any, fence: Any) -> Any:
        memory.check_owner(head := ledger.head(), fence)
        return head

    change(SqliteParticipant, "_raised", unraised)


@noticed_by("test_another_decision_log_is_refused")
def the_installation_is_not_compared(change: Change) -> None:
    def lenient(head: Any, fence: Any) -> None:
        memory.check_owner(head and replace(head, installation=fence.installation), fence)

    change(module, "check_owner", lenient)


@noticed_by("test_a_decision_log_from_a_backup_is_refused")
def the_digest_is_not_compared(change: Change) -> None:
    change(memory, "check_marker", lambda *_: None)


@noticed_by("test_a_server_from_a_backup_is_refused")
def the_predecessor_is_not_compared(change: Change) -> None:
    settled = module.check_settled
    change(module, "check_settled", lambda *of, exactly, look_again: settled(*of, exactly=False, look_again=look_again))


@noticed_by("test_a_vote_notices_a_lost_delivery")
def a_vote_demands_nothing(change: Change) -> None:
    settled = module.check_settled

    def lenient(marker: Any, head: Any, plan: Any, participant: Any, fence: Any, **how: Any) -> bool:
        return settled(marker, head, plan, participant, replace(fence, delivered=0), **how)

    change(module, "check_settled", lenient)


@noticed_by("test_a_vote_notices_a_lost_delivery")
def a_vote_demands_its_predecessor(change: Change) -> None:
    settled = module.check_settled
    change(module, "check_settled", lambda *of, exactly, look_again: settled(*of, exactly=True, look_again=look_again))


@noticed_by("test_it_remembers_what_was_delivered_last")
def the_head_does_not_name_what_was_delivered(change: Change) -> None:
    change(Ledger, "deliver_head", lambda self, number: None)


@noticed_by("test_what_is_committed_is_visible_once_and_proven")
def prepared_rows_are_visible(change: Change) -> None:
    prepare = SqliteParticipant.prepare

    def visible(self: Any, plan: Any, fence: Any) -> Any:
        notes = prepare(self, plan, fence)
        with self._writing(fence, plan) as (db, _):
            self._insert(db, plan, [self.wal.open(segment) for segment in plan.segments], None)
        return notes

    change(SqliteParticipant, "prepare", visible)


@noticed_by("test_a_checkpoint_of_several_segments_comes_as_one")
def carried_segments_are_left_out(change: Change) -> None:
    insert = SqliteParticipant._insert
    change(
        SqliteParticipant,
        "_insert",
        lambda self, db, plan, readers, dead_letters: insert(self, db, plan, readers[-1:], dead_letters),
    )


@noticed_by("test_of_refused_rows_nothing_comes", carries=True)
def rows_are_committed_one_by_one(change: Change) -> None:
    writing = SqliteParticipant._writing

    @contextmanager
    def at_once(self: Any, *of: Any, **more: Any) -> Iterator[Any]:
        with writing(self, *of, **more) as (db, ledger):
            if not more:
                db.execute("COMMIT")
            yield db, ledger
            if not more:
                db.execute("BEGIN")

    change(SqliteParticipant, "_writing", at_once)
    insert = of_sqlite._Load.insert

    def apart(self: Any, rows: Any) -> str:
        return next(filter(None, (insert(self, rows.slice(row, 1)) for row in range(rows.num_rows))), "")

    change(of_sqlite._Load, "insert", apart)


@noticed_by("test_forgotten_markers_do_not_bring_rows_back")
def to_forget_fences_the_attempt_at_work(change: Change) -> None:
    def forget(self: Any, fence: Any, floor: int) -> None:
        with self._writing(fence) as (_, ledger):
            memory.check_owner(ledger.head(), fence)
            ledger.prune(floor)

    change(SqliteParticipant, "forget", forget)


@noticed_by("test_an_older_epoch_forgets_nothing")
def an_older_epoch_may_forget(change: Change) -> None:
    def forget(self: Any, fence: Any, floor: int) -> None:
        with self._writing(fence) as (_, ledger):
            ledger.prune(floor)

    change(SqliteParticipant, "forget", forget)


@noticed_by("test_a_former_owner_who_has_gone_on_is_not_adopted_over")
def it_is_adopted_over_whatever_stands_there(change: Change) -> None:
    change(module, "refuse_to_adopt", lambda *_: None)


@noticed_by("test_who_adopts_late_takes_nothing_back")
def who_adopts_late_lowers_the_head(change: Change) -> None:
    change(module, "check_adopter", lambda *_: None)


@noticed_by("test_one_that_looks_before_others_begin_lowers_none_of_them")
def the_head_is_not_locked(change: Change) -> None:
    """Each statement is a transaction of its own, as where a look at a row that is not there locks nothing."""
    writing = SqliteParticipant._writing

    @contextmanager
    def unlocked(self: Any, *of: Any, **more: Any) -> Iterator[Any]:
        with writing(self, *of, **more) as (db, ledger):
            db.execute("COMMIT")
            yield db, ledger
            db.execute("BEGIN")

    change(SqliteParticipant, "_writing", unlocked)


@noticed_by("test_who_adopts_goes_on_and_the_former_owner_is_shut_out")
def the_former_owner_stays_named(change: Change) -> None:
    change(SqliteParticipant, "adopt", lambda *_, **__: None)


@noticed_by("test_rows_that_are_set_aside_are_named_and_the_others_come")
def refused_rows_vanish(change: Change) -> None:
    change(module, "set_aside_detail", lambda _: {})


@noticed_by("test_an_unknown_column_is_named_before_any_row_is_visible")
def columns_are_not_judged(change: Change) -> None:
    change(SqliteParticipant, "_schema_problems", lambda *_, **__: iter(()))


@noticed_by("test_values_to_the_ends_of_their_ranges_arrive_as_they_are")
def blanks_at_the_end_are_dropped(change: Change) -> None:
    values = columns._values
    change(columns, "_values", lambda column: [
        value.rstrip(" ") if isinstance(value, str) else value for value in values(column)
    ])  # fmt: skip


@noticed_by("test_unsupported_values_are_refused_before_the_decision", carries=True)
def nan_is_stored_as_null(change: Change) -> None:
    change(of_sqlite, "refused", lambda *_: {})


@noticed_by("test_a_step_killed_at_any_call_is_settled_by_another_process", step="commit")
def rows_come_in_a_transaction_of_their_own(change: Change) -> None:
    change(File, "calls", f"{__name__}:commit_rows_before_the_marker")


def commit_rows_before_the_marker(_: Callable[[], None]) -> None:
    """The defect, in the process that is killed."""
    write = Ledger.write_marker

    def apart(self: Any, *of: Any) -> None:
        self.db.execute("COMMIT")
        self.db.execute("BEGIN IMMEDIATE")
        write(self, *of)

    Ledger.write_marker = apart  # type: ignore[method-assign]


def play(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, test, parameters = DEFECTS[name]
    monkeypatch.setattr(ParticipantConformance, "places", (0, 1))
    world = World(File(folder), folder)
    getattr(ParticipantConformance(), test)(world, **parameters)


@pytest.mark.sampled
@pytest.mark.parametrize("name", list(DEFECTS))
def test_it_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, _, _ = DEFECTS[name]
    make(monkeypatch.setattr)
    with pytest.raises((Exception, pytest.fail.Exception)):
        play(name, tmp_path, monkeypatch)
