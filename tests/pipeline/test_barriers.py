"""A barrier's gate opens on what several pipelines have confirmed, and names one consistent cut (I9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.pipeline.barriers import Alignment, BarrierGate, GateStatus, gate_status
from airflow_ft.protocol.errors import ConfigurationError, PipelineHaltedError
from airflow_ft.protocol.model import AfterAbort
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises
from tests.store.scene import LATER_RUN, RUN, Scene, a_position

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
BOTH = ("orders", "payments")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DecisionLog]:
    store = open_store(f"sqlite:///{tmp_path}/ft.db")
    yield store
    store.close()


@pytest.fixture
def orders(store: DecisionLog) -> Scene:
    return Scene(store, "orders")


@pytest.fixture
def payments(store: DecisionLog) -> Scene:
    return Scene(store, "payments")


def numbers(opened: Any) -> Any:
    return None if opened is None else {name: (found["number"], found["covered"]) for name, found in opened.items()}


@pytest.mark.parametrize("alignment", [Alignment.ALIGNED, Alignment.AT_LEAST_ONCE])
def test_only_the_last_proof_of_all_pipelines_opens_the_gate(
    alignment: Alignment, store: DecisionLog, orders: Scene, payments: Scene
) -> None:
    gate = BarrierGate(BOTH, at=LONG_AGO, alignment=alignment)
    orders.stage(1)
    orders.complete(1)
    assert gate.is_open(store) is None, "nothing of the other one"
    payments.stage(1)
    assert gate.is_open(store) is None, "staged"
    payments.prepare(1)
    assert gate.is_open(store) is None, "prepared"
    payments.decide(1)
    payments.prove(1, "db")
    assert gate.is_open(store) is None, "in one sink"
    payments.prove(1, "log")
    assert numbers(gate.is_open(store)) == {"orders": (1, True), "payments": (1, True)}


def test_an_aligned_cut_is_fixed_and_an_at_least_once_cut_moves(
    store: DecisionLog, orders: Scene, payments: Scene
) -> None:
    """ALIGNED names the first checkpoints that cover the barrier, AT_LEAST_ONCE the newest ones."""
    at = store.now()
    for scene in (orders, payments):
        scene.stage(2)
        scene.complete(2, [1, 2])
    orders.stage(2, LATER_RUN)
    orders.complete(3)
    aligned = BarrierGate(BOTH, at=at)
    assert numbers(aligned.is_open(store)) == {"orders": (2, True), "payments": (2, True)}
    newest = BarrierGate(BOTH, at=at, alignment=Alignment.AT_LEAST_ONCE)
    assert numbers(newest.is_open(store)) == {"orders": (3, True), "payments": (2, True)}, "4 is not confirmed"
    orders.complete(4)
    assert numbers(aligned.is_open(store)) == {"orders": (2, True), "payments": (2, True)}, "the cut does not move"
    found = newest.is_open(store)
    began = store.run("orders", LATER_RUN)
    assert found is not None and began is not None and began.stage_began is not None
    assert found["orders"]["number"] == 4 and found["orders"]["as_of"] == began.stage_began.isoformat()


def test_a_number_that_travelled_with_a_later_one_says_so(store: DecisionLog, orders: Scene) -> None:
    orders.take()
    store.begin_stage("orders", orders.epoch, RUN)
    at = store.now()
    orders.publish(orders.trigger(), as_of=at)
    orders.publish(orders.trigger(), as_of=store.now())
    orders.complete(2, [1, 2])
    [found] = (BarrierGate(("orders",), at=at).is_open(store) or {}).values()
    assert found == {
        "number": 1,
        "as_of": at.isoformat(),
        "covered": True,
        "delivered_by": 2,
        "barrier": at.isoformat(),
        "known": True,
    }


def test_pipelines_that_found_nothing_are_passed_too(store: DecisionLog, orders: Scene) -> None:
    at = store.now()
    orders.take()
    store.begin_stage("orders", orders.epoch, RUN)
    gate = BarrierGate(("orders",), at=at)
    assert gate.is_open(store) is None
    store.read_all("orders", orders.epoch, RUN, store.now())  # a stream without news
    assert numbers(gate.is_open(store)) == {"orders": (0, True)}
    later = BarrierGate(("orders",), at=store.now())
    assert later.is_open(store) is None
    store.end_stage("orders", orders.epoch, RUN, None)
    store.begin_stage("orders", orders.epoch, LATER_RUN)
    store.end_stage("orders", orders.epoch, LATER_RUN, None)  # a run without news
    assert numbers(later.is_open(store)) == {"orders": (0, True)}


class TestInjected:
    def test_a_barrier_is_of_the_moment_of_its_injection(
        self, store: DecisionLog, orders: Scene, payments: Scene
    ) -> None:
        for scene in (orders, payments):
            scene.stage(1)
            scene.complete(1)
        store.inject("closing", BOTH, "anna")
        gate = BarrierGate(BOTH, barrier="closing")
        assert gate.is_open(store) is None, "what was read before it does not cover it"
        for scene in (orders, payments):
            scene.stage(1, LATER_RUN)
            scene.complete(2)
        found = gate.is_open(store)
        assert numbers(found) == {"orders": (2, True), "payments": (2, True)}
        store.inject("closing", BOTH, "ben")
        assert gate.is_open(store) == found, "repeated: the first one counts"

    def test_a_late_one_covers_more(self, store: DecisionLog, orders: Scene, payments: Scene) -> None:
        store.inject("closing", ["orders"], "anna")
        for scene in (orders, payments):
            scene.stage(1)
            scene.complete(1)
        store.inject("closing", ["payments"], "anna")
        gate = BarrierGate(BOTH, barrier="closing")
        assert gate.is_open(store) is None
        payments.stage(1, LATER_RUN)
        payments.complete(2)
        assert numbers(gate.is_open(store)) == {"orders": (1, True), "payments": (2, True)}

    def test_a_lost_one_keeps_it_closed_and_is_named(self, store: DecisionLog, orders: Scene, payments: Scene) -> None:
        gate = BarrierGate(BOTH, barrier="closing")
        assert gate.is_open(store) is None, "nobody has injected it"
        store.inject("closing", ["orders"], "anna")
        for scene in (orders, payments):
            scene.stage(1)
            scene.complete(1)
        assert gate.is_open(store) is None
        first, second = gate.statuses(store)
        assert first.covered and not second.covered and second.barrier is None
        assert (second.pipeline, second.number) == ("payments", 1)
        assert [each.pipeline for each in store.barrier("closing")] == ["orders"], "a look changes nothing"


class TestUnaligned:
    def test_it_opens_when_its_time_has_come_and_says_who_lags(
        self, store: DecisionLog, orders: Scene, payments: Scene
    ) -> None:
        payments.stage(1)
        payments.complete(1)
        began = store.run("payments", RUN)
        store.inject("closing", BOTH, "anna")
        orders.stage(1)
        orders.complete(1)
        payments.stage(2, LATER_RUN)
        payments.complete(2)  # half of what covers it

        def gate(opens_at: datetime) -> BarrierGate:
            return BarrierGate(BOTH, barrier="closing", alignment=Alignment.UNALIGNED, opens_at=opens_at)

        assert gate(store.now() + timedelta(hours=1)).is_open(store) is None
        opened = gate(store.now()).is_open(store)
        assert numbers(opened) == {"orders": (1, True), "payments": (2, False)}
        assert opened is not None and began is not None and began.stage_began is not None
        assert opened["payments"]["as_of"] == began.stage_began.isoformat(), "of checkpoint 2 nobody knows that"
        text = str(GateStatus.from_json("payments", opened["payments"]))
        assert "payments is 0 s behind the barrier: it has confirmed checkpoint 2" in text
        payments.complete(3)
        assert numbers(gate(store.now() + timedelta(hours=1)).is_open(store)) == {
            "orders": (1, True),
            "payments": (3, True),
        }

    def test_what_is_not_known_lags_too(self, store: DecisionLog, orders: Scene) -> None:
        gate = BarrierGate(("orders", "order"), at=LONG_AGO, alignment=Alignment.UNALIGNED, opens_at=LONG_AGO)
        opened = gate.is_open(store)
        assert numbers(opened) == {"orders": (0, False), "order": (0, False)}
        texts = [str(each) for each in gate.statuses(store)]
        assert texts[0] == "orders is behind the barrier: it has confirmed no checkpoint"
        assert "its name is mistyped" in texts[1]

    def test_only_what_is_settled_before_it_is_counted_as_confirmed(self, store: DecisionLog, orders: Scene) -> None:
        orders.stage(4)
        orders.complete(1)
        orders.complete(3)  # out of order, as `allow_out_of_order` would
        assert gate_status(store, "orders", store.now()).number == 1
        orders.complete(2)
        assert gate_status(store, "orders", store.now()).number == 3


def test_a_renamed_pipeline_opens_no_barrier(store: DecisionLog, orders: Scene, payments: Scene) -> None:
    epoch, other = orders.take(), payments.take()
    store.inject("before", ["orders"], "ada")
    store.rename("orders", epoch, 0, "payments", other, a_position(0), "a test")
    for gate in (BarrierGate(("orders",), barrier="before"), BarrierGate(("orders",), at=store.now())):
        with raises(PipelineHaltedError, "pipeline_renamed", pipeline="orders"):
            gate.is_open(store)
    with raises(PipelineHaltedError, "pipeline_renamed", pipeline="orders"):
        store.inject("closing", BOTH, "ada")
    assert store.barrier("closing") == []


def test_a_new_name_answers_with_the_last_number_of_the_old(store: DecisionLog, orders: Scene, payments: Scene) -> None:
    orders.stage(2)
    orders.complete(2, [1, 2])
    other = payments.take()
    store.rename("orders", orders.epoch, 1, "payments", other, a_position(1), "a test")
    at = store.now()
    store.begin_stage("payments", other, RUN)
    store.end_stage("payments", other, RUN, a_position(1))  # a run without news
    for alignment in (Alignment.ALIGNED, Alignment.AT_LEAST_ONCE):
        [found] = (BarrierGate(("payments",), at=at, alignment=alignment).is_open(store) or {}).values()
        assert (found["number"], found["delivered_by"], found["covered"]) == (1, 2, True)
    assert gate_status(store, "payments", None).number == 1
    payments.stage(1)
    payments.complete(3)
    assert gate_status(store, "payments", None).number == 3


def test_what_is_before_a_restored_savepoint_stays_covered(store: DecisionLog, orders: Scene) -> None:
    orders.stage(1)
    orders.complete(1)
    at = store.now()
    store.begin_stage("orders", orders.epoch, LATER_RUN)
    orders.publish(orders.trigger(LATER_RUN), as_of=store.now())
    orders.complete(2)
    store.read_all("orders", orders.epoch, LATER_RUN, store.now())
    gates = [BarrierGate(("orders",), at=LONG_AGO), BarrierGate(("orders",), at=at)]
    assert all(gate.is_open(store) for gate in gates)
    store.restore("orders", orders.epoch, a_position(1), "savepoint 1", again_from=2)
    assert [gate.is_open(store) is not None for gate in gates] == [True, False]


class _Meddling:
    """Passes every call on to a store, and acts before the `at`-th one."""

    def __init__(self, store: DecisionLog, at: int, meddle: Callable[[], None]) -> None:
        self._store, self._left, self._meddle = store, at, meddle
        self.acted = False

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.acted = True
                self._meddle()
            return method(*args, **named)

        return call


@pytest.mark.slow
@pytest.mark.parametrize("alignment", [Alignment.ALIGNED, Alignment.AT_LEAST_ONCE])
def test_a_rewind_between_any_two_questions_does_not_open_it(alignment: Alignment, tmp_path: Path) -> None:
    """What is rewound counts as settled; its rows come again, under later numbers."""
    for at in range(1, 100):
        store = open_store(f"sqlite:///{tmp_path}/{at}.db")
        orders, payments = Scene(store, "orders"), Scene(store, "payments")
        moment = store.now()
        for scene in (orders, payments):
            scene.stage(2)
            scene.complete(1)
        orders.complete(2)
        gate = BarrierGate(BOTH, at=moment, alignment=alignment)
        meddling: Any = _Meddling(store, at, lambda scene=payments: scene.abort(2, AfterAbort.REWOUND, 2))  # type: ignore[misc]
        assert gate.is_open(meddling) is None
        assert gate.is_open(store) is None or not meddling.acted
        if meddling.acted:
            payments.stage(1, LATER_RUN)
            assert gate.is_open(store) is None, "computed again, not delivered"
            payments.complete(3)
            assert numbers(gate.is_open(store)) == {"orders": (2, True), "payments": (3, True)}
        store.close()
        if not meddling.acted:
            break
    assert 8 < at < 30


@pytest.mark.parametrize(
    "gate",
    [
        BarrierGate(("a",), at=LONG_AGO),
        BarrierGate(("b", "a"), barrier="closing", alignment=Alignment.AT_LEAST_ONCE),
        BarrierGate(("a",), barrier="closing", alignment=Alignment.UNALIGNED, opens_at=LONG_AGO),
    ],
    ids=str,
)
def test_it_survives_the_way_to_the_triggerer(gate: BarrierGate) -> None:
    assert BarrierGate.from_json(gate.to_json()) == gate


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"at": LONG_AGO, "barrier": "closing"},
        {"at": datetime(2020, 1, 1)},
        {"barrier": "2020-01-01"},
        {"at": LONG_AGO, "opens_at": LONG_AGO},
        {"at": LONG_AGO, "alignment": Alignment.UNALIGNED},
        {"at": LONG_AGO, "pipelines": ()},
        {"at": LONG_AGO, "pipelines": ("a", "a")},
        {"at": LONG_AGO, "pipelines": ("No Name",)},
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        BarrierGate(**{"pipelines": ("a",), **wrong})
