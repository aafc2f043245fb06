"""The decision log is restored from an older backup: every order of events is noticed, or does no harm.

A pipeline is led along a line of moments, through two checkpoints into MariaDB and Kafka. A backup is taken at one
moment, history goes on to a later one and is then lost: the backup comes back, and runs go on with it, reading other
rows than before (the source has grown). Whatever the two moments: no row is doubled, none is dropped, and a log that
does not know what the sinks hold stops with the reason. When the newer log is found again, it goes on as if nothing had
been.
"""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from airflow_ft.protocol import steps
from airflow_ft.protocol.errors import (
    HaltError,
    NotDeliveredError,
    PipelineHaltedError,
    StoreBehindSinkError,
    TransientError,
)
from airflow_ft.protocol.model import RunKey
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.retention import WalArchive
from tests.integration.kafka_world import read, value
from tests.integration.real_world import RealWorld, expected, make_world
from tests.raising import raises
from tools.servers import Database, Kafka, Postgres

MOMENTS = (
    "new",
    "1 staged",
    "1 prepared",
    "1 decided",
    "1 delivered",
    "2 staged",
    "2 prepared",
    "2 decided",
    "2 delivered",
)
# Of all 36 pairs: each moment with the next one, and with the last one; and those around a whole checkpoint.
PAIRS = sorted({*itertools.pairwise(range(9)), *((early, 8) for early in range(8)), (0, 4), (1, 4), (4, 7)})
SOME_PAIRS = [(1, 4), (4, 8), (5, 7)]


class Log(Protocol):
    """A decision log that can be copied and put back while nobody has it open."""

    url: str

    def back_up(self, name: str) -> None: ...

    def restore(self, name: str) -> None: ...


@dataclass
class SqliteLog:
    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/ft.db"

    def back_up(self, name: str) -> None:
        with closing(sqlite3.connect(self.folder / "ft.db")) as db:
            db.execute("VACUUM INTO ?", (str(self.folder / name),))

    def restore(self, name: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            (self.folder / f"ft.db{suffix}").unlink(missing_ok=True)
        shutil.copy(self.folder / name, self.folder / "ft.db")


@dataclass
class PostgresLog:
    server: Postgres
    name: str

    @property
    def url(self) -> str:
        who = f"{self.server.user}:{self.server.password}"
        return f"postgresql://{who}@{self.server.host}:{self.server.port}/{self.name}"

    def back_up(self, name: str) -> None:
        self.server.sql(f"CREATE DATABASE {self.name}_{name} TEMPLATE {self.name}")

    def restore(self, name: str) -> None:
        self.server.sql(f"DROP DATABASE {self.name}")
        self.server.sql(f"CREATE DATABASE {self.name} TEMPLATE {self.name}_{name}")


@pytest.fixture
def sqlite_log(tmp_path: Path) -> SqliteLog:
    folder = tmp_path / "log"
    folder.mkdir()
    return SqliteLog(folder)


@pytest.fixture
def postgres_log(postgres: Postgres) -> Iterator[PostgresLog]:
    log = PostgresLog(postgres, f"ft_{uuid.uuid4().hex[:10]}")
    postgres.sql(f"CREATE DATABASE {log.name}")
    yield log
    for name in (log.name, f"{log.name}_early", f"{log.name}_late"):
        postgres.sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def lead(world: RealWorld, moment: int) -> None:
    """From the moment before to this one."""
    number, step = divmod(moment - 1, 4)
    world.run = RunKey("dag", f"run-{number + 1}")
    actions: list[Callable[[], Any]] = [
        lambda: world.stage(1),
        world.prepare,
        lambda: world.commit("shop"),
        world.deliver,
    ]
    actions[step]()


def run_again(world: RealWorld, run: str, rows: int = 21) -> HaltReason | None:
    """A run with this log, tried again as Airflow would; the reason when the pipeline was halted."""
    world.run = RunKey("dag", run)
    world.store.register(world.pipeline)
    for _ in range(6):
        try:
            steps.recover_step(world.context())
            row = world.store.run(world.pipeline, world.run)
            if row is None or not row.staged:
                world.stage(1, rows)
            world.prepare()
            for name in world.delivery.names:
                world.commit(name)
            steps.confirm_step(world.context(), world.config, WalArchive(str(world.root)))
            return None
        except (HaltError, PipelineHaltedError):
            return world.store.pipeline(world.pipeline).halt_reason
        except (TransientError, NotDeliveredError) as error:
            print(f"tried again after {error!r}")
            last = error
    raise AssertionError(f"neither delivered nor halted: {last}")


def contents(world: RealWorld) -> tuple[Counter[int], Counter[int]]:
    assert world.kafka is not None
    return Counter(world.ids()), Counter(value(message)["id"] for message in read(world.kafka.bootstrap, world.topic))


def judge(world: RealWorld, *, even: bool) -> None:
    """From outside: no row twice, no checkpoint in parts; with `even` both sinks hold the same."""
    table, topic = contents(world)
    for found in (table, topic):
        assert all(count == 1 for count in found.values()), f"doubled: {[i for i, c in found.items() if c > 1]}"
        for number in {i // 1000 for i in found}:
            assert sum(i // 1000 == number for i in found) in (20, 21), f"checkpoint {number} is there in parts"
    if even:
        assert table == topic


def lose_history(
    log: Log, early: int, late: int, tmp_path: Path, database: Database, kafka: Kafka, topic: str
) -> HaltReason | None:
    world = make_world(None, tmp_path / "wal", database, kafka, topic)  # type: ignore[arg-type]

    def opened() -> Any:
        world.store = open_store(log.url)
        return closing(world.store)

    with opened():
        world.store.register(world.pipeline)
        for moment in range(1, early + 1):
            lead(world, moment)
    log.back_up("early")
    with opened():
        for moment in range(early + 1, late + 1):
            lead(world, moment)
        confirmed = world.store.latest_confirmed(world.pipeline)
    log.back_up("late")
    before = contents(world)
    log.restore("early")
    with opened():
        reason = run_again(world, "after")
        halted = world.store.pipeline(world.pipeline).status is PipelineStatus.HALTED
        assert halted is (reason is not None)
        if halted:
            assert world.store.pipeline(world.pipeline).halt.remedy
        judge(world, even=not halted)
        for earlier, now in zip(before, contents(world), strict=True):
            assert not earlier - now, "nothing that was there is gone"
        if not halted:
            assert not confirmed or max(i // 1000 for i in contents(world)[0]) > confirmed.number
            return None
    log.restore("late")  # the newer log is found again
    with opened():
        for _ in range(4):
            if world.store.pipeline(world.pipeline).status is PipelineStatus.HALTED:
                world.store.resume(world.pipeline, "a test")
            if run_again(world, "found") is None:
                break
        else:
            pytest.fail(f"does not go on: {world.store.pipeline(world.pipeline).halt}")
        judge(world, even=True)
        newest = world.store.latest_confirmed(world.pipeline)
        assert newest is not None
        assert {i // 1000 for i in contents(world)[0]} == set(range(1, newest.number + 1)), "nothing is dropped"
    return reason


@pytest.mark.parametrize(("early", "late"), PAIRS, ids=[f"{MOMENTS[e]} < {MOMENTS[x]}" for e, x in PAIRS])
def test_a_log_from_an_older_backup_in_sqlite(
    early: int,
    late: int,
    sqlite_log: SqliteLog,
    tmp_path: Path,
    mariadb_database: Database,
    kafka: Kafka,
    topic: str,
) -> None:
    reason = lose_history(sqlite_log, early, late, tmp_path, mariadb_database, kafka, topic)
    print(f"{MOMENTS[early]} < {MOMENTS[late]}: {reason or 'went on'}")
    assert reason in (None, HaltReason.STORE_BEHIND_SINK)
    if (late - 3) // 4 > (early - 2) // 4 and late % 4 in (0, 3) and early % 4 == 0:
        # A whole checkpoint was decided that the older log never knew: this must be noticed.
        assert reason is HaltReason.STORE_BEHIND_SINK


@pytest.mark.parametrize(("early", "late"), SOME_PAIRS, ids=[f"{MOMENTS[e]} < {MOMENTS[x]}" for e, x in SOME_PAIRS])
def test_a_log_from_an_older_backup_in_postgres(
    early: int,
    late: int,
    postgres_log: PostgresLog,
    tmp_path: Path,
    mariadb_database: Database,
    kafka: Kafka,
    topic: str,
) -> None:
    reason = lose_history(postgres_log, early, late, tmp_path, mariadb_database, kafka, topic)
    assert reason in (None, HaltReason.STORE_BEHIND_SINK)


@pytest.mark.parametrize("sink", ["shop", "cluster"])
def test_a_restored_log_that_repeats_an_epoch_halts_at_once(
    sink: str, sqlite_log: SqliteLog, tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str
) -> None:
    """Equal epochs, and the sink knows a later attempt: no newer owner is at work that one could wait for."""
    world = make_world(None, tmp_path / "wal", mariadb_database, kafka, topic)  # type: ignore[arg-type]
    world.store = open_store(sqlite_log.url)
    with closing(world.store):
        for moment in range(1, 5):
            lead(world, moment)
    sqlite_log.back_up("early")
    world.store = open_store(sqlite_log.url)
    with closing(world.store):
        for moment in range(5, 8):
            lead(world, moment)
        lost = world.store.pipeline(world.pipeline)
    sqlite_log.restore("early")
    world.store, world.root, world.run = open_store(sqlite_log.url), tmp_path / "other", RunKey("dag", "after")
    with closing(world.store):
        assert steps.recover_step(world.context()).settled == ()
        world.stage(1, 21)
        assert world.store.pipeline(world.pipeline).epoch == lost.epoch, "the number is given out a second time"
        with raises(StoreBehindSinkError, "store_behind_sink"):
            steps.prepare_step(world.context(), world.delivery, world.config, sink)
        assert world.store.pipeline(world.pipeline).halt_reason is HaltReason.STORE_BEHIND_SINK
        judge(world, even=False)


def test_a_person_who_has_compared_resumes_once(tmp_path: Path, mariadb_database: Database) -> None:
    """Each try of the run drew one attempt more below the sink's head, and halted the pipeline again."""
    world = make_world(open_store(f"sqlite:///{tmp_path}/ft.db"), tmp_path / "wal", mariadb_database)
    with closing(world.store):
        world.stage(1)
        world.deliver()
        world.stage(1)
        row = world.store.pipeline(world.pipeline)
        lost = (row.epoch, row.last_attempt + 7)  # which this log has not given out
        world.server.sql("UPDATE airflow_ft_head SET epoch = {}, attempt = {}".format(*lost), mariadb_database.name)
        with pytest.raises(StoreBehindSinkError):
            world.prepare()
        world.store.resume(world.pipeline, "ada, who has compared")
        world.deliver()
        assert world.ids() == expected([1, 2])


def test_the_store_is_closed_between(sqlite_log: SqliteLog) -> None:
    """The copy is whole, and what was written after it is gone."""
    with closing(open_store(sqlite_log.url)) as store:
        store.register("one")
    sqlite_log.back_up("early")
    with closing(open_store(sqlite_log.url)) as store:
        store.register("two")
    sqlite_log.restore("early")
    with closing(open_store(sqlite_log.url)) as restored:
        found: DecisionLog = restored
        assert [row.name for row in found.pipelines()] == ["one"]
