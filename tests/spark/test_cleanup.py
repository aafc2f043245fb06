"""What a stream that has ended leaves, and a process that dies while it deletes. With Spark: tests/integration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace
from typing import Any
from zipfile import ZipFile

import pytest

from airflow_ft.protocol import retention
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.errors import ConfigurationError, StorageUnavailableError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import ExternalizedRetention, Plan, Segment, SparkPosition
from airflow_ft.protocol.participant import ParticipantFactory
from airflow_ft.protocol.pipelines import RequestKind
from airflow_ft.protocol.steps import Context
from airflow_ft.spark.savepoints.stopping import DRAIN, SAVEPOINT, stop
from airflow_ft.spark.savepoints.taking import TOO_LATE, take_once, taken_for, too_late
from airflow_ft.spark.state.draining import marked
from airflow_ft.spark.state.files import has_state
from airflow_ft.spark.state.locations import SparkLocation, open_location, require_batch
from airflow_ft.spark.task import cleanup
from airflow_ft.spark.task.answers import answer_early, answer_stops, stops
from airflow_ft.spark.task.cleanup import DELETED, NOT_DELETED, clean_up
from airflow_ft.spark.task.stream import StreamEnd, finish_step
from airflow_ft.store.events import EventKind
from airflow_ft.store.sqlite import SqliteStore
from airflow_ft.store.writing import pipeline_write
from airflow_ft.wal.local import LocalFileSystem, local_path
from airflow_ft.wal.retention import WalArchive
from tests.store.scene import PIPELINE, RUN, Scene

DELETE = CheckpointConfig(externalized_retention=ExternalizedRetention.DELETE_ON_CANCELLATION)


class Died(BaseException):
    """The process was killed."""


class Stream(Scene):
    """The decision log and the files of a stream, as it leaves them."""

    def __init__(self, store: SqliteStore, root: Path) -> None:
        super().__init__(store)
        self.root = root

    def segment(self, number: int) -> Segment:
        """Its folder, in the newest attempt of the first epoch."""
        folder = self.root / PIPELINE / "1-1" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(str(number))
        return Segment(number, f"{number:064x}", folder.as_uri(), {"orders": 1}, 1)

    def make_plan(self, number: int, segments: Any = None) -> Plan:
        return replace(super().make_plan(number, segments), segments=(self.segment(number),))

    def position(self, batch: int, location: str = "1-1") -> SparkPosition:
        """After a batch: what Spark and this package keep of it."""
        path = self.root / PIPELINE / "spark" / location
        texts = {f"offsets/{batch}": f'v1\n{{}}\n{{"orders":{{"0":{batch}}}}}', f"commits/{batch}": "v1\n{}"}
        texts |= {"sources/0/0": '\0v1\n{"orders":{"0":3}}', f"state/0/0/{batch + 1}.zip": "state"}
        for name, text in texts.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        return SparkPosition(path.as_uri(), batch)

    def run(self, deliver: int = 3, first: int = 1, location: str = "1-1", drains: bool = False) -> None:
        """Publishes three numbers, of which the last one may drain, delivers the first of them, and ends."""
        self.take()
        self.store.begin_stage(PIPELINE, self.epoch, RUN)
        for number in range(first, first + 3):
            before = self.store.pipeline(PIPELINE).last_published
            assert self.trigger() == number
            segment, position = self.segment(number), self.position(number, location)
            positions = marked({}, self.position(number - 1, location)) if drains and number == first + 2 else {}
            self.store.publish(PIPELINE, self.epoch, number, before, segment, position, positions)
        for number in range(first, first + deliver):
            self.complete(number)
        self.store.end_stage(PIPELINE, self.epoch, RUN, self.position(first + 2, location))
        self.store.release_lease(PIPELINE, "worker")

    def make_snapshots_readable(self) -> None:
        """For savepoints."""
        for file in self.root.glob("**/state/0/0/*.zip"):
            with ZipFile(file, "w") as archive:
                archive.writestr("metadata", "v1\n{}")

    def clean_up(self, config: CheckpointConfig = DELETE, *, failed: bool = False, epoch: int = 0) -> str:
        unreachable: ParticipantFactory = NotImplemented  # no sink is asked
        context = Context(self.store, PIPELINE, RUN, unreachable, Worker("dag/stream"), lease_seconds=0.1)
        archive = WalArchive(str(self.root))
        return clean_up(context, epoch or self.epoch, config, archive, lambda _: None, failed=failed)

    @property
    def base(self) -> SparkPosition:
        found = self.store.pipeline(PIPELINE).base
        assert found is not None
        return found

    def left(self) -> set[str]:
        """The folders of segments and of Spark's locations."""
        of_rows = {f"{path.parent.name}/{path.name}" for path in (self.root / PIPELINE).glob("[0-9]*/*")}
        return of_rows | {f"spark/{path.name}" for path in (self.root / PIPELINE / "spark").glob("*")}

    def check_it_can_continue(self) -> None:
        """Where it goes on from, and where a rewind of the next number would go, is there and says the same (I10)."""
        for position in (self.base, self.store.position_before(PIPELINE, 10**6)):
            assert position is not None
            location = SparkLocation(str(self.root), PIPELINE, position.location, position.batch)
            require_batch(location)
            assert location.offsets(position.batch) == [{"orders": {"0": 3}}]


WHOLE = {"1-1/1", "1-1/2", "1-1/3", "spark/1-1"}


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with SqliteStore(tmp_path / "ft.db") as store:
        yield Stream(store, tmp_path / "wal")


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("kept", ExternalizedRetention)
def test_only_the_positions_remain_if_retention_says_so(
    stream: Stream, kept: ExternalizedRetention, failed: bool
) -> None:
    stream.run()
    before = stream.base
    said = stream.clean_up(CheckpointConfig(externalized_retention=kept), failed=failed)
    deleted = {"RETAIN_ON_CANCELLATION": False, "DELETE_ON_CANCELLATION": not failed}.get(kept, True)
    if not deleted:
        assert said == "" and stream.left() == WHOLE and stream.base == before
        return
    assert said == DELETED
    assert stream.left() == {"spark/2-0"}
    assert stream.base == SparkPosition((stream.root / PIPELINE / "spark/2-0").as_uri(), -1)
    begun = open_location(str(stream.root), PIPELINE, 3, 2, stream.base, stream.store.pipeline(PIPELINE).base_is_clean)
    assert begun.how == "in place" and begun.offsets(-1) == [{"orders": {"0": 3}}]
    row = stream.store.run(PIPELINE, RUN)
    assert row is not None and row.epoch == stream.store.pipeline(PIPELINE).epoch, "or its stop is never answered"
    assert [stream.checkpoint(number).is_confirmed for number in (1, 2, 3)] == [True] * 3
    assert f"externalized_retention is {kept}" in "".join(stream.event_texts())
    assert stream.clean_up(DELETE, epoch=2) and stream.left() == {"spark/2-0"}, "repeated, it changes nothing"


@pytest.mark.parametrize("tries", [3, 100], ids=["the sweep deletes it", "nothing deletes it"])
@pytest.mark.parametrize(
    "error", [PermissionError("a file of another user"), StorageUnavailableError("no.", code="privilege_missing")]
)
def test_a_segment_that_is_not_deleted_keeps_no_others(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, tries: int, error: Exception
) -> None:
    refused = []

    def refuse(_: WalArchive, segment: Segment) -> None:
        if len(refused) < tries:
            refused.append(segment.number)
            raise error

    monkeypatch.setattr(WalArchive, "delete", refuse)
    stream.run()
    assert stream.clean_up() == (DELETED if tries == 3 else NOT_DELETED)
    assert refused[:3] == [1, 2, 3] and stream.left() == {"spark/2-0"}


@pytest.mark.parametrize("state", ["STAGED", "QUARANTINED"])
def test_what_is_not_confirmed_keeps_everything(stream: Stream, state: str, caplog: pytest.LogCaptureFixture) -> None:
    stream.run(deliver=2)
    if state == "QUARANTINED":
        stream.prepare(3)
        stream.quarantine(3)
    before = stream.base
    assert stream.clean_up() == NOT_DELETED
    assert stream.left() >= WHOLE and stream.base == before
    assert "checkpoint 3" in caplog.text and state in caplog.text


def test_an_unsupported_source_position_keeps_everything(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    stream.run()
    (local_path(stream.base.location) / "offsets/3").write_text("v1\n{}\n42")
    assert stream.clean_up() == NOT_DELETED
    assert stream.left() >= WHOLE and "[source_position_unsupported]" in caplog.text


CALLS = [
    (LocalFileSystem, ("write", "replace", "sync_tree", "remove_tree")),
    (SqliteStore, ("take_epoch", "adopt_run", "reset_state", "prune", "release_lease")),
]


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_cleanup_killed_at_any_call_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    deaths = 0
    while True:
        with SqliteStore(tmp_path / f"{deaths}.db") as store:
            stream = Stream(store, tmp_path / str(deaths))
            stream.run()
            with monkeypatch.context() as patch:
                calls = _dying(patch, at=deaths + 1, before=before)
                try:
                    stream.clean_up()
                except Died:
                    deaths += 1
                else:
                    assert len(calls) == deaths, "each was tried"
                    break
            stream.check_it_can_continue()
            # The request to stop is still open, so the next try ends the run under an epoch of its own.
            with new_epoch(store, PIPELINE, Worker("dag/stream", 2), "the next try", 0.1) as (stream.epoch, _):
                store.begin_stage(PIPELINE, stream.epoch, RUN)
                store.end_stage(PIPELINE, stream.epoch, RUN, None)
            assert stream.clean_up() == DELETED
            stream.check_it_can_continue()
            assert stream.left() == {f"spark/{local_path(stream.base.location).name}"}
    assert deaths > 12


def _dying(patch: pytest.MonkeyPatch, *, at: int, before: bool) -> list[str]:
    """The process dies in the call number `at`, before or after it; nothing runs any more then."""
    calls: list[str] = []

    def dying(name: str, whole: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            calls.append(name)
            if len(calls) > at or (before and len(calls) == at):
                raise Died
            found = whole(*arguments, **more)
            if len(calls) == at:
                raise Died
            return found

        return call

    for where, names in CALLS:
        for name in names:
            patch.setattr(where, name, dying(name, getattr(where, name)))
    return calls


def test_a_successor_that_has_begun_is_left_alone(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    """I5: another try of the same run may be at work, between two of its leases."""
    stream.run()
    old = stream.epoch
    stream.run(first=4, location="2-2")
    assert stream.clean_up(epoch=old) == NOT_DELETED
    assert stream.base.batch == 6 and stream.left() >= {*WHOLE, "1-1/4", "1-1/5", "1-1/6", "spark/2-2"}
    assert "[fenced]" in caplog.text and stream.store.pipeline(PIPELINE).epoch == 2, "nor is it fenced"


def test_a_successor_that_begins_meanwhile_keeps_everything(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any) -> None:
        stream.take("the successor")
        stream.store.release_lease(PIPELINE, "the successor")

    stream.run()
    monkeypatch.setattr(cleanup, "finalise", slow)
    assert stream.clean_up(epoch=1) == NOT_DELETED
    assert stream.left() == WHOLE and stream.base.batch == 3
    assert stream.store.pipeline(PIPELINE).epoch == 2, "nor is it fenced"


def test_a_late_cleanup_deletes_nothing_of_its_successor(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> int:
        stream.run(first=4, location="3-2")
        return retention.delete_delivered(*arguments)

    stream.run()
    monkeypatch.setattr(cleanup, "delete_delivered", slow)
    stream.clean_up()
    assert stream.left() == {"1-1/4", "1-1/5", "1-1/6", "spark/3-2"}


def test_a_rewind_works_after_the_cleanup_deleted_the_rows(stream: Stream) -> None:
    """The next attempt works in a copy, so only the newest confirmed number names the location without state."""
    stream.run()
    stream.clean_up()
    fresh = stream.base
    stream.run(deliver=0, first=4, location="3-2")
    archive = WalArchive(str(stream.root))
    archive.sweep(PIPELINE, stream.store.referenced_locations(PIPELINE), stream.take())
    stream.store.rewind(PIPELINE, stream.epoch, 4, stream.store.position_before(PIPELINE, 4), "refused rows")
    assert stream.base == fresh
    assert json.loads((local_path(fresh.location) / "airflow_ft_start.json").read_text()) == [{"orders": {"0": 3}}]


@pytest.mark.parametrize("answers", ["the stream", "a second request", "the task that stops it", "the command again"])
def test_a_stop_with_a_savepoint_keeps_the_first_one(stream: Stream, tmp_path: Path, answers: str) -> None:
    """The first try takes it, drops the state, and dies before it answers. The state is in no later savepoint."""
    stream.run()
    stream.make_snapshots_readable()
    store, folder = stream.store, str(tmp_path / "savepoints")
    over: Any = (SimpleNamespace(names=()), DELETE, lambda _: None, WalArchive(str(stream.root)))
    store.enter_turn(PIPELINE, RUN, None)
    asked = store.ask(PIPELINE, RequestKind.STOP, {SAVEPOINT: folder, "first_try": 1}, "ada")
    context = Context(store, PIPELINE, RUN, NotImplemented, Worker("dag/stream"), lease_seconds=0.1)
    finish_step(context, over, StreamEnd(stream.epoch))
    if answers == "a second request":
        store.ask(PIPELINE, RequestKind.STOP, {SAVEPOINT: f"{folder}-2"}, "eve")
    if answers in ("the stream", "a second request"):
        store.enter_turn(PIPELINE, RUN, None)
        with new_epoch(store, PIPELINE, Worker("dag/stream", 2), "the next try", 0.1) as (epoch, _):
            store.begin_stage(PIPELINE, epoch, RUN)
            store.end_stage(PIPELINE, epoch, RUN, None, complete=False)
        answer_stops(context, finish_step(context, over, StreamEnd(epoch))[1])
        answer = store.request(PIPELINE, asked + (answers == "a second request")).outcome
    else:
        more = {"first_try": 1, "is_retry": True} if answers == "the task that stops it" else {}
        answer = stop(store, PIPELINE, "ada", savepoint_dir=folder, is_over=lambda _: True, **more)
    [uri] = map(str, tmp_path.glob("savepoints*/savepoint-*"))
    assert answer.count(uri) == 1 and has_state(f"{uri}/spark")


def test_a_stop_is_answered_if_its_savepoint_fails(stream: Stream, tmp_path: Path) -> None:
    """A snapshot of the state is damaged. The state stays, and the answer says which file it is."""
    stream.run()
    store, over = stream.store, (SimpleNamespace(names=()), DELETE, lambda _: None, WalArchive(str(stream.root)))
    store.enter_turn(PIPELINE, RUN, None)
    asked = store.ask(PIPELINE, RequestKind.STOP, {SAVEPOINT: str(tmp_path / "savepoints")}, "ada")
    context = Context(store, PIPELINE, RUN, NotImplemented, Worker("dag/stream"), lease_seconds=0.1)
    before = stream.base
    answer_stops(context, finish_step(context, over, StreamEnd(stream.epoch))[1])
    request = store.request(PIPELINE, asked)
    answer = request.outcome
    assert f"{stream.base.location}/state/0/0/4.zip" in answer and "[state_damaged]" in answer
    assert request.missing == (SAVEPOINT,)
    assert stream.base == before and stream.left() == WHOLE
    assert not list((tmp_path / "savepoints").glob("savepoint-*"))


@pytest.mark.parametrize("case", ["not heard", "late", "drained", "no state", "nothing open"])
def test_an_answer_says_that_a_drain_is_missing(stream: Stream, case: str) -> None:
    """The stream was asked to stop before, so it did not hear of the drain."""
    stream.run(drains=case == "drained")
    if case == "no state":
        rmtree(local_path(stream.base.location) / "state")
    store, over = stream.store, (SimpleNamespace(names=()), DELETE, lambda _: None, WalArchive(str(stream.root)))
    store.enter_turn(PIPELINE, RUN, None)
    asked = 0 if case == "late" else store.ask(PIPELINE, RequestKind.STOP, {DRAIN: True}, "ada")
    context = Context(store, PIPELINE, RUN, NotImplemented, Worker("dag/stream"), lease_seconds=0.1)
    said = "each checkpoint has all of it" if case == "nothing open" else ""
    _, stopped = finish_step(context, over, StreamEnd(stream.epoch, said))
    assert (stream.base.batch >= 0) is (case == "not heard"), "the next drain still needs the state"
    asked = asked or store.ask(PIPELINE, RequestKind.STOP, {DRAIN: True}, "ada")
    answer_stops(context, stopped)
    answer = store.request(PIPELINE, asked)
    assert answer.missing == ((DRAIN,) if case in ("not heard", "late") else ())
    assert said in answer.outcome


@pytest.mark.parametrize(
    ("case", "is_late"),
    [
        ("a retry", True),
        ("a running retry", True),
        ("with new rows", True),
        ("the next run", True),
        ("no state", False),
        ("drained", False),
        ("cleared", False),
    ],
)
def test_a_request_misses_state_deleted_before_it(stream: Stream, tmp_path: Path, case: str, is_late: bool) -> None:
    """The first try deletes the state, and dies before its answer. Only the second try hears of the requests."""
    stream.run(drains=case == "drained")
    if case == "no state":
        rmtree(local_path(stream.base.location) / "state")
    store, over = stream.store, (SimpleNamespace(names=()), DELETE, lambda _: None, WalArchive(str(stream.root)))
    store.enter_turn(PIPELINE, RUN, None)
    first = store.ask(PIPELINE, RequestKind.STOP, {}, "ada")
    context = Context(store, PIPELINE, RUN, NotImplemented, Worker("dag/stream"), lease_seconds=0.1)
    finish_step(context, over, StreamEnd(stream.epoch))
    assert stream.base.batch == -1
    if case == "cleared":
        store.answer(PIPELINE, first, "stopped")
    if case in ("a running retry", "cleared"):
        store.enter_turn(PIPELINE, RUN, None)
    drain = store.ask(PIPELINE, RequestKind.STOP, {DRAIN: True}, "eve")
    save = store.ask(PIPELINE, RequestKind.STOP, {SAVEPOINT: str(tmp_path / "savepoints")}, "eve")
    if case == "the next run":
        context = replace(context, run=replace(RUN, run_id="next"))
        store.enter_turn(PIPELINE, context.run, None)
        answer_early(context, stops(store, PIPELINE))
    else:
        store.enter_turn(PIPELINE, RUN, None)
        if case == "with new rows":
            stream.run(first=4, location="3-2", drains=True)
            stream.make_snapshots_readable()
        else:
            with new_epoch(store, PIPELINE, Worker("dag/stream", 2), "the next try", 0.1) as (stream.epoch, _):
                store.begin_stage(PIPELINE, stream.epoch, RUN)
                store.end_stage(PIPELINE, stream.epoch, RUN, None, complete=False)
        answer_stops(context, finish_step(context, over, StreamEnd(stream.epoch, "the job has no state"))[1])
    answer, saved = store.request(PIPELINE, drain), store.request(PIPELINE, save)
    assert answer.missing == ((DRAIN,) if is_late else ())
    assert (TOO_LATE in answer.outcome) is (is_late or case == "drained") and store.request(
        PIPELINE, first
    ).missing == ()
    assert ("checkpoint 6 has drained" in answer.outcome) is (case == "with new rows")
    assert saved.missing == ((SAVEPOINT,) if case == "drained" or (is_late and case != "with new rows") else ())
    assert len(list((tmp_path / "savepoints").glob("savepoint-*"))) == (not saved.missing)
    assert "are kept" not in saved.outcome, "there is nothing left"


@pytest.mark.parametrize("lost", ["state", "open"])
def test_a_request_after_a_restore_is_not_late(stream: Stream, lost: str) -> None:
    stream.run()
    stream.clean_up()
    before = stream.store.ask(PIPELINE, RequestKind.STOP, {DRAIN: True}, "ada")
    assert too_late(stream.store, PIPELINE, lost) == {before, None}
    with new_epoch(stream.store, PIPELINE, Worker("restore", 1), "a test", 0.1) as (epoch, _):
        stream.store.restore(PIPELINE, epoch, stream.position(3, "9-1"), "a test")
    after = stream.store.ask(PIPELINE, RequestKind.STOP, {DRAIN: True}, "ada")
    assert not {after, None} & too_late(stream.store, PIPELINE, lost)


def test_many_deleted_checkpoints_do_not_hide_what_was_lost(stream: Stream, tmp_path: Path) -> None:
    """Each leaves an event after that of the deleted state."""
    stream.run()
    stream.make_snapshots_readable()
    folder = str(tmp_path / "savepoints")
    asked = stream.store.ask(PIPELINE, RequestKind.STOP, {SAVEPOINT: folder}, "ada")
    uri, _ = take_once(stream.store, PIPELINE, folder, "ada", asked)
    stream.clean_up()
    with pipeline_write(stream.store._database, PIPELINE) as write:
        for _ in range(1000):
            write.event(EventKind.PRUNING, "its files are being deleted", number=1)
    assert too_late(stream.store, PIPELINE, "state") == {asked, None}
    assert take_once(stream.store, PIPELINE, folder, "ada", asked)[0] == uri
    assert taken_for(stream.store, PIPELINE, asked) == (f"savepoint of checkpoint 3: {uri}", True)


@pytest.mark.parametrize("has_state", [True, False])
def test_a_stop_saves_no_state_that_is_deleted(stream: Stream, tmp_path: Path, has_state: bool) -> None:
    stream.run(drains=True)
    if not has_state:
        rmtree(local_path(stream.base.location) / "state")
    stream.clean_up()
    folder = tmp_path / "savepoints"
    if has_state:
        with pytest.raises(ConfigurationError) as raised:
            stop(stream.store, PIPELINE, "ada", savepoint_dir=str(folder))
        assert raised.value.code == "state_replaced"
    else:
        assert "savepoint of checkpoint 3" in stop(stream.store, PIPELINE, "ada", savepoint_dir=str(folder))
    assert len(list(folder.glob("savepoint-*"))) == (not has_state)
