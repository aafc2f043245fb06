"""`airflow ft state ...`: what a pipeline's operators know, while it runs or not."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from airflow_ft import state as states
from airflow_ft.admin.commands.common import Size, command, location, open_store, print_table, say
from airflow_ft.protocol.errors import ConfigurationError
from airflow_ft.protocol.numbers import count_text
from airflow_ft.state.export import plain
from airflow_ft.state.handle import State
from airflow_ft.state.texts import key_of


@command
def show(args: Namespace) -> None:
    """`airflow ft state show PIPELINE`."""
    with _open(args) as found:
        rows = [
            {
                "operator": operator.id,
                "name": operator.uid or operator.name,
                "state": each.name,
                "kind": each.shape.value,
                "key": ", ".join(column.text for column in each.key),
                "value": ", ".join(column.text for column in each.value_columns),
                "keys": found.count(operator.id, each.name),
                "partitions": operator.partitions,
                "size of operator": Size(operator.bytes),
            }
            for operator in found.operators()
            for each in found.states(operator.id)
        ]
        if args.output == "table":
            say(f"{found.pipeline} as of {found.label}")
        print_table(rows, args.output)


@command
def get(args: Namespace) -> None:
    """`airflow ft state get PIPELINE OPERATOR [KEY ...]`: JSON, or YAML; status 1 when there is no such key."""
    with _open(args) as found:
        tables = found.states(args.operator)
        if not tables:
            raise ConfigurationError(
                f"operator {args.operator} has no state that can be queried.",
                code="state_unknown",
                remedy=f"List the operators with state: `airflow ft state show {found.pipeline}`.",
                pipeline=found.pipeline,
                operator=args.operator,
            )
        value = found.get(args.operator, key_of(tables[0].key, args.key), args.state)
        if value is None:
            raise ConfigurationError(
                f"operator {args.operator} has no state for this key as of {found.label}.",
                code="key_unknown",
                remedy="Give the key as the job groups by it. `airflow ft state show` lists the key columns.",
                pipeline=found.pipeline,
                operator=args.operator,
            )
        if found.restored:
            sys.stderr.write(f"{found.pipeline} as of {found.label}\n")
        if args.output == "yaml":
            print_table([plain(each) for each in (value if isinstance(value, list) else [value])], args.output)
        else:
            say(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))


@command
def export(args: Namespace) -> None:
    """`airflow ft state export PIPELINE OPERATOR FILE`."""
    path = Path(args.file).expanduser().absolute()
    with _open(args) as found:
        entries = found.export(args.operator, path, args.state)
        say(f"{count_text(entries, 'entry', 'entries')} as of {found.label}: {path}")


@command
def changes(args: Namespace) -> None:
    """`airflow ft state changes PIPELINE OPERATOR --since NUMBER`: a line of JSON for each key, or one list of them."""
    with _open(args) as found:
        if args.output in ("json", "yaml"):
            print_table(
                [plain(each) for each in found.changes(args.operator, args.since, state=args.state)], args.output
            )
            return
        for each in found.changes(args.operator, args.since, state=args.state):
            say(json.dumps(plain(each), ensure_ascii=False, allow_nan=False))


@contextmanager
def _open(args: Namespace) -> Iterator[State]:
    """Open the state of a pipeline, or of a savepoint's folder: a name of a pipeline has no slash."""
    if "/" in args.pipeline:
        with states.open_savepoint(location(args.pipeline)) as found:
            if args.at not in (None, found.number):
                raise ConfigurationError(
                    f"the savepoint has checkpoint {found.number} only, not {args.at}.",
                    code="checkpoint_unknown",
                    remedy="Remove --at or --until.",
                    value=args.at,
                    found=found.number,
                )
            yield found
        return
    with (
        open_store(args) as store,
        states.open(args.pipeline, store=store, at=args.at) as found,
    ):
        yield found
