"""The list of pipelines on the page."""

from __future__ import annotations

import pytest

from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline
from tests.store.scene import PIPELINE, RUN

pytestmark = pytest.mark.airflow


def test_it_says_who_is_at_work_and_how_far_a_long_delivery_has_come(scene: Pipeline, ask: Asking) -> None:
    scene.confirmed({"a": 1})
    [row] = ask("").json()["pipelines"]
    assert (row["name"], row["confirmed"], row["at_work"], row["doing"]) == (PIPELINE, 1, "", [])
    scene.store.enter_turn(PIPELINE, RUN, None)
    scene.store.renew_lease(PIPELINE, 1, "worker", "checkpoint 2: db has taken 5 of 8 rows of orders")
    [row] = ask("").json()["pipelines"]
    assert (row["at_work"], row["doing"]) == (str(RUN), ["checkpoint 2: db has taken 5 of 8 rows of orders"])
