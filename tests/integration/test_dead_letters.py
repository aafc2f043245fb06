"""Rows that a real sink refuses after the decision: set aside by a person's act, once, under the same marker."""

from __future__ import annotations

import random
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    AirflowFtError,
    SinkUnavailableError,
    StateConflictError,
    TransientError,
    UnfitTargetError,
)
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import Checkpoint, CheckpointState, ParticipantPlan
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.recovery import recover
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.protocol.set_aside import of_checkpoint
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.steps import commit_step, confirm_step, prepare_step
from airflow_ft.protocol.verify import Delivered
from airflow_ft.sinks import refused as refused_rows
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka.participant import open_participant as open_kafka
from airflow_ft.sinks.kafka.slot import Slot
from airflow_ft.sinks.kafka.token import Token
from airflow_ft.sinks.kafka.transaction import Transaction
from airflow_ft.sinks.kafka.verify import verify as verify_kafka
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.wal import open_wal
from airflow_ft.wal.retention import WalArchive, sweep
from tests.conftest import TopicFactory
from tests.density import stride
from tests.integration import test_mysql_mixes
from tests.integration.test_kafka_prepare import set_config
from tests.integration.test_mysql_mixes import ROWS, Mix, Statements
from tests.protocol.world import Crash, Fault, crash
from tests.through import Through
from tools.servers import Database, Kafka

pytestmark = pytest.mark.server

S = CheckpointState
REFUSED = (3, 4)  # of each checkpoint's rows, by the constraint that is added after prepare
CONSTRAINT = f"CHECK (id % {ROWS} NOT IN {REFUSED})"
STRATEGIES = ("local", "xa", "upsert")
ONE_PLACE = ("local", "upsert")


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


class Refusing(Mix):
    """Sink `a` refuses; for `local`, which decides where it is alone, sink `b` on the same server decides."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.strategy = self.sinks["a"][1]
        if self.strategy == "local":
            self.delivery = plan_delivery(
                {"b": self.spec("mariadb", "local", "decided"), "a": self.spec(*self.sinks["a"])}
            )

    def spec(self, server: str, strategy: str, table: str = "orders") -> SinkSpec:
        if strategy == "upsert":
            by_key: dict[str, Any] = {"key_columns": ("id",), "version_column": "version"}
            return MySqlSink(table=table, conn_id=f"{server}-upsert", strategy=strategy, **by_key)
        return MySqlSink(table=table, conn_id=f"{server}-{strategy}-{table}", strategy=strategy)

    @property
    def database(self) -> Database:
        return next(iter(self.databases.values()))

    @property
    def follower(self) -> str:
        return next(p.name for p in self.delivery.participants if "a" in p.sinks)

    def decide(self, count: int = 1) -> None:
        """Decided, and prepared rows of `xa` lost: everything of sink `a` is still to be sent. Then the constraint."""
        self.stage(count)
        context = self.context()
        for name in self.delivery.names:
            prepare_step(context, self.delivery, CheckpointConfig(max_delivery_rows=0), name)
        if self.strategy == "local":
            commit_step(context, self.delivery.names[0])
        else:
            epoch = self.store.pipeline(self.pipeline).epoch
            for number in self.staged:
                votes = self.store.checkpoint(self.pipeline, number).votes
                self.store.decide(self.pipeline, epoch, number, {name: vote.prepared for name, vote in votes.items()})
        self.database.server.end_prepared()  # type: ignore[attr-defined]
        self.database.sql(f"ALTER TABLE orders ADD CONSTRAINT refuses {CONSTRAINT}")

    def resolver(self, fault: Fault | None = None) -> Resolver:
        def participants(plan: Any) -> Any:
            return Through(self.open(plan), fault, plan.name) if fault else self.open(plan)

        store: Any = Through(self.store, fault, "store") if fault else self.store
        return Resolver(store, self.pipeline, participants, "a test by ada: unwanted", Worker("", 1), 0.03)

    def checkpoint(self, number: int = 1) -> Checkpoint:
        return self.store.checkpoint(self.pipeline, number)

    def dead(self, number: int = 1) -> list[int]:
        """What the proof says was set aside."""
        aside = of_checkpoint(self.checkpoint(number)).get("a")
        return read(aside.files) if aside else []

    def in_folder(self, number: int = 1) -> list[int]:
        """What a person finds who looks into the folder."""
        folder = self.folder / "wal" / self.pipeline / "dead-letter" / str(number) / "a"
        return read([path.as_uri() for path in folder.glob("*.parquet")])

    def check(self, number: int = 1) -> None:
        """I2: every row is in the table or in the dead letters, once."""
        first = number * ROWS
        assert self.dead(number) == self.in_folder(number) == [first + row for row in REFUSED]
        there = [row for row in self.ids("a") if first <= row < first + ROWS]
        assert there == [first + row for row in range(ROWS) if row not in REFUSED]
        assert self.checkpoint(number).state is S.COMPLETED

    def allow(self) -> None:
        self.database.sql("ALTER TABLE orders DROP CONSTRAINT refuses")
        self.database.sql("DELETE FROM orders")


def read(files: Sequence[str]) -> list[int]:
    return sorted(row["id"] for file in files for row in pq.read_table(urlsplit(file).path).to_pylist())


@pytest.fixture
def make(any_mysql_database: Database) -> Iterator[Callable[[str, int], Refusing]]:
    server = type(any_mysql_database.server).name
    for table in ("orders", "decided"):
        any_mysql_database.sql(
            f"CREATE TABLE {table} (pipeline_rows BIGINT, id BIGINT PRIMARY KEY, name VARCHAR(100),"
            " version BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB"
        )
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:

        def make(strategy: str, index: int = 1) -> Refusing:
            own = Path(folder) / str(index)
            own.mkdir()
            databases = dict.fromkeys(("mariadb", "mysql"), any_mysql_database)
            return Refusing(databases, ("", ""), {"a": (server, strategy)}, index, own)

        yield make
        any_mysql_database.server.end_prepared()  # type: ignore[attr-defined]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_refused_rows_and_only_those_are_set_aside(make: Callable[..., Refusing], strategy: str) -> None:
    world = make(strategy)
    world.decide(2)
    with pytest.raises(SinkUnavailableError) as refused:
        recover(world.store, world.pipeline, world.open, Worker(), lease_seconds=0.03)
    assert "--dead-letter 1" in refused.value.remedy
    assert world.dead() == world.in_folder() == [], "only a person sets rows aside"

    found = world.resolver().dead_letter(1)
    world.check()
    (aside,) = of_checkpoint(found).values()
    assert "refuses" in aside.reasons[0] or "constraint" in aside.reasons[0].lower()
    [row, other] = pq.read_table(urlsplit(aside.files[0]).path).to_pylist() if len(aside.files) == 1 else [None, None]
    if row is not None:  # one transaction: one file
        assert (row["airflow_ft_segment"], row["airflow_ft_row"], other["airflow_ft_row"]) == (1, 4, 5)
        assert row["airflow_ft_reason"] and row["name"] == f"order {ROWS + 3}"
    assert world.checkpoint().votes[world.follower].proof.counts == {"a": ROWS - len(REFUSED)}  # type: ignore[union-attr]
    events_text = " ".join(f"{event.kind} {event.message}" for event in world.store.events(world.pipeline, limit=100))
    assert (
        "a test by ada: unwanted" in events_text
        and f"{len(REFUSED)} rows of a were refused and set aside" in events_text
    )
    assert f"{len(REFUSED)} were refused and set aside" in events_text

    assert world.checkpoint(2).state is S.COMMITTING, "the word was good for one checkpoint"
    world.resolver().dead_letter(2)
    world.check(2)
    confirmed = confirm_step(world.context(3), CheckpointConfig(), WalArchive(str(world.folder / "wal"))).confirmed
    assert confirmed.numbers.newest == (1, 2) and confirmed.set_aside["a"].rows == 2 * len(REFUSED)

    world.allow()
    world.staged.clear()
    world.stage(1, try_number=4)
    world.steps(world.context(5))
    assert world.ids("a") == [3 * ROWS + row for row in range(ROWS)]


@pytest.mark.parametrize("strategy", ONE_PLACE)
def test_what_was_mended_meanwhile_is_delivered_whole(make: Callable[..., Refusing], strategy: str) -> None:
    world = make(strategy)
    world.decide()
    world.database.sql("ALTER TABLE orders DROP CONSTRAINT refuses")
    world.resolver().dead_letter(1)
    assert world.ids("a") == [ROWS + row for row in range(ROWS)]
    assert world.dead() == world.in_folder() == []


def test_neither_retention_nor_a_sweep_touches_dead_letters(make: Callable[..., Refusing]) -> None:
    world = make("upsert")
    world.decide()
    world.resolver().dead_letter(1)
    root = str(world.folder / "wal")
    for segment in world.checkpoint().plan.segments:  # type: ignore[union-attr]
        WalArchive(root).delete(segment)
    assert sweep(root, world.pipeline, [], 1000)
    assert world.in_folder() == [ROWS + row for row in REFUSED]


def test_what_is_not_decided_or_wrong_as_a_whole_is_refused(
    make: Callable[..., Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make("upsert")
    world.stage(1)
    with pytest.raises(StateConflictError) as early:
        world.resolver().dead_letter(1)
    assert "STAGED" in early.value.what
    prepare_step(world.context(), world.delivery, CheckpointConfig(max_delivery_rows=0), world.follower)
    with pytest.raises(StateConflictError):
        world.resolver().dead_letter(1)
    world.staged.clear()
    world.databases["mariadb"].sql("ALTER TABLE orders CHANGE name title VARCHAR(100)")
    epoch = world.store.pipeline(world.pipeline).epoch
    votes = world.checkpoint().votes
    world.store.decide(world.pipeline, epoch, 1, {name: vote.prepared for name, vote in votes.items()})
    with pytest.raises(UnfitTargetError) as unfit:
        world.resolver().dead_letter(1)
    assert "'name'" in unfit.value.headline
    world.databases["mariadb"].sql("ALTER TABLE orders CHANGE title name VARCHAR(100)")
    world.database.sql(f"ALTER TABLE orders ADD CONSTRAINT refuses {CONSTRAINT}")
    monkeypatch.setattr(refused_rows, "MAX_ROWS", 0)
    with pytest.raises(SinkUnavailableError):
        world.resolver().dead_letter(1)
    assert world.dead() == [] and world.checkpoint().state is S.COMMITTING


@pytest.mark.parametrize("strategy", ["local", "upsert"])
def test_out_of_quarantine_and_back_when_it_fails(make: Callable[..., Refusing], strategy: str) -> None:
    world = make(strategy)
    world.decide()
    world.resolver().quarantine(1)
    with pytest.raises(SinkUnavailableError):
        world.resolver().commit(1)
    assert world.checkpoint().state is S.QUARANTINED
    world.resolver().dead_letter(1)
    world.check()


def test_a_row_whose_key_is_already_taken_is_set_aside(make: Callable[..., Refusing]) -> None:
    """The first of two rows with one key enters, as it would have without the act; the stranger's row stays."""
    world = make("local")
    world.decide()
    world.database.sql("ALTER TABLE orders DROP CONSTRAINT refuses")
    world.database.sql(f"INSERT INTO orders (id, name) VALUES ({ROWS + 3}, 'a stranger''s')")
    with pytest.raises(SinkUnavailableError) as refused:
        world.resolver().commit(1)
    assert "Duplicate entry" in refused.value.what, "in the server's words"
    world.resolver().dead_letter(1)
    assert world.dead() == [ROWS + 3]
    assert world.ids("a") == [ROWS + row for row in range(ROWS) if row != 3]
    assert world.database.sql(f"SELECT name FROM orders WHERE id = {ROWS + 3}") == [("a stranger's",)]


def finish(world: Refusing) -> None:
    """What the next run finds, and then the person's next try."""
    with suppress(AirflowFtError):
        recover(world.store, world.pipeline, world.open, Worker(), lease_seconds=0.03)
    if world.checkpoint().state is not S.COMPLETED:
        world.resolver().dead_letter(1)
    world.check()


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_death_at_any_statement_sets_the_same_rows_aside_once(
    make: Callable[..., Refusing], strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1 + STRATEGIES.index(strategy)
    while True:
        world = make(strategy, at)
        world.decide()
        statements = Statements(at)
        with monkeypatch.context() as patch:
            statements.install(patch)
            with suppress(Crash):
                world.resolver().dead_letter(1)
        if not statements.struck:
            break
        finish(world)
        world.allow()
        world.database.sql("DELETE FROM decided")
        at += stride(41)
    world.check()
    assert at > 40


@pytest.mark.chaos
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("strategy", ["local", "xa"])
def test_a_death_at_any_call_sets_the_same_rows_aside_once(
    make: Callable[..., Refusing], strategy: str, when: str
) -> None:
    at = 1
    while True:
        world = make(strategy, at)
        world.decide()
        fault = Fault(at, when, crash)
        with suppress(Crash):
            world.resolver(fault).dead_letter(1)
        if not fault.struck:
            break
        finish(world)
        world.allow()
        world.database.sql("DELETE FROM decided")
        at += stride(5)
    world.check()
    assert at > 8


@pytest.mark.chaos
def test_letters_of_an_attempt_that_did_not_commit_are_nobodys(
    make: Callable[..., Refusing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies before its COMMIT; its successor finds the target mended and delivers all rows."""
    world = make("local")
    world.decide()
    written: list[list[int]] = []

    def dying(session: Session) -> None:
        written.append(world.in_folder())
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Session, "commit", dying)
        with suppress(Crash):
            world.resolver().dead_letter(1)
    assert written == [[ROWS + row for row in REFUSED]], "durable before COMMIT"
    world.database.sql("ALTER TABLE orders DROP CONSTRAINT refuses")
    recover(world.store, world.pipeline, world.open, Worker(), lease_seconds=0.03)
    assert world.ids("a") == [ROWS + row for row in range(ROWS)]
    assert world.dead() == [] and of_checkpoint(world.checkpoint()) == {}


class KafkaMix(Mix):
    """Sink `a` is a topic."""

    def open(self, plan: ParticipantPlan) -> Participant:
        return open_kafka(plan, self.connection, open_wal())

    @property
    def connection(self) -> ConnectionInfo:
        extra = {"bootstrap.servers": self.kafka[0], "airflow_ft_timeout": 10}
        return ConnectionInfo(self.delivery.names[0], "kafka", extra=extra)


class TestKafka:
    """A topic refuses by its settings, which may have become stricter since `prepare`."""

    LARGE = (3, 4)

    @pytest.fixture
    def make(
        self, kafka: Kafka, topic_factory: TopicFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., KafkaMix]:
        def rows(first: int, count: int) -> pa.Table:
            # Random, since what can be compressed would fit.
            large = random.Random(1).randbytes(40_000).hex()
            names = [large if i % ROWS in self.LARGE else "small" for i in range(first, first + count)]
            return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "name": names})

        monkeypatch.setattr(test_mysql_mixes, "orders", rows)

        def make(strategy: str) -> KafkaMix:
            index = uuid.uuid4().int % 10**9  # the cluster remembers other tests' pipelines
            topic = topic_factory(2, {"max.message.bytes": "100000"})
            folder = tmp_path / str(index)
            folder.mkdir()
            world = KafkaMix({}, (kafka.bootstrap, topic), {"a": ("kafka", strategy)}, index, folder)
            world.stage(1)
            prepare_step(world.context(), world.delivery, CheckpointConfig(max_delivery_rows=0), f"kafka-{strategy}")
            votes = world.store.checkpoint(world.pipeline, 1).votes
            prepared = {name: vote.prepared for name, vote in votes.items()}
            epoch = world.store.pipeline(world.pipeline).epoch
            world.store.decide(world.pipeline, epoch, 1, prepared)
            set_config(kafka, topic, "max.message.bytes", "20000")
            return world

        return make

    def resolver(self, world: KafkaMix) -> Resolver:
        return Resolver(world.store, world.pipeline, world.open, "a test by ada", Worker("", 1), 0.03)

    def check(self, world: KafkaMix) -> None:
        found = world.store.checkpoint(world.pipeline, 1)
        aside = of_checkpoint(found)["a"]
        assert found.state is S.COMPLETED
        assert world.ids("a") == [ROWS + row for row in range(ROWS) if row not in self.LARGE]
        assert read(aside.files) == [ROWS + row for row in self.LARGE]
        assert "the topic takes 20000" in aside.reasons[0] and aside.rows == len(self.LARGE)
        [vote] = found.votes.values()
        plan = found.plan
        assert plan is not None
        delivered = [Delivered(plan, vote.proof, None)]
        [report] = verify_kafka(delivered, plan.participants[0], world.connection, open_wal())
        assert report.is_exact and (report.expected, report.set_aside) == (ROWS - 2, 2)

    def test_records_that_the_topic_no_longer_takes_are_set_aside(self, make: Callable[..., KafkaMix]) -> None:
        world = make("transaction")
        with pytest.raises(TransientError):  # too large a batch is refused, or never acknowledged
            self.resolver(world).commit(1)
        assert world.ids("a") == []
        self.resolver(world).dead_letter(1)
        self.check(world)
        world.staged.clear()
        with pytest.raises(UnfitTargetError) as unfit:  # prepare judges the next one
            world.stage(1, try_number=4)
            world.steps(world.context(5))
        assert "20000" in unfit.value.what.replace(",", "")

    def test_what_was_held_and_is_lost_is_delivered_without_them(self, make: Callable[..., KafkaMix]) -> None:
        world = make("held")
        clients = KafkaClients(KafkaSettings.from_connection(world.connection))
        with closing(Slot(clients, world.pipeline, 0)) as slot:
            Transaction(clients, slot, {}).discard()  # another producer of the id ends what was held open
        self.resolver(world).dead_letter(1)
        self.check(world)

    @pytest.mark.chaos
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_death_at_the_commit_sets_the_same_rows_aside_once(
        self, make: Callable[..., KafkaMix], when: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = make("transaction")
        commit = Transaction.commit

        def dying(transaction: Transaction, token: Token) -> None:
            if not token.aside:  # the plain try, or one that takes the id over
                return commit(transaction, token)
            if when == "after":
                commit(transaction, token)
            raise Crash

        with monkeypatch.context() as patch:
            patch.setattr(Transaction, "commit", dying)
            with pytest.raises(Crash):
                self.resolver(world).dead_letter(1)
        assert world.store.checkpoint(world.pipeline, 1).state is S.COMMITTING
        with suppress(AirflowFtError):
            recover(world.store, world.pipeline, world.open, Worker(), lease_seconds=0.03)
        assert (world.store.checkpoint(world.pipeline, 1).state is S.COMPLETED) is (when == "after")
        if when == "before":
            self.resolver(world).dead_letter(1)
        self.check(world)
