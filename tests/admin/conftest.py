"""`airflow ft ...` by way of Airflow's own parser, over a real decision log and model sinks."""

from __future__ import annotations

from argparse import ArgumentParser
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from airflow_ft.sinks import registry
from tests.protocol.systems import SYSTEM, Systems
from tests.protocol.world import World


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    from airflow.cli.cli_parser import get_parser

    return get_parser()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setattr("airflow_ft.admin.commands.common.participant_factory", lambda _: Systems(world.systems))
    entry = EntryPoint(SYSTEM.kind, "tests.protocol.systems:SYSTEM", registry.GROUP)
    monkeypatch.setattr(registry, "_ours", lambda: {SYSTEM.kind: entry})
    return world


@pytest.fixture
def ft(world: World, parser: ArgumentParser, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command; returns what it printed."""

    def run(*arguments: str) -> str:
        args = parser.parse_args(["ft", *arguments, "--store", f"sqlite:///{world.folder}/ft.db"])
        args.func(args)
        return capsys.readouterr().out

    return run
