"""What the page asks every few seconds costs the decision log little, and least when nothing has changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.lag import Lag, Unit
from airflow_ft.protocol.model import RunKey, StateSizes
from airflow_ft.store.rows import from_time
from airflow_ft.store.sqlite import SqliteDatabase, SqliteStore
from airflow_ft.store.summary import NEWEST
from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE, RUN, Scene

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

MANY = 60
"""More than tell of a change by `mark`."""
PAGE = 25


class Cost:
    """What the API has asked of the decision log since `begin`: statements, rows that came, and steps of SQLite."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.statements: list[str] = []
        self.rows = self.steps = 0

    def step(self) -> int:
        self.steps += 1
        return 0


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> Cost:
    """Of all decision logs of this process; tests write by connections of the same kind, so begin before asking."""
    found = Cost()
    read, connect = SqliteDatabase.read, SqliteDatabase._connect

    def counted(self: SqliteDatabase, sql: str, *values: object) -> list[dict[str, Any]]:
        rows = read(self, sql, *values)
        found.statements.append(sql)
        found.rows += len(rows)
        return rows

    def connected(self: SqliteDatabase) -> Any:
        connection = connect(self)
        connection.set_progress_handler(found.step, 1)
        return connection

    monkeypatch.setattr(SqliteDatabase, "read", counted)
    monkeypatch.setattr(SqliteDatabase, "_connect", connected)
    return found


@pytest.fixture
def many(scene: Pipeline) -> list[Scene]:
    """A number of pipelines with checkpoints, one that waits, and one of which a run is at work."""
    found = [Scene(scene.store, f"many-{number:03}") for number in range(MANY)]
    for each in found:
        each.stage(2)
        each.complete(1)
        each.complete(2)
    found[7].stage(1)
    scene.store.enter_turn(found[8].pipeline, RUN, None)
    return found


def test_a_poll_of_many_unchanged_pipelines_costs_one_query(many: list[Scene], ask: Asking, cost: Cost) -> None:
    first = ask("")
    assert first.json()["total"] == MANY + 1
    tag = first.headers["ETag"]
    cost.begin()
    again = ask("", known=tag)
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
    assert len(cost.statements) == 1 and cost.rows == NEWEST, cost.statements
    assert cost.steps < 20 * NEWEST, "some steps of SQLite's machine for each row"


def test_the_cost_of_an_answer_does_not_grow_with_the_history(many: list[Scene], ask: Asking, cost: Cost) -> None:
    ask("")  # opens the decision log
    for questions in ("", "?offset=30", "?search=many-0", "?condition=IDLE"):
        cost.begin()
        assert len(ask(questions).json()["pipelines"]) == PAGE
        assert len(cost.statements) == 6, cost.statements
        assert cost.rows <= NEWEST + MANY + 1 + PAGE * 2, questions
    steps, rows = [], []
    for more in (20, 20):
        for number in many[0].stage(more):
            many[0].complete(number)
        cost.begin()
        answer = {each["name"]: len(each["recent"]) for each in ask("").json()["pipelines"]}
        assert (answer["many-000"], answer["many-001"]) == (20, 2)
        steps.append(cost.steps)
        rows.append(cost.rows)
    assert rows[0] == rows[1] and steps[1] < 1.05 * steps[0], "whatever the length of the history"


WRITES: dict[str, Callable[[Scene], object]] = {
    "a number is triggered": lambda scene: scene.trigger(RunKey("dag", "later")),
    "a lease is renewed": lambda scene: scene.store.renew_lease(scene.pipeline, scene.epoch, "worker", "it counts"),
    "a lag is told": lambda scene: scene.store.record_lags(
        scene.pipeline, scene.epoch, 0, [Lag("orders", Unit.RECORDS, 7)]
    ),
    "a state is told": lambda scene: scene.store.record_state_sizes(
        scene.pipeline, scene.epoch, 2, StateSizes(1, 2, 3)
    ),
    "a run begins": lambda scene: scene.store.enter_turn(scene.pipeline, RUN, None),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
def test_whatever_is_written_is_in_the_next_answer(
    many: list[Scene], ask: Asking, cost: Cost, write: Callable[[Scene], object]
) -> None:
    """Also of a pipeline that is not among those which changed last."""
    known = {path: ask(path).headers["ETag"] for path in ("", "many-003/timings", "many-003/checkpoints")}
    write(many[3])
    for path, tag in known.items():
        cost.begin()
        answer = ask(path, known=tag)
        assert len(cost.statements) > 2, "it was looked at anew"
        assert answer.status_code == 304 or answer.headers["ETag"] != tag
        response = ask(path)
        cost.begin()
        assert ask(path, known=response.headers["ETag"]).status_code == 304 and len(cost.statements) <= 2


def test_what_becomes_late_is_told_though_nothing_was_written(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Scene(scene.store, "parcels")
    other.stage(made_with={"late_after": 3600.0})
    other.complete(1)
    store = scene.store
    now = store.now()
    answers: list[Any] = []
    for after in (timedelta(seconds=1), timedelta(minutes=59, seconds=30), timedelta(minutes=60, seconds=5)):
        monkeypatch.setattr(SqliteDatabase, "now", lambda _, at=now + after: from_time(at))
        tag = answers[-1].headers["ETag"] if answers else ""
        assert ask("", known=tag).status_code == (304 if len(answers) == 1 else 200)
        answers.append(ask(""))
    assert [each.json()["pipelines"][0]["condition"] for each in answers] == ["IDLE", "IDLE", "LATE"]


def test_an_etag_is_valid_for_one_query_and_one_user_only(many: list[Scene], ask: Asking) -> None:
    tag = ask("").headers["ETag"]
    assert ask("?offset=25", known=tag).status_code == 200
    assert ask("", known=tag, team="another").status_code == 200
    assert ask("", known=tag, team="another").json()["total"] == 1, "of those that no DAG has made"
    assert ask("", known=tag).status_code == 304


def test_polling_an_unchanged_pipeline_page_costs_two_queries(many: list[Scene], ask: Asking, cost: Cost) -> None:
    for path in ("many-003/timings?each=false", "many-003/checkpoints?limit=20"):
        tag = ask(path).headers["ETag"]
        Scene(many[3].store, "another").take()  # of another pipeline
        cost.begin()
        assert ask(path, known=tag).status_code == 304
        assert len(cost.statements) == 2 and cost.rows <= 16, "whose it is, and whether it has changed"


def test_the_decision_log_is_reopened_only_when_it_is_replaced(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from airflow_ft.plugins import access

    opened, plain = [], access.open_store
    monkeypatch.setattr(access, "open_store", lambda url: opened.append(url) or plain(url))
    monkeypatch.setattr(access, "_opened", access._Opened())
    scene.confirmed({"a": 1})
    for _ in range(3):
        assert ask(f"{PIPELINE}/checkpoints").status_code == 200
    assert len(opened) == 1
    for name, count in (("backup", 3), ("another", 5)):
        with closing(plain(f"sqlite:///{tmp_path}/{name}.db")) as store:
            for number in range(count):
                store.register(f"{name}-{number}")
    for path in tmp_path.glob("ft.db*"):
        path.unlink()
    (tmp_path / "backup.db").rename(tmp_path / "ft.db")
    assert ask("").json()["total"] == 3 and len(opened) == 2
    monkeypatch.setenv("AIRFLOW__AIRFLOW_FT__STORE", f"sqlite:///{tmp_path}/another.db")
    assert ask("").json()["total"] == 5 and len(opened) == 3
    assert ask("?limit=2").json()["total"] == 5 and len(opened) == 3


def test_another_decision_log_in_the_same_file_is_recognised(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Made anew, or restored into the same file: savepoints of the one before are not its own."""
    from airflow_ft.plugins import access

    monkeypatch.setattr(access, "_opened", access._Opened())
    now = [1000.0]
    monkeypatch.setattr(access, "monotonic", lambda: now[0])
    assert access._opened.store().installation == scene.store.installation
    with closing(SqliteStore(tmp_path / "other" / "ft.db")) as other:
        other.register("another")
        installation = other.installation
    with (
        closing(sqlite3.connect(tmp_path / "other" / "ft.db")) as source,
        closing(sqlite3.connect(tmp_path / "ft.db")) as target,
    ):
        source.backup(target)
    assert [each["name"] for each in ask("").json()["pipelines"]] == ["another"]
    now[0] += access.OPENED_EACH
    for _ in range(2):
        assert access._opened.store().installation == installation


def test_a_write_that_moves_no_mark_is_told_within_a_minute(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does anything hold longer by a clock that was put back."""
    from airflow_ft.plugins import pipeline as route

    class Clock(datetime):
        at = datetime.now(UTC)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return cls.at

    monkeypatch.setattr(route, "datetime", Clock)
    monkeypatch.setattr(SqliteDatabase, "now", lambda _: from_time(Clock.at))
    scene.confirmed({"a": 1})
    paths = (f"{PIPELINE}/timings?each=false", f"{PIPELINE}/checkpoints?limit=20", "")
    database: Any = scene.store._database  # type: ignore[attr-defined]
    for after, rows in ((61, 5), (-3600, 7)):
        tags = {path: ask(path).headers["ETag"] for path in paths}
        with database.write() as tx:
            tx.change("UPDATE checkpoint SET segment_rows = ?, delivered_rows = ?", f'{{"rows":{rows}}}', rows)
        assert {ask(path, known=tag).status_code for path, tag in tags.items()} == {304}
        Clock.at += timedelta(seconds=after)
        assert {ask(path, known=tag).status_code for path, tag in tags.items()} == {200}


def test_a_decision_log_changed_by_a_newer_release_is_reported(
    scene: Pipeline, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_ft.plugins import access

    monkeypatch.setattr(access, "_opened", access._Opened())
    now = [1000.0]
    monkeypatch.setattr(access, "monotonic", lambda: now[0])
    scene.confirmed({"a": 1})
    assert ask(f"{PIPELINE}/checkpoints").status_code == 200
    database: Any = scene.store._database  # type: ignore[attr-defined]
    with database.write() as tx:
        tx.change("INSERT INTO schema_version (version, applied_at) VALUES (999, 0)")
    now[0] += access.OPENED_EACH
    for _ in range(2):
        answer = ask(f"{PIPELINE}/checkpoints")
        assert answer.status_code == 503 and "has schema version 999" in answer.json()["detail"]
    with database.write() as tx:  # a backup was restored
        tx.change("DELETE FROM schema_version WHERE version = 999")
    assert ask(f"{PIPELINE}/checkpoints").status_code == 200
