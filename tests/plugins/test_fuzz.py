"""Whatever is asked of the API, the answer is one of its own: a value, or a JSON `detail` in words; never a 500."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

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


WHO = [("viewer", "shop"), ("user", "shop"), ("admin", None), ("viewer", "another"), ("user", None), (None, "shop")]
"""Role and team: those who may see the pipeline, or even act on it, and strangers."""
OTHERS = ["/{script}.js", "/docs/{page}", "/docs/images/{picture}", "/docs/observability/{name}", "/v1/openapi.json"]
"""Paths that the description leaves out."""
TAGS = st.lists(st.sampled_from(['"a"', 'W/"b"', "*", "", '"', "\xff", '"' + "0" * 32 + '"']) | st.text("a\t;'\"")).map(
    lambda tags: ", ".join(tags).encode("latin-1")
)
"""What the client says it has."""


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
    if not draw(st.integers(0, 9)):
        other = re.sub(r"{\w+}", lambda _: quote(encoded(draw(WORDS)), safe="/"), draw(st.sampled_from(OTHERS)))
        return draw(st.sampled_from(["get", "head", "post"])), other, None
    path, methods = draw(st.sampled_from(sorted(description["paths"].items())))
    method, operation = draw(st.sampled_from(sorted(methods.items())))
    if not draw(st.integers(0, 9)):
        method = draw(st.sampled_from(["head", "options", "put", "delete"]))
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
    @given(asked(description), st.one_of(st.just(WHO[0]), st.sampled_from(WHO)), TAGS)
    def look(question: tuple[str, str, bytes | None], who: tuple[str, str | None], tags: bytes) -> None:
        method, path, body = question
        ask._manager.user(*who)
        headers = {b"Content-Type": b"application/json", b"If-None-Match": tags}
        answer = client.request(method, path, content=body, headers=headers)
        statuses.add(answer.status_code)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        assert "Traceback" not in answer.text
        assert answer.status_code != 200 or who[0] is not None, "somebody without a role was answered"
        if "json" in answer.headers.get("Content-Type", "") and method != "head":
            page = answer.json()
            assert answer.status_code < 400 or page["detail"], "an error says what is wrong"

    look()
    assert {200, 403, 404, 405, 422} <= statuses, "the questions lead nowhere"
