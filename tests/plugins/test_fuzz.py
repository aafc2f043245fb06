"""Whatever is asked of the API, the answer is one of its own: a value, or a JSON `detail` in words; never a 500."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.airflow

EDGES = [0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63) - 1, 10**40]
NUMBERS = st.one_of(st.integers(-5, 20), st.sampled_from(EDGES)).map(str)
WORDS = st.one_of(
    st.sampled_from(["orders", "", "1", "null", "COMPLETED", "../..", "a/b", "%", "'", "\x00", "\ud800", "🙂" * 30]),
    st.text(max_size=20),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(EDGES) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def encoded(text: str) -> bytes:
    """Also what is no UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def value(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """Mostly of the type that the description demands."""
    kinds = json.dumps(schema)
    fitting = NUMBERS if '"integer"' in kinds else WORDS
    return st.one_of(fitting, fitting, fitting, WORDS | NUMBERS)


@st.composite
def asked(draw: Callable[..., Any], description: dict[str, Any]) -> tuple[str, str, bytes | None]:
    """A method, a path with its question, and a body."""
    path, methods = draw(st.sampled_from(sorted(description["paths"].items())))
    method, operation = draw(st.sampled_from(sorted(methods.items())))
    question = []
    for parameter in operation.get("parameters", ()):
        given_ = draw(value(parameter["schema"]))
        if parameter["in"] == "path":
            # A name that is there is what leads furthest.
            known = "orders" if parameter["name"] == "name" and draw(st.integers(0, 4)) else given_
            path = path.replace(f"{{{parameter['name']}}}", quote(encoded(known), safe=""))
        elif parameter["in"] == "query" and draw(st.booleans()):
            question.append((parameter["name"], encoded(given_)))
    body = None
    if "requestBody" in operation:
        fields = {"operator": WORDS | NUMBERS, "key": st.lists(WORDS | NUMBERS, max_size=3), "at": st.integers()}
        whole = st.fixed_dictionaries({}, optional={**fields, "state": WORDS | st.none(), "more": ANYTHING})
        body = draw(
            st.one_of(whole, whole, ANYTHING).map(lambda each: json.dumps(each).encode()) | st.binary(max_size=20)
        )
    return method, f"{path}?{urlencode(question)}", body


def test_every_answer_is_the_apis_own(ask: Any) -> None:
    client = ask._client
    description = client.app.openapi()
    statuses = set()

    @settings(max_examples=400, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(asked(description))
    def look(question: tuple[str, str, bytes | None]) -> None:
        method, path, body = question
        ask._manager.user("viewer", "shop")
        answer = client.request(method, path, content=body, headers={"Content-Type": "application/json"})
        statuses.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        assert "Traceback" not in answer.text
        if answer.status_code != 304:
            told = answer.json()
            assert answer.status_code < 400 or told["detail"], "an error says what is wrong"

    look()
    assert {200, 404, 422} <= statuses, "the questions lead nowhere"
