"""A Redis with a replica: what the sink waits for, and what a failover keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
import redis

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.protocol.model import Fence
from airflow_ft.protocol.votes import Outcome
from airflow_ft.sinks.base.requirements import lacks
from airflow_ft.sinks.redis import requirements, server, setup
from airflow_ft.testing.world import World
from tests.conformance.test_redis import Keys
from tests.raising import raises
from tests.waiting import wait_for
from tools.servers import Redis

pytestmark = pytest.mark.server


@pytest.fixture
def primary(own_server: Callable[..., Redis]) -> Redis:
    return own_server(Redis, appendfsync="always", **{"repl-diskless-sync-delay": 0})


@pytest.fixture
def secondary(primary: Redis, own_server: Callable[..., Redis]) -> Redis:
    found = own_server(
        Redis, appendfsync="always", replicaof=f"{primary.host} {primary.port}", masterauth=primary.password
    )
    with client_of(primary) as db:
        wait_for(lambda: db.info("replication").get("slave0", {}).get("state") == "online", 30, "the replica is online")
    return found


@pytest.fixture
def world(primary: Redis, secondary: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(server, "ANSWER_SECONDS", 2.0)
    target = Keys(primary, "hash", "upsert")
    target.sink = replace(target.sink, wait_replicas=1)
    with closing(World(target, tmp_path)) as found:
        yield found


def client_of(server: Redis) -> redis.Redis:
    return redis.Redis(host=server.host, port=server.port, password=server.password)


def contents(db: redis.Redis) -> dict[Any, Any]:
    """Return all hashes: rows, and the sink's memory."""
    return {key: db.hgetall(key) for key in db.scan_iter(count=10_000) if db.type(key) == b"hash"}


def test_a_failover_keeps_what_was_committed(world: World, primary: Redis, secondary: Redis) -> None:
    plan = world.plan()
    proof = world.deliver(plan)
    assert proof.outcome is Outcome.COMMITTED
    with client_of(primary) as db:
        wanted = contents(db)
    primary.kill()
    with client_of(secondary) as db:
        db.replicaof("NO", "ONE")
        assert contents(db) == wanted


def test_no_checkpoint_is_committed_before_the_replica_has_it(world: World, secondary: Redis) -> None:
    plan = world.plan()
    vote = world.prepare(plan)
    secondary.pause()
    with raises(SinkUnavailableError, "replicas_behind", wanted=1, found=0):
        world.commit(plan, vote)
    with raises(SinkUnavailableError, "replicas_behind"):  # the marker is there, and proves nothing yet
        world.participant(plan).proof(plan)
    with raises(SinkUnavailableError, "replicas_behind"):
        world.commit(plan, vote)
    secondary.resume()
    assert world.commit(plan, vote).outcome is Outcome.COMMITTED
    proof = world.participant(plan).proof(plan)
    assert proof is not None and proof.outcome is Outcome.COMMITTED
    world.shows(world.ids_of(1))


def test_a_missing_replica_is_noticed_before_the_stage(world: World, primary: Redis, secondary: Redis) -> None:
    secondary.kill()
    with client_of(primary) as db:
        wait_for(lambda: not db.info("replication")["connected_slaves"], 30, "the primary notices the loss")
    plan = world.plan()
    [problem] = lacks(requirements.required(plan.pipeline, plan.participants[0], world.target.connection))
    assert (type(problem), problem.code) == (SinkUnavailableError, "replicas_behind")
    with raises(SinkUnavailableError, "replicas_behind"):
        world.prepare(plan)


def test_an_adoption_is_not_done_before_the_replica_has_it(world: World, secondary: Redis) -> None:
    """Otherwise a failover would give the fence back to the former owner."""
    plan = world.plan()
    world.deliver(plan)
    heir = Fence(world.pipeline, "99999999-2222-4333-8444-555555555555", 9, 1)
    secondary.pause()
    with raises(SinkUnavailableError, "replicas_behind"):
        world.participant(plan).end_orphans(heir, None)
    with raises(SinkUnavailableError, "replicas_behind"):
        world.participant(plan).adopt(heir, 1)
    secondary.resume()
    world.participant(plan).adopt(heir, 1)


def test_the_printed_rules_allow_to_wait(world: World, primary: Redis, secondary: Redis) -> None:
    target: Any = world.target
    connection = replace(target.connection, login="loader", password="only-F0r-tests")
    [rule] = [line for line in setup.describe("p", world.participant_plan(), connection) if line.startswith("ACL")]
    with client_of(primary) as db:
        db.execute_command(*rule.split(), "on", ">only-F0r-tests")
        target.connection = connection
        plan = world.plan()
        secondary.pause()  # so that it has to wait
        Timer(0.5, secondary.resume).start()
        world.deliver(plan)
        db.execute_command("ACL", "SETUSER", "loader", "-wait")
    [problem] = lacks(requirements.required(plan.pipeline, plan.participants[0], connection))
    assert problem.code == "privilege_missing"


@pytest.mark.usefixtures("secondary")
def test_a_primary_that_was_started_again_proves_nothing(primary: Redis) -> None:
    with (
        client_of(primary) as db,
        raises(SinkUnavailableError, "sink_unavailable"),
        server.replicated(db, 1, "here"),
    ):
        db.set("x", 1)
        primary.kill()
        primary.start()
        wait_for(lambda: _answers(db), 10, "the primary answers")


def _answers(db: redis.Redis) -> Any:
    try:
        return db.ping()
    except redis.ConnectionError:
        return False
