"""The formal models, with small bounds; `make model` takes larger ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.model.check import MODELS, RULES, Rule, Verifier, rules_of_the_models, verifier_without

DOCUMENT = Path(__file__).parents[2] / "docs" / "model.md"


@pytest.mark.sampled(among="slow checks")
@pytest.mark.parametrize("model", MODELS)
def test_no_schedule_breaks_the_protocol(model: str, tmp_path: Path) -> None:
    result = Verifier(tmp_path, model, {"CALLS": 1}).search()
    assert (result.error, result.complete) == ("", True)
    assert result.states > MODELS[model]


@pytest.mark.release  # a minute
@pytest.mark.parametrize("model", MODELS)
def test_every_schedule_ends(model: str, tmp_path: Path) -> None:
    result = Verifier(tmp_path, model, {"CALLS": 1}, large=True, endless=True).search()
    assert (result.error, result.complete) == ("", True)


@pytest.mark.sampled
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_without_the_rule_there_is_a_counterexample(rule: Rule, tmp_path: Path) -> None:
    assert verifier_without(rule, tmp_path).search().error


def test_every_rule_of_the_models_is_tried_and_documented() -> None:
    assert sorted(rules_of_the_models()) == sorted(rule.name for rule in RULES)
    text = DOCUMENT.read_text()
    assert [rule.name for rule in RULES if f"| `{rule.name}` |" not in text] == []


def test_every_test_that_the_protocol_names_is_there() -> None:
    tests = "\n".join(path.read_text() for path in DOCUMENT.parents[1].glob("tests/**/test_*.py"))
    for page in ("protocol.md", "model.md"):
        for name in re.findall(r"`(test_\w+)`", (DOCUMENT.parent / page).read_text()):
            assert f"def {name}(" in tests, name
