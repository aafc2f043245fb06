"""Somebody types XA COMMIT for prepared branches that nobody has decided upon: a heuristic outcome, on real servers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.clients.kafka.client import KafkaClients, KafkaSettings
from airflow_ft.pipeline.doctor import Patient, examine
from airflow_ft.protocol import steps
from airflow_ft.protocol.connections import ConnectionInfo
from airflow_ft.protocol.coordinator import coordinating
from airflow_ft.protocol.doctor import Verdict
from airflow_ft.protocol.doubt import Finding, doubts
from airflow_ft.protocol.errors import (
    AbortedHeuristicCommitError,
    HeuristicCommitError,
    PipelineHaltedError,
    StateConflictError,
    UnfitTargetError,
)
from airflow_ft.protocol.lease import Worker
from airflow_ft.protocol.model import AfterAbort, CheckpointState, Fence
from airflow_ft.protocol.pipelines import HaltReason, PipelineStatus
from airflow_ft.protocol.planning import tombstone_detail
from airflow_ft.protocol.reasons import AbortReason
from airflow_ft.protocol.resolution import Resolver
from airflow_ft.sinks.base import slices
from airflow_ft.sinks.kafka.spec import KafkaSink
from airflow_ft.sinks.kafka.transaction import ProducerIdentity
from airflow_ft.sinks.kafka.transaction_coordinator import Ending, TransactionCoordinator
from airflow_ft.sinks.mysql.spec import MySqlSink
from airflow_ft.store import open_store
from tests.integration.kafka_world import read_ids
from tests.integration.real_world import RealWorld, expected
from tests.integration.test_mysql_xa import prepared
from tests.raising import raises
from tests.waiting import wait_for
from tools.servers import Database, Kafka

S = CheckpointState


@pytest.fixture(autouse=True)
def small_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few rows are divided too."""
    monkeypatch.setattr(slices, "MIN_ROWS", 2)


@dataclass
class XaWorld(RealWorld):
    """Sink `rows` by `xa`, in three branches; with `second` another one by this strategy beside it, under a connection
    of its own.
    """

    second: str = ""

    @property
    def sinks(self) -> dict[str, Any]:
        sinks = {"rows": MySqlSink(table="orders", conn_id="shop", strategy="xa", branches=3)}
        if self.second:
            branches = {"branches": 1} if self.second == "xa" else {}
            sinks["copies"] = MySqlSink(table="copies", conn_id="store", strategy=self.second, **branches)
        return sinks

    def connections(self, conn_id: str) -> ConnectionInfo:
        if conn_id == "store":
            return replace(super().connections("shop"), conn_id="store")
        return super().connections(conn_id)

    def commit_by_hand(self, which: int) -> None:
        """As many of the branches as `which` says, by a client that knows nothing of the pipeline."""
        names = prepared(self)  # type: ignore[arg-type]
        assert len(names) == 3
        for name in names[:which]:
            self.server.sql(f"XA COMMIT {name}")

    def resolver(self) -> Resolver:
        return Resolver(self.store, self.pipeline, self.participants, "a test by ada", Worker(), 0.1)

    @property
    def halted(self) -> HaltReason | None:
        row = self.store.pipeline(self.pipeline)
        return row.halt_reason if row.status is PipelineStatus.HALTED else None

    def finding(self, number: int) -> tuple[Finding, str]:
        [found] = [d for d in doubts(self.store, [self.pipeline], self.participants) if d.number == number]
        return found.evidence.finding, found.evidence.text + found.advice

    def delete_by_hand(self, instructions: str, ids: list[int]) -> None:
        """The rows, and with them the markers by the very statement that the message tells."""
        statement = re.search(r"DELETE FROM .*?;", instructions)
        assert statement is not None, instructions
        with closing(self.server.connect(self.database.name)) as connection, connection.cursor() as cursor:
            connection.begin()
            cursor.execute(f"DELETE FROM orders WHERE id IN ({', '.join(map(str, ids))})")
            cursor.execute(statement[0].rstrip(";"))
            connection.commit()


@pytest.fixture
def world(tmp_path: Path, any_mysql_database: Database) -> Iterator[XaWorld]:
    any_mysql_database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        world = XaWorld(store, tmp_path / "wal", any_mysql_database)
        world.stage(1)
        world.prepare()
        assert world.store.checkpoint(world.pipeline, 1).state is S.PREPARED
        yield world
        world.server.end_prepared()


@pytest.mark.parametrize(("which", "name"), [(1, "XA_HEURMIX"), (3, "XA_HEURCOM")])
def test_a_commit_by_hand_blocks_an_abort_and_can_be_delivered(world: XaWorld, which: int, name: str) -> None:
    world.commit_by_hand(which)
    assert len(world.ids()) == (20 if which == 3 else 6)
    finding, text = world.finding(1)
    assert finding is Finding.HEURISTIC and name in text and "--commit" in text

    with raises(HeuristicCommitError, "heuristic_commit") as refused:
        world.resolver().abort(1, AfterAbort.CARRIED)
    assert name in refused.error.headline
    assert world.halted is HaltReason.HEURISTIC_COMMIT
    assert world.store.checkpoint(world.pipeline, 1).state is S.PREPARED, "not ABORTED with rows visible"
    with raises(PipelineHaltedError, "pipeline_halted") as halted:
        world.deliver()
    assert "--commit 1" in f"{halted.error}"

    assert world.resolver().commit(1).state is S.COMPLETED
    assert world.ids() == expected([1]) and prepared(world) == []  # type: ignore[arg-type]
    world.stage(1)
    world.deliver()
    assert world.ids() == expected([1, 2])


def test_a_commit_by_hand_can_be_aborted_after_deleting_its_rows(world: XaWorld) -> None:
    world.commit_by_hand(1)
    with pytest.raises(HeuristicCommitError):
        world.resolver().abort(1, AfterAbort.CARRIED)
    for name in prepared(world):  # type: ignore[arg-type]
        world.server.sql(f"XA ROLLBACK {name}")
    world.delete_by_hand(world.store.pipeline(world.pipeline).halt.message, world.ids())
    world.store.resume(world.pipeline, "ada")
    assert world.resolver().abort(1, AfterAbort.CARRIED).state is S.ABORTED
    assert world.ids() == [] and prepared(world) == []  # type: ignore[arg-type]
    world.deliver()
    assert world.ids() == expected([1]), "its rows were carried"


def test_a_commit_by_hand_after_an_abort_halts_the_pipeline(world: XaWorld) -> None:
    """The sink was away when it was aborted, or the hand was faster than the rollback: ABORTED, with rows visible."""
    world.overrides = {"shop": {"port": 1}}
    assert world.resolver().abort(1, AfterAbort.CARRIED).rollback_pending
    world.overrides = {}
    world.commit_by_hand(1)
    assert world.finding(1)[0] is Finding.HEURISTIC
    with raises(AbortedHeuristicCommitError, "heuristic_commit_aborted") as refused:
        world.deliver()
    assert "`airflow ft resume" in refused.error.remedy
    assert world.halted is HaltReason.HEURISTIC_COMMIT
    message = world.store.pipeline(world.pipeline).halt.message
    with pytest.raises(StateConflictError):
        world.resolver().commit(1)
    world.store.resume(world.pipeline, "ada")
    with pytest.raises(HeuristicCommitError):
        world.deliver()  # resuming alone mends nothing
    world.delete_by_hand(message, world.ids())
    world.store.resume(world.pipeline, "ada")
    world.deliver()
    assert world.ids() == expected([1])


def test_preparing_again_keeps_what_was_committed_by_hand(world: XaWorld) -> None:
    """A vote that was taken back: the others are prepared anew, and nothing is doubled."""
    world.commit_by_hand(1)
    given = world.store, world.pipeline, world.participants, Worker(), "a test", 0.1
    with coordinating(*given) as (coordinator, _):
        again = coordinator.prepare(1, "shop", again=True)
        assert again.votes["shop"].notes["heuristic"] == ["0001"]
        assert len(prepared(world)) == 2  # type: ignore[arg-type]
        done = coordinator.deliver(1)
    proof = done.votes["shop"].proof
    assert done.state is S.COMPLETED and proof is not None and proof.detail["heuristic"] == ["0001"]
    assert world.ids() == expected([1])


def test_a_staged_one_is_delivered_when_a_person_says_so(world: XaWorld) -> None:
    """A vote is lacking, since a table does not fit; whoever gives the checkpoint up is told, and can deliver it."""
    world.deliver()
    world.second = "xa"
    world.server.sql("CREATE TABLE copies (id TINYINT, name VARCHAR(100)) ENGINE=InnoDB", world.database.name)
    world.stage(1)
    steps.prepare_step(world.context(), world.delivery, world.config, "shop")
    assert world.store.checkpoint(world.pipeline, 2).state is S.STAGED
    world.commit_by_hand(1)
    with pytest.raises(UnfitTargetError):
        steps.prepare_step(world.context(), world.delivery, world.config, "store")
    with pytest.raises(HeuristicCommitError):
        world.resolver().abort(2, AfterAbort.REWOUND)
    assert world.store.checkpoint(world.pipeline, 2).state is S.STAGED
    world.server.sql("ALTER TABLE copies MODIFY id BIGINT", world.database.name)
    assert world.resolver().commit(2).state is S.COMPLETED
    assert world.ids() == expected([1, 2])
    assert sorted(r[0] for r in world.server.sql("SELECT id FROM copies", world.database.name)) == expected([2])


def test_only_deleting_is_offered_if_the_deciding_sink_aborted(world: XaWorld) -> None:
    """The process that aborted died after it wrote the abort marker, before it told the decision log."""
    world.deliver()
    world.second = "local"
    world.server.sql("CREATE TABLE copies (id BIGINT, name VARCHAR(100)) ENGINE=InnoDB", world.database.name)
    world.stage(1)
    world.prepare()
    given = world.store, world.pipeline, world.participants, Worker(), "a test", 0.1
    with coordinating(*given) as (coordinator, _):
        plan = world.store.checkpoint(world.pipeline, 2).plan
        assert plan is not None and plan.commit_point == "store"
        attempt = world.store.begin_attempt(world.pipeline, coordinator.epoch, 2, "store")
        fence = Fence(world.pipeline, world.store.installation, coordinator.epoch, attempt)
        with closing(world.participants(plan.participant("store"))) as sink:
            sink.abort(plan, fence, tombstone_detail(AbortReason.USER, "a test", AfterAbort.CARRIED))
    world.commit_by_hand(1)
    listed = doubts(world.store, [world.pipeline], world.participants)
    assert {doubt.participant: doubt.evidence.finding for doubt in listed} == {
        "shop": Finding.HEURISTIC,
        "store": Finding.REFUSED,
    }
    assert not any("--commit" in doubt.advice for doubt in listed if doubt.participant == "shop")

    for attempt_to_settle in (world.deliver, lambda: world.resolver().commit(2)):
        with raises(AbortedHeuristicCommitError, "heuristic_commit_aborted", checkpoint=2) as refused:
            attempt_to_settle()
        assert "--commit" not in refused.error.remedy and f"airflow ft resume {world.pipeline}" in refused.error.remedy
    for name in prepared(world):  # type: ignore[arg-type]
        world.server.sql(f"XA ROLLBACK {name}")
    visible = sorted(set(world.ids()) - set(expected([1])))
    world.delete_by_hand(world.store.pipeline(world.pipeline).halt.message, visible)
    world.store.resume(world.pipeline, "ada")
    world.deliver()
    world.deliver()
    assert world.ids() == expected([1, 2])
    assert sorted(r[0] for r in world.server.sql("SELECT id FROM copies", world.database.name)) == expected([2])


def test_doctor_names_it(world: XaWorld) -> None:
    world.commit_by_hand(2)
    patient = Patient(world.pipeline, str(world.root), {p.name: p for p in world.delivery.participants})
    checks = examine(patient, lambda: open_store(world.store.url), world.connections, world.participants)
    [found] = [check for check in checks if check.name == "prepared rows"]
    assert found.verdict is Verdict.PROBLEM and "XA_HEURMIX" in found.text


@dataclass
class HeldWorld(XaWorld):
    """Beside the branches a Kafka transaction that is held open."""

    @property
    def sinks(self) -> dict[str, Any]:
        return {**super().sinks, "events": KafkaSink(topic=self.topic, conn_id="cluster", key="name", strategy="held")}

    def finding_of(self, participant: str) -> Finding | None:
        listed = doubts(self.store, [self.pipeline], self.participants)
        return next((doubt.evidence.finding for doubt in listed if doubt.participant == participant), None)


@pytest.fixture
def held(tmp_path: Path, mariadb_database: Database, kafka: Kafka, topic: str) -> Iterator[HeldWorld]:
    mariadb_database.sql("CREATE TABLE orders (id BIGINT, name VARCHAR(100)) ENGINE=InnoDB")
    with closing(open_store(f"sqlite:///{tmp_path}/ft.db")) as store:
        world = HeldWorld(store, tmp_path / "wal", mariadb_database, kafka, topic)
        world.stage(1)
        world.prepare()
        yield world
        world.server.end_prepared()


def test_a_foreign_commit_of_a_held_transaction_is_heuristic(held: HeldWorld) -> None:
    [(group, note)] = held.store.checkpoint(held.pipeline, 1).votes["cluster"].notes["held"].items()
    clients = KafkaClients(KafkaSettings.from_connection(held.connections("cluster")))
    with closing(clients), closing(TransactionCoordinator(clients)) as coordinator:
        identity = ProducerIdentity(note["producer_id"], note["epoch"])
        assert coordinator.end(group, identity, commit=True) is Ending.DONE
    assert held.kafka is not None
    bootstrap, topic = held.kafka.bootstrap, held.topic
    wait_for(lambda: read_ids(bootstrap, topic) == expected([1]), 60, "the records are readable")
    wait_for(lambda: held.finding_of("cluster") is Finding.HEURISTIC, 60, "the token is readable")

    with raises(HeuristicCommitError, "heuristic_commit"):
        held.resolver().abort(1, AfterAbort.CARRIED)
    assert held.halted is HaltReason.HEURISTIC_COMMIT and held.ids() == []
    assert held.finding_of("shop") is Finding.ABSENT
    assert held.resolver().commit(1).state is S.COMPLETED
    assert held.ids() == expected([1])
    assert read_ids(bootstrap, topic) == expected([1])
