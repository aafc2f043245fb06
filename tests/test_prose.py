"""The check of English that `make lint` runs."""

from pathlib import Path

import pytest

from tools import prose


def test_code_links_and_tables_do_not_join_sentences() -> None:
    text = "# Title\n\nOne `a. B` [two](x.md). Three:\n\n```python\nx. Y\n```\n\n| four | five |\n| --- | --- |\n"
    assert prose.sentences(text) == ["Title", "One Code two.", "Three:", "four", "five"]


@pytest.mark.parametrize("sentence", ["It is told.", "It goes on anew.", "Whoever asks", "so many rows"])
def test_dialect_is_found(sentence: str) -> None:
    assert prose.DIALECT.search(sentence)


@pytest.mark.parametrize("sentence", ["It continues.", "The log says so as often as needed.", "standard"])
def test_plain_words_are_not_dialect(sentence: str) -> None:
    assert not prose.DIALECT.search(sentence)


def test_long_names_of_tests_are_found() -> None:
    names = [("test a.py:1", "test " + "n" * 55), ("test a.py:2", "test " + "n" * 56)]
    assert prose._faults(names)["name"] == [f"test a.py:2: {names[1][1]}"]


def test_counts_may_only_fall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["It continues.", "It goes on."]
    monkeypatch.setattr(prose, "LIMITS", tmp_path / "prose.json")
    monkeypatch.setattr(prose, "areas", lambda: {"docs": iter([("page", texts[-1])])})
    assert prose.main([]) == 1
    assert "docs: 1 dialect, at most 0 allowed" in capsys.readouterr().out
    assert prose.main(["--lower"]) == 0 and prose.main([]) == 0
    texts.append("It continues.")
    assert prose.main(["--lower"]) == 0 and prose.main([]) == 0
    texts.append("It goes on.")
    assert prose.main(["--lower"]) == 0 and prose.main([]) == 1
