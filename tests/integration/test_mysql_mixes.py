"""Strategies together, through the real coordinator and a real decision log: deaths at every call and statement."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.config import CheckpointConfig
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import DeclinedError, NotDeliveredError, TransientError
from airflow_ft.protocol.lease import Worker, new_epoch
from airflow_ft.protocol.model import CheckpointState, ParticipantPlan, RunKey
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.planning import plan_delivery
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.steps import Context, commit_step, confirm_step, prepare_step, recover_step
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka import KafkaSink
from airflow_ft.sinks.kafka.participant import open_participant as kafka_participant
from airflow_ft.sinks.mysql.participant import open_participant
from airflow_ft.sinks.mysql.session import Session
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.store import open_store
from airflow_ft.wal import open_wal
from airflow_ft.wal.writer import SegmentFolder, write_segment
from tests.density import stride
from tests.integration.kafka_world import read, value
from tests.integration.mixes import die_after_calls, stop_after_calls
from tests.protocol.systems import NoArchive
from tests.protocol.world import Crash, Fault, crash
from tests.sinks.mysql.world import QUICK, orders
from tests.through import Through
from tools.servers import Database

pytestmark = [pytest.mark.sampled, pytest.mark.server]

RUN = RunKey("dag", "run-1")
LEASE_SECONDS = defaultdict(lambda: 0.03, {RUN: 3600.0})
ROWS = 8

MIXES: Mapping[str, Mapping[str, tuple[str, str]]] = {  # sink -> (server, strategy)
    "xa alone": {"a": ("mariadb", "xa")},
    "xa alone on MySQL": {"a": ("mysql", "xa")},
    "two servers, both xa": {"a": ("mariadb", "xa"), "b": ("mysql", "xa")},
    "local decides, xa follows": {"a": ("mariadb", "local"), "b": ("mysql", "xa")},
    "two servers, both local": {"a": ("mysql", "local"), "b": ("mariadb", "local")},
    "xa and Kafka": {"a": ("mariadb", "xa"), "b": ("kafka", "transaction")},
    "xa and Kafka held": {"a": ("mysql", "xa"), "b": ("kafka", "held")},
}
MIXES_IN_ORDER = list(MIXES)


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@pytest.fixture
def databases(request: pytest.FixtureRequest) -> Iterator[dict[str, Database]]:
    with ExitStack() as stack:
        found: dict[str, Database] = {}
        for name in ("mariadb", "mysql"):
            found[name] = stack.enter_context(Database.fresh(request.getfixturevalue(name)))
            found[name].sql("CREATE TABLE orders (pipeline_rows BIGINT, id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
        yield found
        for database in found.values():
            database.server.end_prepared()  # what a failed test left would keep the database from being dropped


@dataclass
class Mix:
    """One pipeline over several servers; every instance has a name and ids of its own, so that tables are shared."""

    databases: dict[str, Database]
    kafka: tuple[str, str]  # bootstrap servers, topic
    sinks: Mapping[str, tuple[str, str]]
    index: int
    folder: Path

    def __post_init__(self) -> None:
        self.pipeline = f"orders-{self.index}"
        self.store = open_store(f"sqlite:///{self.folder}/ft.db")
        self.delivery = plan_delivery({sink: self.spec(*target) for sink, target in self.sinks.items()})
        self.staged: list[int] = []

    def spec(self, server: str, strategy: str) -> SinkSpec:
        if server == "kafka":
            return KafkaSink(topic=self.kafka[1], conn_id=f"kafka-{strategy}", strategy=strategy)
        return MySqlSink(table="orders", conn_id=f"{server}-{strategy}", strategy=strategy)

    def open(self, plan: ParticipantPlan) -> Participant:
        if plan.kind == "kafka":
            info = ConnectionInfo(plan.name, "kafka", extra={"bootstrap.servers": self.kafka[0]})
            return kafka_participant(plan, info, open_wal())
        database = self.databases[plan.name.split("-")[0]]
        server: Any = database.server
        info = ConnectionInfo(plan.name, "mysql", server.host, server.port, server.user, server.password, database.name)
        return open_participant(plan, info, open_wal(), QUICK)

    def context(self, try_number: int = 1, fault: Fault | None = None, run: RunKey = RUN) -> Context:
        store: Any = Through(self.store, fault, "store") if fault else self.store

        def participants(plan: ParticipantPlan) -> Any:
            return Through(self.open(plan), fault, plan.name) if fault else self.open(plan)

        return Context(
            store=store,
            pipeline=self.pipeline,
            run=run,
            participants=participants,
            worker=Worker(f"{run}/step", try_number),
            lease_seconds=LEASE_SECONDS[run],
            run_is_over=lambda other: other != run,
        )

    def stage(self, count: int, run: RunKey = RUN, try_number: int = 1) -> None:
        self.store.register(self.pipeline)
        self.store.enter_turn(self.pipeline, run, None)
        worker = Worker(f"{run}/step", try_number)
        with new_epoch(self.store, self.pipeline, worker, "stage", LEASE_SECONDS[run]) as (epoch, _):
            self.store.begin_stage(self.pipeline, epoch, run)
            for _ in range(count):
                number = self.store.trigger(self.pipeline, epoch, run)
                rows = orders(number * ROWS, ROWS).append_column("pipeline_rows", [[self.index] * ROWS])
                where = SegmentFolder(str(self.folder / "wal"), self.pipeline, epoch, 1, number)
                segment = write_segment(where, number, dict.fromkeys(self.sinks, rows))
                before = self.store.pipeline(self.pipeline).last_published
                self.store.publish(self.pipeline, epoch, number, before, segment, None, {})
                self.staged.append(number)
            self.store.end_stage(self.pipeline, epoch, run, None)

    def steps(self, context: Context) -> None:
        config = CheckpointConfig(max_delivery_rows=0)
        recover_step(context)
        for name in self.delivery.names:
            prepare_step(context, self.delivery, config, name)
        for name in self.delivery.names:
            commit_step(context, name)
        confirm_step(context, config, NoArchive())  # type: ignore[arg-type]

    def finish(self, first_try: int = 2) -> None:
        for try_number in range(first_try, first_try + 5):
            try:
                self.steps(self.context(try_number))
                return
            except TransientError as error:
                last = error
        raise AssertionError(f"{self.pipeline} did not settle: {last}")

    def ids(self, sink: str) -> list[int]:
        if self.sinks[sink][0] == "kafka":
            records = [value(message) for message in read(*self.kafka)]
            return sorted(record["id"] for record in records if record["pipeline_rows"] == self.index)
        found = self.databases[self.sinks[sink][0]].sql(
            "SELECT id FROM orders WHERE pipeline_rows = %s ORDER BY id", [self.index]
        )
        return [row[0] for row in found]

    def prepared(self) -> int:
        return sum(len(database.sql("XA RECOVER")) for database in self.databases.values())

    def check_exactly_once(self) -> None:
        """I2, I3 from outside: every row once in every sink, everything confirmed, nothing left prepared."""
        expected = [number * ROWS + row for number in self.staged for row in range(ROWS)]
        for sink in self.sinks:
            assert self.ids(sink) == expected, sink
        assert all(self.store.checkpoint(self.pipeline, number).is_confirmed for number in self.staged)
        assert self.prepared() == 0


@pytest.fixture
def make(databases: dict[str, Database], request: pytest.FixtureRequest) -> Iterator[Callable[[str, int], Mix]]:
    kafka = ("", "")
    if "Kafka" in request.node.name:
        topic = request.getfixturevalue("topic")
        kafka = (request.getfixturevalue("kafka").bootstrap, topic)
    memory = Path("/dev/shm")  # hundreds of decision logs, and no power fails here
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:

        def make(mix: str, index: int) -> Mix:
            own = Path(folder) / str(index)
            own.mkdir()
            return Mix(databases, kafka, MIXES[mix], index, own)

        yield make


@pytest.mark.parametrize("mix", MIXES)
def test_a_quiet_run_states_its_plan_and_delivers_once(make: Callable[[str, int], Mix], mix: str) -> None:
    world = make(mix, 1)
    world.stage(2)
    world.steps(world.context())
    world.check_exactly_once()
    plan = world.store.checkpoint(world.pipeline, 1).plan
    assert plan is not None
    decides = "mariadb-local" if mix == "local decides, xa follows" else "mysql-local" if "local" in mix else None
    assert plan.commit_point == decides
    assert ("decision log is the commit point" in plan.reasons[0]) is (decides is None)
    for participant in plan.participants:
        if participant.strategy == "xa":
            assert f"{participant.name} (xa) is prepared, invisibly, before the decision." in plan.reasons


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_a_death_after_any_call_is_made_good(make: Callable[[str, int], Mix], mix: str) -> None:
    assert die_after_calls(partial(make, mix), MIXES_IN_ORDER.index(mix)) > 20


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("mix", ["two servers, both xa", "local decides, xa follows"])
def test_a_zombie_at_any_call_changes_nothing(make: Callable[[str, int], Mix], mix: str) -> None:
    assert stop_after_calls(partial(make, mix), MIXES_IN_ORDER.index(mix)) > 20


@dataclass
class Statements:
    """Ends the process (by `Crash`) after its `at`-th statement; the sockets close, as they do after a kill."""

    at: int
    count: int = 0
    struck: str = ""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("run", "load", "post", "answer", "commit", "rows"):
            patch.setattr(Session, name, self._counted(getattr(Session, name)))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(session: Session, *args: Any) -> Any:
            result = method(session, *args)
            self.count += 1
            if self.count >= self.at:  # the other threads die too
                self.struck = self.struck or str(args[:1] or method.__name__)
                raise Crash
            return result

        return call


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("mix", ["xa alone", "xa alone on MySQL"])
def test_a_death_after_any_statement_is_made_good(
    make: Callable[[str, int], Mix], mix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1 + MIXES_IN_ORDER.index(mix)
    while True:
        world = make(mix, at)
        world.stage(1)
        statements = Statements(at)
        with monkeypatch.context() as patch:
            statements.install(patch)
            with suppress(Crash):
                world.steps(world.context())
        if not statements.struck:
            break
        world.finish()
        world.check_exactly_once()
        at += stride(25)
    assert at > 50


@pytest.mark.chaos
@pytest.mark.parametrize("mix", ["two servers, both xa", "local decides, xa follows", "two servers, both local"])
def test_a_refusal_leaves_nothing_in_any_sink(make: Callable[[str, int], Mix], mix: str) -> None:
    """The last participant declines after the others have prepared; each death on the way is made good."""
    declining = list(MIXES[mix].values())[-1][0]
    at = MIXES_IN_ORDER.index(mix)
    while True:
        at += stride(8)
        world = make(mix, at)
        world.stage(1)
        database = world.databases[declining]
        database.sql("DELETE FROM orders")  # of the round before
        database.sql("ALTER TABLE orders MODIFY name JSON")  # which the names are not: no other table would help
        fault = Fault(at, "after", crash)
        with suppress(Crash, DeclinedError, NotDeliveredError):
            world.steps(world.context(fault=fault))
        if not fault.struck:
            break
        with suppress(DeclinedError, NotDeliveredError):
            world.steps(world.context(2))
        recover_step(world.context(3, run=RunKey("dag", "run-2")))
        checkpoint = world.store.checkpoint(world.pipeline, 1)
        assert checkpoint.state is CheckpointState.ABORTED and not checkpoint.rollback_pending, fault.struck
        assert world.prepared() == 0 and not any(world.ids(sink) for sink in world.sinks), fault.struck
        database.sql("ALTER TABLE orders MODIFY name VARCHAR(100)")
        world.staged.clear()
        again = RunKey("dag", "run-2")
        world.stage(1, run=again, try_number=4)
        world.steps(world.context(4, run=again))
        world.check_exactly_once()
    database.sql("ALTER TABLE orders MODIFY name VARCHAR(100)")
