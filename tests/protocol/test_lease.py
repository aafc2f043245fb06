"""The keeper of a lease: whatever it meets, it renews on, and giving back never hides what ended the work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, DeclinedError, FencedError, LeaseHeldError
from airflow_ft.protocol.lease import LeaseWatch, Worker, new_epoch, take_epoch
from airflow_ft.protocol.pipelines import Lease
from airflow_ft.store import open_store
from airflow_ft.store.decision_log import DecisionLog
from tests.raising import raises
from tests.waiting import wait_for

PIPELINE = "orders"
ERRORS = [ConfigurationError("the user of the decision log lacks a privilege."), RuntimeError("a library's own.")]


@pytest.fixture
def store(tmp_path: Path) -> DecisionLog:
    store = open_store(f"sqlite:///{tmp_path}/ft.db")
    store.register(PIPELINE)
    return store


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", ERRORS)
def test_a_renewal_that_fails_by_anything_is_tried_again(
    store: DecisionLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Else the lease would run out under an owner who is at work, and nobody would say so."""

    def counter() -> int:
        return store.leases(PIPELINE)[0].counter

    with new_epoch(store, PIPELINE, Worker(), "a test", 0.03) as (_, keeper):
        with monkeypatch.context() as patch:
            refused: list[int] = []
            patch.setattr(store, "renew_lease", lambda *_: refused.append(1) or raising(error)())
            wait_for(lambda: refused, 20.0, "a renewal has failed")
        before = counter()
        wait_for(lambda: counter() > before, 20.0, "it is renewed again")
        keeper.check()


def test_a_renewal_that_is_refused_for_good_is_told(store: DecisionLog) -> None:
    with new_epoch(store, PIPELINE, Worker(), "a test", 0.03) as (epoch, keeper):
        other = Worker().lease()
        store.take_epoch(
            PIPELINE, epoch, {each.holder: each.counter for each in store.leases(PIPELINE)}, other, "another owner"
        )

        def is_reported() -> bool:
            try:
                keeper.check()
            except FencedError:
                return True
            return False

        wait_for(is_reported, 20.0, "the keeper has heard of it")


@pytest.mark.parametrize("error", ERRORS)
def test_a_lease_that_cannot_be_given_back_hides_nothing(
    store: DecisionLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A terminal error would become one that is tried again, or the other way round."""
    monkeypatch.setattr(store, "release_lease", raising(error))
    with raises(DeclinedError, "declined"), new_epoch(store, PIPELINE, Worker(), "a test"):
        raise DeclinedError("refused.")
    assert store.leases(PIPELINE)


def test_a_wait_for_a_dead_owner_names_it_once(store: DecisionLog, caplog: pytest.LogCaptureFixture) -> None:
    take_epoch(store, PIPELINE, Worker("dag/stage").lease(), "a test", lease_seconds=0.0)
    with caplog.at_level(logging.INFO, "airflow_ft"):
        take_epoch(store, PIPELINE, Worker("dag/recover").lease(), "a test", lease_seconds=0.3)
    [waited] = [record for record in caplog.records if record.name == "airflow_ft.protocol.lease"]
    assert "dag/stage" in waited.getMessage()


def test_a_held_lease_says_how_to_end_a_stream(store: DecisionLog) -> None:
    """It never ends by itself."""
    with (
        new_epoch(store, PIPELINE, Worker("dag/stream"), "a test", 0.03) as (epoch, _),
        raises(LeaseHeldError, "lease_held", pipeline=PIPELINE, task="dag/stream", epoch=epoch) as caught,
    ):
        take_epoch(store, PIPELINE, Worker().lease(), "a test", lease_seconds=20.0)
    assert caught.error is not None and f"`airflow ft stop {PIPELINE}`" in caught.error.remedy


class Clock:
    """A monotonic clock that only `sleep` moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


class TestWatch:
    """A process that has watched a dead owner before it takes an epoch waits for it once."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def watch(self, clock: Clock) -> LeaseWatch:
        return LeaseWatch(clock)

    def owner(self, store: DecisionLog, name: str = "owner", after: int = 0) -> tuple[int, Lease]:
        lease = Worker(name).lease()
        seen = {each.holder: each.counter for each in store.leases(PIPELINE)}
        return store.take_epoch(PIPELINE, after, seen, lease, "a test"), lease

    def take(self, store: DecisionLog, watch: LeaseWatch, clock: Clock) -> int:
        lease = Worker("challenger").lease()
        return take_epoch(store, PIPELINE, lease, "a test", lease_seconds=30.0, watch=watch, sleep=clock.sleep)

    @pytest.mark.parametrize(("watched", "waits"), [(0.0, 30.0), (12.0, 18.0), (30.0, 0.0), (3600.0, 0.0)])
    def test_what_was_watched_before_counts(
        self, store: DecisionLog, watch: LeaseWatch, clock: Clock, watched: float, waits: float
    ) -> None:
        epoch, _ = self.owner(store)
        watch.look(store.leases(PIPELINE))
        clock.now += watched
        assert self.take(store, watch, clock) == epoch + 1
        assert clock.slept == waits

    def test_a_lease_renewed_in_between_starts_the_wait_again(
        self, store: DecisionLog, watch: LeaseWatch, clock: Clock
    ) -> None:
        epoch, owner = self.owner(store)
        watch.look(store.leases(PIPELINE))
        clock.now += 3600.0
        store.renew_lease(PIPELINE, epoch, owner.holder)
        assert self.take(store, watch, clock) == epoch + 1
        assert clock.slept == 30.0

    def test_another_holder_starts_the_wait_again(self, store: DecisionLog, watch: LeaseWatch, clock: Clock) -> None:
        epoch, _ = self.owner(store)
        watch.look(store.leases(PIPELINE))
        clock.now += 3600.0
        assert self.owner(store, "successor", epoch)[0] == epoch + 1
        assert self.take(store, watch, clock) == epoch + 2
        assert clock.slept == 30.0

    def test_a_lease_that_was_away_in_between_starts_the_wait_again(
        self, store: DecisionLog, watch: LeaseWatch, clock: Clock
    ) -> None:
        epoch, owner = self.owner(store)
        watch.look(store.leases(PIPELINE))
        watch.look([])
        clock.now += 3600.0
        assert [each.holder for each in store.leases(PIPELINE)] == [owner.holder]
        assert self.take(store, watch, clock) == epoch + 1
        assert clock.slept == 30.0

    def test_an_owner_that_renews_during_the_wait_is_alive(
        self, store: DecisionLog, watch: LeaseWatch, clock: Clock
    ) -> None:
        epoch, owner = self.owner(store)
        watch.look(store.leases(PIPELINE))
        clock.now += 29.0

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            store.renew_lease(PIPELINE, epoch, owner.holder)

        with raises(LeaseHeldError, "lease_held", epoch=epoch):
            take_epoch(store, PIPELINE, Worker().lease(), "a test", lease_seconds=30.0, watch=watch, sleep=sleep)
        assert store.pipeline(PIPELINE).epoch == epoch
