"""OpenAPI describes what the page's API answers: the page's scripts, and others' programs, are checked against it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugins.conftest import Asking
from tests.state.scene import Pipeline

pytestmark = pytest.mark.airflow

FREE = {"/v1/openapi.json", "/v1/pipelines/{name}/checkpoints/{number}/spec"}
"""What these answer has the keys that it has."""


def test_every_answer_is_described(scene: Pipeline, ask: Asking) -> None:
    answer: dict[str, Any] = ask.at("/v1/openapi.json").json()
    described = {
        path: operation["responses"]["200"]["content"]["application/json"]["schema"].get("$ref", "")
        for path, operations in answer["paths"].items()
        for operation in operations.values()
    }
    assert {path for path, name in described.items() if not name} == FREE
    pipeline = answer["components"]["schemas"]["Pipeline"]
    assert set(pipeline["required"]) == set(pipeline["properties"]) >= {"condition", "actions", "hindered", "open"}
    assert answer["components"]["schemas"]["Condition"]["enum"][:2] == ["HALTED", "QUARANTINED"]
