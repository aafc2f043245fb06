"""The systems that SINKS= may name: one list in the command, the judge and the example DAG."""

import sys

import pytest

from tools.demo.__main__ import _arguments
from tools.demo.copies import COPIES, PROJECT
from tools.demo.readers import READERS


def test_what_is_offered_is_delivered_and_read() -> None:
    text = (PROJECT / "dags" / "flights_everywhere.py").read_text()
    lines = text.partition("COPIES = {\n")[2].partition("}\n")[0].splitlines()
    assert [line.split('"')[1] for line in lines] == list(COPIES) == list(READERS)


def test_unknown_names_are_refused_with_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--sinks", "redis,oracle"])
    with pytest.raises(SystemExit) as refused:
        _arguments()
    assert refused.value.code == 2
    assert f"there is no oracle; choose from {' '.join(COPIES)}" in capsys.readouterr().err


def test_a_name_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["demo", "--sinks", "redis, iceberg redis"])
    assert _arguments().sinks == ["redis", "iceberg"]
