"""Topics that seem to be others than the rows were delivered into."""

from contextlib import nullcontext
from typing import Any

import pytest

from airflow_ft.clients.kafka import topics
from airflow_ft.protocol.errors import SinkAccessError, TokenLostError
from airflow_ft.sinks.kafka.readable import require_same_topics


class Clients:
    conn_id = "kafka"

    class settings:
        token_topic = "tokens"


@pytest.mark.parametrize(
    ("answers", "raises"),
    [
        (["new"], None),
        (["old", "new"], None),
        ([None, "new"], None),
        (["old", "old"], TokenLostError),
        ([None, "old"], TokenLostError),
        ([None, None], SinkAccessError),
    ],
)
def test_a_broker_that_lags_loses_no_token(
    answers: list[str | None], raises: type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline would be HALTED for it, until somebody has looked at the topic."""
    clients: Any = Clients
    left = list(answers)
    monkeypatch.setattr(topics, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(topics, "topic_ids", lambda _, names: {name: left.pop(0) for name in names})
    with pytest.raises(raises) if raises else nullcontext():
        require_same_topics(clients, {"orders": "new"})
    assert not left
