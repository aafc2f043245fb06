"""Pipelines that need somebody: what was delivered into two SQLite files by the real steps, until something failed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_ft import SqliteSink
from airflow_ft.protocol import steps
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import NotDeliveredError, SinkUnavailableError, StoreBehindSinkError
from airflow_ft.protocol.lease import new_epoch
from airflow_ft.protocol.model import ParticipantPlan, RunKey, SparkPosition
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.store.decision_log import DecisionLog
from airflow_ft.wal.retention import WalArchive
from tests.integration.real_world import RealWorld
from tests.state.scene import Counts

SHOP, ARCHIVE = "shop", "archive"
"""Connections: of the file that decides, and of the one that follows."""
REFUSED = 1005
"""The id of a row of checkpoint 1."""
_MEMORY = ("airflow_ft_head", "airflow_ft_ledger")


def files(folder: Path) -> dict[str, Path]:
    """The SQLite file of each connection."""
    return {name: folder / f"{name}.db" for name in (SHOP, ARCHIVE)}


@dataclass
class Broken(RealWorld):
    """A pipeline into a table of its first name in both files, which counts its checkpoints under the key "a".

    `away`: connections that cannot be reached.
    """

    table: str = ""
    away: set[str] = field(default_factory=set)
    lost: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = self.table or self.pipeline

    @property
    def files(self) -> Mapping[str, Path]:
        return files(self.root.parent)

    @property
    def sinks(self) -> dict[str, Any]:
        return {name: SqliteSink(table=self.table, conn_id=name) for name in self.files}

    def connections(self, conn_id: str) -> ConnectionInfo:
        return ConnectionInfo(conn_id, "sqlite", host=str(self.files[conn_id]))

    def participants(self, plan: ParticipantPlan) -> Participant:
        if plan.name in self.away:
            raise SinkUnavailableError("it is away.", remedy="bring it back.", participant=plan.name)
        return super().participants(plan)

    def position(self, epoch: int, attempt: int, batch: int, number: int) -> SparkPosition:
        """As Spark leaves it behind a count of what it has read of files."""
        counts = Counts(self.root / self.pipeline / "spark" / f"{epoch}-{attempt}")
        counts.read(f"{number}.json")
        return counts.batch(batch, {"a": number})

    def sql(self, connection: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """What somebody does in a file beside the pipeline; the rows."""
        with closing(sqlite3.connect(self.files[connection], timeout=60)) as database, database:
            return database.execute(statement, values).fetchall()

    def ids(self) -> dict[str, list[int]]:
        """What readers find, by file; duplicates stay visible."""
        found = {}
        for name in self.files:
            there = self.sql(name, "SELECT 1 FROM sqlite_master WHERE name = ?", self.table)
            rows = self.sql(name, f'SELECT id FROM "{self.table}" ORDER BY id') if there else []
            found[name] = [id for (id,) in rows]
        return found

    def commit_all(self) -> None:
        for name in self.delivery.names:
            self.commit(name)

    def give_up(self) -> None:
        """The run ends without having delivered all."""
        with suppress(NotDeliveredError):
            steps.confirm_step(self.context(), self.config, WalArchive(str(self.root)))

    def events(self) -> list[str]:
        """The event log, newest first."""
        return [event.message for event in self.store.events(self.pipeline)]


Make = Callable[[DecisionLog, Path, str], Broken]
"""Makes one of this name in a folder."""


def delivered(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose two checkpoints are confirmed."""
    world = _staged(store, folder, name, 2)
    world.deliver()
    return world


def late(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose two checkpoints are confirmed; the run behind them has died, and nobody has run it since."""
    world = delivered(store, folder, name)
    run = RunKey("a-dag-that-is-gone", "its-last-run")
    store.enter_turn(name, run, None)
    with new_epoch(store, name, world.context().worker, "stage", world.lease_seconds) as (epoch, _):
        store.begin_stage(name, epoch, run, spec={"late_after": 1e-6})
    return world


def staged(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose first checkpoint is confirmed; nobody has asked the sinks for the second one."""
    world = _staged(store, folder, name)
    world.deliver()
    world.stage()
    world.give_up()
    return world


def halted(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose file has lost its memory while its second checkpoint was delivered; `bring_back` mends that."""
    world = _staged(store, folder, name)
    world.deliver()
    world.stage()
    world.prepare()
    for table in _MEMORY:
        world.lost[table] = world.sql(SHOP, f"DELETE FROM {table} WHERE pipeline = ? RETURNING *", name)
    with suppress(StoreBehindSinkError):
        world.commit_all()
    world.give_up()
    return world


def bring_back(world: Broken) -> None:
    """Ends what has halted it."""
    for table, rows in world.lost.items():
        for row in rows:
            world.sql(SHOP, f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)


def in_doubt(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose second file was away when the first one had decided its checkpoint."""
    world = _staged(store, folder, name)
    world.prepare()
    world.away = {ARCHIVE}
    with suppress(SinkUnavailableError):
        world.commit_all()
    world.away = set()
    world.give_up()
    return world


def refusing(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose second file refuses a row of what is decided."""
    world = _staged(store, folder, name)
    world.prepare()
    world.sql(
        ARCHIVE,
        f"""CREATE TRIGGER "refuses {name}" BEFORE INSERT ON "{name}" WHEN NEW.id = {REFUSED}"""
        " BEGIN SELECT RAISE(ABORT, 'nobody wants it'); END",
    )
    with suppress(SinkUnavailableError):
        world.commit_all()
    world.give_up()
    return world


def quarantined(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose checkpoint a person has set aside."""
    world = _staged(store, folder, name)
    world.prepare()
    Resolver(store, world.pipeline, world.participants, "a test", world.context().worker).quarantine(1)
    world.give_up()
    return world


def prepared(store: DecisionLog, folder: Path, name: str) -> Broken:
    """One whose run died before the decision."""
    world = _staged(store, folder, name)
    world.prepare()
    world.give_up()
    return world


def _staged(store: DecisionLog, folder: Path, name: str, count: int = 1) -> Broken:
    world = Broken(store, folder / "wal", None, pipeline=name)  # type: ignore[arg-type] - there is no database
    world.stage(count)
    return world
