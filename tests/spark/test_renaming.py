"""A pipeline goes on under another name, over real sinks and without Spark: all rows come once.

What the old name has staged behind the savepoint, the new one reads again.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from airflow_ft import FilesSink, SqliteSink
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.coordinator import Coordinator
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    FencedError,
    LeaseHeldError,
    PipelineHaltedError,
    SinkUnavailableError,
    StateConflictError,
    StoreBehindSinkError,
)
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import (
    AfterAbort,
    Checkpoint,
    CheckpointState,
    Fence,
    Former,
    ParticipantPlan,
    RunKey,
    SparkPosition,
)
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.planning import Delivery, plan_delivery
from airflow_ft.protocol.recovery import recover
from airflow_ft.sinks import open_participant
from airflow_ft.spark.savepoints import restoring
from airflow_ft.spark.savepoints.restoring import Restored, restore
from airflow_ft.spark.savepoints.taking import take
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.store.sqlite import SqliteStore
from airflow_ft.wal import open_wal
from airflow_ft.wal.local import LocalFileSystem
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.raising import raises

pytestmark = pytest.mark.slow

OLD, NEW = "orders", "shop-orders"
RUN = RunKey("dag", "run-1")


class Died(BaseException):
    """The process was killed."""


class Pipelines:
    """Old name and new one, in one decision log; each number has the row that says at which offset it was read."""

    def __init__(self, folder: Path, *, with_table: bool = True) -> None:
        self.folder, self.with_table = folder, with_table
        self.url = f"sqlite:///{folder}/ft.db"
        self.store: DecisionLog = open_store(self.url)
        self.delivery = self.into("lake")
        self.away = False

    def into(self, name: str) -> Delivery:
        """A folder of that name, and a table."""
        self.lake, self.table = self.folder / name, f"orders_in_{name}"
        sinks: dict[str, Any] = {"files": FilesSink(folder=str(self.lake), name="lake")}
        if self.with_table:
            sinks["table"] = SqliteSink(table=self.table, conn_id="shop")
        return plan_delivery(sinks)

    def participants(self, plan: ParticipantPlan) -> Participant:
        if self.away and plan.kind == "files":
            raise SinkUnavailableError("it is away.", remedy="it is tried again.")
        shop = ConnectionInfo("shop", "sqlite", host=str(self.folder / "shop.db"))
        return open_participant(plan, lambda _: shop, open_wal())

    def location(self, pipeline: str, attempt: str, batch: int) -> SparkPosition:
        """Spark's own log of the source, as far as savepoints read it."""
        path = self.folder / "wal" / pipeline / "spark" / attempt
        texts = {"metadata": "{}", "airflow_ft_sources.json": '["orders"]'}
        for n in range(batch + 1):
            texts[f"offsets/{n}"] = "\n".join(["v1", json.dumps({"conf": {}}), json.dumps({"orders": {"0": n}})])
            texts[f"commits/{n}"] = "v1\n{}"
        for name, text in texts.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(text)
        return SparkPosition(path.as_uri(), batch)

    def stage(self, pipeline: str, epoch: int, offset: int) -> int:
        store = self.store
        attempt = store.begin_stage(pipeline, epoch, RUN)
        number = store.trigger(pipeline, epoch, RUN)
        rows = pa.table({"id": pa.array([offset], pa.int64())})
        folder = SegmentFolder(str(self.folder / "wal"), pipeline, epoch, attempt, number)
        segment = write_segment(folder, number, {name: rows for p in self.delivery.participants for name in p.sinks})
        position = self.location(pipeline, f"{epoch}-{attempt}", offset)
        store.publish(pipeline, epoch, number, store.pipeline(pipeline).last_published, segment, position, {})
        store.end_stage(pipeline, epoch, RUN, position)
        return number

    def run(self, pipeline: str, offset: int, until: str = "delivered") -> Checkpoint:
        """A run that reads one row, and dies when it is staged, prepared or decided."""
        with new_epoch(self.store, pipeline, Worker("", 1), "a test") as (epoch, _):
            number = self.stage(pipeline, epoch, offset)
            if until != "staged":
                with closing(Coordinator(self.store, pipeline, epoch, self.participants)) as coordinator:
                    coordinator.plan(self.delivery, 0)
                    for name in self.delivery.names:
                        coordinator.prepare(number, name)
                    if until == "decided" and self.delivery.commit_point:
                        coordinator.commit(number, self.delivery.commit_point)
                    elif until == "decided":
                        votes = self.store.checkpoint(pipeline, number).votes
                        self.store.decide(pipeline, epoch, number, {name: v.prepared for name, v in votes.items()})
                    elif until == "delivered":
                        coordinator.deliver(number)
        return self.store.checkpoint(pipeline, number)

    def savepoint(self) -> str:
        uri, _ = take(self.store, OLD, str(self.folder / "savepoints"), "a test")
        return uri

    def rename(self, uri: str, name: str = NEW, **more: Any) -> Restored:
        return restore(
            self.store, uri, self.participants, Worker("", 1), "a test", pipeline=name,
            **{"rename": True, "wal_root": str(self.folder / "wal"), **more},
        )  # fmt: skip

    def backup(self) -> Callable[[], None]:
        """Of the decision log; what is returned brings it back."""
        log, copy = self.folder / "ft.db", self.folder / "backup.db"
        with closing(sqlite3.connect(log)) as db:
            db.execute("VACUUM INTO ?", (str(copy),))

        def bring_back() -> None:
            self.store.close()
            for suffix in ("-wal", "-shm"):
                log.with_name(f"{log.name}{suffix}").unlink(missing_ok=True)
            copy.replace(log)
            self.store = open_store(self.url)

        return bring_back

    def rows(self) -> dict[str, list[int]]:
        files = ds.dataset(self.lake, format="parquet").files
        found = {"files": sorted(id for file in files for id in ds.dataset(file).to_table()["id"].to_pylist())}
        if "shop" in self.delivery.names:
            with closing(sqlite3.connect(self.folder / "shop.db")) as shop:
                found["table"] = [id for (id,) in shop.execute(f"SELECT id FROM {self.table} ORDER BY id")]
        return found

    def have(self, *ids: int) -> bool:
        return all(found == list(ids) for found in self.rows().values())


@pytest.fixture
def pipelines(tmp_path: Path) -> Iterator[Pipelines]:
    made = Pipelines(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def saved(pipelines: Pipelines) -> tuple[Pipelines, str]:
    """Offset 1 was delivered by the old name, and is what the savepoint covers."""
    pipelines.store.register(OLD)
    pipelines.run(OLD, 1)
    return pipelines, pipelines.savepoint()


Late = Callable[[], object]


def late(pipelines: Pipelines, checkpoint: Checkpoint, name: str) -> Late:
    """A process that has begun its commit, and sleeps before it asks the sink anything."""
    plan = checkpoint.plan
    assert plan is not None
    epoch = pipelines.store.pipeline(OLD).epoch
    attempt = pipelines.store.begin_attempt(OLD, epoch, checkpoint.number, name)
    sink = pipelines.participants(plan.participant(name))
    fence = Fence(OLD, pipelines.store.installation, epoch, attempt)
    return lambda: sink.commit(plan, fence, checkpoint.votes[name])


@pytest.mark.parametrize("with_table", [True, False], ids=["a table decides", "the log decides"])
@pytest.mark.parametrize("until", ["staged", "prepared", "decided"])
def test_what_the_old_name_has_under_way_comes_once(tmp_path: Path, until: str, with_table: bool) -> None:
    """Decided, it is delivered, and a savepoint that lacks it is refused. Else the new name reads it again."""
    pipelines = Pipelines(tmp_path, with_table=with_table)
    store = pipelines.store
    store.register(OLD)
    pipelines.run(OLD, 1)
    uri = pipelines.savepoint()
    open_one = pipelines.run(OLD, 2, until)
    woken = [late(pipelines, open_one, name) for name in pipelines.delivery.names] if until != "staged" else []
    if until == "decided":
        with raises(StateConflictError, "rows_would_repeat", later=(2,)):
            pipelines.rename(uri)
        assert store.pipeline(OLD).status is PipelineStatus.ACTIVE
        recover(store, OLD, pipelines.participants, Worker("", 1))
        assert pipelines.have(1, 2)
        uri = pipelines.savepoint()
    pipelines.rename(uri)
    assert pipelines.have(1, 2) if until == "decided" else pipelines.have(1)
    for wake in woken:
        with suppress(FencedError):  # or it finds what the successor has left in its place
            wake()
    assert pipelines.have(1, 2) if until == "decided" else pipelines.have(1)
    for offset in (2, 3) if until != "decided" else (3,):
        pipelines.run(NEW, offset)
    for wake in woken:
        with suppress(AirflowFtError):
            wake()
    assert pipelines.have(1, 2, 3)
    assert store.pipeline(NEW).former == Former(OLD, 2 if until == "decided" else 1, 3)
    assert min(each.number for each in store.checkpoints(NEW)) == 3
    with raises(PipelineHaltedError, "pipeline_renamed", pipeline=OLD):
        pipelines.run(OLD, 4)
    store.close()


def test_a_copy_leaves_the_old_name_what_it_has(saved: tuple[Pipelines, str]) -> None:
    """Without `rename`: both may deliver the same rows, so a copy has sinks of its own."""
    pipelines, uri = saved
    prepared = pipelines.run(OLD, 2, "prepared")
    woken = late(pipelines, prepared, "shop")
    pipelines.rename(uri, rename=False)
    assert pipelines.store.pipeline(NEW).former is None and pipelines.store.pipeline(NEW).next_number == 2
    woken()
    assert pipelines.rows()["table"] == [1, 2]
    with pytest.raises(AirflowFtError) as caught:
        pipelines.run(NEW, 2)
    assert "'orders'" in caught.value.headline and "--rename" in caught.value.remedy
    pipelines.delivery = pipelines.into("elsewhere")
    pipelines.run(NEW, 3)
    assert pipelines.have(2, 3), "as the error says: in a folder and a table of its own"


def test_what_does_not_stand_at_the_savepoint_keeps_its_name(
    saved: tuple[Pipelines, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines, uri = saved
    store = pipelines.store
    with raises(ConfigurationError, "action_refused", pipeline=OLD, old=OLD):
        pipelines.rename(uri, OLD)
    with new_epoch(store, OLD, Worker("", 1), "another", 1.0), pytest.raises(LeaseHeldError):
        pipelines.rename(uri)
    other = open_store(f"sqlite:///{tmp_path}/other.db")
    with raises(ConfigurationError, "action_refused", pipeline=NEW, old=OLD):
        restore(other, uri, pipelines.participants, Worker("", 1), "a test", pipeline=NEW, rename=True)
    assert [row.name for row in other.pipelines()] == []
    other.close()
    pipelines.run(OLD, 2)
    with raises(StateConflictError, "rows_would_repeat", later=(2,)) as behind:
        pipelines.rename(uri)
    assert behind.error is not None and "--rename" in behind.error.remedy and "--later" not in behind.error.remedy
    newer = pipelines.savepoint()
    undecided = pipelines.run(OLD, 3, "prepared")
    store.quarantine(OLD, store.pipeline(OLD).epoch, undecided.number, "a test.")
    with raises(StateConflictError, "checkpoint_quarantined", checkpoint=undecided.number):
        pipelines.rename(newer)
    store.release(OLD, store.pipeline(OLD).epoch, undecided.number, "a test.")
    pipelines.away = True
    for _ in range(2):
        with pytest.raises(SinkUnavailableError):
            pipelines.rename(newer)
    assert store.pipeline(OLD).status is PipelineStatus.ACTIVE
    pipelines.away = False
    pipelines.rename(newer)
    assert store.checkpoint(OLD, 3).state is CheckpointState.ABORTED
    assert store.checkpoint(OLD, 3).after_abort is AfterAbort.REWOUND
    with raises(PipelineHaltedError, "pipeline_renamed", pipeline=OLD):
        pipelines.rename(newer, "a-third-name")
    pipelines.run(NEW, 3)
    assert pipelines.have(1, 2, 3)
    with raises(PipelineHaltedError, "pipeline_renamed", pipeline=OLD) as caught:
        pipelines.rename(newer)
    assert caught.error is not None and "`airflow ft resume orders`" in caught.error.remedy


def test_an_invalid_new_name_is_refused_before_any_abort(saved: tuple[Pipelines, str]) -> None:
    pipelines, uri = saved
    pipelines.run(OLD, 2, "staged")
    with pytest.raises(ConfigurationError) as caught:
        pipelines.rename(uri, "Shop Orders")
    assert "'Shop Orders'" in caught.value.headline
    for later in (Later.CONTINUE, Later.WRITE_AGAIN):
        with raises(ConfigurationError, "arguments_conflict", argument="later", value=later.value):
            pipelines.rename(uri, later=later)
    assert pipelines.store.checkpoint(OLD, 2).state is CheckpointState.STAGED


def test_a_name_that_belongs_to_another_decision_log_is_refused(saved: tuple[Pipelines, str]) -> None:
    """It would be found out in the first run, when the old name is given up."""
    pipelines, uri = saved
    ours, url = pipelines.store, pipelines.url
    pipelines.store = open_store(f"sqlite:///{pipelines.folder}/theirs.db")
    pipelines.store.register(NEW)
    pipelines.delivery = plan_delivery({"table": SqliteSink(table=pipelines.table, conn_id="shop")})
    pipelines.run(NEW, 7)
    pipelines.store.close()
    pipelines.store = ours
    with raises(StateConflictError, "foreign_owner", name=NEW, participant="shop"):
        pipelines.rename(uri)
    assert ours.pipeline(OLD).status is PipelineStatus.ACTIVE and pipelines.url == url
    pipelines.rename(uri, "a-third-name")


def test_where_an_added_source_begins_goes_along(saved: tuple[Pipelines, str]) -> None:
    """Nothing of it was published yet: "latest" would be another moment under the new name."""
    pipelines, uri = saved
    frozen = [pipelines.folder / "wal" / name / "spark" / "begun-0123456789abcdef.json" for name in (OLD, NEW)]
    frozen[0].write_text("10:00")
    pipelines.rename(uri)
    assert [file.read_text() for file in frozen] == ["10:00", "10:00"]


def test_a_pipeline_stays_in_its_own_log(saved: tuple[Pipelines, str]) -> None:
    """Whoever renames it may be on another machine, with another `wal_root`."""
    pipelines, uri = saved
    restored = pipelines.rename(uri, wal_root=str(pipelines.folder / "elsewhere"))
    assert restored.position.location.startswith((pipelines.folder / "wal" / NEW).as_uri())


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("name", ["link_tree", "sync_tree", "rename"])
def test_an_interrupted_rename_is_finished_by_repeating_it(
    saved: tuple[Pipelines, str], monkeypatch: pytest.MonkeyPatch, name: str, before: bool
) -> None:
    pipelines, uri = saved
    pipelines.run(OLD, 2, "prepared")
    where: Any = type(pipelines.store) if name == "rename" else LocalFileSystem
    call: Callable[..., Any] = getattr(where, name)

    def dying(*arguments: Any, **more: Any) -> Any:
        if not before:
            call(*arguments, **more)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(where, name, dying)
        with pytest.raises(Died):
            pipelines.rename(uri)
    done = name == "rename" and not before
    assert (pipelines.store.pipeline(OLD).status is PipelineStatus.RENAMED) is done
    assert (pipelines.store.pipeline(NEW).former is not None) is done
    for _ in range(2):
        pipelines.rename(uri)
    for offset in (2, 3):
        pipelines.run(NEW, offset)
    assert pipelines.have(1, 2, 3)


def test_the_old_name_can_be_resumed_until_the_new_one_begins(saved: tuple[Pipelines, str]) -> None:
    pipelines, uri = saved
    pipelines.rename(uri)
    pipelines.store.resume(OLD, "ada")
    pipelines.run(OLD, 2)
    assert pipelines.have(1, 2)
    with raises(StateConflictError, "rows_would_repeat", later=(2,)):
        pipelines.rename(uri)
    pipelines.rename(pipelines.savepoint())
    assert pipelines.store.pipeline(NEW).former == Former(OLD, 2, 3)
    pipelines.run(NEW, 3)
    assert pipelines.have(1, 2, 3)


def test_a_run_under_a_name_that_was_taken_back_delivers_nothing(saved: tuple[Pipelines, str]) -> None:
    """He has read what the old name reads once more, and sleeps before he publishes it."""
    pipelines, uri = saved
    store = pipelines.store
    pipelines.rename(uri)
    with new_epoch(store, NEW, Worker("", 1), "a test") as (epoch, _):
        store.begin_stage(NEW, epoch, RUN)
        number = store.trigger(NEW, epoch, RUN)
        store.resume(OLD, "ada")
        pipelines.run(OLD, 2)
        with pytest.raises(FencedError):
            store.publish(NEW, epoch, number, 0, None, None, {})
    with raises(PipelineHaltedError, "pipeline_renamed", pipeline=NEW):
        pipelines.run(NEW, 2)
    pipelines.rename(pipelines.savepoint(), "the-right-name")
    with pytest.raises(PipelineHaltedError):
        pipelines.run(NEW, 3)
    pipelines.run("the-right-name", 3)
    assert pipelines.have(1, 2, 3)
    with pytest.raises(StateConflictError) as caught:
        store.resume(OLD, "ada")
    assert "the-right-name" in caught.value.headline


def test_repeating_a_rename_fails_if_the_old_name_is_resumed(
    saved: tuple[Pipelines, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines, uri = saved
    pipelines.rename(uri)
    check = restoring.verify

    def taken_back(*given: Any) -> None:
        check(*given)
        pipelines.store.resume(OLD, "ada")

    with monkeypatch.context() as patch:
        patch.setattr(restoring, "verify", taken_back)
        with raises(StateConflictError, "action_refused", pipeline=NEW, old=OLD):
            pipelines.rename(uri)
    assert pipelines.store.pipeline(NEW).status is PipelineStatus.RENAMED
    for name in (OLD, OLD):
        pipelines.run(name, pipelines.store.pipeline(OLD).last_published + 1)
    assert pipelines.have(1, 2, 3)


def test_a_new_name_restores_no_other_savepoint_before_it_begins(saved: tuple[Pipelines, str]) -> None:
    """What the old name has delivered since would come again, and what it has not would be left out."""
    pipelines, older = saved
    pipelines.run(OLD, 2)
    newest = pipelines.savepoint()
    pipelines.store.register("another")
    pipelines.delivery = pipelines.into("elsewhere")
    pipelines.run("another", 7)
    foreign, _ = take(pipelines.store, "another", str(pipelines.folder / "savepoints"), "a test")
    pipelines.delivery = pipelines.into("lake")
    pipelines.rename(newest)
    for rename in (True, False):
        with raises(ConfigurationError, "savepoint_foreign", pipeline=NEW, of="another", former=OLD):
            pipelines.rename(foreign, rename=rename)
    assert pipelines.store.pipeline("another").status is PipelineStatus.ACTIVE
    with raises(StateConflictError, "rows_would_repeat", later=(2,)):
        pipelines.rename(older, rename=False)
    pipelines.rename(newest, rename=False)
    assert pipelines.store.pipeline(NEW).former == Former(OLD, 2, 3)
    pipelines.run(NEW, 3)
    assert pipelines.have(1, 2, 3)


def test_a_decision_log_older_than_the_sinks_refuses_a_rename(saved: tuple[Pipelines, str]) -> None:
    """R11: under the old name it would halt at the sinks; under a new one it would deliver once more."""
    pipelines, uri = saved
    bring_back = pipelines.backup()
    pipelines.run(OLD, 2)
    newer = pipelines.savepoint()
    bring_back()
    for savepoint, expected in ((uri, "is at checkpoint 2"), (newer, "covers checkpoint 2, which")):
        with raises(StateConflictError, "store_behind_sink", pipeline=OLD) as caught:
            pipelines.rename(savepoint)
        assert caught.error is not None and expected in caught.error.headline
    assert pipelines.store.pipeline(OLD).status is PipelineStatus.ACTIVE
    assert NEW not in [row.name for row in pipelines.store.pipelines()]
    assert pipelines.have(1, 2)


@pytest.mark.parametrize("with_table", [True, False], ids=["a table decides", "the log decides"])
def test_a_decision_log_older_than_the_rename_halts_the_new_name(tmp_path: Path, with_table: bool) -> None:
    pipelines = Pipelines(tmp_path, with_table=with_table)
    pipelines.store.register(OLD)
    pipelines.run(OLD, 1)
    bring_back = pipelines.backup()
    pipelines.rename(pipelines.savepoint())
    pipelines.run(NEW, 2)
    bring_back()
    pipelines.store.register(NEW)
    with pytest.raises(StoreBehindSinkError):
        pipelines.run(NEW, 1)
    assert pipelines.store.pipeline(NEW).halt_reason is HaltReason.STORE_BEHIND_SINK
    assert pipelines.have(1, 2)
    pipelines.store.close()


@pytest.fixture
def ft(
    saved: tuple[Pipelines, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """`airflow ft ...`; what it prints."""
    from airflow.cli.cli_parser import get_parser

    pipelines, _ = saved
    parser: ArgumentParser = get_parser()
    shop = {"conn_type": "sqlite", "host": str(pipelines.folder / "shop.db")}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(shop))

    def command(*arguments: str) -> str:
        args = parser.parse_args(["ft", *arguments, "--store", pipelines.url])
        args.func(args)
        return capsys.readouterr().out

    return command


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that were answered with no."""
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or "n")
    return questions


def test_the_command_says_what_it_does(saved: tuple[Pipelines, str], ft: Callable[..., str], asked: list[str]) -> None:
    pipelines, uri = saved
    root = ["--wal-root", str(pipelines.folder / "wal")]
    with pytest.raises(SystemExit):
        ft("savepoint", "restore", uri, "--pipeline", NEW, "--rename", *root)
    assert "orders gets that name" in asked[0]
    output = ft("savepoint", "restore", uri, "--pipeline", NEW, "--rename", *root, "--yes")
    assert "the next run of shop-orders continues from checkpoint 1 of orders" in output
    status = {row["pipeline"]: row["status"] for row in json.loads(ft("pipelines", "-o", "json"))}
    assert status == {OLD: "RENAMED", NEW: "ACTIVE"}
    pipelines.run(NEW, 2)
    assert pipelines.have(1, 2)
    with raises(SystemExit, "pipeline_not_new", pipeline=OLD, other=NEW):
        ft("resume", OLD, "--yes")


def test_where_an_added_source_begins_comes_back(saved: tuple[Pipelines, str], ft: Callable[..., str]) -> None:
    """An attempt under the new name has looked it up, and published nothing."""
    pipelines, uri = saved
    pipelines.rename(uri)
    frozen = [pipelines.folder / "wal" / name / "spark" / "begun-0123456789abcdef.json" for name in (OLD, NEW)]
    frozen[1].write_text("10:00")
    ft("resume", OLD, "--yes")
    assert frozen[0].read_text() == "10:00"
    frozen[0].write_text("11:00")
    ft("resume", NEW, "--yes")
    assert frozen[1].read_text() == "10:00", "it is another pipeline now"


def test_no_source_begins_elsewhere_after_a_late_look_up(
    saved: tuple[Pipelines, str], ft: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run under the new name looks it up until it is fenced."""
    pipelines, uri = saved
    pipelines.rename(uri)
    frozen = [pipelines.folder / "wal" / name / "spark" / "begun-0123456789abcdef.json" for name in (OLD, NEW)]
    resume = SqliteStore.resume

    def late_resume(*given: Any) -> None:
        frozen[1].write_text("10:00")
        resume(*given)

    monkeypatch.setattr(SqliteStore, "resume", late_resume)
    ft("resume", OLD, "--yes")
    assert frozen[0].read_text() == "10:00"


def test_a_name_is_not_taken_back_on_a_broken_disk(saved: tuple[Pipelines, str], ft: Callable[..., str]) -> None:
    pipelines, uri = saved
    pipelines.rename(uri)
    frozen = [pipelines.folder / "wal" / name / "spark" / "begun-0123456789abcdef.json" for name in (OLD, NEW)]
    frozen[1].write_text("10:00")
    frozen[0].mkdir()  # nothing can be written there
    with raises(SystemExit, "storage_unavailable", pipeline=OLD):
        ft("resume", OLD, "--yes")
    assert pipelines.store.pipeline(OLD).status is PipelineStatus.RENAMED


def test_the_command_that_takes_it_back_says_what_it_does(
    saved: tuple[Pipelines, str], ft: Callable[..., str], asked: list[str]
) -> None:
    pipelines, uri = saved
    pipelines.rename(uri)
    with pytest.raises(SystemExit):
        ft("resume", OLD)
    assert "The new name stops working" in asked[0]
    output = ft("resume", OLD, "--yes")
    assert "it continues as shop-orders." in output and "orders is ACTIVE" in output
    with pytest.raises(SystemExit):
        ft("resume", NEW)
    assert "it reads all of its sources" in asked[1]


def test_the_new_name_needs_no_files_of_the_old_one(saved: tuple[Pipelines, str]) -> None:
    pipelines, uri = saved
    pipelines.rename(uri)
    pipelines.run(NEW, 2)
    shutil.rmtree(pipelines.folder / "wal" / OLD)
    pipelines.run(NEW, 3, "prepared")
    recover(pipelines.store, NEW, pipelines.participants, Worker("", 1))
    taken, _ = take(pipelines.store, NEW, str(pipelines.folder / "savepoints"), "a test")
    pipelines.rename(taken, rename=False)
    pipelines.run(NEW, 4)
    assert pipelines.have(1, 2, 3, 4)
