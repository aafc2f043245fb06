"""What a person does about a lost or older decision log, an older sink, or rows that wait: the pipeline continues."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import airflow_ft
from airflow_ft.pipeline import doctor, steps
from airflow_ft.pipeline import run as run_module
from airflow_ft.pipeline.actions import pipelines, verifying
from airflow_ft.pipeline.actions.actor import Actor
from airflow_ft.pipeline.connections import server_connections
from airflow_ft.pipeline.decision_log import participant_factory
from airflow_ft.pipeline.sink_doctor import examine_sink
from airflow_ft.protocol import coordinator
from airflow_ft.protocol.adoption import Adoption, adopt
from airflow_ft.protocol.doctor import Check
from airflow_ft.protocol.doubt import doubts
from airflow_ft.protocol.errors import (
    AirflowFtError,
    ConfigurationError,
    ForeignOwnerError,
    HaltError,
    PipelineHaltedError,
    StageError,
    StateConflictError,
    StoreBehindSinkError,
    UnfitTargetError,
    WalCorruptError,
)
from airflow_ft.protocol.from_savepoint import Later
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import AfterAbort, CheckpointState
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.recovery import recover
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.sweep import recover_all
from airflow_ft.protocol.verify import lost_and_pruned
from airflow_ft.sinks.files.staged import Staged
from airflow_ft.sinks.sqlite.participant import SqliteParticipant
from airflow_ft.spark.savepoints.restoring import restore
from airflow_ft.spark.state.reset import reset_state
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal, owners
from airflow_ft.wal.doctor import examine_wal
from tests.raising import raises


class Died(Exception):
    """The process ends here."""


class Shop:
    """Two SQLite files. Rows of a position go into the table `orders` of each; the first file decides."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "ft.db"
        self.store = f"sqlite:///{self.log}"

    def deliver(self, position: int, *files: str, **more: airflow_ft.FilesSink) -> None:
        rows = pa.table({"id": pa.array([position], pa.int64())})
        sinks: dict[str, Any] = {
            each: airflow_ft.SqliteSink(table="orders", conn_id=each) for each in files or ("first",)
        } | more
        airflow_ft.deliver(
            dict.fromkeys(sinks, rows),
            pipeline="orders",
            position=position,
            sinks=sinks,
            store=self.store,
            wal_root=str(self.folder / "wal"),
            restart=airflow_ft.NoRestart(),
        )

    def deliver_until_halted(self, position: int) -> None:
        while True:
            with pytest.raises(AirflowFtError) as caught:
                self.deliver(position)
            if isinstance(caught.value, HaltError):
                return

    def ids(self, file: str = "first") -> list[int]:
        with closing(sqlite3.connect(self.folder / f"{file}.db")) as db:
            return [row[0] for row in db.execute("SELECT id FROM orders ORDER BY id")]

    def sql(self, statement: str, *values: object, file: str = "first") -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / f"{file}.db", isolation_level=None)) as db:
            return db.execute(statement, values).fetchall()

    def lose_head(self, older: tuple[Any, ...] = (), file: str = "first") -> None:
        """Delete the row of the head, or put an older one in its place."""
        self.sql("DELETE FROM airflow_ft_head", file=file)
        if older:
            self.sql("INSERT INTO airflow_ft_head VALUES (?, ?, ?, ?, ?, ?, ?)", *older, file=file)

    def copy(self, path: Path, *, back: bool = False, to: str = "backup") -> None:
        for end in ("", "-wal", "-shm"):
            here, there = Path(f"{path}{end}"), Path(f"{path}{end}.{to}")
            source, target = (there, here) if back else (here, there)
            target.unlink(missing_ok=True)
            if source.exists():
                shutil.copy(source, target)

    @contextmanager
    def after_commit_of_the_first(self, act: Callable[[], object]) -> Iterator[None]:
        commit = SqliteParticipant.commit

        def then(self: SqliteParticipant, *given: Any, **more: Any) -> Any:
            proof = commit(self, *given, **more)
            if self.name == "first":
                act()
            return proof

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SqliteParticipant, "commit", then)
            yield

    def adopt(self) -> Adoption:
        with closing(open_store(self.store)) as store:
            return adopt(store, "orders", participant_factory(server_connections), "ada")

    def state(self) -> tuple[PipelineStatus, HaltReason | None, list[CheckpointState]]:
        with closing(open_store(self.store)) as store:
            row = store.pipeline("orders")
            return row.status, row.halt_reason, [each.state for each in reversed(store.checkpoints("orders"))]

    def problems(self, file: str = "first") -> list[str]:
        """Return the names of the problems that the doctor finds in a sink of the newest plan."""
        with closing(open_store(self.store)) as store:
            plan = next(each.plan for each in store.checkpoints("orders") if each.plan)
            opener = participant_factory(server_connections)
            checks = examine_sink("orders", plan.participant(file), server_connections, (), opener, store)
        return [check.name for check in checks if check.verdict == "problem"]

    def check_log(self) -> list[Check]:
        """Let the doctor look at the write-ahead log."""
        with closing(open_store(self.store)) as store:
            needed, _ = doctor._rows(store, "orders", open_wal())
            return examine_wal(str(self.folder / "wal"), open_wal(), needed, store)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    for file in ("first", "second"):
        connection = {"conn_type": "sqlite", "host": str(tmp_path / f"{file}.db")}
        monkeypatch.setenv(f"AIRFLOW_CONN_{file.upper()}", json.dumps(connection))
    return Shop(tmp_path)


def test_a_new_log_is_halted_by_its_first_run_and_adopts(shop: Shop) -> None:
    shop.deliver(1)
    shop.deliver(2)
    for path in shop.folder.glob("ft.db*"):
        path.unlink()
    with raises(ForeignOwnerError, "foreign_owner"):
        shop.deliver(3)
    assert shop.state() == (PipelineStatus.HALTED, HaltReason.FOREIGN_OWNER, []), "nothing was published"
    assert [head.number for head in shop.adopt().heads.values() if head] == [2]
    shop.deliver(3)
    assert shop.ids() == [1, 2, 3]


@pytest.mark.parametrize("removed", [False, True])
def test_a_sink_that_was_added_is_adopted(shop: Shop, removed: bool) -> None:
    """And a sink that was removed since the newest plan is not needed."""
    shop.deliver(1, "second")
    shop.store = f"sqlite:///{shop.folder}/other.db"
    shutil.rmtree(shop.folder / "wal")
    shop.deliver(2, "first")
    wanted = ("second",) if removed else ("first", "second")
    with raises(ForeignOwnerError, "foreign_owner"):
        shop.deliver(3, *wanted)
    assert sorted(shop.adopt().heads) == list(wanted)
    shop.deliver(3, *wanted)
    assert (shop.ids(), shop.ids("second")) == ([2] if removed else [2, 3], [1, 3])


def test_the_first_checkpoint_reaches_a_sink_that_was_emptied(shop: Shop) -> None:
    def empty() -> None:
        with closing(sqlite3.connect(shop.folder / "second.db")) as db:
            db.executescript("DROP TABLE airflow_ft_head; DROP TABLE airflow_ft_ledger")

    with shop.after_commit_of_the_first(empty), raises(StoreBehindSinkError, "ledger_lost"):
        shop.deliver(1, "first", "second")
    assert shop.adopt().forgetful == ("second",)
    shop.deliver(2, "first", "second")
    assert shop.ids() == shop.ids("second") == [1, 2]


def test_adopt_gives_up_the_rollback_in_a_folder_that_is_gone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_the_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    old, new = (airflow_ft.FilesSink(folder=str(shop.folder / each)) for each in ("old", "new"))
    shop.deliver(1, copies=old)
    with monkeypatch.context() as patch, pytest.raises(AirflowFtError):
        patch.setattr(Staged, "build", fill_the_disk)
        shop.deliver(2, copies=old)
    shutil.rmtree(shop.folder / "old")
    with raises(StoreBehindSinkError, "ledger_lost"):
        shop.deliver(3, copies=new)
    shop.adopt()
    shop.deliver(3, copies=new)
    assert shop.ids() == [1, 2, 3]
    assert sorted(pq.read_table(shop.folder / "new").column("id").to_pylist()) == [2, 3]


def test_an_older_log_continues_above_the_sinks(shop: Shop) -> None:
    shop.deliver(1)
    shop.copy(shop.log)
    for position in (2, 3, 4):
        shop.deliver(position)
    shop.copy(shop.log, back=True)
    with raises(StoreBehindSinkError, "log_behind_files"):
        shop.deliver(5)
    with pytest.raises(PipelineHaltedError):
        shop.deliver(5)
    shop.adopt()
    shop.deliver(5)
    assert shop.ids() == [1, 2, 3, 4, 5]


def test_recovery_notices_an_older_log_before_it_takes_an_epoch(shop: Shop) -> None:
    """Otherwise the epochs of the newer history would soon look like its own."""

    def die() -> None:
        raise Died

    with shop.after_commit_of_the_first(die), pytest.raises(Died):
        shop.deliver(1)
    shop.copy(shop.log)
    shop.deliver(2)
    shop.copy(shop.log, back=True)
    opener = participant_factory(server_connections)
    with closing(open_store(shop.store)) as store:
        epoch = store.pipeline("orders").epoch
        [swept] = recover_all(
            store,
            opener,
            Worker("", 1),
            orphan_age=timedelta(0),
            lease_seconds=0.1,
            look=partial(owners.require_newest_files, store),
        )
        assert swept.error is not None and swept.error.code == "log_behind_files"
        assert store.pipeline("orders").epoch == epoch
    shop.copy(shop.log, back=True)  # once more: no person has decided about the older log
    with closing(open_store(shop.store)) as store, raises(StoreBehindSinkError, "log_behind_files"):
        pipelines.recover(_ada([]), store, "orders")
    with closing(open_store(shop.store)) as store:
        store.resume("orders", "ada")
        owners.require_newest_files(store, "orders")  # a person has decided


def test_an_older_log_is_noticed_by_newer_state_of_spark(shop: Shop) -> None:
    """The newer log has reset the state, and no run has had rows since. Runs of the older one would delete that."""
    shop.deliver(1)
    newer = shop.folder / "wal/orders/spark/99-0"
    newer.mkdir(parents=True)
    with raises(StoreBehindSinkError, "log_behind_files", found=[99, 0]):
        shop.deliver(2)
    with closing(open_store(shop.store)) as store:
        store.resume("orders", "ada")
    shop.deliver(2)
    assert shop.ids() == [1, 2] and newer.exists()


@pytest.mark.parametrize(("aborted", "position"), [(False, 1), (False, 3), (True, 3)])
def test_an_older_log_that_had_planned_nothing_is_adopted(shop: Shop, aborted: bool, position: int) -> None:
    """Its halt names the sinks, or the error of `adopt` names the command that finds them."""

    def die(*_: object, **__: object) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        patch.setattr(steps, "prepare", die)
        shop.deliver(1)
    if aborted:  # `recover` carries its rows, so it looks before the stage does
        with closing(open_store(shop.store)) as store:
            opener = participant_factory(server_connections)
            Resolver(store, "orders", opener, "ada", Worker(), 0.1).abort(1, AfterAbort.CARRIED)
    shop.copy(shop.log)
    shop.deliver(2)
    shop.copy(shop.log, back=True)
    with raises(StoreBehindSinkError, "log_behind_files"):
        shop.deliver(3)
    if aborted:
        with raises(ConfigurationError, "sinks_unknown") as refused:
            shop.adopt()
        assert "airflow ft resume orders" in refused.error.remedy
        with closing(open_store(shop.store)) as store:
            store.resume("orders", "ada")
        with raises(StoreBehindSinkError, "digest_mismatch"):
            shop.deliver(3)
        with raises(StateConflictError, "action_refused", state="PREPARED", checkpoint=2):
            shop.adopt()
        with closing(open_store(shop.store)) as store:
            store.resume("orders", "ada")
            found = Resolver(store, "orders", participant_factory(server_connections), "ada", Worker(), 0.1).commit(2)
            assert found.state is CheckpointState.COMPLETED
        with raises(StoreBehindSinkError, "digest_mismatch"):
            shop.deliver(3)
    shop.sql(f"DELETE FROM orders{' WHERE id > 1' if aborted else ''}")  # as docs/recovery.md says
    assert sorted(shop.adopt().heads) == ["first"]
    shop.deliver(position)
    assert shop.ids() == sorted({1, position}), "the staged rows come, also if the next run has none"


@pytest.mark.parametrize("forgets", [True, False])
def test_a_staged_run_notices_an_older_log(shop: Shop, monkeypatch: pytest.MonkeyPatch, forgets: bool) -> None:
    """Its stage does nothing, so `recover` looks. Otherwise a sink that forgets would get the rows twice."""

    def die(*_: object, **__: object) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(run_module, "new_run_id", lambda: "r1")
        patch.setattr(steps, "prepare", die)
        shop.deliver(1)
    shop.copy(shop.log)
    for position in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "new_run_id", lambda position=position: f"r{position}")
            shop.deliver(position)
    shop.copy(shop.log, back=True)
    if forgets:  # as a Kafka group whose offset expired
        shop.sql("DELETE FROM airflow_ft_head")
        shop.sql("DELETE FROM airflow_ft_ledger")
    monkeypatch.setattr(run_module, "new_run_id", lambda: "r1")
    with raises(StoreBehindSinkError, "log_behind_files"):
        shop.deliver(1)
    assert shop.ids() == [1, 2]


def test_the_newer_log_finds_its_files_again(shop: Shop) -> None:
    """An older log in its place deletes and writes nothing."""

    def die() -> None:
        raise Died

    shop.deliver(1)
    shop.copy(shop.log)
    with shop.after_commit_of_the_first(die), pytest.raises(Died):
        shop.deliver(2)
    shop.copy(shop.log, to="newer")
    before = sorted(shop.folder.glob("wal/orders/*-*/**/*"))
    shop.copy(shop.log, back=True)
    for _ in range(3):
        with pytest.raises(AirflowFtError):
            shop.deliver(3)
    assert shop.state()[1] is HaltReason.STORE_BEHIND_SINK
    assert sorted(shop.folder.glob("wal/orders/*-*/**/*")) == before
    shop.copy(shop.log, back=True, to="newer")
    shop.deliver(3)
    assert shop.ids() == [1, 2, 3]


def _block_the_second(shop: Shop) -> None:
    """A former owner's mark is in the way of checkpoint 2, which the first sink shows."""

    def mark() -> None:
        names = [row[1] for row in shop.sql("PRAGMA table_info(airflow_ft_ledger)", file="second")]
        marks = {"number": "2", "installation": "'former'", "outcome": "'aborted'", "kind": "'aborted'"}
        values = ", ".join(marks.get(name, name) for name in names)
        shop.sql(
            f"INSERT INTO airflow_ft_ledger SELECT {values} FROM airflow_ft_ledger WHERE number = 1", file="second"
        )

    shop.deliver(1, "first", "second")
    with shop.after_commit_of_the_first(mark), raises(ForeignOwnerError, "foreign_owner"):
        shop.deliver(2, "first", "second")


def test_an_older_log_with_a_decided_number_adopts_nothing(shop: Shop) -> None:
    """The newer one has adopted and delivered since: this one would give out its numbers again."""
    _block_the_second(shop)
    shop.copy(shop.log)
    shop.adopt()
    shop.deliver(3, "first", "second")
    shop.copy(shop.log, back=True)
    before = shop.state(), shop.sql("SELECT * FROM airflow_ft_head")
    with raises(StoreBehindSinkError, "store_behind_sink"):
        shop.adopt()
    assert (shop.state(), shop.sql("SELECT * FROM airflow_ft_head")) == before
    for _ in range(10):  # as docs/recovery.md says
        with closing(open_store(shop.store)) as store, suppress(HaltError):
            store.resume("orders", "ada")
            Resolver(store, "orders", participant_factory(server_connections), "ada", Worker("", 1), 0.1).commit(2)
            break
    assert shop.state()[2] == [CheckpointState.COMPLETED] * 2
    assert shop.ids() == shop.ids("second") == [1, 2, 3]


def test_an_adoption_in_place_that_died_is_repeated(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object, **__: object) -> None:
        raise Died

    _block_the_second(shop)
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(SqliteParticipant, "end_orphans", die)
        shop.adopt()
    shop.adopt()
    shop.deliver(3, "first", "second")
    assert shop.ids() == shop.ids("second") == [1, 2, 3]


def test_a_new_log_accepts_the_files_that_it_finds(shop: Shop) -> None:
    """A pipeline begins again under its old name: its log and its sink were deleted, its files were not."""
    for position in (1, 2, 3):
        shop.deliver(position)
    for path in (
        *shop.folder.glob("ft.db*"),
        shop.folder / "first.db",
        *shop.folder.glob("wal/orders/.airflow-ft-log-*"),
    ):
        path.unlink()
    for _ in range(4):  # folders of the old log are in its place
        with suppress(StageError):
            shop.deliver(1)
    shop.deliver(2)
    assert shop.ids() == [1, 2]


@pytest.mark.parametrize("gone", [False, True])
def test_a_sink_that_lost_deliveries_gets_the_next_ones(shop: Shop, gone: bool) -> None:
    shop.deliver(1)
    shop.copy(file := shop.folder / "first.db")
    shop.deliver(2)
    shop.copy(file, back=True)
    if gone:
        with closing(sqlite3.connect(file)) as db:
            db.executescript("DROP TABLE airflow_ft_head; DROP TABLE airflow_ft_ledger")
    assert shop.problems() == ["memory"]
    with pytest.raises(StoreBehindSinkError):
        shop.deliver(3)
    assert shop.state()[1:] == (
        HaltReason.STORE_BEHIND_SINK,
        [CheckpointState.COMPLETED, CheckpointState.COMPLETED, CheckpointState.STAGED],
    )
    assert shop.adopt().forgetful == ("first",)
    shop.deliver(4)
    assert shop.ids() == [1, 3, 4] and shop.problems() == []


@pytest.mark.parametrize("log", ["kept", "older", "new"])
@pytest.mark.parametrize("restored", [False, True])
def test_one_adoption_writes_a_lost_head_again(shop: Shop, log: str, restored: bool) -> None:
    shop.deliver(1)
    [head] = shop.sql("SELECT * FROM airflow_ft_head")
    shop.copy(shop.log)
    for position in (2, 3, 4):
        shop.deliver(position)
    shop.lose_head(head if restored else ())
    assert shop.problems() == ["memory"]
    if log != "kept":
        for path in shop.folder.glob("ft.db*"):
            path.unlink() if path.suffix != ".backup" else None
    if log == "older":
        shop.copy(shop.log, back=True)
    shop.deliver_until_halted(5)
    adoption = shop.adopt()
    assert [head.number for head in adoption.heads.values() if head] == [4] and not adoption.forgetful
    for position in (6, 7):
        shop.deliver(position)
    assert shop.ids() == ([1, 2, 3, 4, 5, 6, 7] if log == "kept" else [1, 2, 3, 4, 6, 7]), "5 if it was published"
    assert shop.problems() == [] and shop.state()[0] is PipelineStatus.ACTIVE


def test_a_lost_head_is_written_behind_an_unproven_number(shop: Shop) -> None:
    def die() -> None:
        shop.lose_head()
        raise Died  # before the log has the proof

    shop.deliver(1)
    with shop.after_commit_of_the_first(die), pytest.raises(Died):
        shop.deliver(2)
    shop.deliver_until_halted(3)
    shop.adopt()
    shop.deliver(3)
    assert shop.ids() == [1, 2, 3] and set(shop.state()[2]) == {CheckpointState.COMPLETED}


def test_a_tombstone_alone_does_not_stop_an_adoption(shop: Shop) -> None:
    shop.deliver(1)
    shop.sql("UPDATE airflow_ft_ledger SET kind = 'aborted', counts = '{}'")
    shop.sql("DELETE FROM orders")
    for path in shop.folder.glob("ft.db*"):
        path.unlink()
    shop.lose_head()
    shop.deliver_until_halted(2)
    shop.adopt()
    shop.deliver(3)
    assert shop.ids() == [3]


@pytest.mark.parametrize("gone", [False, True])
def test_a_decided_checkpoint_reaches_a_sink_that_lost_rows(shop: Shop, gone: bool) -> None:
    shop.deliver(1, "first", "second")
    shop.copy(file := shop.folder / "second.db")
    shop.deliver(2, "first", "second")

    def lose() -> None:
        shop.copy(file, back=True)
        if gone:
            with closing(sqlite3.connect(file)) as db:
                db.executescript("DROP TABLE airflow_ft_head; DROP TABLE airflow_ft_ledger")

    with shop.after_commit_of_the_first(lose), pytest.raises(StoreBehindSinkError):
        shop.deliver(3, "first", "second")
    assert shop.state()[2][-1] is CheckpointState.COMMITTING
    assert shop.adopt().forgetful == ("second",)
    shop.deliver(4, "first", "second")
    assert (shop.ids(), shop.ids("second")) == ([1, 2, 3, 4], [1, 3, 4])
    assert set(shop.state()[2]) == {CheckpointState.COMPLETED}


@pytest.mark.parametrize("files", [("first",), ("first", "second")])
def test_aborted_rows_come_with_those_of_the_next_run(shop: Shop, files: tuple[str, ...]) -> None:
    shop.deliver(1, *files)

    def rename(old: str, new: str) -> None:
        with closing(sqlite3.connect(shop.folder / "first.db")) as db:
            db.execute(f"ALTER TABLE {old} RENAME TO {new}")

    rename("orders", "others")
    with pytest.raises(UnfitTargetError):
        shop.deliver(2, *files)
    with closing(open_store(shop.store)) as store:
        opener = participant_factory(server_connections)
        Resolver(store, "orders", opener, "ada", Worker("", 1)).abort(2, AfterAbort.CARRIED)
    rename("others", "orders")
    shop.deliver(3, *files)
    assert all(shop.ids(file) == [1, 2, 3] for file in files)


@pytest.mark.parametrize("change", ["lost", "shorter"])
def test_a_lost_file_of_decided_rows_is_restored_not_rewound(shop: Shop, change: str) -> None:
    shop.deliver(1, "first", "second")
    kept: dict[Path, bytes] = {}

    def lose() -> None:
        for file in shop.folder.rglob("wal/**/second/*.parquet"):
            kept[file] = file.read_bytes()
            file.unlink() if change == "lost" else file.write_bytes(kept[file][:-1])

    with shop.after_commit_of_the_first(lose), pytest.raises(WalCorruptError) as caught:
        shop.deliver(2, "first", "second")
    assert caught.value.code == ("file_missing" if change == "lost" else "checksum_mismatch")
    assert "rewind" not in caught.value.remedy and caught.value.fields["path"] in caught.value.remedy
    assert [check.code for check in shop.check_log() if check.name == "rows"] == [
        "file_missing" if change == "lost" else "file_damaged"
    ]
    for file, content in kept.items():
        file.write_bytes(content)
    shop.deliver(3, "first", "second")
    assert shop.ids("second") == [1, 2, 3]


def test_a_decided_checkpoint_is_helped_by_its_target_alone(shop: Shop) -> None:
    shop.deliver(1, "first", "second")

    def alter(statement: str) -> None:
        with closing(sqlite3.connect(shop.folder / "second.db")) as db:
            db.execute(statement)

    rename = "ALTER TABLE orders RENAME COLUMN id TO {}"
    with (
        shop.after_commit_of_the_first(lambda: alter(rename.format("number"))),
        raises(UnfitTargetError, "column_missing", column="id", decided=True),
    ):
        shop.deliver(2, "first", "second")
    alter("ALTER TABLE orders RENAME COLUMN number TO id")
    shop.deliver(3, "first", "second")
    assert shop.ids("second") == [1, 2, 3]


def test_prepared_rows_of_a_staged_checkpoint_are_in_doubt(shop: Shop) -> None:
    def deliver(position: int) -> None:
        airflow_ft.deliver(
            dict.fromkeys(("first", "files"), pa.table({"id": pa.array([position], pa.int64())})),
            pipeline="orders",
            position=position,
            sinks={
                "first": airflow_ft.SqliteSink(table="orders", conn_id="first"),
                "files": airflow_ft.FilesSink(folder=str(shop.folder / "files"), name="files"),
            },
            store=shop.store,
            wal_root=str(shop.folder / "wal"),
            restart=airflow_ft.NoRestart(),
        )

    deliver(1)
    rename = "ALTER TABLE {} RENAME TO {}"
    with closing(sqlite3.connect(shop.folder / "first.db")) as db:
        db.execute(rename.format("orders", "others"))
        with pytest.raises(UnfitTargetError):
            deliver(2)
        opener = participant_factory(server_connections)
        with closing(open_store(shop.store)) as store:
            found = doubts(store, ["orders"], opener)
            assert {(each.number, each.participant, each.state) for each in found} == {
                (2, "first", "STAGED"),
                (2, "files", "STAGED"),
            }
            db.execute(rename.format("others", "orders"))
            recover(store, "orders", opener, Worker("", 1))
            assert doubts(store, ["orders"], opener) == []


def test_positions_are_not_read_from_the_beginning(shop: Shop) -> None:
    shop.deliver(1)
    with closing(open_store(shop.store)) as store:
        opener = participant_factory(server_connections)
        with raises(ConfigurationError, "full_refresh_impossible", pipeline="orders"):
            restore(store, "beginning", opener, Worker("", 1), "a test", pipeline="orders", later=Later.WRITE_AGAIN)


def _ada(said: list[str]) -> Actor:
    return Actor(
        signature="ada",
        person="ada",
        say=said.append,
        sure=lambda _: None,
        connections=server_connections,
        participants=participant_factory(server_connections),
        is_over=lambda _: True,
        worker=Worker("", 1),
        lease_seconds=5,
    )


def test_verify_names_lost_checkpoints_that_it_cannot_compare(shop: Shop) -> None:
    shop.deliver(1)
    shop.copy(shop.folder / "first.db")
    for position in range(2, 8):
        shop.deliver(position)
    with closing(open_store(shop.store)) as store:
        assert verifying.are_as_they_should(verifying.verify(_ada([]), store, "orders"))
    shop.copy(shop.folder / "first.db", back=True)
    for position in (5, 6, 7):  # a person inserts what verify names
        shop.sql("INSERT INTO orders VALUES (?)", position)
    with closing(open_store(shop.store)) as store:
        compared, lost = verifying.verify(_ada([]), store, "orders")
        assert compared.is_exact and not lost.is_complete
        assert (lost.participant, lost.numbers, lost.error_code) == ("first", (2, 4), "rows_pruned")
        assert verifying.are_as_they_should(verifying.verify(_ada([]), store, "orders", [6]))


@pytest.mark.parametrize(("joined", "lost"), [(4, [(4,)]), (5, [])])
def test_verify_ignores_checkpoints_before_a_sink_joined(shop: Shop, joined: int, lost: list[tuple[int, ...]]) -> None:
    for position in range(1, 8):
        shop.deliver(position, "first", *["second"] * (position >= joined))
    with closing(sqlite3.connect(shop.folder / "second.db")) as db:
        db.executescript("DROP TABLE airflow_ft_head; DROP TABLE airflow_ft_ledger")
    with closing(open_store(shop.store)) as store:
        found = lost_and_pruned(store, "orders", participant_factory(server_connections))
    assert [report.numbers for report in found] == lost


def test_verify_ignores_checkpoints_without_the_sink(shop: Shop) -> None:
    """The sink was left out for a time. It lost checkpoints whose rows are there, and verify compares them."""
    shop.deliver(1, "first", "second")
    shop.copy(file := shop.folder / "second.db")
    for position in range(2, 5):
        shop.deliver(position)
    for position in range(5, 8):
        shop.deliver(position, "first", "second")
    shop.copy(file, back=True)
    with closing(open_store(shop.store)) as store:
        assert lost_and_pruned(store, "orders", participant_factory(server_connections)) == []


def test_a_rewind_names_the_position_to_give_again(shop: Shop) -> None:
    said: list[str] = []
    by = _ada(said)
    shop.deliver(1)
    with closing(open_store(shop.store)) as store:
        pipelines.rewind(by, store, "orders")
    with closing(sqlite3.connect(shop.folder / "first.db")) as db:
        db.execute("ALTER TABLE orders RENAME TO others")
    with pytest.raises(UnfitTargetError):
        shop.deliver(777)
    with closing(open_store(shop.store)) as store:
        pipelines.rewind(by, store, "orders")
    assert ["777" in text for text in said] == [False, True] and "beginning" not in "".join(said)


def test_the_doctor_skips_spark_if_another_program_computes(shop: Shop) -> None:
    shop.deliver(1)
    with closing(open_store(shop.store)) as store:
        assert not doctor._as_last_run(doctor.Patient("orders", "/wal"), store).computes


def test_a_follower_that_lost_its_head_is_noticed_in_time(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: before the decision, while nothing is visible."""
    shop.deliver(1, "first", "second")
    monkeypatch.setattr(coordinator, "VOTES_LAST", timedelta(0))
    prepare = SqliteParticipant.prepare

    def and_lose(self: SqliteParticipant, *given: Any) -> Any:
        notes = prepare(self, *given)
        if self.name == "second":
            shop.lose_head(file="second")
        return notes

    monkeypatch.setattr(SqliteParticipant, "prepare", and_lose)
    with pytest.raises(AirflowFtError):
        shop.deliver(2, "first", "second")
    assert shop.ids() == shop.ids("second") == [1]


def test_no_remedy_for_quarantine_names_a_refused_command(shop: Shop) -> None:
    shop.deliver(1, "first", "second")

    def alter(old: str, new: str) -> None:
        with closing(sqlite3.connect(shop.folder / "second.db")) as db:
            db.execute(f"ALTER TABLE {old} RENAME TO {new}")

    with shop.after_commit_of_the_first(lambda: alter("orders", "others")), pytest.raises(UnfitTargetError):
        shop.deliver(2, "first", "second")
    with closing(open_store(shop.store)) as store:
        resolver = Resolver(store, "orders", participant_factory(server_connections), "ada", Worker("", 1))
        resolver.quarantine(2)
        with raises(StateConflictError, "action_refused", state=CheckpointState.QUARANTINED) as caught:
            reset_state(store, "orders", store.pipeline("orders").epoch, "a test")
        assert caught.error is not None and "airflow ft in-doubt" in caught.error.remedy
        assert "rewind" not in caught.error.remedy and "recover" not in caught.error.remedy
        with raises(StateConflictError, "already_decided") as refused:
            resolver.abort(2, AfterAbort.CARRIED)
        assert refused.error is not None and "--quarantine" not in refused.error.remedy
        alter("others", "orders")
        assert resolver.commit(2).state is CheckpointState.COMPLETED
