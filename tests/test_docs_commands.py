"""What pages have somebody type exists: commands with options, targets of make, extras, settings; data are valid."""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import tomllib
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from airflow_ft.protocol.errors import filled
from airflow_ft.provider_info import get_provider_info
from tests.test_docs import PROJECT, TEXT

pytestmark = pytest.mark.airflow

SHELLS = ("console", "bash")
FORMATS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
    "ini": lambda text: configparser.ConfigParser().read_string(text),
}
RUN_ELSEWHERE = {"python", "text"}
"""Blocks that tests/test_docs.py executes; blocks that show what a program prints."""


def blocks() -> Iterator[tuple[str, str, str]]:
    """Page, language, text of each block of code."""
    for name, text in TEXT.items():
        for language, block in re.findall(r"^```(\S*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            yield name, language, block


def typed() -> Iterator[tuple[str, str]]:
    """Page and line of all that is typed as it stands: lines of a shell's blocks, indented ones, examples in
    the tables of commands."""
    for name, language, block in blocks():
        if language in SHELLS:
            yield from ((name, line) for line in block.splitlines())
    for name, text in TEXT.items():
        yield from ((name, line) for line in re.findall(r"^    ((?:airflow|make|pip) .+)$", text, re.MULTILINE))
    yield from (
        ("docs/cli.md", line) for line in re.findall(r"\| `(airflow ft .+?)` \|$", TEXT["docs/cli.md"], re.MULTILINE)
    )


def mentioned(word: str) -> Iterator[tuple[str, str]]:
    """Page and text of each `word ...` within a sentence, in which arguments may be left out."""
    for name, text in TEXT.items():
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        yield from ((name, found.replace("\n", " ")) for found in re.findall(rf"`({word} [^`]+)`", prose))


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    from airflow.cli.cli_parser import get_parser

    return get_parser()


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    for name, language, block in blocks():
        assert language in {*SHELLS, *FORMATS, *RUN_ELSEWHERE}, (name, block)
        if language in FORMATS:
            FORMATS[language](block)  # raises for what is none


def test_airflow_takes_every_command_as_it_is_typed(parser: ArgumentParser, capsys: pytest.CaptureFixture[str]) -> None:
    seen = 0
    for name, line in typed():
        words = shlex.split(line, comments=True)
        if words[:1] == ["airflow"]:
            try:
                parser.parse_args(words[1:])
            except SystemExit:
                pytest.fail(f"{name}: {line}\n{capsys.readouterr().err}")
            seen += "ft" in words
    assert seen > 60


def test_every_option_of_a_command_that_a_sentence_names_exists(parser: ArgumentParser) -> None:
    seen = 0
    for name, text in mentioned("airflow ft"):
        found = parser
        for word in text.split()[1:]:
            commands = next((each for each in found._actions if isinstance(each, _SubParsersAction)), None)
            if commands is None or not re.fullmatch("[a-z-]+", word):
                break
            assert word in commands.choices, (name, text)
            found = commands.choices[word]
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", text):
            assert option in found._option_string_actions, (name, text)
            seen += 1
    assert seen > 30


def printed() -> Iterator[tuple[str, str]]:
    """Each `airflow ft ...` in a text of the package, with a value in each of its places."""
    for file in sorted((PROJECT / "airflow_ft").rglob("*.py")):
        code = file.read_text()
        if "`airflow" not in code:
            continue
        tree = ast.parse(code)
        documented = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        inner = {id(part) for node in formatted for part in ast.walk(node) if part is not node}
        for node in ast.walk(tree):
            if id(node) in documented | inner:
                continue
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            yield from ((file.name, found) for found in re.findall(r"`airflow ft [^`]+`", text))


NAMED = {
    "`airflow ft 1`",  # of an event: which command
    "`airflow ft inject-barrier`",
    "`airflow ft savepoint convert`",
    "`airflow ft savepoint dispose`",
    "`airflow ft savepoint restore`",
    "`airflow ft show`",
}
"""Commands that a text only names: what else they need is not known there."""


@pytest.mark.slow
def test_each_command_that_the_package_prints_can_be_typed(
    parser: ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what an error fills in: the names of pipeline, checkpoint and DAG file."""
    found = [(name, text) for name, text in dict.fromkeys(printed()) if text not in NAMED]
    assert len(found) > 50
    for name, text in found:
        line = filled(text, "orders", "/dags/orders.py", 7)
        try:
            parser.parse_args(shlex.split(line.strip("`"))[1:])
        except SystemExit:
            pytest.fail(f"{name}: {line}\n{capsys.readouterr().err}")


def test_make_has_every_target_with_its_variables() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    settable = set(re.findall(r"^([A-Z]+) \?=", makefile, re.MULTILINE))
    recipes = {
        found[1]: found[2]
        for found in re.finditer(r"^([a-z-]+):(.*\n(?:(?:\t|if|else|endif).*\n)*)", makefile, re.MULTILINE)
    }
    assert len(recipes) > 20
    seen = 0
    for name, line in (*typed(), *mentioned("make")):
        words = shlex.split(line, comments=True)
        if words[:1] != ["make"]:
            continue
        for word in words[1:]:
            variable, given, _ = word.partition("=")
            if not given:
                assert word in recipes, (name, line)
        targets = [word for word in words[1:] if "=" not in word] or ["help"]
        for variable in (word.partition("=")[0] for word in words[1:] if "=" in word):
            seen += 1
            assert any(f"$({variable})" in recipes[target] for target in targets) or variable in settable, (name, line)
    assert seen > 60


def test_every_extra_that_a_page_installs_exists() -> None:
    setup = configparser.ConfigParser()
    setup.read(PROJECT / "setup.cfg")
    known = set(setup["options.extras_require"])
    shelf = "docs/writing-a-sink.md"  # the page of another distribution, which has an extra `test`
    assert "\ntest = [" in (PROJECT / "examples/sinks/pyproject.toml").read_text()
    text_of_ours = [text.replace("'.[test]'", "") if name == shelf else text for name, text in TEXT.items()]
    named = [each for text in text_of_ours for each in re.findall(r"(?:airflow-ft|'\.)\[([a-z0-9,]+)\]", text)]
    assert len(named) > 8
    assert {extra for each in named for extra in each.split(",")} <= known


def test_every_setting_that_a_page_names_exists() -> None:
    known = set(get_provider_info()["config"]["airflow_ft"]["options"])
    for name, text in TEXT.items():
        named = re.findall(r"\[airflow_ft\] (\w+)", text) + re.findall(r"AIRFLOW__AIRFLOW_FT__([A-Z_]+)", text)
        assert {each.lower() for each in named} <= known, name
