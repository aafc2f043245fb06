"""`airflow ft ...` by way of Airflow's own parser, over a real decision log and model sinks."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_ft.admin import documentation
from airflow_ft.admin.cli import get_ft_cli_commands
from airflow_ft.admin.commands import common
from airflow_ft.protocol.errors import (
    ConfigurationError,
)
from airflow_ft.protocol.pipelines import HaltReason
from tests.protocol.world import PIPELINE, World
from tests.raising import raises

pytestmark = pytest.mark.airflow

LISTING = {"pipelines", "checkpoints", "events", "doctor", "verify", "sessions", "in-doubt"}


@pytest.mark.slow
def test_the_documentation_is_there_without_a_log_or_a_network(
    parser: ArgumentParser, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def docs(*arguments: str) -> Any:
        args = parser.parse_args(["ft", "docs", *arguments])
        args.func(args)
        return capsys.readouterr().out

    listed = {row["page"]: row["about"] for row in json.loads(docs("-o", "json"))}
    assert next(iter(listed)) == "index"
    assert listed["kafka"] == "The Kafka sink" and listed["reference/sinks"] == "Sinks"
    text = (documentation.FOLDER / "kafka.md").read_text()
    assert docs("kafka") == docs("kafka.md") == docs("docs/kafka.md") == text
    assert "# Metrics" in docs("observability")
    reference = docs("reference/sinks")
    assert "KafkaSink(" in reference and "allow_unsafe_durability: bool = False" in reference
    assert "{eval-rst}" not in reference and "<factory>" not in docs("reference/pipelines")

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team")
    found = json.loads(docs("--search", "WHAT THE CONFORMANCE KIT TRIES", "-o", "json"))
    address = "https://airflow.example/team/airflow-ft/docs/sinks.md#what-the-conformance-kit-tries"
    assert found == [{"page": "sinks", "heading": "What the conformance kit tries", "address": address}]
    by_heading, *_ = json.loads(docs("--search", "dead letters", "-o", "json"))
    assert by_heading["heading"].lower().startswith("dead letters")
    by_words, *_ = json.loads(docs("--search", "rename pipeline", "-o", "json"))
    assert by_words["heading"] == "Rename a pipeline"
    [argument] = json.loads(docs("--search", "allow_unsafe_durability: deliver", "-o", "json"))[:1]
    assert argument["page"] == "reference/sinks" and argument["address"] is None, "the UI does not have it"
    assert "No page contains 'no suchword'" in docs("--search", "no suchword")
    monkeypatch.delenv("AIRFLOW__API__BASE_URL")
    assert {row["address"] for row in json.loads(docs("--search", "backfill", "-o", "json"))} == {None}

    for wrong, nearest in (("kafak", "'kafka'"), ("../setup", "")):
        with raises(SystemExit) as refused:
            docs(wrong)
        assert isinstance(refused.error, ConfigurationError) and nearest in refused.error.remedy
    with raises(SystemExit, "arguments_conflict"):
        docs("kafka", "--search", "x")


@pytest.mark.slow
def test_a_page_is_rendered_for_a_terminal_alone(parser: ArgumentParser) -> None:
    command = [sys.executable, "-m", "airflow", "ft", "docs", "tutorial"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"}
    ) as run:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", buffering=0) as terminal:  # EIO: the other end is shut
            while part := terminal.read(4096):
                shown += part
    assert run.returncode == 0
    assert b"\x1b[" in shown, "bold and colours"
    assert b"```" not in shown and b"Tutorial: from an empty folder" in shown


def test_what_stands_in_brackets_is_not_eaten(world: World, ft: Any, parser: ArgumentParser) -> None:
    world.stage(1)
    world.steps(world.context())
    world.store.halt(PIPELINE, HaltReason.TOKEN_LOST, "see [airflow_ft] store and [red]")
    for output in ("table", "plain", "json", "yaml"):
        assert "[airflow_ft] store and [red]" in " ".join(ft("events", PIPELINE, "-o", output).split()), output


def test_the_help_says_what_the_options_say(capsys: pytest.CaptureFixture[str], parser: ArgumentParser) -> None:
    [group] = get_ft_cli_commands()
    assert isinstance(group, GroupCommand)
    commands: list[tuple[list[str], ActionCommand]] = []
    for found in group.subcommands:
        if isinstance(found, GroupCommand):
            commands += [
                ([found.name, each.name], each) for each in found.subcommands if isinstance(each, ActionCommand)
            ]
        else:
            assert isinstance(found, ActionCommand)
            commands.append(([found.name], found))
    for names, command in commands:
        with pytest.raises(SystemExit):
            parser.parse_args(["ft", *names, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        for arg in command.args:
            said = " ".join(str(arg.kwargs["help"]).replace("\\[", "[").split())
            assert said in text, (command.name, said)
            assert "airflow_ft] " not in said or "[airflow_ft] " in text
        assert "--output" in text or command.name not in LISTING


@pytest.mark.parametrize("command", [("pipelines",), ("checkpoints", "orders"), ("in-doubt",), ("recover", "orders")])
def test_a_misspelled_log_is_not_made(tmp_path: Path, parser: ArgumentParser, command: tuple[str, ...]) -> None:
    args = parser.parse_args(["ft", *command, "--store", f"sqlite:///{tmp_path}/nowhere/ft.db"])
    with raises(SystemExit, "store_file_missing", store=f"sqlite:///{tmp_path}/nowhere/ft.db"):
        args.func(args)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    "command",
    [
        ("pipelines",),
        ("doctor", "orders"),
        ("savepoint", "restore", "/s", "--yes"),
        ("dry-run", "orders", "--dag", "f"),
    ],
)
def test_a_password_on_the_command_line_is_refused(parser: ArgumentParser, command: tuple[str, ...]) -> None:
    args = parser.parse_args(["ft", *command, "--store", "postgresql://me:secret-word@127.0.0.1:1/log"])
    with raises(SystemExit, "password_visible", argument="store") as caught:
        args.func(args)
    assert "secret-word" not in f"{caught.value}"


def test_a_misspelled_folder_of_savepoints_is_told(tmp_path: Path, parser: ArgumentParser) -> None:
    args = parser.parse_args(["ft", "savepoint", "list", "--dir", str(tmp_path / "nowhere")])
    with raises(SystemExit, "folder_missing"):
        args.func(args)


def test_every_command_that_shows_something_has_an_output_format() -> None:
    [group] = get_ft_cli_commands()
    assert isinstance(group, GroupCommand)
    flat = [
        each
        for found in group.subcommands
        for each in (found.subcommands if isinstance(found, GroupCommand) else (found,))
        if isinstance(each, ActionCommand)
    ]
    shows = re.compile("List|Show|Print|Check|Compare|Compute what|Read|Create what|Query")
    lacking = [each.name for each in flat if shows.match(each.help) and not any("-o" in a.flags for a in each.args)]
    assert lacking == []


def test_of_many_pipelines_the_three_closest_names_are_told(world: World, ft: Any) -> None:
    for name in [PIPELINE, *(f"pipeline-{number}" for number in range(50)), "order-items"]:
        world.store.register(name)
    with raises(SystemExit) as caught:
        ft("checkpoints", "order")
    remedy = caught.error.remedy if caught.error else ""
    assert "orders" in remedy and "order-items" in remedy and "pipeline-1" not in remedy
    with raises(SystemExit) as caught:
        ft("checkpoints", "zzz")
    remedy = caught.error.remedy if caught.error else ""
    assert "`airflow ft pipelines`" in remedy and "orders" not in remedy


def test_unknown_names_are_told_with_the_known_ones(world: World, ft: Any) -> None:
    world.store.register(PIPELINE)
    with raises(SystemExit) as caught:
        ft("show", PIPELINE, "9")
    assert caught.error is not None and caught.error.checkpoint == 9
    for given in (
        ["checkpoints", "no-such"],
        ["inject-barrier", "b", "no-such"],
        ["savepoint", "restore", "beginning", "--pipeline", "no-such", "--yes"],
        ["state", "show", "no-such"],
    ):
        with raises(SystemExit) as caught:
            ft(*given)
        assert caught.error is not None and PIPELINE in caught.error.remedy and "--store" in caught.error.remedy
    with raises(SystemExit, "argument_missing", argument="--pipeline"):
        ft("savepoint", "restore", "beginning", "--yes")
    with raises(SystemExit, "argument_missing", argument="--dag") as caught:
        ft("dry-run", PIPELINE)
    assert caught.error is not None and "airflow_ft.dry_run" in caught.error.remedy
    with pytest.raises(SystemExit) as ended:
        ft("doctor", "no-such")
    assert ended.value.code == 1
    with raises(SystemExit, "dag_file_invalid", path=str(world.folder)):
        ft("dry-run", PIPELINE, "--dag", str(world.folder))


@pytest.mark.parametrize(
    "given",
    [
        ["checkpoints", PIPELINE, "--limit", "-1"],
        ["events", PIPELINE, "0"],
        ["show", PIPELINE, "one"],
        ["stop", PIPELINE, "--wait", "nan"],
        ["recover", PIPELINE, "--min-age", "-1"],
        ["pipelines", "--no-such-option"],
    ],
)
def test_what_no_command_takes_ends_with_status_2(ft: Any, given: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        ft(*given)
    assert refused.value.code == 2


def test_a_closed_output_pipe_ends_a_command_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(SystemExit) as ended:
            common.command(lambda _: common.say("x" * 100_000))(Namespace())
    assert ended.value.code == 1
