"""Requests and replies that are lost on the way: in doubt is ended by reading the token, never by guessing (I6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_ft.protocol.errors import SinkUnavailableError
from airflow_ft.testing.relay import Fate
from tests.integration.kafka_losses import Proxied, check_delivery_through_losses, proxied_broker, proxied_world
from tests.integration.kafka_proxy import END_TXN
from tests.integration.kafka_world import World, expected_ids, read_ids

pytestmark = pytest.mark.sampled


@pytest.fixture(scope="module")
def proxied(servers_folder: Path) -> Iterator[Proxied]:
    with proxied_broker(servers_folder / "kafka-proxied") as found:
        yield found


@pytest.fixture
def world(proxied: Proxied, tmp_path: Path) -> Iterator[World]:
    with proxied_world(proxied, tmp_path, "transaction") as found:
        yield found


@pytest.mark.parametrize("fate", [Fate.LOSE_REQUEST, Fate.LOSE_REPLY])
def test_a_commit_without_an_answer_is_settled_by_its_token(fate: Fate, world: World, proxied: Proxied) -> None:
    _, proxy, bootstrap = proxied
    plan = world.checkpoint(1, 1000)
    world.prepare(plan)
    world.extra["airflow_ft_timeout"] = 10
    proxy.fate = lambda api: fate if api == END_TXN else Fate.DELIVER
    with pytest.raises(SinkUnavailableError) as caught:
        world.commit(plan)
    assert "committing the transaction" in caught.value.headline
    assert ("EndTxn", fate) in proxy.lost
    proxy.fate = lambda api: Fate.DELIVER
    world.extra["airflow_ft_timeout"] = 60
    assert world.commit(plan).counts == {"alerts": 1000}
    assert read_ids(bootstrap, world.sinks["alerts"].topic) == expected_ids((1, 1000))


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_is_lost_on_the_way_rows_arrive_exactly_once(seed: int, world: World, proxied: Proxied) -> None:
    check_delivery_through_losses(seed, world, proxied)
