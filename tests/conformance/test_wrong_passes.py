"""The conformance kit notices mistakes of SQLite sinks in a later pass, in a second sink, or in a log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.sinks.sqlite.participant import SqliteParticipant, _Load
from airflow_ft.testing import ParticipantConformance
from airflow_ft.testing.world import World
from tests.conformance.test_sqlite import File
from tests.conformance.wrong import Case, each, notices

pytestmark = pytest.mark.sampled
PATCHED = ((SqliteParticipant, "_insert"), (SqliteParticipant, "prepare"), (_Load, "insert"))
INSERT: Any = SqliteParticipant._insert
PREPARE: Any = SqliteParticipant.prepare
LOAD: Any = _Load.insert


def _committed(db: Any) -> None:
    db.execute("COMMIT")
    db.execute("BEGIN IMMEDIATE")


def a_second_pass_commits_each_batch() -> None:
    """The first pass only reads."""

    def twice(self: Any, db: Any, plan: Any, readers: Any, dead_letters: Any) -> Any:
        for reader in readers:
            for name in reader.sinks():
                for file in reader.files(name):
                    list(reader.batches(name, file))
        return INSERT(self, db, plan, readers, dead_letters)

    def committing(self: Any, rows: Any) -> Any:
        why = LOAD(self, rows)
        _committed(self.db)
        return why

    SqliteParticipant._insert = twice  # type: ignore[method-assign]
    _Load.insert = committing  # type: ignore[method-assign]


def each_sink_has_its_transaction() -> None:
    """Each opens its own reader, too, and reads its rows twice."""

    def apart(self: Any, db: Any, plan: Any, readers: Any, dead_letters: Any) -> Any:
        every, counts = self.sinks, {}
        for name in every:
            own = [self.wal.open(segment) for segment in plan.segments]
            for reader in own:
                for file in reader.files(name):
                    list(reader.batches(name, file))
            self.sinks = {name: every[name]}
            counts.update(INSERT(self, db, plan, own, dead_letters))
            _committed(db)
        self.sinks = every
        return counts

    SqliteParticipant._insert = apart  # type: ignore[method-assign]


def a_log_shows_the_token() -> None:
    def telling(self: Any, *of: Any) -> Any:
        logging.getLogger(__name__).warning("connecting as s3cr3t-0f-the-extra")
        return PREPARE(self, *of)

    SqliteParticipant.prepare = telling  # type: ignore[method-assign]


CASES: list[Case] = [
    (a_second_pass_commits_each_batch, "test_a_killed_delivery_is_finished_by_the_next_process", {"at": 20}),
    (each_sink_has_its_transaction, "test_sinks_of_one_participant_come_together", {}),
]


@each(CASES)
def test_it_is_noticed(case: Case, tmp_path: Path) -> None:
    notices(partial(_file, tmp_path / "db"), case, tmp_path, *PATCHED)


def test_a_secret_in_a_log_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = (a_log_shows_the_token, "test_no_secret_is_in_an_error_or_a_log", {"caplog": caplog})
    notices(partial(_file, tmp_path / "db", token="s3cr3t-0f-the-extra"), case, tmp_path, *PATCHED)


@contextmanager
def _file(folder: Path, **extra: str) -> Iterator[File]:
    folder /= str(len(list(folder.parent.iterdir())))
    folder.mkdir(parents=True)
    file = File(folder)
    file.connection = replace(file.connection, extra=extra)
    yield file


@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_sample_of_a_short_step_has_both_fates(tmp_path: Path, first: int) -> None:
    """Each step makes eight calls."""
    struck: list[int] = []

    class Kit(ParticipantConformance):
        places = (first, 24)

        def _is_killed(self, world: World, step: str, there: list[int], at: int) -> bool:
            struck.append(at)
            return at < 8

    world = World(File(tmp_path), tmp_path)
    Kit().test_a_step_killed_at_any_call_is_settled_by_another_process(world, "commit")
    assert {at % 2 for at in struck if at < 8} == {0, 1}
