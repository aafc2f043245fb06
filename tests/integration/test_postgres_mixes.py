"""PostgreSQL's strategies through the real coordinator and a real decision log: deaths at every call and statement."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.errors import (
    DeclinedError,
    NotDeliveredError,
    SinkUnavailableError,
)
from airflow_ft.protocol.model import CheckpointState, ParticipantPlan, RunKey
from airflow_ft.protocol.participant import Participant
from airflow_ft.protocol.sink_spec import SinkSpec
from airflow_ft.protocol.steps import recover_step
from airflow_ft.sinks.postgres.participant import open_participant
from airflow_ft.sinks.postgres.spec import PostgresSink
from airflow_ft.wal import open_wal
from tests.density import stride
from tests.integration.mixes import die_after_calls, stop_after_calls
from tests.integration.test_mysql_mixes import Mix
from tests.protocol.world import Crash, Fault, crash
from tests.sinks.postgres.deaths import AtStatement, Death
from tests.sinks.postgres.servers.test_local import AT_THE_END
from tests.sinks.postgres.world import QUICK
from tools.servers import Database

pytestmark = [pytest.mark.sampled, pytest.mark.server, pytest.mark.chaos]

MIXES: Mapping[str, Mapping[str, tuple[str, str]]] = {  # sink -> (database, strategy)
    "local alone": {"a": ("one", "local")},
    "prepared alone": {"a": ("one", "prepared")},
    "two databases, both prepared": {"a": ("one", "prepared"), "b": ("other", "prepared")},
    "local decides, prepared follows": {"a": ("one", "local"), "b": ("other", "prepared")},
    "local decides, local follows": {"a": ("one", "local"), "b": ("other", "local")},
    "MariaDB decides, prepared follows": {"a": ("mariadb", "local"), "b": ("one", "prepared")},
    "MariaDB decides, prepared and Kafka follow": {
        "a": ("mariadb", "local"),
        "b": ("one", "prepared"),
        "c": ("kafka", "transaction"),
    },
}


class PostgresMix(Mix):
    """One pipeline over two databases of a PostgreSQL server, and perhaps one of MariaDB and a topic."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kafka[1]:  # tests share the broker, which remembers pipelines
            self.pipeline = f"{self.pipeline}-{self.kafka[1]}"

    def spec(self, server: str, strategy: str) -> SinkSpec:
        if server in ("mariadb", "kafka"):
            return super().spec(server, strategy)
        return PostgresSink(table="orders", conn_id=f"{server}-{strategy}", strategy=strategy)

    def open(self, plan: ParticipantPlan) -> Participant:
        if plan.kind != "postgres":
            return super().open(plan)
        database = self.databases[plan.name.split("-")[0]]
        server: Any = database.server
        where = (server.host, server.port, server.user, server.password, database.name)
        return open_participant(plan, ConnectionInfo(plan.name, "postgres", *where), open_wal(), QUICK)

    def prepared(self) -> int:
        sql = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        return sum(len(self.databases[name].sql(sql)) for name in ("one", "other"))


Make = Callable[[str, int], PostgresMix]


@pytest.fixture
def databases(request: pytest.FixtureRequest) -> Iterator[dict[str, Database]]:
    with ExitStack() as stack:
        found = {}
        for name in ("one", "other"):
            found[name] = stack.enter_context(Database.fresh(request.getfixturevalue("postgres")))
            found[name].sql("CREATE TABLE orders (pipeline_rows bigint, id bigint, name varchar(100))")
        if "MariaDB" in request.node.name:
            found["mariadb"] = stack.enter_context(Database.fresh(request.getfixturevalue("mariadb")))
            found["mariadb"].sql("CREATE TABLE orders (pipeline_rows BIGINT, id BIGINT, name VARCHAR(100))")
        yield found


@pytest.fixture
def make(databases: dict[str, Database], request: pytest.FixtureRequest) -> Iterator[Make]:
    kafka = ("", "")
    if "Kafka" in request.node.name:
        topic = request.getfixturevalue("topic")
        kafka = (request.getfixturevalue("kafka").bootstrap, topic)
    memory = Path("/dev/shm")  # many decision logs, and no power fails here
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:

        def make(mix: str, index: int) -> PostgresMix:
            own = Path(folder) / str(index)
            own.mkdir()
            return PostgresMix(databases, kafka, MIXES[mix], index, own)

        yield make


def first_of(mix: str) -> int:
    """Where a matrix begins: elsewhere in each mix."""
    return list(MIXES).index(mix)


@pytest.mark.parametrize("mix", MIXES)
def test_a_quiet_run_states_its_plan_and_delivers_once(make: Make, mix: str) -> None:
    world = make(mix, 1)
    world.stage(2)
    world.steps(world.context())
    world.check_exactly_once()
    plan = world.store.checkpoint(world.pipeline, 1).plan
    assert plan is not None
    decides = {"local": "one-local", "MariaDB": "mariadb-local"}.get(mix.split()[0])
    assert plan.commit_point == decides
    for participant in plan.participants:
        if participant.strategy == "prepared":
            assert f"{participant.name} (prepared) is prepared, invisibly, before the decision." in plan.reasons


def test_decided_rows_that_a_sink_refuses_arrive_after_a_fix(make: Make) -> None:
    world = make("local decides, local follows", 1)
    database = world.databases["other"]
    database.sql(AT_THE_END)
    world.stage(1)
    with pytest.raises(SinkUnavailableError) as caught:
        world.steps(world.context())
    assert "SQLSTATE 23505" in caught.value.headline
    assert world.store.checkpoint(world.pipeline, 1).state is CheckpointState.COMMITTING
    assert world.ids("a") and not world.ids("b")
    database.sql("DROP FUNCTION f CASCADE")
    world.finish()
    world.check_exactly_once()


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_a_death_after_any_call_is_made_good(make: Make, mix: str) -> None:
    assert die_after_calls(partial(make, mix), first_of(mix)) > 15


@pytest.mark.slow
@pytest.mark.parametrize("mix", ["prepared alone", "local decides, prepared follows"])
def test_a_zombie_at_any_call_changes_nothing(make: Make, mix: str) -> None:
    assert stop_after_calls(partial(make, mix), first_of(mix)) > 15


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("mix", ["local alone", "prepared alone", "local decides, prepared follows"])
def test_a_death_at_any_statement_is_made_good(
    make: Make, mix: str, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 1 + first_of(mix)
    while True:
        world = make(mix, at)
        world.stage(1)
        statement = AtStatement(at, before)
        with monkeypatch.context() as patch, suppress(Death):
            statement.install(patch)
            world.steps(world.context())
        if not statement.struck:
            break
        world.finish()
        world.check_exactly_once()
        at += stride(11)
    assert at > 30


@pytest.mark.slow
@pytest.mark.parametrize(
    "mix",
    ["two databases, both prepared", "MariaDB decides, prepared follows", "MariaDB decides, prepared and Kafka follow"],
)
def test_a_refusal_leaves_nothing_in_any_sink(make: Make, mix: str) -> None:
    """The last database declines; each death on the way is made good."""
    declining = [server for server, _ in MIXES[mix].values() if server != "kafka"][-1]
    at = first_of(mix)
    while True:
        at += stride(8)
        world = make(mix, at)
        world.stage(1)
        database = world.databases[declining]
        database.sql(f"ALTER TABLE orders ADD CONSTRAINT not_this CHECK (id <> {world.staged[0] * 8 + 5}) NOT VALID")
        fault = Fault(at, "after", crash)
        with suppress(Crash, DeclinedError, NotDeliveredError):
            world.steps(world.context(fault=fault))
        if not fault.struck:
            break
        with suppress(DeclinedError, NotDeliveredError):
            world.steps(world.context(2))
        again = RunKey("dag", "run-2")
        recover_step(world.context(3, run=again))
        checkpoint = world.store.checkpoint(world.pipeline, 1)
        assert checkpoint.state is CheckpointState.ABORTED and not checkpoint.rollback_pending, fault.struck
        assert world.prepared() == 0 and not any(world.ids(sink) for sink in world.sinks), fault.struck
        database.sql("ALTER TABLE orders DROP CONSTRAINT not_this")
        world.staged.clear()
        world.stage(1, run=again, try_number=4)
        world.steps(world.context(4, run=again))
        world.check_exactly_once()
    assert at > 10
