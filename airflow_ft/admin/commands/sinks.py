"""`airflow ft sinks`: list the sinks and strategies that are installed."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from airflow_ft.admin.commands.common import command, print_table
from airflow_ft.sinks.registry import systems


@command
def sinks(args: Namespace) -> None:
    """`airflow ft sinks`."""
    rows: list[dict[str, Any]] = []
    for system in systems():
        lacks = f"pip install '{system.installed_by()}'" if system.missing_clients() else "yes"
        for name, strategy in system.strategies.items():
            rows.append(
                {
                    "kind": system.kind,
                    "strategy": name,
                    "promise": strategy.promise,
                    "rows_enter": strategy.enters,
                    "visible": strategy.visible,
                    "installed": lacks,
                }
            )
    print_table(rows, args.output)
