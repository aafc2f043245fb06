"""The keeper of a lease: whatever it meets, it renews on, and giving back never hides what ended the work."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.protocol.errors import ConfigurationError, DeclinedError, FencedError
from airflow_ft.protocol.lease import Worker, new_epoch, take_epoch
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

        def is_told() -> bool:
            try:
                keeper.check()
            except FencedError:
                return True
            return False

        wait_for(is_told, 20.0, "the keeper has heard of it")


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
